//! Checkpoints, tokenizer, the decoder cut open at attention, and the two phases over it. Knows no host and no wire.

#![deny(unsafe_code)]

mod chat;
mod checkpoint;
mod config;
mod decoder;
mod encoder;
mod error;
mod family;
mod generator;
mod measure;
mod sampling;
mod tokenizer;

pub use chat::{
    CallPiece, CallReader, ChatTemplate, ChatTurn, Ending, LongSeparator, NoDate, QuerySeparator, Render,
    RenderOptions, Rendered, Speaker, TemplateDate, TemplateRefusal, TemplateSource, ToolCall, Tooling, tools_as_text,
};
pub use checkpoint::digest::{DigestId, FrontDigest, Hash, HeadsFiles, ModelDigest, WeightsDigest};
pub use checkpoint::{Checkpoint, EMBEDDED_NAME, KnownShape, StoredTensors, Weight, is_plain_path};
pub use config::{DecoderParts, ModelConfig, Rope, RopeScaling, Yarn};
pub use decoder::{Decoder, Loading, Projected, SharedWeights};
pub use encoder::team::encode_together;
pub use encoder::{
    Chosen, Earlier, EncodedShard, LocalPeers, Parcel, Part, Peers, Phase1, RetainingHeads, ShardIdentity, Watch,
    check_retaining_heads, encode_alone, encode_plan, inputs_of, max_pool, shard_identities,
};
pub use error::{FieldRefusal, ModelError};
pub use family::{
    Biases, Experts, FeedForward, HeadNorms, LayerAttention, LayerSpec, Rotation, SupportedFamily, TensorNames,
    supported_families,
};
pub use generator::{
    Answers, ContextAttention, ContextKeys, Generator, LayerQueries, LocalContext, PackedRows, PartAnswer, PartAsk,
    PartialRows, ShardPartial, StepEnds, StepError, StepPart, Team, TeamContext, TensorParallel, step,
};
pub use measure::{WatchedContext, synthetic_prompt};
pub use sampling::{CLOSES_WITHIN, Constraint, Guide, Guides, Logprobs, Sampler, Sampling, TokenMask};
pub use tokenizer::border::CutPrompt;
pub use tokenizer::stream::TextStream;
pub use tokenizer::{Around, Passage, Tokenizer, Written};
