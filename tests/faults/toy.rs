//! A model of hashes: a token depends on the input of every shard, the query, every token before it and the sampler's draws,
//! so that a shard missing, of another context or asked twice changes the answer. Knows no cluster.

use std::collections::BTreeMap;

use asterism_actors::supervisor::{PreparedContext, Question};
use asterism_plan::{Exchange, Input, Shard};

use crate::draw::hash;

/// Layers of both phases.
pub const LAYERS: u32 = 2;

const VOCABULARY: u64 = 997;
/// Ids that this divides end a sequence.
const END_EVERY: u32 = 29;

/// A shard before its first layer: its block, which is the same whether others share its prefix or it stands alone. That the
/// prefix then is the same too, the plan's own tests show.
pub fn embed(shard: &Shard, input: &Input) -> u64 {
    let rows = input.ids.iter().zip(&input.positions).skip(shard.prefix_rows());
    let ids = rows.flat_map(|(id, at)| [u64::from(*id), u64::from(*at)]);
    hash([shard.block as u64, shard.kept_tokens() as u64].into_iter().chain(ids))
}

/// Whether `block` waits in every layer for what `from` passes it.
pub fn needs(exchange: &Exchange, block: u32, from: u32) -> bool {
    match exchange {
        Exchange::None => false,
        Exchange::SharedPrefix { .. } | Exchange::PassCompressed(_) | Exchange::Broadcast => from < block,
        Exchange::AllToAll => from != block,
    }
}

/// A shard after a layer. `passed`: what it needs of others, by block. A shared prefix changes nothing here.
pub fn encode_layer(exchange: &Exchange, layer: u32, shard: u64, passed: &[u64]) -> u64 {
    let mixed = if matches!(exchange, Exchange::SharedPrefix { .. }) { &[] } else { passed };
    hash([u64::from(layer), shard].into_iter().chain(mixed.iter().copied()))
}

/// What an encoded shard answers a layer's query.
pub fn attend(shard: u64, layer: u32, query: u64) -> u64 {
    hash([shard, u64::from(layer), query])
}

/// The generator's own keys and values, and the sampler.
#[derive(Clone, Debug)]
pub struct Decoder {
    memory: u64,
    row: u64,
    draws: u64,
}

impl Decoder {
    /// Before the query.
    pub fn new() -> Self {
        Self { memory: 0, row: 0, draws: 0 }
    }

    /// Begins a step.
    pub fn begin(&mut self, ids: &[u32]) {
        self.row = hash([self.memory].into_iter().chain(ids.iter().map(|id| u64::from(*id))));
    }

    /// What a layer asks the shards.
    pub fn query(&self, layer: u32) -> u64 {
        hash([self.row, u64::from(layer)])
    }

    /// Takes the answers of a layer in, in block order.
    pub fn merge(&mut self, answers: &BTreeMap<u32, u64>) {
        self.row = hash([self.row].into_iter().chain(answers.values().copied()));
    }

    /// Ends a step with a token.
    pub fn draw(&mut self, question: (u64, bool)) -> u32 {
        let (seed, greedy) = question;
        self.memory = hash([self.memory, self.row]);
        self.draws += 1;
        let drawn = if greedy { 0 } else { hash([seed, self.draws]) };
        (hash([self.row, drawn]) % VOCABULARY) as u32
    }
}

/// Whether an id ends the sequence.
pub fn ends(id: u32) -> bool {
    id.is_multiple_of(END_EVERY)
}

/// The text of a token.
pub fn text(id: u32) -> String {
    format!("{id} ")
}

/// What is held back until the end.
pub const TAIL: &str = "#";

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Text, the tail included.
    pub text: String,
}

/// Every shard of a context, encoded at one place.
pub fn encode(context: &PreparedContext) -> Vec<u64> {
    let plan = &context.plan;
    let embedded = |shard: &Shard| embed(shard, &shard.input(&*context.ids).expect("a plan of this context"));
    let mut shards: Vec<u64> = plan.shards.iter().map(embedded).collect();
    for layer in 0..LAYERS {
        let before = shards.clone();
        for (block, shard) in shards.iter_mut().enumerate() {
            let given = (0..before.len()).filter(|&from| needs(&plan.exchange, block as u32, from as u32));
            let passed: Vec<u64> = given.map(|from| before[from]).collect();
            *shard = encode_layer(&plan.exchange, layer, *shard, &passed);
        }
    }
    shards
}

/// The answer, computed at one place without a fault.
pub fn answer(context: &PreparedContext, question: &Question) -> Answer {
    let shards = encode(context);
    let choice = &question.choice;
    let mut decoder = Decoder::new();
    let mut ids = question.query_ids.clone();
    let mut tokens = Vec::new();
    while tokens.len() < choice.max_tokens as usize {
        decoder.begin(&ids);
        for layer in 0..LAYERS {
            let query = decoder.query(layer);
            let answers = (0..).zip(&shards).map(|(block, shard)| (block, attend(*shard, layer, query)));
            decoder.merge(&answers.collect());
        }
        let id = decoder.draw((choice.seed, choice.temperature == 0.0));
        if !choice.ignore_eos && ends(id) {
            break;
        }
        tokens.push(id);
        ids = vec![id];
    }
    let text = tokens.iter().map(|id| text(*id)).chain([TAIL.to_string()]).collect();
    Answer { tokens, text }
}
