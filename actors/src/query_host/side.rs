//! The query host's side of a host process: hands what its state decides to the thread that generates.

use std::{collections::HashMap, sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_transport::DataPlane;
use tokio::sync::mpsc;

use crate::{
    cluster_event::ClusterEventKind,
    compute::{DeviceHandover, LoadedModel, ReportSink},
    cores::{ComputeKind, Cores},
    link::Links,
    machine::Thread,
    messages::{Generate, HostMessage},
    query_host::{
        arrival::Arrival,
        engine::Engine,
        partials::{channels::HostChannels, contexts::JobContexts},
        state::{GenerationEnd, QueryHostCommand, QueryHostEvent, QueryHostState},
    },
    readings::LinkReport,
};

/// Generates over shards that context hosts hold.
pub struct QuerySide {
    /// The rules.
    pub state: QueryHostState,
    links: Arc<Links>,
    engine: mpsc::UnboundedSender<Arrival>,
    /// Generations that run.
    running: HashMap<u64, RunningGeneration>,
    cores: Arc<dyn Cores>,
}

/// Of a generation that runs, what is told of it at its end.
struct RunningGeneration {
    began: Duration,
    /// Tokens that it made.
    tokens: usize,
}

impl RunningGeneration {
    fn ended(&self, now: Duration, number: u64, end: &GenerationEnd) -> ClusterEventKind {
        let how = match end {
            GenerationEnd::Answered { .. } => "answered".to_string(),
            GenerationEnd::Stopped => "stopped".to_string(),
            GenerationEnd::Failed { code, .. } => code.clone(),
        };
        ClusterEventKind::GenerationEnded { number, how, tokens: self.tokens, took: now.saturating_sub(self.began) }
    }
}

impl QuerySide {
    /// Context hosts are reached through `plane`, steps take about `interval`; what happens goes to `post`.
    pub fn start<B: Backend>(
        plane: Arc<DataPlane>,
        model: Arc<LoadedModel<B>>,
        (hands_over, interval): (DeviceHandover, Duration),
        post: ReportSink<QueryHostEvent>,
    ) -> Self {
        let (links, (engine, arrivals)) = (Arc::new(Links::new(plane)), mpsc::unbounded_channel());
        let (cores, lines) = (model.cores.clone(), HostChannels::new(links.clone(), engine.clone()));
        let decoder = (model.decoder.clone(), hands_over == DeviceHandover::Everything);
        let contexts = JobContexts::new(decoder, lines, arrivals, post.clone());
        let arrivals = engine.clone();
        let run = move || Engine::new(model, contexts, arrivals, interval, post).run();
        Thread::start("generate", run).expect("the system starts a thread");
        Self { state: QueryHostState::default(), links, engine, running: HashMap::new(), cores }
    }

    /// Its links.
    pub fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Adds what is known of its links.
    pub fn report(&self, report: &mut LinkReport) {
        self.links.report(report);
    }

    /// Applies an event; messages to the supervisor go to `report`.
    pub fn handle(&mut self, now: Duration, event: QueryHostEvent, report: &mut dyn FnMut(HostMessage)) {
        match &event {
            QueryHostEvent::Token { job, .. } => {
                self.running.get_mut(job).into_iter().for_each(|running| running.tokens += 1)
            }
            QueryHostEvent::Ended { job, end } => {
                self.running.remove(job).iter().for_each(|running| running.ended(now, *job, end).log());
                if self.running.is_empty() {
                    self.cores.end(ComputeKind::Generating);
                }
            }
            _ => {}
        }
        for command in self.state.handle(now, event) {
            match command {
                QueryHostCommand::Generate(generate) => self.begin(now, generate),
                QueryHostCommand::Stop { job } => self.arrive(Arrival::Stop { job }),
                QueryHostCommand::Holders { job, holders } => self.arrive(Arrival::Holders { job, holders }),
                QueryHostCommand::Report(message) => report(message),
            }
        }
    }

    fn begin(&mut self, now: Duration, generate: Generate) {
        self.cores.begin(ComputeKind::Generating);
        self.running.insert(generate.job, RunningGeneration { began: now, tokens: 0 });
        let (number, context) = (generate.job, generate.context);
        let (query_tokens, generated) = (generate.query_ids.len(), generate.generated.len());
        ClusterEventKind::GenerationStarted { number, context, query_tokens, generated }.log();
        self.arrive(Arrival::Begin(Box::new(generate)));
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
