//! Checkpoints, tokenizer, the decoder cut open at attention, and the two phases over it. Knows no host and no wire.

#![deny(unsafe_code)]

mod chat;
mod checkpoint;
mod config;
mod decoder;
mod digest;
mod embedded;
mod encoder;
mod error;
mod family;
mod generator;
mod logprobs;
mod masses;
mod retaining;
mod sampling;
mod separator;
mod synthetic;
mod tokenizer;

pub use chat::{
    ChatTemplate, Ending, NoDate, Render, RenderOptions, Rendered, Speaker, TemplateDate, TemplateRefusal,
    TemplateSource, Turn, Written,
};
pub use checkpoint::{Checkpoint, KnownShape};
pub use config::{ModelConfig, Rope, RopeScaling, Yarn};
pub use decoder::{Decoder, Loading, Parts, Projected, SharedWeights};
pub use digest::{DigestId, FrontDigest, Hash, ModelDigest, WeightsDigest};
pub use embedded::EMBEDDED_NAME;
pub use encoder::{
    Chosen, EncodedShard, LocalPeers, Parcel, Part, Peers, Phase1, Watch, encode_alone, encode_plan, encode_together,
    inputs_of, max_pool,
};
pub use error::ModelError;
pub use family::{AttentionKind, Biases, FeedForward, LayerSpec, TensorNames};
pub use generator::{
    Answers, ContextAttention, ContextKeys, Generator, LayerQueries, LocalContext, PackedRows, PartAnswer, PartAsk,
    PartialRows, ShardPartial, StepEnds, StepError, StepPart, Team, TeamContext, TensorParallel, step,
};
pub use logprobs::Logprobs;
pub use masses::WatchedContext;
pub use retaining::{HeadsFiles, RetainingHeads, check_retaining_heads};
pub use sampling::{Sampler, Sampling};
pub use separator::{LongSeparator, QuerySeparator};
pub use synthetic::synthetic_prompt;
pub use tokenizer::{Around, Cut, Passage, TextStream, Tokenizer};
