//! Documents with one fact in them, and the question for it. Every self-test has its own first words, so that no host can
//! answer from what it held before.

use asterism_actors::{
    JobError,
    api::{JobRequest, Prompt},
    supervisor::{ContextHosts, ModelFront, Source},
};
use asterism_kernels::{DType, KvType};
use asterism_plan::{MethodConfig, methods::DenseConfig};

use crate::eval::{self, Task};

/// Tokens that everything exact is tried with.
const SHORT: usize = 700;
/// Tokens that the cluster's default method is tried with: `auto` splits nothing shorter than 2,048.
const LONG: usize = 2600;
/// Seed of the document: its fact is the same in every test.
const SEED: u64 = 7;
/// Most tokens of an answer: a number of seven digits, and no more than that needs.
const CANARY_TOKENS: usize = 8;
/// Preparing a canary needs no more.
const ONE_HOST: ContextHosts =
    ContextHosts { count: 1, one_device: true, kv: KvType::computed(DType::F32), speeds: None };

/// A context, a question, and what an answer must hold.
#[derive(Clone, Debug)]
pub struct Canary {
    /// Context tokens.
    pub context: Vec<u32>,
    /// Query tokens.
    pub query: Vec<u32>,
    /// What is asked for; none where the model's context has no room for a document.
    pub gold: Option<String>,
}

impl Canary {
    /// A short one and, where the model takes one, a long one.
    pub fn pair(model: &ModelFront, nonce: u64) -> Result<(Self, Option<Self>), JobError> {
        let room = model.max_tokens.saturating_sub(CANARY_TOKENS);
        // The question and the chat template take some of it.
        let of = |tokens: usize| Self::document(model, tokens.min(room * 3 / 4), nonce);
        let short = of(SHORT)?;
        Ok(match short {
            Some(short) => (short, if room > LONG * 4 / 3 { of(LONG)? } else { None }),
            None => (Self::numbers(model, nonce), None),
        })
    }

    fn document(model: &ModelFront, tokens: usize, nonce: u64) -> Result<Option<Self>, JobError> {
        let count = |text: &str| model.count_tokens(text).unwrap_or(usize::MAX);
        let Ok(record) = eval::generate(Task::NiahSingle1, tokens, SEED, &count, None) else { return Ok(None) };
        let context = format!("Test {nonce}.\n{}", record.input_context);
        let asked = JobRequest {
            max_tokens: CANARY_TOKENS,
            ..JobRequest::new(Some(context.into()), record.input_query.into())
        };
        let prepared = model.prepare(asked, &MethodConfig::Dense(DenseConfig {}), &ONE_HOST, None)?;
        let Source::Context(context) = prepared.source else { return Ok(None) };
        let canary =
            Self { context: context.ids.to_vec(), query: prepared.question.query_ids, gold: Some(record.answer) };
        Ok(Some(canary))
    }

    /// Tokens that mean nothing, for models too small for a document.
    fn numbers(model: &ModelFront, nonce: u64) -> Self {
        let vocab = model.config.vocab.max(1) as u64;
        let id = |at: u64| ((nonce ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % vocab;
        let ids: Vec<u32> = (0..(model.max_tokens as u64 / 2).clamp(2, 256)).map(|at| id(at) as u32).collect();
        let (context, query) = ids.split_at(ids.len() - ids.len() / 4 - 1);
        Self { context: context.to_vec(), query: query.to_vec(), gold: None }
    }

    /// The request for it.
    pub fn request(&self, method: Option<MethodConfig>) -> JobRequest {
        let (context, query) = (Prompt::Tokens(self.context.clone()), Prompt::Tokens(self.query.clone()));
        JobRequest {
            method,
            allow_idle_hosts: true,
            chat_template: false,
            max_tokens: CANARY_TOKENS,
            ..JobRequest::new(Some(context), query)
        }
    }

    /// The same words, of which hardly any are context: who answers encodes nearly all of it.
    pub fn asked_whole(&self) -> Self {
        let (context, rest) = self.context.split_at(self.context.len().min(16));
        Self { context: context.to_vec(), query: [rest, &self.query].concat(), gold: self.gold.clone() }
    }
}
