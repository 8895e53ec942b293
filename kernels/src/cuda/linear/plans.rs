//! cublasLt's algorithms, chosen once for each weight shape and class of rows: the library's favourite for the class, of those that
//! give a row the same bits as the first class does. No clock is asked, so that every process on a GPU of one kind chooses alike.

mod trial;

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Range;

use cudarc::cublaslt::{result, sys};

use super::super::device::{Device, DeviceBuffer, device_error};
use super::product::{Key, Operands};
use super::{few, few_hopper};
use crate::KernelError;
use trial::Trial;

/// Bytes that a product may use beside its operands.
static WORKSPACE: usize = 32 << 20;
/// Upper ends of the classes of rows, and row counts whose bits are compared: the second is what the library is asked for. What it
/// likes best for that of the first class gives the bits.
const CLASSES: [(usize, [usize; 3]); 6] = [
    (usize::MAX, [1025, 8192, 8704]),
    (1024, [257, 512, 1024]),
    (256, [129, 256, 256]),
    (128, [65, 128, 128]),
    (64, [17, 64, 64]),
    (few::FEW_PRODUCT_ROWS, [1, 8, few::FEW_PRODUCT_ROWS]),
];
/// Algorithms asked for by class.
const ASKED: usize = 12;
/// What was chosen for a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductChoice {
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Most rows it is used for.
    pub rows: usize,
    /// Those tried before it, which give a row other bits or cannot run here.
    pub passed: usize,
    /// The library's configuration of the one taken; `None`: the own kernel for few rows.
    pub taken: Option<[u64; 8]>,
}

type Algorithm = sys::cublasLtMatmulAlgo_t;

/// Who multiplies.
#[derive(Clone, Copy)]
pub enum ProductPath {
    Library(Algorithm),
    Few,
}

pub struct Plans {
    handle: sys::cublasLtHandle_t,
    workspace: DeviceBuffer,
    /// `None`: the library has none.
    ways: HashMap<(Key, usize), Option<(ProductPath, ProductChoice)>>,
}

// SAFETY: the handle is used by one thread at a time, behind the mutex of the owner.
unsafe impl Send for Plans {}

impl Drop for Plans {
    fn drop(&mut self) {
        // SAFETY: the handle was made by `open` and is not used again.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Descriptions of one call's operands.
struct ProductCall {
    product: sys::cublasLtMatmulDesc_t,
    /// Of the weight, the rows, and what comes out.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
}

impl Drop for ProductCall {
    fn drop(&mut self) {
        // SAFETY: all were created by `ProductCall::new`.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

fn failed(error: result::CublasError) -> KernelError {
    device_error("linear", error)
}

impl ProductCall {
    fn new(key: Key, rows: usize, operands: Operands) -> Result<Self, result::CublasError> {
        let (n, k, rows) = (key.n as u64, key.k as u64, rows as u64);
        let pitch = if operands.pitch == 0 { key.n } else { operands.pitch };
        let bf16 = sys::cudaDataType::CUDA_R_16BF;
        let read = if key.eight { sys::cudaDataType::CUDA_R_8F_E4M3 } else { bf16 };
        let f32 = sys::cudaDataType::CUDA_R_32F;
        // Column-major: out (n, rows) = weight (k, n)^T x (k, rows).
        let call = Self {
            product: result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, f32)?,
            layouts: [
                result::create_matrix_layout(read, k, n, k as i64)?,
                result::create_matrix_layout(read, k, rows, k as i64)?,
                result::create_matrix_layout(bf16, n, rows, pitch as i64)?,
            ],
        };
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        call.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &1i32)?;
        if key.bias {
            call.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
            call.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias)?;
        }
        if key.eight {
            let each = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            let [rows, outputs] = operands.scales;
            call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &each)?;
            call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &each)?;
            call.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &outputs)?;
            call.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &rows)?;
            call.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &1i8)?;
        }
        Ok(call)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), result::CublasError> {
        let value: *const T = value;
        // SAFETY: the description is live and `value` is of the attribute's type and size.
        unsafe { result::set_matmul_desc_attribute(self.product, attribute, value.cast(), size_of::<T>()) }
    }
}

impl Plans {
    /// Opens the library; `None` where there is none.
    pub fn open(device: &Device) -> Result<Option<Self>, KernelError> {
        // SAFETY: this only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        device.context().bind_to_thread().map_err(|error| device_error("linear", error))?;
        let handle = result::create_handle().map_err(failed)?;
        Ok(Some(Self { handle, workspace: device.alloc(WORKSPACE)?, ways: HashMap::new() }))
    }

    pub fn choices(&self) -> Vec<ProductChoice> {
        let mut choices: Vec<ProductChoice> = self.ways.values().flatten().map(|(_, choice)| choice.clone()).collect();
        choices.sort_by_key(|choice| (choice.n, choice.k, choice.rows));
        choices
    }

    /// Whether the library has an algorithm for so many rows.
    pub fn takes(&mut self, device: &Device, key: Key, rows: usize) -> Result<bool, KernelError> {
        device.context().bind_to_thread().map_err(|error| device_error("linear", error))?;
        let class = class_of(rows);
        if !self.ways.contains_key(&(key, class)) {
            let chosen = self.choose(device, key, class)?;
            self.ways.insert((key, class), chosen);
        }
        Ok(self.ways[&(key, class)].is_some())
    }

    /// Queues a product; there must be an algorithm that takes it.
    pub fn run(&mut self, device: &Device, key: Key, rows: usize, operands: Operands) -> Result<(), KernelError> {
        if !self.takes(device, key, rows)? {
            let cause = format!("cublasLt offers no algorithm for ({}, {}) without a split sum", key.n, key.k);
            return Err(device_error("linear", cause));
        }
        let way = self.ways[&(key, class_of(rows))].as_ref().expect("it takes it").0;
        self.go(device, way, (key, rows), operands)
    }

    /// Whether the own kernel gives a row the bits that the library does, in this product.
    pub fn takes_few(&mut self, device: &Device, key: Key) -> Result<bool, KernelError> {
        let takes = self.takes(device, key, few::FEW_PRODUCT_ROWS)?;
        let few = class_of(few::FEW_PRODUCT_ROWS);
        Ok(takes && matches!(self.ways[&(key, few)], Some((ProductPath::Few, _))))
    }

    /// Queues some outputs of a product of few rows, with gates or without, where the own kernel was chosen for it; says whether
    /// it was.
    pub fn run_few(
        &mut self,
        device: &Device,
        key: Key,
        (rows, gated): (usize, bool),
        operands: Operands,
        outputs: Range<usize>,
    ) -> Result<bool, KernelError> {
        let own = rows <= few::FEW_PRODUCT_ROWS && few::divides(&outputs, gated) && self.takes_few(device, key)?;
        if own {
            few::multiply(device, key, (rows, gated), operands, outputs)?;
        }
        Ok(own)
    }

    fn go(
        &self,
        device: &Device,
        way: ProductPath,
        (key, rows): (Key, usize),
        operands: Operands,
    ) -> Result<(), KernelError> {
        match way {
            ProductPath::Few if few::takes(key, rows) => few::multiply(device, key, (rows, false), operands, 0..key.n),
            ProductPath::Few => few_hopper::multiply(device, key, rows, operands),
            ProductPath::Library(algorithm) => {
                let call = ProductCall::new(key, rows, operands).map_err(failed)?;
                self.multiply(device, &call, &algorithm, operands).map_err(failed)
            }
        }
    }

    /// The first for a class of rows, in the library's order, of those that give a row the bits of the first class's favourite.
    /// The own kernel comes before all: few rows are read at the memory's speed by it.
    fn choose(
        &self,
        device: &Device,
        key: Key,
        class: usize,
    ) -> Result<Option<(ProductPath, ProductChoice)>, KernelError> {
        let (end, counts) = CLASSES[class];
        // What is not supported at all is refused with an error.
        let offers = CLASSES.map(|(_, [_, rows, _])| self.offers(key, rows).unwrap_or_default());
        let Some(first) = offers.iter().flatten().next().copied().map(ProductPath::Library) else { return Ok(None) };
        let run = |way, rows, operands| self.go(device, way, (key, rows), operands);
        let trial = Trial::new(device, (key, counts[2]), |rows, operands| run(first, rows, operands))?;
        let takes = few::takes(key, end) || few_hopper::takes(device, key, end);
        let own = takes.then_some(ProductPath::Few);
        let mut liked: Vec<Algorithm> = Vec::new();
        for offer in offers[class].iter().chain(offers.iter().flatten()) {
            if liked.iter().all(|known| known.data != offer.data) {
                liked.push(*offer);
            }
        }
        let mut tried = own.into_iter().chain(liked.into_iter().map(ProductPath::Library)).enumerate();
        let agrees = |way| -> Result<bool, KernelError> {
            counts.iter().try_fold(true, |so_far, rows| {
                Ok(so_far && trial.agrees(device, *rows, |rows, operands| run(way, rows, operands))?)
            })
        };
        let equal = tried.find_map(|(passed, way)| agrees(way).map(|equal| equal.then_some((passed, way))).transpose());
        let (passed, way) = equal.transpose()?.unwrap_or((0, first));
        let taken = match way {
            ProductPath::Library(algorithm) => Some(algorithm.data),
            ProductPath::Few => None,
        };
        Ok(Some((way, ProductChoice { n: key.n, k: key.k, rows: end, passed, taken })))
    }

    /// Algorithms for so many rows that keep each output's sum in one piece, the library's favourite first.
    fn offers(&self, key: Key, rows: usize) -> Result<Vec<Algorithm>, result::CublasError> {
        let some = 0x100;
        let operands =
            Operands { x: some, weight: some, scales: [some; 2], bias: some, residual: some, out: some, pitch: 0 };
        let call = ProductCall::new(key, rows, operands)?;
        let preference = result::create_matmul_pref()?;
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preference is live and each value is of its attribute's size.
            unsafe { result::set_matmul_pref_attribute(preference, attribute, value, bytes) }
        };
        set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const WORKSPACE).cast(), 8)?;
        let whole = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32;
        set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const whole).cast(), 4)?;
        let aligned = 16u32;
        for attribute in [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            set(attribute, (&raw const aligned).cast(), 4)?;
        }
        let mut found = [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit() }; ASKED];
        let mut count = 0;
        let [weight, x, out] = call.layouts;
        // SAFETY: all descriptions are live; `found` has room for as many as are asked for.
        let status = unsafe {
            let found = found.as_mut_ptr().cast();
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                call.product,
                weight,
                x,
                out,
                out,
                preference,
                ASKED as i32,
                found,
                &mut count,
            )
        };
        // SAFETY: it was created above.
        unsafe { result::destroy_matmul_pref(preference)? };
        status.result()?;
        // SAFETY: the first `count` were written.
        let found = found[..count as usize].iter().map(|found| unsafe { found.assume_init() });
        let usable = found.filter(|found| found.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(usable.map(|found| found.algo).filter(|algorithm| splits(algorithm) <= 1).collect())
    }

    fn multiply(
        &self,
        device: &Device,
        call: &ProductCall,
        algorithm: &Algorithm,
        operands: Operands,
    ) -> Result<(), result::CublasError> {
        let (one, add) = (1f32, if operands.residual == 0 { 0f32 } else { 1f32 });
        let read = if operands.residual == 0 { operands.out } else { operands.residual };
        let [weight, x, out] = call.layouts;
        let pointer = |at: u64| at as *const c_void;
        // SAFETY: the descriptions tell the operands' shapes; these are live device memory in the order of this stream.
        unsafe {
            sys::cublasLtMatmul(
                self.handle,
                call.product,
                (&raw const one).cast(),
                pointer(operands.weight),
                weight,
                pointer(operands.x),
                x,
                (&raw const add).cast(),
                pointer(read),
                out,
                operands.out as *mut c_void,
                out,
                algorithm,
                self.workspace.pointer as *mut c_void,
                WORKSPACE,
                device.stream().cu_stream().cast(),
            )
        }
        .result()
    }
}

fn class_of(rows: usize) -> usize {
    CLASSES.iter().rposition(|(end, _)| rows <= *end).expect("the first class has no end")
}

/// Pieces that an algorithm cuts its sums into.
fn splits(algorithm: &Algorithm) -> i32 {
    let (mut splits, mut written) = (0i32, 0usize);
    let attribute = sys::cublasLtMatmulAlgoConfigAttributes_t::CUBLASLT_ALGO_CONFIG_SPLITK_NUM;
    // SAFETY: the attribute is a 4-byte number.
    let status = unsafe {
        let to = (&raw mut splits).cast();
        sys::cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, to, 4, &mut written)
    };
    if status.result().is_ok() { splits } else { i32::MAX }
}
