//! Attention with log-sum-exp. Prefill goes to cuDNN where it is there, else to the own kernel; few rows to the own kernel that cuts the
//! keys in pieces; f32 and odd head sizes to the plain one; selected keys to a kernel of their own.

mod attender;
mod blocks;
mod call;
mod estimates;
mod fused;
mod lists;
mod many;
mod mapped;
mod own;
mod parts;
mod selected;
mod stripes;

pub use attender::Attender;
pub use call::CudaAttentionCall;
pub(super) use lists::Lists;
pub(super) use many::{LaidStep, StepAhead};
pub use own::PIECE;
