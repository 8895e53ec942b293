//! The context host's side of a host process: carries out what its state decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use asterism_kernels::Backend;
use asterism_transport::DataPlane;
use tokio::task::JoinHandle;

use crate::{
    cluster_event::ClusterEventKind,
    compute::{Batching, DeviceHandover, LoadedModel, ReportSink},
    context_host::{
        answering::{channels, query_service::QueryService},
        command::{ContextHostCommand, ContextHostEvent, EncodeWork, Failure},
        fair_scheduler::FairScheduler,
        parcels::{moving::FetchWorker, passing::TransferContext},
        state::ContextHostState,
        stop::StopFlag,
        store::ShardStore,
        work::{EncodeWorker, HeadsShelf},
    },
    link::Links,
    machine,
    messages::{Encoded, HostCommand, HostMessage},
    readings::LinkReport,
};

/// Encodes shards and answers queries over them.
pub struct ContextSide<B: Backend> {
    /// The rules.
    pub state: ContextHostState,
    service: QueryService<B>,
    links: Arc<Links>,
    heads: Arc<HeadsShelf<B>>,
    /// Of works that go ahead, and of the others.
    scheduler: [FairScheduler; 2],
    piece_bytes: usize,
    /// Works that are encoded together, by the first of them.
    running: BTreeMap<u64, RunningPack>,
    post: ReportSink<ContextHostEvent>,
}

/// Works that are encoded together.
struct RunningPack {
    /// Those that are wanted.
    works: BTreeSet<u64>,
    stop: StopFlag,
}

impl<B: Backend> ContextSide<B> {
    /// Starts answering whoever connects to `plane`; what happens goes to `post`. Parcels go in frames of at most
    /// `piece_bytes`, where they are not handed over.
    pub fn start(
        plane: Arc<DataPlane>,
        model: &LoadedModel<B>,
        (piece_bytes, hands_over): (usize, DeviceHandover),
        batching: Batching,
        post: ReportSink<ContextHostEvent>,
    ) -> Self {
        let (decoder, tickets) = (model.decoder.clone(), Arc::default());
        let links = Arc::new(Links::new(plane.clone()));
        let (store, parcel_inbox) = (ShardStore::default(), Arc::default());
        let cores = model.cores.clone();
        let (pack_rows, effort) = (batching.rows(decoder.backend()), Arc::default());
        let service =
            QueryService { decoder, store, parcel_inbox, tickets, links: links.clone(), cores, hands_over, effort };
        plane.runtime().clone().spawn(channels::serve(plane, service.clone()));
        Self {
            state: ContextHostState::new(pack_rows),
            service,
            links,
            heads: Arc::new(HeadsShelf::new(model.heads.clone())),
            scheduler: [(); 2].map(|()| FairScheduler::new(model.cores.clone())),
            piece_bytes,
            running: BTreeMap::new(),
            post,
        }
    }

    /// Its links.
    pub fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Adds what is known of its links, and of what it answered.
    pub fn report(&self, report: &mut LinkReport) {
        report.answered = self.service.effort.so_far();
        self.links.report(report);
    }

    /// Applies an event; messages to the supervisor go to `report`.
    pub fn handle(&mut self, now: Duration, event: ContextHostEvent, report: &mut dyn FnMut(HostMessage)) {
        if let ContextHostEvent::Encoded { work, .. } | ContextHostEvent::Stopped { work, .. } = &event {
            self.leave(*work);
        }
        if let ContextHostEvent::Encoded { encoded, .. } = &event {
            update(encoded).iter().for_each(ClusterEventKind::log);
        }
        match &event {
            ContextHostEvent::Command(HostCommand::Encode(order)) => {
                self.service.tickets.keep(order.context, order.ticket)
            }
            ContextHostEvent::Command(HostCommand::Release { context, .. }) => self.service.tickets.forget(*context),
            _ => {}
        }
        if let ContextHostEvent::Stopped { failure: Some(Failure { crowded: true, message, .. }), .. } = &event {
            tracing::warn!(
                cause = message,
                "the device's memory is full: idle shards go, and what may fit later is encoded again"
            );
        }
        if !matches!(event, ContextHostEvent::Layer { .. }) {
            self.state.see_gpu(self.service.cores.gpu_memory());
        }
        let commands = self.state.handle(now, event);
        let evicts = commands.iter().any(|command| matches!(command, ContextHostCommand::Evict { .. }));
        for command in commands {
            match command {
                ContextHostCommand::Encode(works) => self.encode(works),
                ContextHostCommand::Fetch(work) => self.fetch(work),
                ContextHostCommand::Stop { work } => self.leave(work),
                ContextHostCommand::Keep { work, context } => self.service.store.keep(work, context),
                ContextHostCommand::Discard { work } => self.service.store.discard(work),
                ContextHostCommand::Share { from, context, block } => self.service.store.share(from, context, block),
                ContextHostCommand::LayIdle { context, block, place } => {
                    self.service.store.lay_idle(context, block, place)
                }
                ContextHostCommand::TakeUp { place, context } => self.service.store.take_up(place, context),
                ContextHostCommand::Evict { place } => self.service.store.evict(place),
                ContextHostCommand::Expect { context, attempt } => self.service.parcel_inbox.expect((context, attempt)),
                ContextHostCommand::Free { context } => self.service.store.free(context),
                ContextHostCommand::Forget { context } => {
                    self.service.store.free(context);
                    self.service.parcel_inbox.forget(context);
                }
                ContextHostCommand::Report(message) => report(message),
            }
        }
        if evicts && self.service.decoder.backend().queues() {
            self.give_back();
        }
    }

    /// Memory that was freed may be other processes', once what was queued before is done.
    fn give_back(&self) {
        let decoder = self.service.decoder.clone();
        // A device that failed says so to whoever computes on it next.
        drop(machine::spawn(move || drop(decoder.backend().finish())));
    }

    /// A work has ended, or nobody wants it any more: those that it is encoded together with go on.
    fn leave(&mut self, work: u64) {
        let Some((&first, pack)) = self.running.range_mut(..=work).next_back() else { return };
        if pack.works.remove(&work) && pack.works.is_empty() {
            pack.stop.set();
            self.running.remove(&first);
        }
    }

    fn encode(&mut self, pack: Vec<EncodeWork>) {
        let stop = StopFlag::default();
        let works: BTreeSet<u64> = pack.iter().map(|work| work.work).collect();
        let Some(&first) = works.first() else { return };
        self.running.insert(first, RunningPack { works: works.clone(), stop: stop.clone() });
        let worker = EncodeWorker {
            transfer: TransferContext {
                decoder: self.service.decoder.clone(),
                links: self.links.clone(),
                parcel_inbox: self.service.parcel_inbox.clone(),
                stop,
                piece_bytes: self.piece_bytes,
                hands_over: self.service.hands_over != DeviceHandover::Nothing,
            },
            store: self.service.store.clone(),
            heads: self.heads.clone(),
            scheduler: self.scheduler.clone(),
            post: self.post.clone(),
        };
        self.watch(works, machine::spawn(move || worker.run(&pack)));
    }

    fn fetch(&mut self, work: EncodeWork) {
        let stop = StopFlag::default();
        let works = BTreeSet::from([work.work]);
        self.running.insert(work.work, RunningPack { works: works.clone(), stop: stop.clone() });
        let QueryService { decoder, store, .. } = self.service.clone();
        let worker = FetchWorker { decoder, links: self.links.clone(), store, stop, post: self.post.clone() };
        self.watch(works, machine::spawn(move || worker.run(&work)));
    }

    /// A thread that panics ends its works.
    fn watch(&self, works: BTreeSet<u64>, thread: JoinHandle<()>) {
        let post = self.post.clone();
        tokio::spawn(async move {
            if let Err(panic) = thread.await {
                let (code, message) = ("internal".to_string(), format!("the encoder panicked: {panic}"));
                let failure = Some(Failure { peer_lost: false, crowded: false, code, message });
                works.into_iter().for_each(|work| {
                    post(ContextHostEvent::Stopped { work, failure: failure.clone(), used: 0.0 });
                });
            }
        });
    }
}

impl<B: Backend> Drop for ContextSide<B> {
    fn drop(&mut self) {
        self.running.values().for_each(|pack| pack.stop.set());
    }
}

/// That shards of one order are encoded; its seconds are dealt out among them. Those that came from another host are not.
fn update(encoded: &[Encoded]) -> Option<ClusterEventKind> {
    encoded.iter().any(|shard| !shard.cached).then_some(())?;
    Some(ClusterEventKind::ShardsEncoded {
        context: encoded.first()?.context,
        shards: encoded.len(),
        tokens: encoded.iter().map(|shard| shard.kept_tokens).sum(),
        kv_bytes: encoded.iter().map(|shard| shard.kv_bytes).sum(),
        encode_s: encoded.iter().map(|shard| shard.seconds).sum(),
    })
}
