//! What a kernel can refuse.

use thiserror::Error;

/// A kernel was given operands it cannot take, or the device failed.
#[derive(Debug, Error)]
pub enum KernelError {
    /// Operand shapes do not fit the operation.
    #[error("{operation}: expected {expected}, got {got}")]
    Shape {
        /// The operation, such as `linear`.
        operation: &'static str,
        /// The shapes it takes.
        expected: String,
        /// The shapes it got.
        got: String,
    },
    /// An element type the operation does not take.
    #[error("{operation}: cannot take elements of type {got:?}")]
    DType {
        /// The operation.
        operation: &'static str,
        /// The type it got.
        got: crate::DType,
    },
    /// A kernel set was forced that this machine lacks.
    #[error("the {wanted} kernels need {needs}, which this machine does not have; choose \"auto\"")]
    Unsupported {
        /// The kernel set named.
        wanted: &'static str,
        /// What they need.
        needs: &'static str,
    },
    /// A name that is no kernel set.
    #[error("no kernels are called \"{got}\"; choose auto, portable, avx2, avx512, avx512-bf16 or amx")]
    UnknownKernels {
        /// The name given.
        got: String,
    },
    /// The pool's threads could not be started.
    #[error("cannot start {threads} compute threads: {cause}; ask for fewer")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        cause: String,
    },
    /// A GPU that cannot be used.
    #[error("GPU {index} cannot be used: {cause}; choose another device, or the CPU")]
    NoDevice {
        /// The GPU asked for.
        index: usize,
        /// Why not.
        cause: String,
    },
    /// A device that others share a step with failed.
    #[error("another device of this process failed in the middle of a step that they share")]
    Abandoned,
    /// Devices that cannot share a model's heads.
    #[error(
        "{devices} devices cannot share a model of {query} query heads and {kv} KV heads evenly; give a host one of these numbers of devices: {}",
        fit.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
    )]
    UnevenHeads {
        /// Devices of the host.
        devices: usize,
        /// Query heads of the model.
        query: usize,
        /// KV heads of the model.
        kv: usize,
        /// Numbers of devices that can.
        fit: Vec<usize>,
    },
    /// GPUs that cannot be one host's.
    #[error(
        "GPUs {one} and {other} cannot share a model: {cause}; give each a host of its own, or name GPUs that are alike and linked"
    )]
    UnlikeDevices {
        /// The one.
        one: usize,
        /// The other.
        other: usize,
        /// Why not.
        cause: String,
    },
    /// 8-bit floats where they cannot be.
    #[error(
        "GPU {index} computes no {what} in 8-bit floats: that needs Hopper (compute capability 9.0), {library}and dtype \"bf16\"; leave it out"
    )]
    EightBits {
        /// The GPU.
        index: usize,
        /// What was to be computed in them.
        what: &'static str,
        /// The library that it needs, and a comma; empty: none.
        library: &'static str,
    },
    /// An operation that a model needs and the device does not have.
    #[error("the model needs {operation}, for which the device ({device}) has no kernel; compute it on one CPU")]
    NoKernel {
        /// What is missing.
        operation: &'static str,
        /// The numerics of the device.
        device: String,
    },
    /// A GPU without room for what has to be on it.
    #[error(
        "GPU {index} is too small: the weights take {bytes} bytes, {free} of its {all} are free, {missing} are missing; put fewer hosts on it, or a smaller model"
    )]
    TooSmall {
        /// The GPU.
        index: usize,
        /// Bytes that the weights take.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
        /// All of its bytes.
        all: u64,
        /// Bytes that are missing.
        missing: u64,
    },
    /// A GPU that filled up while a model was loaded onto it.
    #[error(
        "the GPU is too small: the model takes {bytes} bytes more, {free} are free, {} are missing; put fewer hosts on it, or a smaller model",
        bytes.saturating_sub(*free)
    )]
    NoRoomToLoad {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that were free.
        free: usize,
    },
    /// A GPU's memory is full.
    #[error(
        "the GPU has no {bytes} bytes left ({free} are free); use smaller blocks, fewer shards on this host or fewer hosts on this GPU"
    )]
    DeviceMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that were free.
        free: usize,
    },
    /// A GPU, or a library that drives it, reported a failure.
    #[error("{operation} failed on the GPU: {cause}")]
    Device {
        /// What was attempted.
        operation: &'static str,
        /// What was reported.
        cause: String,
    },
}

impl KernelError {
    /// A short, stable name for metric labels and replies.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Shape { .. } => "kernel_shape",
            Self::DType { .. } => "kernel_dtype",
            Self::Unsupported { .. } => "kernel_unsupported",
            Self::UnknownKernels { .. } => "kernel_unknown",
            Self::Threads { .. } => "kernel_threads",
            Self::NoDevice { .. } => "kernel_no_device",
            Self::Abandoned => "kernel_abandoned",
            Self::UnevenHeads { .. } => "kernel_uneven_heads",
            Self::UnlikeDevices { .. } => "kernel_unlike_devices",
            Self::EightBits { .. } => "kernel_eight_bits",
            Self::NoKernel { .. } => "kernel_missing",
            Self::TooSmall { .. } => "kernel_device_too_small",
            Self::NoRoomToLoad { .. } => "kernel_no_room_to_load",
            Self::DeviceMemory { .. } => "kernel_device_memory",
            Self::Device { .. } => "kernel_device",
        }
    }

    pub(crate) fn shape(operation: &'static str, expected: impl Into<String>, got: &[&[usize]]) -> Self {
        let got = got.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
        Self::Shape { operation, expected: expected.into(), got }
    }
}
