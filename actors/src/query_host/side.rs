//! The query host's side of a host process: carries out what its state decides, each generation on a blocking thread.

use std::{collections::HashMap, sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_transport::Transport;
use tokio::sync::mpsc;

use super::{
    generation,
    remote::{Arrival, RemoteContext},
    state::{Command, Event, GenerationEnd, QueryHostState},
};
use crate::{
    host::{LoadedModel, Post},
    link::Links,
    messages::{Generate, HostMessage, LinkReport},
};

/// Generates over shards that context hosts hold.
pub struct QuerySide<B: Backend> {
    /// The rules.
    pub state: QueryHostState,
    model: Arc<LoadedModel<B>>,
    links: Arc<Links>,
    /// Where orders reach the generations that run.
    running: HashMap<u64, mpsc::UnboundedSender<Arrival>>,
    post: Post<Event>,
}

impl<B: Backend> QuerySide<B> {
    /// Context hosts are reached through `transport`; what happens goes to `post`.
    pub fn new(transport: Arc<dyn Transport>, model: Arc<LoadedModel<B>>, post: Post<Event>) -> Self {
        let (state, links) = (QueryHostState::default(), Arc::new(Links::new(transport)));
        Self { state, model, links, running: HashMap::new(), post }
    }

    /// Adds what is known of its links.
    pub fn report(&self, report: &mut LinkReport) {
        self.links.report(report);
    }

    /// Applies an event; what the supervisor is to hear goes to `tell`.
    pub fn handle(&mut self, now: Duration, event: Event, tell: &mut dyn FnMut(HostMessage)) {
        if let Event::Ended { job, .. } = &event {
            self.running.remove(job);
        }
        for command in self.state.handle(now, event) {
            match command {
                Command::Generate(generate) => self.generate(generate),
                Command::Stop { job } => self.arrive(job, Arrival::Stop),
                Command::Holders { job, holders } => self.arrive(job, Arrival::Holders(holders)),
                Command::Tell(message) => tell(message),
            }
        }
    }

    fn arrive(&self, job: u64, arrival: Arrival) {
        if let Some(running) = self.running.get(&job) {
            let _ = running.send(arrival);
        }
    }

    fn generate(&mut self, generate: Generate) {
        let job = generate.job;
        let (arrivals, context) =
            RemoteContext::open(self.model.decoder.clone(), self.links.clone(), &generate, self.post.clone());
        self.running.insert(job, arrivals);
        let (model, post) = (self.model.clone(), self.post.clone());
        let told = post.clone();
        let work = move || generation::generate(&model, &generate, context, &told);
        let thread = tokio::task::spawn_blocking(work);
        tokio::spawn(async move {
            let end = thread.await.unwrap_or_else(|panic| {
                let (code, message) = ("internal".to_string(), format!("the generation panicked: {panic}"));
                GenerationEnd::Failed { code, message }
            });
            post(Event::Ended { job, end });
        });
    }
}

impl<B: Backend> Drop for QuerySide<B> {
    fn drop(&mut self) {
        self.running.keys().for_each(|job| self.arrive(*job, Arrival::Stop));
    }
}
