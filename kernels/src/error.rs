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
        /// The processor features it needs.
        needs: &'static str,
    },
    /// The tensor library failed.
    #[error("tensor library: {0}")]
    Tensor(#[from] candle_core::Error),
}
