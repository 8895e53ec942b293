//! Calls as Hopper's kernels want them: with maps of their keys and values for the tensor copy engine.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;

use cudarc::driver::sys;

use super::super::device::{Device, device_error};
use super::super::tensor::{Strides, View};
use super::own::Tiled;
use crate::KernelError;

/// Maps kept; beyond, all are dropped and encoded again as they are asked for.
const KEPT: usize = 1 << 16;
/// Rows and columns of what is copied at a time, as the kernels have it.
const PANEL: [u32; 3] = [64, 64, 1];

/// How keys or values lie, as the driver encodes it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Map([u64; 16]);

/// As `hopper.cu` declares it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Mapped {
    maps: [Map; 2],
    call: Tiled,
    settled: u64,
    unused: [u64; 2],
}

impl Mapped {
    /// A call and the maps of its keys and values.
    pub fn of(call: Tiled, Laid { maps, settled }: Laid) -> Self {
        Self { maps, call, settled: u64::from(settled), unused: [0; 2] }
    }
}

/// Maps of keys and values, and whether these were written by none of what the launch behind may overlap.
#[derive(Clone, Copy)]
pub struct Laid {
    maps: [Map; 2],
    settled: bool,
}

const _: () = assert!(size_of::<Mapped>() == 448, "without gaps");

/// What a map is of: a map is a function of it alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Lies {
    pointer: u64,
    sizes: [usize; 3],
    at: Strides,
}

/// Maps encoded so far of what keeps none itself.
#[derive(Default)]
pub struct Maps(Mutex<HashMap<Lies, Map>>);

impl Maps {
    fn find(&self, of: Lies) -> Result<Map, KernelError> {
        let mut known = self.0.lock().expect("no panic holds it");
        if let Some(map) = known.get(&of) {
            return Ok(*map);
        }
        if known.len() >= KEPT {
            known.clear();
        }
        let map = encode(of)?;
        known.insert(of, map);
        Ok(map)
    }
}

impl Device {
    /// Maps of keys and values, where there is a kernel that wants them.
    pub(in super::super) fn laid(&self, keys: [View<'_>; 2]) -> Result<Option<Laid>, KernelError> {
        if !self.is_hopper() {
            return Ok(None);
        }
        let map = |of: View<'_>| {
            let lies = Lies { pointer: of.pointer, sizes: [of.heads, of.rows, of.dim], at: of.at };
            match of.map.map(|kept| (kept, kept.get())) {
                None => self.known_maps().find(lies),
                Some((_, Some(map))) => Ok(*map),
                Some((kept, None)) => encode(lies).map(|map| *kept.get_or_init(|| map)),
            }
        };
        let [k, v] = keys;
        let settled = [k, v].iter().all(|of| self.queue().is_done(of.written));
        Ok(Some(Laid { maps: [map(k)?, map(v)?], settled }))
    }
}

/// A map of `(heads, rows, dim)` bf16, from which panels are copied to swizzled rows; beyond its ends are zeros.
fn encode(Lies { pointer, sizes: [heads, rows, dim], at }: Lies) -> Result<Map, KernelError> {
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
            PANEL.as_ptr(),
            [1u32; 3].as_ptr(),
            Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            Beyond::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(|error| device_error("tensor map", error))?;
    // SAFETY: the call succeeded.
    Ok(Map(unsafe { map.assume_init() }.opaque))
}
