//! Where rows of heads lie in device memory, and maps of that for the tensor copy engine of Hopper. Copies nothing.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;

use cudarc::driver::sys;

use crate::KernelError;

/// Maps kept; beyond, all are dropped and encoded again as they are asked for.
const MAPS_KEPT: usize = 1 << 16;
/// Columns of what is copied at a time, as the kernels have it.
const BOX_COLUMNS: u32 = 64;
/// Heads and rows of it where keys or values are copied.
pub const KEY_BOX: [u32; 2] = [1, 64];

/// Where heads and rows of a `(heads, rows, dim)` tensor lie, in elements. As the kernels declare it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    pub head: i64,
    pub row: i64,
}

impl Strides {
    /// Of `(rows, heads, dim)`.
    pub fn by_rows(heads: usize, dim: usize) -> Self {
        Self { head: dim as i64, row: (heads * dim) as i64 }
    }
}

/// How keys or values lie, as the driver encodes it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Map([u64; 16]);

impl Map {
    /// As it lies in memory.
    pub fn bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        let words = bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0);
        words.for_each(|(to, word)| *to = word.to_ne_bytes());
        bytes
    }
}

/// What a map is of: a map is a function of it alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lies {
    pub pointer: u64,
    pub sizes: [usize; 3],
    pub at: Strides,
    /// Heads and rows copied at a time.
    pub copied: [u32; 2],
}

/// Maps encoded so far of what keeps none itself.
#[derive(Default)]
pub struct Maps(Mutex<HashMap<Lies, Map>>);

impl Maps {
    /// The map, known or encoded now.
    pub fn find(&self, of: Lies) -> Result<Map, KernelError> {
        let mut known = self.0.lock().expect("no panic holds it");
        if let Some(map) = known.get(&of) {
            return Ok(*map);
        }
        if known.len() >= MAPS_KEPT {
            known.clear();
        }
        let map = encode(of)?;
        known.insert(of, map);
        Ok(map)
    }
}

/// A map of `(heads, rows, dim)` bf16, from which panels are copied to swizzled rows; beyond its ends are zeros.
pub fn encode(Lies { pointer, sizes: [heads, rows, dim], at, copied }: Lies) -> Result<Map, KernelError> {
    let sizes = [dim, rows, heads].map(|size| size.max(1) as u64);
    let strides = [at.row, at.head].map(|stride| 2 * stride.max(8) as u64);
    let mut map = MaybeUninit::<sys::CUtensorMap>::uninit();
    use sys::{
        CUtensorMapDataType_enum as Type, CUtensorMapFloatOOBfill_enum as Beyond,
        CUtensorMapInterleave_enum as Interleave, CUtensorMapL2promotion_enum as Promotion,
        CUtensorMapSwizzle_enum as Swizzle,
    };
    // SAFETY: the call writes the map; sizes, strides and the box are of three dimensions. It touches no device memory.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            3,
            pointer as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            [BOX_COLUMNS, copied[1], copied[0]].as_ptr(),
            [1u32; 3].as_ptr(),
            Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            Beyond::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(|error| KernelError::Device { operation: "tensor map", cause: error.to_string() })?;
    // SAFETY: the call succeeded.
    Ok(Map(unsafe { map.assume_init() }.opaque))
}
