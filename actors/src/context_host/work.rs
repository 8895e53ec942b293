//! One order on its way through the encoder, on a thread of its own. Decides nothing.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
    sync::{Arc, Mutex},
};

use asterism_kernels::{Backend, Rank};
use asterism_models::{Decoder, EncodedShard, HeadsFiles, ModelError, Phase1, RetainingHeads, Watch};
use asterism_plan::{Exchange, Input, ModelShape, Shard, attention::causal_pairs};
use tokio::time::Instant;

use crate::{
    api::TraceContext,
    compute::ReportSink,
    context_host::{
        chain::{self, ChainEncoder},
        command::{ContextHostEvent, EncodeWork, Failure},
        fair_scheduler::{FairScheduler, Slot},
        parcels::passing::{RemotePeers, TransferContext},
        store::ShardStore,
    },
    messages::{BACKGROUND_TENANT, EncodeShards, Encoded},
    trace::{self, LayerSpans, OpenSpan},
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
    /// Encodes works together, lays the shards of each ready and says how it ended.
    pub fn run(self, works: &[EncodeWork]) {
        let Some(EncodeWork { used, order, .. }) = works.first() else { return };
        let pack = Pack::of(works);
        let in_background = works.iter().all(|work| work.order.tenant & BACKGROUND_TENANT != 0);
        let slot = Rc::new(RefCell::new(self.slot(*used, &pack.shards).in_background(in_background)));
        let attempt = (order.context, order.attempt);
        let (post, store, parcel_inbox) = (self.post.clone(), self.store.clone(), self.transfer.parcel_inbox.clone());
        // Those that are encoded together with others pass nothing.
        let mut peers = RemotePeers::new(self.transfer.clone(), slot.clone(), order);
        let decoder = self.transfer.decoder.clone();
        let encoded = self.encode((works, *used), &pack, &mut peers, &slot);
        let used = slot.borrow().used() - used;
        if order.exchange != Exchange::None {
            parcel_inbox.end(attempt);
        }
        let each = |rows: usize| used * rows as f64 / pack.rows().max(1) as f64;
        match encoded {
            Ok(encoded) => {
                for ((shards, encoded), EncodeWork { work, inputs, .. }) in encoded.into_iter().zip(works) {
                    store.lay_ready(*work, shards);
                    post(ContextHostEvent::Encoded { work: *work, encoded, used: each(rows_of(inputs)) });
                }
            }
            Err(error) => {
                let (code, message) = (error.code().to_string(), error.to_string());
                // A device that failed ends its host: another attempt is as good as with a peer that is gone.
                // So is one where there is room by now.
                let has_room = matches!(error, ModelError::NoRoom { missing: 0, .. });
                let peer_lost = has_room || peers.peer_lost() || decoder.backend().health().is_err();
                let (stopped, crowded) =
                    (matches!(error, ModelError::Cancelled), matches!(error, ModelError::NoRoom { .. }));
                let failure = (!stopped).then_some(Failure { peer_lost, crowded, code, message });
                for EncodeWork { work, inputs, .. } in works {
                    let (failure, used) = (failure.clone(), each(rows_of(inputs)));
                    post(ContextHostEvent::Stopped { work: *work, failure, used });
                }
            }
        }
    }

    /// A short order goes ahead of longer ones where the device works off a queue: between two of their quanta, not of
    /// their layers.
    fn slot(&self, used: f64, shards: &[Shard]) -> Slot {
        let (decoder, [first, others]) = (self.transfer.decoder.clone(), &self.scheduler);
        let short =
            decoder.backend().queues() && is_short(shards, &decoder.config().shape(decoder.backend().kv_type()));
        let slot = if short { first } else { others }.slot(used, self.transfer.stop.clone());
        if short { slot.with_priority(move || decoder.backend().priority(Rank::Short)) } else { slot }
    }

    /// The shards of each work, and what is said of them.
    fn encode(
        self,
        (works, used): (&[EncodeWork], f64),
        pack: &Pack,
        peers: &mut RemotePeers<B>,
        slot: &Rc<RefCell<Slot>>,
    ) -> Result<Vec<WorkEnd<B>>, ModelError> {
        if !slot.borrow_mut().take() {
            return Err(ModelError::Cancelled);
        }
        let (started, decoder) = (Instant::now(), self.transfer.decoder.clone());
        let first = &works[0].order;
        let heads = first.exchange.retaining_heads().map(|name| self.heads.take(name, &decoder)).transpose()?;
        let layers = decoder.config().layers;
        let mut watch = Reporter {
            of: layers as u32,
            post: self.post,
            slot: slot.clone(),
            pack,
            pairs: HashMap::new(),
            spans: works.iter().filter_map(|work| spans_of(&work.order, layers)).collect(),
        };
        let (decoder, blocks, shards) = (&*decoder, first.blocks as usize, &pack.shards[..]);
        let encoded = if works.iter().any(|work| chain::is_chain(&work.order)) {
            let held = |context, block| self.store.find(context, &[block]).ok().map(|mut found| found.swap_remove(0));
            let mut encoder = ChainEncoder { decoder, blocks, kept: &held, peers };
            match works.len() {
                1 => encoder.encode(first.context, (shards, &pack.inputs), &mut watch)?,
                _ => encoder.encode_beside(works, (shards, &pack.inputs), &mut watch)?,
            }
        } else {
            let (inputs, exchange, heads) = (&pack.inputs[..], &first.exchange, heads.as_deref());
            Phase1 { decoder, shards, inputs, blocks, exchange, behind: &[], heads }.encode(peers, &mut watch)?
        };
        decoder.backend().finish().map_err(ModelError::from)?;
        let all = pack.rows().max(1) as f64;
        let (seconds, computing_s) = (started.elapsed().as_secs_f64() / all, (slot.borrow().used() - used) / all);
        let shape = decoder.config().shape(decoder.backend().kv_type());
        let heads = (shape.layers * shape.query_heads).max(1) as u64;
        let (mut exchange_bytes, mut encoded) = (peers.received_bytes(), encoded.into_iter());
        let mut ends = Vec::with_capacity(works.len());
        for EncodeWork { order, inputs, .. } in works {
            let mut shards: Vec<EncodedShard<B>> = encoded.by_ref().take(order.shards.len()).collect();
            let report = |((shard, ordered), input): ((&mut EncodedShard<B>, &Shard), &Input)| {
                let (pairs, rows) = (watch.pairs.get(&shard.block).copied().unwrap_or(0), input.ids.len());
                shard.block = ordered.block;
                Encoded {
                    context: order.context,
                    block: shard.block as u32,
                    digest: shard.digest,
                    kept_tokens: shard.tokens as u64,
                    kv_bytes: shard.bytes(decoder),
                    seconds: seconds * rows as f64,
                    computing_s: computing_s * rows as f64,
                    operations: shape.flops(rows, pairs / heads),
                    pairs,
                    exchange_bytes: std::mem::take(&mut exchange_bytes),
                    cached: false,
                }
            };
            let reports = shards.iter_mut().zip(&order.shards).zip(inputs).map(report).collect();
            ends.push((shards, reports));
        }
        peers.finish()?;
        Ok(ends)
    }
}

/// The shards that a work encoded, and what is said of them.
type WorkEnd<B> = (Vec<EncodedShard<B>>, Vec<Encoded>);

/// What several works encode, as one: shards are numbered through where there is more than one work.
struct Pack {
    shards: Vec<Shard>,
    inputs: Vec<Input>,
    /// By the number of a shard here: its work, and its block there.
    origins: BTreeMap<usize, (u64, u32)>,
}

impl Pack {
    fn of(works: &[EncodeWork]) -> Self {
        let (mut shards, mut inputs, mut origins) = (Vec::new(), Vec::new(), BTreeMap::new());
        for work in works {
            for shard in &work.order.shards {
                let block = if works.len() == 1 { shard.block } else { shards.len() };
                origins.insert(block, (work.work, shard.block as u32));
                shards.push(Shard { block, ..shard.clone() });
            }
            inputs.extend_from_slice(&work.inputs);
        }
        Self { shards, inputs, origins }
    }

    fn rows(&self) -> usize {
        rows_of(&self.inputs)
    }
}

fn rows_of(inputs: &[Input]) -> usize {
    inputs.iter().map(|input| input.ids.len()).sum()
}

/// Whether shards are encoded so soon that longer orders wait for them.
fn is_short(shards: &[Shard], shape: &ModelShape) -> bool {
    let of_shard =
        |shard: &Shard| shape.flops(shard.rows(), causal_pairs(shard.rows()) + (shard.rows() * shard.behind) as u64);
    shards.iter().map(of_shard).fold(0, u64::saturating_add) <= SHORT_FLOPS
}

/// What is encoded of an order, on behalf of a job whose spans are wanted: it and its layers.
fn spans_of(order: &EncodeShards, layers: usize) -> Option<(LayerSpans, OpenSpan)> {
    let job: TraceContext = *order.trace.as_deref().filter(|_| trace::is_wanted())?;
    let mut span = OpenSpan::under(job, "encode shards");
    span.annotate("asterism.context.number", order.context);
    span.annotate("asterism.shards", order.shards.len());
    span.annotate("asterism.shards.first", order.shards.first().map_or(0, |shard| shard.block));
    span.annotate("asterism.tokens", order.shards.iter().map(|shard| shard.own.tokens as usize).sum::<usize>());
    span.annotate("asterism.attempt", u64::from(order.attempt));
    let layers = LayerSpans::new(span.context(), layers);
    Some((layers, span))
}

/// Reports layers, counts pairs, and lets others compute between layers.
struct Reporter<'a> {
    of: u32,
    post: ReportSink<ContextHostEvent>,
    slot: Rc<RefCell<Slot>>,
    pack: &'a Pack,
    pairs: HashMap<usize, u64>,
    /// Of each order whose spans are wanted: its layers, which end no later than what they are a part of.
    spans: Vec<(LayerSpans, OpenSpan)>,
}

impl Watch for Reporter<'_> {
    fn layer(&mut self, block: usize, done: usize) -> bool {
        self.spans.iter_mut().for_each(|(layers, _)| layers.done(done));
        if let Some(&(work, block)) = self.pack.origins.get(&block) {
            (self.post)(ContextHostEvent::Layer { work, block, layers: done as u32, of: self.of });
        }
        self.slot.borrow_mut().pass()
    }

    fn goes_on(&mut self) -> bool {
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
                PlanRequest { context: &context, query: &[1], hosts: 1, one_device: true, shape, speeds: None };
            let plan = method.parse::<MethodConfig>().unwrap().plan(&request).unwrap();
            is_short(&plan.shards, shape)
        };
        assert!(short("dense", 5000, &large) && short("pulsar", 5000, &large));
        assert!(!short("dense", 20_000, &large) && !short("pulsar", 20_000, &large));
        assert!(short("dense", 20_000, &ModelShape::TINY));
    }
}
