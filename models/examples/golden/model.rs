//! Whole-model cases: plan, phase 1 shard by shard, phase 2 against the shards in this process.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use asterism_kernels::{Backend, Cpu};
use asterism_models::{
    Checkpoint, Decoder, Generator, LocalContext, Parts, Sampler, Sampling, Tokenizer, encode_shard,
};
use asterism_plan::methods::{AnchorContent, AnchorPosition, DenseConfig, StarConfig};
use asterism_plan::{Cost, Method, MethodConfig, Plan, PlanRequest};
use serde_json::{Value, json};

use crate::case::Case;

/// A loaded checkpoint.
pub struct Model {
    pub decoder: Decoder<Cpu>,
    pub tokenizer: Tokenizer,
}

/// Checkpoints by folder name, each loaded once.
pub struct Models {
    folder: PathBuf,
    backend: Arc<Cpu>,
    loaded: HashMap<String, Model>,
}

impl Models {
    pub fn new(folder: PathBuf, backend: Arc<Cpu>) -> Self {
        Self { folder, backend, loaded: HashMap::new() }
    }

    pub fn load(&mut self, name: String) -> Result<&Model> {
        if !self.loaded.contains_key(&name) {
            let checkpoint = Checkpoint::open(&self.folder.join(&name))?;
            let tokenizer = Tokenizer::from_checkpoint(&checkpoint)?;
            let decoder = Decoder::load(Arc::clone(&self.backend), &checkpoint, Parts::All)?;
            self.loaded.insert(name.clone(), Model { decoder, tokenizer });
        }
        Ok(&self.loaded[&name])
    }

    /// The case's result; none for a method that does not exist yet.
    pub fn solve(&mut self, case: &Case) -> Result<Option<Value>> {
        let Some((method, hosts)) = method(case)? else { return Ok(None) };
        let plan = method.plan(&PlanRequest { context: &case.context_ids, query: &case.query_ids, hosts })?;
        let decoder = &self.load(case.model.clone())?.decoder;
        let cost = Cost::of(&plan, &decoder.config().shape(decoder.backend().dtype()));
        let run = Run::of(decoder, &plan, case)?;
        Ok(Some(json!({
            "id": case.id,
            "plan": golden_plan(&plan, case.query_ids.len()),
            "counts": { "prefill_pairs": cost.prefill_pairs, "dense_pairs": cost.dense_pairs },
            "greedy_tokens": run.tokens,
            "last_logits": run.query_logits[run.query_logits.len() - decoder.config().vocab..],
            "query_logits": run.query_logits,
            "final_logits": run.final_logits,
        })))
    }
}

/// What phase 2 gives.
struct Run {
    tokens: Vec<u32>,
    /// `(query tokens, vocab)`.
    query_logits: Vec<f32>,
    /// `(vocab)`: they gave the last token.
    final_logits: Vec<f32>,
}

impl Run {
    fn of<B: Backend>(decoder: &Decoder<B>, plan: &Plan, case: &Case) -> Result<Self> {
        let shards =
            plan.shards.iter().map(|shard| encode_shard(decoder, shard, |_| true)).collect::<Result<Vec<_>, _>>()?;
        let mut context = LocalContext::new(decoder.backend(), &shards);
        let mut generator = Generator::new(plan.context_tokens, plan.query_start);
        let mut sampler = Sampler::new(Sampling::default());
        let x = generator.step(decoder, &case.query_ids, &mut context)?;
        let query_logits = decoder.all_logits(&x)?;
        let mut final_logits = decoder.logits(&x)?;
        let mut tokens = vec![sampler.next(&final_logits)];
        while tokens.len() < case.max_new_tokens {
            let x = generator.step(decoder, &tokens[tokens.len() - 1..], &mut context)?;
            final_logits = decoder.logits(&x)?;
            tokens.push(sampler.next(&final_logits));
        }
        Ok(Self { tokens, query_logits, final_logits })
    }
}

/// The method of a case and its number of hosts; none for one that does not exist yet.
fn method(case: &Case) -> Result<Option<(MethodConfig, usize)>> {
    match case.method.as_str() {
        "dense" => Ok(Some((MethodConfig::Dense(DenseConfig::default()), 1))),
        "star" => {
            let block: usize = case.parameter("block_size")?;
            let hosts = case.optional("hosts")?.unwrap_or(case.context_ids.len().div_ceil(block));
            Ok(Some((MethodConfig::Star(star(case, block)?), hosts)))
        }
        _ => Ok(None),
    }
}

fn star(case: &Case, block: usize) -> Result<StarConfig> {
    let anchor_position = match case.parameter::<String>("anchor_position")?.as_str() {
        "first" => AnchorPosition::First,
        "previous" => AnchorPosition::Previous,
        "given" => AnchorPosition::Given(case.parameter("anchor_positions")?),
        other => bail!("anchor_position {other}"),
    };
    let anchor_content = match case.parameter::<String>("anchor_content")?.as_str() {
        "first" => AnchorContent::First,
        "previous" => AnchorContent::Previous,
        "constant" => AnchorContent::Constant { token: case.parameter("constant_token")? },
        "shuffled" => AnchorContent::Shuffled { permutation: case.parameter("permutation")? },
        "random" => AnchorContent::Random { tokens: case.parameter("random_tokens")? },
        other => bail!("anchor_content {other}"),
    };
    let anchor: usize = case.parameter("anchor_size")?;
    Ok(StarConfig {
        block_tokens: Some(block),
        anchor_tokens: Some(anchor.min(block)),
        anchor_position,
        anchor_content,
    })
}

/// The plan in the words of the golden files, which count the query host as the last of the context hosts.
fn golden_plan(plan: &Plan, query_tokens: usize) -> Value {
    let mut kv_len_per_host = vec![0; plan.hosts];
    for shard in &plan.shards {
        kv_len_per_host[shard.host] += shard.kept_tokens();
    }
    let segment = |shard: &asterism_plan::Shard| {
        json!({
            "host": shard.host,
            "block": shard.block,
            "input_ids": shard.input_ids,
            "position_ids": shard.position_ids,
            "keep_from": shard.keep_from,
        })
    };
    json!({
        "num_hosts": plan.hosts,
        "query_host": plan.hosts - 1,
        "segments": plan.shards.iter().map(segment).collect::<Vec<_>>(),
        "kv_len_per_host": kv_len_per_host,
        "query_position_ids": (plan.query_start..).take(query_tokens).collect::<Vec<u32>>(),
    })
}
