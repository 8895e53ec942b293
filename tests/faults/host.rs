//! A host process: joins the supervisor and comes back to it, hands events to the two host-side state machines, and carries
//! out what they decide on the toy model. Decides nothing itself.

use std::collections::{BTreeMap, VecDeque};

use asterism_actors::{
    context_host::{self, ContextHostState},
    messages::{Hello, HostCommand, HostMessage, HostRole},
    query_host::{self, QueryHostState},
};

use crate::{
    clock::{Core, Pid, Time, What},
    desk::Desk,
    encoder::Encoder,
    generation::Generation,
    network::{Frame, LinkId},
};

/// Longest wait for the answer to a hello.
const ANSWER_DEADLINE: Time = 5_000_000;
const FIRST_WAIT: Time = 100_000;
const LONGEST_WAIT: Time = 1_000_000;
/// How long a host works on without its supervisor.
const PATIENCE: Time = 60_000_000;
/// Messages that are said twice when a link comes back with an echo.
const ECHO: usize = 6;

/// Who a host is and how fast.
#[derive(Clone, Debug)]
pub struct HostConfig {
    pub name: String,
    pub address: String,
    pub role: HostRole,
    pub start: u64,
    pub encodes: bool,
    pub generates: bool,
    /// Time to load the model.
    pub load: Time,
    /// Time of a layer of phase 1, and of one of phase 2.
    pub layer: (Time, Time),
}

/// What a link is for.
#[derive(Clone, Debug)]
pub enum Use {
    /// Opened by somebody who has not said what for.
    Unknown,
    /// A generation elsewhere asks these shards.
    Attached { context: u64, blocks: Vec<u32> },
    /// Parcels of an attempt come in.
    Pass { context: u64, attempt: u32 },
    /// Parcels of a work go out.
    Parcels { work: u64 },
    /// A channel of a generation.
    Channel { job: u64, life: u64, channel: u64 },
}

/// A host process.
pub struct Host {
    pub pid: Pid,
    pub config: HostConfig,
    pub context: ContextHostState,
    pub query: QueryHostState,
    pub encoder: Encoder,
    pub desk: Desk,
    pub generations: BTreeMap<u64, Generation>,
    pub uses: BTreeMap<LinkId, Use>,
    pub lives: u64,
    /// The link to the supervisor, and whether it said welcome.
    pub supervisor: Option<(LinkId, bool)>,
    hello: Hello,
    /// Cluster and incarnation, as the welcome said.
    life: (u64, u64),
    loaded: bool,
    unheard: Vec<HostCommand>,
    wait: Time,
    lost: Option<Time>,
    said: VecDeque<HostMessage>,
    /// Whether it says its last messages again when it comes back.
    pub echoes: bool,
}

impl Host {
    /// Before its first moment.
    pub fn new(pid: Pid, config: HostConfig) -> Self {
        Self {
            pid,
            config,
            context: ContextHostState::default(),
            query: QueryHostState::default(),
            encoder: Encoder::default(),
            desk: Desk::default(),
            generations: BTreeMap::new(),
            uses: BTreeMap::new(),
            lives: 0,
            supervisor: None,
            hello: Hello::default(),
            life: (0, 0),
            loaded: false,
            unheard: Vec::new(),
            wait: 0,
            lost: None,
            said: VecDeque::new(),
            echoes: false,
        }
    }

    /// Whether the supervisor has said welcome to it.
    pub fn is_known(&self) -> bool {
        self.life.0 != 0
    }

    /// What reached it.
    pub fn handle(&mut self, core: &mut Core, what: What) {
        match what {
            What::Begin | What::Join => self.join(core),
            What::Loaded => {
                self.loaded = true;
                self.ready(core);
            }
            What::JoinDeadline { link } if self.supervisor == Some((link, false)) => {
                core.close(link, "no answer to hello");
                self.lost(core, "no answer to hello");
            }
            What::Beat { link } if self.supervisor == Some((link, true)) => {
                let kv_bytes = self.context.kv_bytes();
                core.send(link, Frame::Up(HostMessage::Heartbeat { kv_bytes }));
                core.timer(self.pid, 500_000, What::Beat { link });
            }
            What::Opened { link } if self.supervisor.is_some_and(|(ours, _)| ours == link) => {
                core.send(link, Frame::Up(HostMessage::Hello(self.hello.clone())));
                core.timer(self.pid, ANSWER_DEADLINE, What::JoinDeadline { link });
            }
            What::Failed { link, cause } | What::Closed { link, cause, .. }
                if self.supervisor.is_some_and(|(ours, _)| ours == link) =>
            {
                self.lost(core, &cause);
            }
            What::Frame { link, frame: Frame::Down(command) } => self.told(core, link, command),
            What::Accepted { link } => drop(self.uses.insert(link, Use::Unknown)),
            What::Frame { link, frame } => self.frame(core, link, frame),
            What::Opened { link } => self.parcels_opened(link),
            What::Failed { link, cause } => self.link_ended(core, link, cause, true),
            What::Closed { link, cause, lost } => self.link_ended(core, link, cause, lost),
            What::Layer { work } => self.encode_layer(core, work),
            What::Attended { link, step, layer, query } => self.attended(core, link, (step, layer, query)),
            What::Computed { job, life } => self.computed(core, job, life),
            What::GatherTick { job, life } => self.gather_tick(core, job, life),
            What::Echo(messages) => messages.into_iter().for_each(|message| self.tell(core, message)),
            _ => {}
        }
    }

    /// Says something to the supervisor, if it listens.
    pub fn tell(&mut self, core: &mut Core, message: HostMessage) {
        let Some((link, true)) = self.supervisor else { return };
        if self.said.len() == ECHO {
            self.said.pop_front();
        }
        self.said.push_back(message.clone());
        core.send(link, Frame::Up(message));
    }

    /// Applies an event of the context host's side.
    pub fn on_context(&mut self, core: &mut Core, event: context_host::Event) {
        for command in self.context.handle(core.duration(), event) {
            match command {
                context_host::Command::Tell(message) => self.tell(core, message),
                command => self.carry_out(core, command),
            }
        }
    }

    /// Applies an event of the query host's side.
    pub fn on_query(&mut self, core: &mut Core, event: query_host::Event) {
        for command in self.query.handle(core.duration(), event) {
            match command {
                query_host::Command::Tell(message) => self.tell(core, message),
                command => self.generate(core, command),
            }
        }
    }

    fn join(&mut self, core: &mut Core) {
        if self.supervisor.is_some() {
            return;
        }
        if self.lost.is_some_and(|lost| core.now - lost > PATIENCE) {
            return core.exits.push((self.pid, "the supervisor did not come back".into()));
        }
        let HostConfig { name, address, role, start, .. } = self.config.clone();
        let (contexts, jobs) = (self.context.contexts(), self.query.jobs());
        let (pid, (cluster, incarnation)) = (self.pid as u32, self.life);
        self.hello = Hello { name, role, incarnation, start, pid, address, cluster, contexts, jobs };
        self.supervisor = Some((core.connect(self.pid, "supervisor"), false));
    }

    fn lost(&mut self, core: &mut Core, cause: &str) {
        self.supervisor = None;
        if self.life.0 == 0 {
            return core.exits.push((self.pid, cause.to_string()));
        }
        if !self.loaded {
            return;
        }
        self.lost.get_or_insert(core.now);
        self.wait = if self.wait == 0 { FIRST_WAIT } else { (2 * self.wait).min(LONGEST_WAIT) };
        core.timer(self.pid, self.wait, What::Join);
    }

    fn ready(&mut self, core: &mut Core) {
        if self.supervisor.is_none() {
            return self.lost(core, "it was lost while the model was loaded");
        }
        self.tell(core, HostMessage::Ready { numerics: "toy".into() });
        for command in std::mem::take(&mut self.unheard) {
            self.command(core, command);
        }
    }

    fn told(&mut self, core: &mut Core, link: LinkId, command: HostCommand) {
        match (command, self.supervisor) {
            (HostCommand::Welcome { cluster, incarnation, .. }, Some((ours, false))) if ours == link => {
                let first = self.life.0 == 0;
                (self.supervisor, self.life) = (Some((link, true)), (cluster, incarnation));
                (self.wait, self.lost) = (0, None);
                core.timer(self.pid, 0, What::Beat { link });
                match first {
                    true => core.timer(self.pid, self.config.load, What::Loaded),
                    false => {
                        let said: Vec<HostMessage> = self.said.iter().cloned().collect();
                        self.ready(core);
                        if std::mem::take(&mut self.echoes) {
                            let later = core.draw.below(300_000);
                            core.timer(self.pid, later, What::Echo(said));
                        }
                    }
                }
            }
            (HostCommand::Refuse { reason }, Some((ours, false))) if ours == link => {
                core.exits.push((self.pid, format!("refused: {reason}")));
            }
            (command, Some((ours, true))) if ours == link => match self.loaded {
                true => self.command(core, command),
                false => self.unheard.push(command),
            },
            _ => {}
        }
    }

    fn command(&mut self, core: &mut Core, command: HostCommand) {
        match command {
            HostCommand::Encode(order) if !self.config.encodes => {
                let (context, attempt, peer_lost, code) = (order.context, order.attempt, false, "wrong_role".into());
                let message = "it does not encode".into();
                self.tell(core, HostMessage::NotEncoded { context, attempt, peer_lost, code, message });
            }
            HostCommand::Generate(order) if !self.config.generates => {
                let (job, code, message) = (order.job, "wrong_role".into(), "it does not generate".into());
                self.tell(core, HostMessage::Failed { job, code, message });
            }
            HostCommand::Ids(_) | HostCommand::Encode(_) | HostCommand::Release { .. } => {
                self.on_context(core, context_host::Event::Command(command));
            }
            HostCommand::Generate(_) | HostCommand::Holders { .. } | HostCommand::Stop { .. } => {
                self.on_query(core, query_host::Event::Command(command));
            }
            HostCommand::Shutdown => core.exits.push((self.pid, "told to".into())),
            HostCommand::Welcome { .. } | HostCommand::Refuse { .. } | HostCommand::Kill { .. } => {}
        }
    }

    fn frame(&mut self, core: &mut Core, link: LinkId, frame: Frame) {
        match (self.uses.get(&link).cloned(), frame) {
            (Some(Use::Unknown), Frame::Attach { context, blocks }) => self.attach(core, link, context, blocks),
            (Some(Use::Unknown), Frame::Pass { context, attempt }) => {
                self.uses.insert(link, Use::Pass { context, attempt });
            }
            (Some(Use::Attached { context, blocks }), Frame::Query { step, layer, query }) => {
                match self.desk.has(context, &blocks) {
                    Err(cause) => self.refuse(core, link, &cause),
                    Ok(()) => {
                        let time = self.config.layer.1 / 4;
                        core.timer(self.pid, time, What::Attended { link, step, layer, query });
                    }
                }
            }
            (Some(Use::Pass { context, attempt }), Frame::Parcel { layer, from, value }) => {
                self.parcel(core, link, (context, attempt), (layer, from, value));
            }
            (Some(Use::Pass { .. }), Frame::Passed) => self.all_passed(core, link),
            (Some(Use::Channel { job, life, channel }), frame) => self.arrived(core, (job, life), channel, frame),
            _ => {}
        }
    }

    fn link_ended(&mut self, core: &mut Core, link: LinkId, cause: String, lost: bool) {
        match self.uses.remove(&link) {
            Some(Use::Channel { job, life, channel }) => self.channel_broke(core, (job, life), channel, cause),
            Some(Use::Parcels { work }) if lost => self.parcels_lost(core, work, &cause),
            Some(Use::Parcels { work }) => self.parcels_taken(link, work),
            Some(Use::Pass { context, attempt }) if lost => self.pass_lost(core, (context, attempt), &cause),
            _ => {}
        }
    }
}
