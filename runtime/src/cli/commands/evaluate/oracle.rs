//! The oracle: answers behind summaries of the chunks that dense attention itself looks at, with the default's budget, in this
//! process. What it answers worse than dense the budget loses; what the default answers worse than it, the choice of chunks.

use std::{ops::Range, sync::Arc, time::Instant};

use asterism_kernels::prelude::*;
use asterism_kernels::{Cpu, KernelChoice};
use asterism_models::{
    ContextAttention, Decoder, DecoderParts, EncodedShard, Generator, LocalContext, ModelError, Sampler, Sampling,
    WatchedContext, encode_plan,
};
use asterism_plan::{
    Method, ModelShape, Plan, PlanRequest,
    methods::{DenseConfig, PulsarConfig},
};

use super::{common::question, questions::TokenCounter};
use crate::{
    error::CliError,
    eval::{AnswerSeconds, EvalQuestion},
    globals::Globals,
    processes::checkpoint,
};

/// Its name among the methods.
pub const ORACLE: &str = "oracle";

/// The model in this process, and how many hosts' plan is made.
pub struct Oracle {
    front: TokenCounter,
    decoder: Decoder<Cpu>,
    shape: ModelShape,
    hosts: usize,
}

impl Oracle {
    /// The model of the cluster file, of this name or the first, or the embedded one, for a plan over so many context hosts.
    pub fn load(globals: &Globals, name: Option<&str>, hosts: usize) -> Result<Self, CliError> {
        let (model, front) = TokenCounter::with_model(globals, name)?;
        let unusable =
            |error: ModelError| CliError::usage(error).hint("the oracle computes in this process: leave --oracle out");
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let load = || {
            let backend = Arc::new(checkpoint::cpu((model.dtype, model.kept), threads, KernelChoice::Auto)?);
            Decoder::load(backend, &checkpoint::checkpoint_of(&model)?, DecoderParts::All)
        };
        let decoder = load().map_err(unusable)?;
        let shape = decoder.config().shape(decoder.backend().kv_type());
        Ok(Self { front, decoder, shape, hosts: hosts.max(1) })
    }

    /// The answer's text and where its time went; measuring what dense attention looks at is none of it.
    pub fn answer(&self, asked: &EvalQuestion) -> Result<(String, AnswerSeconds), CliError> {
        let request = question(&asked.record, None, asked.max_tokens);
        let (context, query) = self.front.ids(request)?;
        let computed = self.tokens(&context, &query, asked.max_tokens).map_err(CliError::usage)?;
        Ok((self.front.text(&computed.0)?, computed.1))
    }

    fn tokens(&self, context: &[u32], query: &[u32], most: usize) -> Result<(Vec<u32>, AnswerSeconds), ModelError> {
        let request =
            PlanRequest { context, query, hosts: self.hosts, one_device: true, shape: &self.shape, speeds: None };
        let refused = |error: asterism_plan::PlanError| ModelError::Unsupported { what: error.to_string() };
        let config = PulsarConfig::default();
        let size = config.rule(query).chunk_tokens;
        let chunks = chunks(context.len(), size);
        let masses = self.masses(&request, &chunks, most)?;
        // Blocks need not begin where a chunk does.
        let score = |span: &Range<usize>| {
            let near = span.start / size..span.end.div_ceil(size);
            chunks[near.clone()]
                .iter()
                .zip(&masses[near])
                .map(|(chunk, mass)| mass * shared(chunk, span) as f64 / chunk.len() as f64)
                .sum()
        };
        let plan = config.plan_by(&request, score).map_err(refused)?;
        let began = Instant::now();
        let shards = encode_plan(&self.decoder, &plan, context, None, &mut |_, _| true)?;
        let encode = began.elapsed().as_secs_f64();
        let tokens = self.generate(&plan, (query, most), &mut LocalContext::new(self.decoder.backend(), &shards))?;
        let total = began.elapsed().as_secs_f64();
        Ok((tokens, AnswerSeconds { encode: Some(encode), query: 0.0, decode: total - encode, total }))
    }

    /// What dense attention looks at while it answers.
    fn masses(&self, request: &PlanRequest<'_>, chunks: &[Range<usize>], most: usize) -> Result<Vec<f64>, ModelError> {
        let dense = DenseConfig {}.plan(request);
        let dense = dense.map_err(|error| ModelError::Unsupported { what: error.to_string() })?;
        let shards: Vec<EncodedShard<Cpu>> =
            encode_plan(&self.decoder, &dense, request.context, None, &mut |_, _| true)?;
        let mut watched = WatchedContext::new(self.decoder.backend(), &shards[0], chunks)?;
        self.generate(&dense, (request.query, most), &mut watched)?;
        Ok(watched.masses().to_vec())
    }

    /// Greedy tokens up to the end or so many.
    fn generate(
        &self,
        plan: &Plan,
        (query, most): (&[u32], usize),
        context: &mut dyn ContextAttention<Cpu>,
    ) -> Result<Vec<u32>, ModelError> {
        let (mut generator, mut sampler) = (Generator::of(plan), Sampler::new(Sampling::default()));
        let (mut tokens, mut next) = (Vec::new(), query.to_vec());
        while tokens.len() < most {
            let rows = generator.step(&self.decoder, &next, context)?;
            let token = sampler.next(&self.decoder.logits(&rows)?);
            if self.decoder.config().eos.contains(&token) {
                break;
            }
            tokens.push(token);
            next = vec![token];
        }
        Ok(tokens)
    }
}

fn chunks(tokens: usize, size: usize) -> Vec<Range<usize>> {
    (0..tokens).step_by(size).map(|start| start..tokens.min(start + size)).collect()
}

/// How much two ranges have in common.
fn shared(a: &Range<usize>, b: &Range<usize>) -> usize {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

#[cfg(test)]
mod tests {
    use super::{super::common::EMBEDDED, *};
    use crate::eval::{QuestionPlace, Task};

    /// Summaries of everything are dense attention; of what it looks at, nearly so.
    #[test]
    fn the_oracle_answers_from_what_dense_attention_looks_at() {
        let front = TokenCounter::embedded().unwrap();
        let backend = Arc::new(
            crate::processes::checkpoint::cpu((EMBEDDED.dtype, EMBEDDED.kept), 2, KernelChoice::Auto).unwrap(),
        );
        let decoder =
            Decoder::load(backend, &crate::processes::checkpoint::checkpoint_of(&EMBEDDED).unwrap(), DecoderParts::All)
                .unwrap();
        let shape = decoder.config().shape(decoder.backend().kv_type());
        let record = front.generate(Task::NiahSingle2, 3000, 7, None).unwrap();
        let place = QuestionPlace { suite: "ruler", length: 3000, sample: 7 };
        let asked = EvalQuestion::generated(place, record, Task::NiahSingle2);
        let oracle = Oracle { front, decoder, shape, hosts: 4 };
        let (context, query) = oracle.front.ids(question(&asked.record, None, 16)).unwrap();
        let request = PlanRequest {
            context: &context,
            query: &query,
            hosts: 4,
            one_device: true,
            shape: &oracle.shape,
            speeds: None,
        };
        let chunks = chunks(context.len(), 16);
        let masses = oracle.masses(&request, &chunks, 16).unwrap();
        let gold = &asked.gold[0];
        let (text, _) = oracle.answer(&asked).unwrap();
        assert!(text.contains(gold), "{text} has not {gold}");
        // The chunk that holds the answer is among the tenth that is looked at most, and not the sink's doing.
        let holds = |chunk: &Range<usize>| {
            let around = chunk.start.saturating_sub(16)..context.len().min(chunk.end + 16);
            oracle.front.text(&context[around]).unwrap().contains(gold)
        };
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by(|a, b| masses[*b].total_cmp(&masses[*a]));
        assert!(order[..chunks.len() / 10].iter().any(|at| holds(&chunks[*at])));
        let rows = masses.iter().sum::<f64>() / (shape_rows(&oracle) as f64);
        assert!((rows - rows.round()).abs() < 1e-3, "every row's attention is 1: {rows}");
    }

    fn shape_rows(oracle: &Oracle) -> usize {
        oracle.decoder.config().heads.query * oracle.decoder.config().layers
    }
}
