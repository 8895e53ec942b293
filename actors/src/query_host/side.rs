//! The query host's side of a host process: hands what its state decides to the thread that generates.

use std::{sync::Arc, thread, time::Duration};

use asterism_kernels::Backend;
use asterism_transport::Transport;
use tokio::sync::mpsc;

use super::{
    contexts::Contexts,
    engine::{Arrival, Engine},
    lines::Lines,
    state::{Command, Event, QueryHostState},
};
use crate::{
    host::{LoadedModel, Post},
    link::Links,
    messages::{HostMessage, LinkReport},
};

/// Generates over shards that context hosts hold.
pub struct QuerySide {
    /// The rules.
    pub state: QueryHostState,
    links: Arc<Links>,
    engine: mpsc::UnboundedSender<Arrival>,
}

impl QuerySide {
    /// Context hosts are reached through `transport`; what happens goes to `post`.
    pub fn start<B: Backend>(transport: Arc<dyn Transport>, model: Arc<LoadedModel<B>>, post: Post<Event>) -> Self {
        let (links, (engine, arrivals)) = (Arc::new(Links::new(transport)), mpsc::unbounded_channel());
        let lines = Lines::new(links.clone(), engine.clone());
        let contexts = Contexts::new(model.decoder.clone(), lines, arrivals, post.clone());
        let run = move || Engine::new(model, contexts, post).run();
        thread::Builder::new().name("generate".into()).spawn(run).expect("the system starts a thread");
        Self { state: QueryHostState::default(), links, engine }
    }

    /// Adds what is known of its links.
    pub fn report(&self, report: &mut LinkReport) {
        self.links.report(report);
    }

    /// Applies an event; what the supervisor is to hear goes to `tell`.
    pub fn handle(&mut self, now: Duration, event: Event, tell: &mut dyn FnMut(HostMessage)) {
        for command in self.state.handle(now, event) {
            match command {
                Command::Generate(generate) => self.arrive(Arrival::Begin(Box::new(generate))),
                Command::Stop { job } => self.arrive(Arrival::Stop { job }),
                Command::Holders { job, holders } => self.arrive(Arrival::Holders { job, holders }),
                Command::Tell(message) => tell(message),
            }
        }
    }

    fn arrive(&self, arrival: Arrival) {
        let _ = self.engine.send(arrival);
    }
}

impl Drop for QuerySide {
    fn drop(&mut self) {
        self.arrive(Arrival::Close);
    }
}
