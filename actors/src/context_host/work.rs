//! One order on its way through the encoder, on a thread of its own. Decides nothing.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    sync::{Arc, Mutex},
};

use asterism_kernels::{Backend, Rank};
use asterism_models::{Decoder, EncodedShard, HeadsFiles, ModelError, Phase1, RetainingHeads, Watch};
use asterism_plan::{Exchange, Input, ModelShape, Shard, attention::causal_pairs};
use tokio::time::Instant;

use crate::{
    context_host::{
        command::{ContextHostEvent, EncodeWork, Failure},
        fair_scheduler::{FairScheduler, Slot},
        parcels::passing::{RemotePeers, TransferContext},
        store::ShardStore,
    },
    host::ReportSink,
    messages::{EncodeShards, Encoded},
    trace::{self, LayerSpans, OpenSpan, TraceContext},
};

/// Operations of an order up to which it goes ahead of longer ones: some 0.2 seconds of a Hopper GPU.
const SHORT_FLOPS: u64 = 100_000_000_000_000;

/// Retaining heads by name: where their files are, and those used last.
pub struct HeadsShelf<B: Backend> {
    files: HeadsFiles,
    last: Mutex<Option<(String, Arc<RetainingHeads<B>>)>>,
}

impl<B: Backend> HeadsShelf<B> {
    /// Heads that are read when they are first used.
    pub fn new(files: HeadsFiles) -> Self {
        Self { files, last: Mutex::new(None) }
    }

    /// The heads of this name, read once for as long as orders name the same.
    fn take(&self, name: &str, decoder: &Decoder<B>) -> Result<Arc<RetainingHeads<B>>, ModelError> {
        let mut last = self.last.lock().expect("no holder panics");
        if let Some((_, heads)) = last.as_ref().filter(|(known, _)| known == name) {
            return Ok(heads.clone());
        }
        let path = self.files.get(name).ok_or_else(|| ModelError::NoRetainingHeads { name: name.to_string() })?;
        let heads = Arc::new(RetainingHeads::load(decoder.backend(), path, decoder.config())?);
        *last = Some((name.to_owned(), heads.clone()));
        Ok(heads)
    }
}

/// What an order needs on its way.
pub struct EncodeWorker<B: Backend> {
    /// What parcels go through.
    pub transfer: TransferContext<B>,
    /// Where shards are laid.
    pub store: ShardStore<B>,
    /// Retaining heads.
    pub heads: Arc<HeadsShelf<B>>,
    /// Whose turn it is, among those that go ahead of others and among the others.
    pub scheduler: [FairScheduler; 2],
    /// Where events go.
    pub post: ReportSink<ContextHostEvent>,
}

impl<B: Backend> EncodeWorker<B> {
    /// Encodes, lays the shards ready and says how it ended.
    pub fn run(self, EncodeWork { work, used, order, inputs }: &EncodeWork) {
        let slot = Rc::new(RefCell::new(self.slot(*used, order)));
        let attempt = (order.context, order.attempt);
        let (post, store, parcel_inbox) = (self.post.clone(), self.store.clone(), self.transfer.parcel_inbox.clone());
        let mut peers = RemotePeers::new(self.transfer.clone(), slot.clone(), order);
        let decoder = self.transfer.decoder.clone();
        let encoded = self.encode((*work, *used), (order, inputs), &mut peers, &slot);
        let used = slot.borrow().used() - used;
        if order.exchange != Exchange::None {
            parcel_inbox.end(attempt);
        }
        post(match encoded {
            Ok((shards, encoded)) => {
                store.lay_ready(*work, shards);
                ContextHostEvent::Encoded { work: *work, encoded, used }
            }
            Err(ModelError::Cancelled) => ContextHostEvent::Stopped { work: *work, failure: None, used },
            Err(error) => {
                let (code, message) = (error.code().to_string(), error.to_string());
                // A device that failed ends its host: another attempt is as good as with a peer that is gone.
                let peer_lost = peers.peer_lost() || decoder.backend().health().is_err();
                ContextHostEvent::Stopped { work: *work, failure: Some(Failure { peer_lost, code, message }), used }
            }
        });
    }

    /// A short order goes ahead of longer ones where the device works off a queue: between two of their quanta, not of
    /// their layers.
    fn slot(&self, used: f64, order: &EncodeShards) -> Slot {
        let (decoder, [first, others]) = (self.transfer.decoder.clone(), &self.scheduler);
        let short = decoder.backend().queues()
            && is_short(&order.shards, &decoder.config().shape(decoder.backend().kv_dtype()));
        let slot = if short { first } else { others }.slot(used, self.transfer.stop.clone());
        if short { slot.with_priority(move || decoder.backend().priority(Rank::Short)) } else { slot }
    }

    fn encode(
        self,
        (work, used): (u64, f64),
        (order, inputs): (&EncodeShards, &[Input]),
        peers: &mut RemotePeers<B>,
        slot: &Rc<RefCell<Slot>>,
    ) -> Result<(Vec<EncodedShard<B>>, Vec<Encoded>), ModelError> {
        if !slot.borrow_mut().take() {
            return Err(ModelError::Cancelled);
        }
        let (started, decoder) = (Instant::now(), self.transfer.decoder.clone());
        let span = order.trace.as_deref().filter(|_| trace::is_wanted()).map(|job| span_of(*job, order));
        let heads = order.exchange.retaining_heads().map(|name| self.heads.take(name, &decoder)).transpose()?;
        let mut watch = Reporter {
            work,
            of: decoder.config().layers as u32,
            post: self.post,
            slot: slot.clone(),
            pairs: HashMap::new(),
            spans: span.as_ref().map(|span| LayerSpans::new(span.context(), decoder.config().layers)),
        };
        let phase = Phase1 {
            decoder: &decoder,
            shards: &order.shards,
            inputs,
            blocks: order.blocks as usize,
            exchange: &order.exchange,
            heads: heads.as_deref(),
        };
        let encoded = phase.encode(peers, &mut watch)?;
        decoder.backend().finish().map_err(ModelError::from)?;
        let seconds = started.elapsed().as_secs_f64() / encoded.len() as f64;
        let computing_s = (slot.borrow().used() - used) / encoded.len() as f64;
        let shape = decoder.config().shape(decoder.backend().kv_dtype());
        let rows = |block: usize| order.shards.iter().find(|shard| shard.block == block).map_or(0, Shard::rows);
        let heads = (shape.layers * shape.query_heads).max(1) as u64;
        let mut exchange_bytes = peers.received_bytes();
        let report = |shard: &EncodedShard<B>| Encoded {
            context: order.context,
            block: shard.block as u32,
            digest: shard.digest,
            kept_tokens: shard.tokens as u64,
            kv_bytes: shard.bytes(&decoder),
            seconds,
            computing_s,
            operations: shape.flops(rows(shard.block), watch.pairs.get(&shard.block).copied().unwrap_or(0) / heads),
            pairs: watch.pairs.get(&shard.block).copied().unwrap_or(0),
            exchange_bytes: std::mem::take(&mut exchange_bytes),
            cached: false,
        };
        let reports = encoded.iter().map(report).collect();
        peers.finish()?;
        Ok((encoded, reports))
    }
}

/// Whether shards are encoded so soon that longer orders wait for them.
fn is_short(shards: &[Shard], shape: &ModelShape) -> bool {
    let of_shard = |shard: &Shard| shape.flops(shard.rows(), causal_pairs(shard.rows()));
    shards.iter().map(of_shard).fold(0, u64::saturating_add) <= SHORT_FLOPS
}

/// What is encoded together, on behalf of a job.
fn span_of(job: TraceContext, order: &EncodeShards) -> OpenSpan {
    let mut span = OpenSpan::under(job, "encode shards");
    span.annotate("asterism.context.number", order.context);
    span.annotate("asterism.shards", order.shards.len());
    span.annotate("asterism.shards.first", order.shards.first().map_or(0, |shard| shard.block));
    span.annotate("asterism.tokens", order.shards.iter().map(|shard| shard.own.tokens as usize).sum::<usize>());
    span.annotate("asterism.attempt", u64::from(order.attempt));
    span
}

/// Reports layers, counts pairs, and lets others compute between layers.
struct Reporter {
    work: u64,
    of: u32,
    post: ReportSink<ContextHostEvent>,
    slot: Rc<RefCell<Slot>>,
    pairs: HashMap<usize, u64>,
    spans: Option<LayerSpans>,
}

impl Watch for Reporter {
    fn layer(&mut self, block: usize, done: usize) -> bool {
        self.spans.iter_mut().for_each(|spans| spans.done(done));
        (self.post)(ContextHostEvent::Layer { work: self.work, block: block as u32, layers: done as u32, of: self.of });
        self.slot.borrow_mut().pass()
    }

    fn pairs(&mut self, block: usize, pairs: u64) {
        *self.pairs.entry(block).or_default() += pairs;
    }
}

#[cfg(test)]
mod tests {
    use asterism_plan::{Method, MethodConfig, PlanRequest};

    use super::*;

    #[test]
    fn a_few_thousand_tokens_of_a_large_model_are_short_and_more_of_a_small_one() {
        let large = ModelShape {
            layers: 32,
            hidden: 4096,
            intermediate: 14_336,
            query_heads: 32,
            head_dim: 128,
            ..ModelShape::TINY
        };
        let short = |method: &str, tokens: u32, shape: &ModelShape| {
            let context: Vec<u32> = (0..tokens).collect();
            let request =
                PlanRequest { context: &context, query: &[1], hosts: 1, one_machine: true, shape, speeds: None };
            let plan = method.parse::<MethodConfig>().unwrap().plan(&request).unwrap();
            is_short(&plan.shards, shape)
        };
        assert!(short("dense", 5000, &large) && short("pulsar", 5000, &large));
        assert!(!short("dense", 20_000, &large) && !short("pulsar", 20_000, &large));
        assert!(short("dense", 20_000, &ModelShape::TINY));
    }
}
