//! Checkpoints, tokenizer, the decoder cut open at attention, and the two phases over it. Knows no host and no wire.

#![deny(unsafe_code)]

mod chat;
mod checkpoint;
mod config;
mod decoder;
mod embedded;
mod encoder;
mod error;
mod generator;
mod sampling;
mod synthetic;
mod tokenizer;

pub use chat::ChatTemplate;
pub use checkpoint::Checkpoint;
pub use config::{Biases, ModelConfig, Rope};
pub use decoder::{Decoder, Parts};
pub use embedded::EMBEDDED_NAME;
pub use encoder::{EncodedShard, encode_shard};
pub use error::ModelError;
pub use generator::{ContextAttention, Generator, LocalContext, ShardPartial};
pub use sampling::{Sampler, Sampling};
pub use synthetic::synthetic_prompt;
pub use tokenizer::{TextStream, Tokenizer};
