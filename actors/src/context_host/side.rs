//! The context host's side of a host process: carries out what its state decides.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_transport::DataPlane;

use crate::{
    context_host::{
        answering::{channels, desk::Desk},
        command::{Command, Event, Failure, Work},
        parcels::passing::Office,
        state::ContextHostState,
        stop::Stop,
        store::ShardStore,
        turns::Turns,
        work::{Bench, HeadsShelf},
    },
    host::{HandsOver, LoadedModel, Post},
    link::Links,
    machine,
    messages::{Encoded, HostCommand, HostMessage, LinkReport},
    news::News,
};

/// Encodes shards and answers queries over them.
pub struct ContextSide<B: Backend> {
    /// The rules.
    pub state: ContextHostState,
    desk: Desk<B>,
    links: Arc<Links>,
    heads: Arc<HeadsShelf<B>>,
    /// Of works that go ahead, and of the others.
    turns: [Turns; 2],
    piece_bytes: usize,
    running: BTreeMap<u64, Stop>,
    post: Post<Event>,
}

impl<B: Backend> ContextSide<B> {
    /// Starts answering whoever connects to `plane`; what happens goes to `post`. Parcels go in frames of at most
    /// `piece_bytes`, where they are not handed over.
    pub fn start(
        plane: Arc<DataPlane>,
        model: &LoadedModel<B>,
        (piece_bytes, hands_over): (usize, HandsOver),
        post: Post<Event>,
    ) -> Self {
        let (decoder, tickets) = (model.decoder.clone(), Arc::default());
        let links = Arc::new(Links::new(plane.clone()));
        let (store, mailroom) = (ShardStore::default(), Arc::default());
        let cores = model.cores.clone();
        let desk = Desk { decoder, store, mailroom, tickets, links: links.clone(), cores, hands_over };
        plane.runtime().clone().spawn(channels::serve(plane, desk.clone()));
        Self {
            state: ContextHostState::default(),
            desk,
            links,
            heads: Arc::new(HeadsShelf::new(model.heads.clone())),
            turns: [(); 2].map(|()| Turns::new(model.cores.clone())),
            piece_bytes,
            running: BTreeMap::new(),
            post,
        }
    }

    /// Its links.
    pub fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Adds what is known of its links.
    pub fn report(&self, report: &mut LinkReport) {
        self.links.report(report);
    }

    /// Applies an event; what the supervisor is to hear goes to `tell`.
    pub fn handle(&mut self, now: Duration, event: Event, tell: &mut dyn FnMut(HostMessage)) {
        if let Event::Encoded { work, .. } | Event::Stopped { work, .. } = &event {
            self.running.remove(work);
        }
        if let Event::Encoded { encoded, .. } = &event {
            news(encoded).iter().for_each(News::log);
        }
        match &event {
            Event::Command(HostCommand::Encode(order)) => self.desk.tickets.keep(order.context, order.ticket),
            Event::Command(HostCommand::Release { context }) => self.desk.tickets.forget(*context),
            _ => {}
        }
        for command in self.state.handle(now, event) {
            match command {
                Command::Encode(work) => self.encode(work),
                Command::Stop { work } => {
                    if let Some(stop) = self.running.get(&work) {
                        stop.set();
                    }
                }
                Command::Keep { work, context } => self.desk.store.keep(work, context),
                Command::Discard { work } => self.desk.store.discard(work),
                Command::Share { from, context, block } => self.desk.store.share(from, context, block),
                Command::LayIdle { context, block, place } => self.desk.store.lay_idle(context, block, place),
                Command::TakeUp { place, context } => self.desk.store.take_up(place, context),
                Command::Evict { place } => self.desk.store.evict(place),
                Command::Expect { context, attempt } => self.desk.mailroom.expect((context, attempt)),
                Command::Free { context } => self.desk.store.free(context),
                Command::Forget { context } => {
                    self.desk.store.free(context);
                    self.desk.mailroom.forget(context);
                }
                Command::Tell(message) => tell(message),
            }
        }
    }

    fn encode(&mut self, work: Work) {
        let stop = Stop::default();
        self.running.insert(work.work, stop.clone());
        let bench = Bench {
            office: Office {
                decoder: self.desk.decoder.clone(),
                links: self.links.clone(),
                mailroom: self.desk.mailroom.clone(),
                stop,
                piece_bytes: self.piece_bytes,
                hands_over: self.desk.hands_over != HandsOver::Nothing,
            },
            store: self.desk.store.clone(),
            heads: self.heads.clone(),
            turns: self.turns.clone(),
            post: self.post.clone(),
        };
        let (number, post) = (work.work, self.post.clone());
        let thread = machine::spawn(move || bench.run(&work));
        tokio::spawn(async move {
            if let Err(panic) = thread.await {
                let (code, message) = ("internal".to_string(), format!("the encoder panicked: {panic}"));
                let failure = Some(Failure { peer_lost: false, code, message });
                post(Event::Stopped { work: number, failure, used: 0.0 });
            }
        });
    }
}

impl<B: Backend> Drop for ContextSide<B> {
    fn drop(&mut self) {
        self.running.values().for_each(Stop::set);
    }
}

/// That shards of one order are encoded; its seconds are dealt out among them.
fn news(encoded: &[Encoded]) -> Option<News> {
    Some(News::ShardsEncoded {
        context: encoded.first()?.context,
        shards: encoded.len(),
        tokens: encoded.iter().map(|shard| shard.kept_tokens).sum(),
        kv_bytes: encoded.iter().map(|shard| shard.kv_bytes).sum(),
        encode_s: encoded.iter().map(|shard| shard.seconds).sum(),
    })
}
