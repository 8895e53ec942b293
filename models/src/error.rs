//! What can go wrong with a checkpoint, a tokenizer or a pass through the decoder: cause and remedy.

use asterism_kernels::KernelError;
use thiserror::Error;

/// A checkpoint that cannot be loaded, or a pass that cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file that every checkpoint folder has.
    #[error("no {file} in {folder}: {remedy}")]
    MissingFile {
        /// The file.
        file: String,
        /// Where it was looked for.
        folder: String,
        /// What to do about it.
        remedy: String,
    },
    /// The system refused a file.
    #[error("cannot read {path}: {cause}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// A file that does not parse.
    #[error("{path} is not valid: {cause}; fetch the file again")]
    Malformed {
        /// The file.
        path: String,
        /// The parser's answer.
        cause: String,
    },
    /// A model that this decoder does not compute.
    #[error("config.json: {key} = {got} is not supported; {supported}")]
    Config {
        /// The key.
        key: &'static str,
        /// Its value.
        got: String,
        /// What would be.
        supported: String,
    },
    /// A weight file shorter or longer than its header says.
    #[error("{path} is truncated or damaged: its header says {expected} bytes, it has {got}; fetch the file again")]
    Truncated {
        /// The file.
        path: String,
        /// Bytes by the header, the header included.
        expected: u64,
        /// Bytes found.
        got: u64,
    },
    /// A weight file of another format.
    #[error("{path} is not a safetensors file ({cause}); convert the checkpoint to safetensors")]
    NotSafetensors {
        /// The file.
        path: String,
        /// Why not.
        cause: String,
    },
    /// A GGUF file, or a model in one, that is not as it must be.
    #[error(transparent)]
    Gguf(Box<FieldRefusal>),
    /// A field of a folder's file, or a tensor in it, that is not as it must be.
    #[error(transparent)]
    Field(Box<FieldRefusal>),
    /// Weights that are quantised in a way that is not read, or not as their configuration says.
    #[error(transparent)]
    Quantised(Box<FieldRefusal>),
    /// A tensor the architecture needs.
    #[error("checkpoint {checkpoint} has no tensor {tensor} {expected:?}{}; its config.json and weights do not belong together",
        nearest.as_ref().map(|n| format!(" (nearest name: {n})")).unwrap_or_default())]
    MissingTensor {
        /// The checkpoint.
        checkpoint: String,
        /// The tensor.
        tensor: String,
        /// Its shape by config.json.
        expected: Vec<usize>,
        /// The most similar name present.
        nearest: Option<String>,
    },
    /// A tensor of another shape than config.json implies.
    #[error(
        "tensor {tensor}: expected shape {expected:?} by config.json, got {got:?}; its config.json and weights do not belong together"
    )]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Its shape by config.json.
        expected: Vec<usize>,
        /// Its shape in the file.
        got: Vec<usize>,
    },
    /// A tensor of a type other than bf16, f16 and f32.
    #[error("tensor {tensor} is stored as {got}; bf16, f16 and f32 weights are supported, quantised ones are not")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// Its type.
        got: String,
    },
    /// A weight that is no number.
    #[error(
        "{file}: tensor {tensor} has {got} at element {element}; expected finite numbers: fetch the file again, or train on"
    )]
    WeightNotFinite {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Which of its elements, counted from 0 as they lie in the file.
        element: usize,
        /// What it is.
        got: f32,
    },
    /// A folder's file that is none, or too large to be what its name says.
    #[error("{path} is {got}; expected {expected}")]
    Unfit {
        /// The file.
        path: String,
        /// What it is.
        got: String,
        /// What it should be.
        expected: String,
    },
    /// Text that the tokenizer cannot encode, or ids it cannot decode.
    #[error("tokenizer: {cause}")]
    Tokenizer {
        /// Its answer.
        cause: String,
    },
    /// A checkpoint whose chat template renders nothing.
    #[error(
        "chat template ({origin}): {cause}; a message of a user must render: correct the template, or take it out for a base model"
    )]
    ChatTemplate {
        /// The file it is in.
        origin: String,
        /// Why.
        cause: String,
    },
    /// A conversation that the chat template does not render.
    #[error("chat template: {cause}")]
    Template {
        /// Why.
        cause: String,
    },
    /// A chat template that takes more than a template may.
    #[error("chat template: {cause}; correct the model's template, or ask without it (\"chat_template\": false)")]
    TemplateLimit {
        /// Which limit, and what was met.
        cause: String,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the model's vocabulary of {vocab}")]
    TokenId {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Files of a model that are not of one model.
    #[error(
        "{whose} is {id}; expected an id below {vocab}, the vocab_size of config.json: take configuration, tokenizer and weights of one model"
    )]
    OutsideVocabulary {
        /// What names the id.
        whose: String,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A sampling parameter out of range.
    #[error("sampling: {field} must be {allowed}, got {got}")]
    Sampling {
        /// The parameter.
        field: &'static str,
        /// Its range.
        allowed: &'static str,
        /// Its value.
        got: f32,
    },
    /// A form that answers cannot be held to.
    #[error("the {what} cannot be compiled at {path}: {cause}")]
    Constraint {
        /// What it is.
        what: &'static str,
        /// The part at fault, as a JSON pointer.
        path: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A form that takes too long to compile.
    #[error(
        "the form of the answer was not compiled within {seconds} s; make it smaller, or ask again when fewer are compiled"
    )]
    ConstraintTime {
        /// Time that there is.
        seconds: u64,
    },
    /// Logits asked of a decoder that was loaded without its head.
    #[error("this decoder was loaded for a context host, without the output head; load it with Parts::Query")]
    NoHead,
    /// The caller stopped the pass.
    #[error("the pass was cancelled")]
    Cancelled,
    /// Something a plan asks for that this build does not do.
    #[error("{what} is not supported by this build")]
    Unsupported {
        /// What.
        what: String,
    },
    /// A shard answered for another number of keys than the plan kept of it, or not at all.
    #[error("layer {layer}: shard {block} answered for {got} keys, the plan has {expected}; the step is refused")]
    KeyCount {
        /// The layer.
        layer: usize,
        /// The shard.
        block: usize,
        /// Its keys.
        expected: u64,
        /// Keys answered for.
        got: u64,
    },
    /// A partial of shards that the plan merges otherwise.
    #[error("layer {layer}: a host merged shards {blocks:?}, which the plan merges otherwise; the step is refused")]
    MergedOtherwise {
        /// The layer.
        layer: usize,
        /// The shards.
        blocks: Vec<usize>,
    },
    /// Logits that choose no token.
    #[error(
        "the step's logits are not finite (token {token} has {got}), so that no token was chosen; the model's weights or its dtype are unfit for this input"
    )]
    LogitsNotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        got: f32,
    },
    /// A shard's answer that no merge survives.
    #[error(
        "host {host} answered for shard {block} in layer {layer} with numbers that are not finite; the step is refused. If its memory is sound, the model's weights or its dtype are unfit for this input"
    )]
    PartialNotFinite {
        /// The host.
        host: String,
        /// The shard.
        block: usize,
        /// The layer.
        layer: usize,
    },
    /// Retaining heads that cannot be used.
    #[error("retaining heads {}: {cause}; give the heads that were trained for this model", path.display())]
    RetainingHeads {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// Retaining heads that this process has no file for.
    #[error(
        "no retaining heads called {name} are loaded; [models.heads.{name}] of this host's cluster file names them"
    )]
    NoRetainingHeads {
        /// The name asked for.
        name: String,
    },
    /// A shard reads tokens whose ids nobody said.
    #[error(
        "shard {block} reads {tokens} tokens from number {start}, and not all of their ids are here; plan for this very context, or report a bug with the log"
    )]
    NoTokens {
        /// The shard.
        block: usize,
        /// Number of the first token.
        start: u32,
        /// How many.
        tokens: u32,
    },
    /// A chain's shard without what stands behind it.
    #[error(
        "shard {block} of a chain needs the keys of the {expected} tokens before it, and those of {got} are here; report a bug with the log"
    )]
    Behind {
        /// The shard.
        block: usize,
        /// Tokens before it.
        expected: usize,
        /// Tokens of which there are keys.
        got: usize,
    },
    /// A text that cannot fit, by its bytes alone.
    #[error("{bytes} bytes of text{}, expected at most {most} bytes",
        least_tokens.map(|tokens| format!(", which are {tokens} tokens at least")).unwrap_or_default())]
    TooManyBytes {
        /// Bytes of the text.
        bytes: usize,
        /// Most bytes.
        most: usize,
        /// Tokens that they come to at least; none where the text is too long to be tokenised in one piece, which it has to be.
        least_tokens: Option<usize>,
    },
    /// A text of more tokens than wanted; the rest was not looked at.
    #[error("the text has more than {most} tokens")]
    TooManyTokens {
        /// Most tokens.
        most: usize,
    },
    /// A stretch of text that can only be tokenised in one piece, and is too long for that.
    #[error(
        "{most} bytes of text without a place to cut it, such as one letter or spaces over and over; break them up with words or lines"
    )]
    Uncut {
        /// Most bytes of such a stretch.
        most: usize,
    },
    /// A shard waits for something that nobody sent.
    #[error("{parcel} was never sent; encode all shards of a plan that pass each other something, in block order")]
    NoParcel {
        /// What it waits for.
        parcel: String,
    },
    /// A context host did not answer.
    #[error("context host {host}: {cause}")]
    Host {
        /// The host.
        host: String,
        /// What happened to it.
        cause: String,
    },
    /// A device's memory was full before all shards that it encodes together were done.
    #[error(
        "shards of {tokens} tokens do not fit on the device: {}; end sessions, take smaller blocks, a shorter context or more context hosts",
        lack(*missing, *fits)
    )]
    NoRoom {
        /// Tokens whose keys and values the shards keep.
        tokens: usize,
        /// Bytes that the rest of them needs and that are not there.
        missing: u64,
        /// Tokens for whose keys and values there is room.
        fits: usize,
    },
    /// A kernel refused its operands, or the device failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A field of a model's file that is not as it must be.
#[derive(Debug, Error)]
#[error("{path}: {field} is {got}; expected {expected}")]
pub struct FieldRefusal {
    /// The file.
    pub path: String,
    /// The key, the tensor, or the part of the header.
    pub field: String,
    /// What it is.
    pub got: String,
    /// What it should be.
    pub expected: String,
}

impl FieldRefusal {
    /// Of a field and what it is no more than some words: what a file says of itself may be as long as the file.
    pub fn new(path: &str, field: impl Into<String>, got: impl Into<String>, expected: impl Into<String>) -> Box<Self> {
        const LONGEST_WORDS: usize = 200;
        let clipped = |words: String| match words.char_indices().nth(LONGEST_WORDS) {
            Some((end, _)) => format!("{}...", &words[..end]),
            None => words,
        };
        let (field, got) = (clipped(field.into()), clipped(got.into()));
        Box::new(Self { path: path.to_owned(), field, got, expected: expected.into() })
    }
}

/// What a full device lacks, in words.
fn lack(missing: u64, fits: usize) -> String {
    match missing {
        0 => "it refused memory that it counts as free, as where another process takes and gives it".into(),
        _ => format!("at least {missing} bytes are missing, blocks of about {fits} tokens in all would fit"),
    }
}

impl ModelError {
    /// Stable name for metric labels and HTTP.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MissingFile { .. } => "model_file_missing",
            Self::Unreadable { .. } => "model_file_unreadable",
            Self::Malformed { .. } => "model_file_malformed",
            Self::Config { .. } => "model_config_unsupported",
            Self::Truncated { .. } => "weights_truncated",
            Self::NotSafetensors { .. } => "weights_not_safetensors",
            Self::Gguf(_) => "gguf",
            Self::Quantised(_) => "quantised",
            Self::MissingTensor { .. } => "tensor_missing",
            Self::TensorShape { .. } => "tensor_shape",
            Self::TensorType { .. } => "tensor_type",
            Self::WeightNotFinite { .. } => "weights_not_finite",
            Self::Unfit { .. } | Self::Field(_) => "model_file_unfit",
            Self::LogitsNotFinite { .. } => "not_finite_logits",
            Self::PartialNotFinite { .. } => "not_finite_partial",
            Self::Tokenizer { .. } => "tokenizer",
            Self::Template { .. } | Self::ChatTemplate { .. } => "chat_template",
            Self::TemplateLimit { .. } => "template_limit",
            Self::TokenId { .. } => "token_id",
            Self::OutsideVocabulary { .. } => "model_ids",
            Self::Sampling { .. } => "sampling",
            Self::Constraint { .. } | Self::ConstraintTime { .. } => "constraint",
            Self::NoHead => "no_head",
            Self::Cancelled => "cancelled",
            Self::Unsupported { .. } => "unsupported",
            Self::KeyCount { .. } => "key_count",
            Self::MergedOtherwise { .. } => "merge_order",
            Self::RetainingHeads { .. } | Self::NoRetainingHeads { .. } => "retaining_heads",
            Self::TooManyBytes { .. } | Self::TooManyTokens { .. } | Self::Uncut { .. } => "context_too_long",
            Self::NoParcel { .. } => "parcel_missing",
            Self::NoTokens { .. } | Self::Behind { .. } => "tokens_missing",
            Self::Host { .. } => "host_lost",
            Self::NoRoom { .. } | Self::Kernel(_) => "kernel",
        }
    }
}
