//! Phase 2: queries and generated tokens of several jobs, attending to context shards that live elsewhere. A step takes rows
//! of many jobs through the linear layers together; a row's bits do not depend on its company.

mod answers;
mod batch;
mod context;
mod devices;
mod job;
mod jobs;
mod layer;
mod local;
mod merging;
mod partials;
mod step;
mod tensor_parallel;

pub use answers::{Answers, LayerQueries, PackedRows, PartAnswer, PartialRows, ShardPartial, StepError};
pub use batch::PartAsk;
pub use context::{ContextAttention, Team};
pub use devices::TeamContext;
pub use job::{ContextKeys, Generator, StepPart};
pub use jobs::StepEnds;
pub use local::LocalContext;
pub use step::step;
pub use tensor_parallel::TensorParallel;
