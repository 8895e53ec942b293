//! Whole-model cases: plan, phase 1 shard by shard, phase 2 against the shards in this process.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use asterism_kernels::Backend;
use asterism_models::{
    Checkpoint, Chosen, Decoder, DecoderParts, EncodedShard, Generator, LocalContext, RetainingHeads, Sampler,
    Sampling, Tokenizer, Watch, encode_plan,
};
use asterism_plan::{Cost, Exchange, Method, ModelShape, Plan, PlanRequest, Shard};
use serde_json::{Value, json};

use crate::case::Case;
use crate::{cases, view};

/// A loaded checkpoint.
pub struct Model<B: Backend> {
    pub decoder: Decoder<B>,
    pub tokenizer: Tokenizer,
}

/// Checkpoints by folder name, each loaded once.
pub struct Models<B: Backend> {
    folder: PathBuf,
    backend: Arc<B>,
    loaded: HashMap<String, Model<B>>,
}

impl<B: Backend> Models<B> {
    pub fn new(folder: PathBuf, backend: Arc<B>) -> Self {
        Self { folder, backend, loaded: HashMap::new() }
    }

    pub fn load(&mut self, name: String) -> Result<&Model<B>> {
        if !self.loaded.contains_key(&name) {
            let checkpoint = Checkpoint::open(&self.folder.join(&name))?;
            let tokenizer = Tokenizer::from_checkpoint(&checkpoint)?;
            let decoder = Decoder::load(Arc::clone(&self.backend), &checkpoint, DecoderParts::All)?;
            self.loaded.insert(name.clone(), Model { decoder, tokenizer });
        }
        Ok(&self.loaded[&name])
    }

    pub fn solve(&mut self, case: &Case) -> Result<Value> {
        let path = self.folder.join(&case.model).join("retaining_heads.safetensors");
        let (context, query) = (&case.context_ids, &case.query_ids);
        let (method, hosts) = cases::method(&case.method, &case.params, context.len(), "trained");
        let decoder = &self.load(case.model.clone())?.decoder;
        let shape = decoder.config().shape(decoder.backend().kv_type());
        let request = PlanRequest { context, query, hosts, one_device: false, shape: &shape, speeds: None };
        let plan = method.plan(&request)?;
        plan.check(context.len())?;
        let heads = match &plan.exchange {
            Exchange::PassCompressed(_) => Some(RetainingHeads::load(decoder.backend(), &path, decoder.config())?),
            _ => None,
        };
        let mut record = Record::of(&plan, case, &shape);
        let shards = encode_plan(decoder, &plan, context, heads.as_ref(), &mut record)?;
        let run = Run::of(decoder, &plan, &shards, case)?;
        let cost = Cost::of(&plan, &shape);
        ensure!(cost.at_most || record.pairs == cost.prefill_pairs, "{} pairs computed, {cost:?}", record.pairs);
        Ok(json!({
            "id": case.id,
            "plan": view::golden_view(&plan, &method, &request),
            "counts": { "prefill_pairs": record.pairs, "dense_pairs": cost.dense_pairs },
            "greedy_tokens": run.tokens,
            "last_logits": run.query_logits[run.query_logits.len() - decoder.config().vocab..],
            "query_logits": run.query_logits,
            "final_logits": run.final_logits,
            "tensors": record.tensors,
        }))
    }
}

/// What phase 1 computed: pairs, and the keys that scores chose.
struct Record {
    pairs: u64,
    /// Context index of every block row of each shard, where nothing moves positions.
    positions: Vec<Vec<u32>>,
    tensors: BTreeMap<String, Value>,
}

impl Record {
    /// APB cases want every selection, also where the plan passes nothing on.
    fn of(plan: &Plan, case: &Case, shape: &ModelShape) -> Self {
        let mut tensors = BTreeMap::new();
        if case.method == "apb" && plan.exchange == Exchange::None {
            for (layer, block) in
                (0..shape.layers).flat_map(|layer| (1..plan.shards.len()).map(move |next| (layer, next - 1)))
            {
                tensors.insert(format!("apb_selected.{layer}.{block}"), json!(vec![[0; 0]; shape.kv_heads]));
            }
        }
        let ids = plan.numbered_ids(&case.context_ids);
        let positions = |shard: &Shard| shard.input(ids.as_slice()).expect("a plan that was checked").positions;
        let positions = plan.shards.iter().map(positions).collect();
        Self { pairs: 0, positions, tensors }
    }
}

impl Watch for Record {
    fn layer(&mut self, _: usize, _: usize) -> bool {
        true
    }

    fn pairs(&mut self, _: usize, pairs: u64) {
        self.pairs += pairs;
    }

    fn chosen(&mut self, layer: usize, block: usize, chosen: Chosen<'_>) {
        match chosen {
            Chosen::Passed(rows) => {
                let position = |row: &u32| self.positions[block][*row as usize];
                let indices: Vec<Vec<u32>> = rows.iter().map(|rows| rows.iter().map(position).collect()).collect();
                self.tensors.insert(format!("apb_selected.{layer}.{block}"), json!(indices));
            }
            Chosen::Keys(keys) => {
                let keys = keys.lists().expect("the device gives what it chose");
                let cells = || (0..keys.heads()).flat_map(|head| (0..keys.groups()).map(move |group| (head, group)));
                let counts: Vec<_> = cells().map(|(head, group)| keys.count(head, group)).collect();
                let indices: Vec<_> = cells().flat_map(|(head, group)| keys.keys(head, group)).collect();
                self.tensors.insert(format!("stripe_counts.{layer}"), json!(counts));
                self.tensors.insert(format!("stripe_indices.{layer}"), json!(indices));
            }
        }
    }

    fn wants_last_layer(&self) -> bool {
        true
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
    fn of<B: Backend>(decoder: &Decoder<B>, plan: &Plan, shards: &[EncodedShard<B>], case: &Case) -> Result<Self> {
        let mut context = LocalContext::new(decoder.backend(), shards);
        let mut generator = Generator::of(plan);
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
