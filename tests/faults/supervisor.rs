//! A supervisor process: hands events to its state and carries commands out as the real shell does, and can be killed between
//! any two of them. Decides nothing.

use std::{collections::BTreeMap, time::Duration};

use asterism_actors::{
    api::{JobEvent, JobPhase},
    messages::HostMessage,
    store::{Change, MemoryStore, StateStore},
    supervisor::{Command, Decided, Event, Origin, SupervisorConfig, SupervisorState},
    ticket::Secret,
};

use crate::{
    clock::{Core, Pid, Time, What},
    network::{Frame, LinkId},
};

/// Unix time at the beginning.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);
const TICK: Time = 250_000;

/// Where among its commands a supervisor dies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    /// What is to be kept is not.
    BeforeKept,
    /// What is to be kept is, nothing else is done.
    AfterKept,
    /// Some of the rest is done.
    Midway,
}

/// A supervisor process.
pub struct Supervisor {
    pub pid: Pid,
    pub state: SupervisorState,
    pub journal: MemoryStore,
    /// Phases that jobs entered.
    pub phases: Vec<JobPhase>,
    /// Dies when it next has something to keep.
    pub dies: Option<Stage>,
    pub dead: bool,
    connections: BTreeMap<u64, LinkId>,
    watchers: BTreeMap<u64, Vec<usize>>,
    tokens: BTreeMap<u64, Vec<JobEvent>>,
}

/// The time as the supervisor's clock shows it.
pub fn unix(core: &Core) -> Duration {
    EPOCH + core.duration()
}

impl Supervisor {
    /// Begins from the journal.
    pub fn new(pid: Pid, core: &Core, config: SupervisorConfig, journal: &MemoryStore) -> Result<Self, String> {
        let mut journal = journal.clone();
        let entries = journal.load().map_err(|error| error.to_string())?;
        let origin = Origin { cluster: pid, secret: Secret::new([pid as u8; 32]) };
        let state =
            SupervisorState::restore(config, unix(core), origin, &entries).map_err(|error| error.to_string())?;
        Ok(Self {
            pid,
            state,
            journal,
            phases: Vec::new(),
            dies: None,
            dead: false,
            connections: BTreeMap::new(),
            watchers: BTreeMap::new(),
            tokens: BTreeMap::new(),
        })
    }

    /// What reached it.
    pub fn handle(&mut self, core: &mut Core, what: What) {
        let event = match what {
            What::Begin => return core.timer(self.pid, TICK, What::Tick),
            What::Tick => {
                core.timer(self.pid, TICK, What::Tick);
                Event::Tick
            }
            What::Accepted { link } => {
                self.connections.insert(link as u64 + 1, link);
                return;
            }
            What::Frame { link, frame: Frame::Up(message) } => Event::Message { connection: link as u64 + 1, message },
            What::Closed { link, cause, .. } => {
                self.connections.remove(&(link as u64 + 1));
                Event::Disconnected { connection: link as u64 + 1, cause }
            }
            _ => return,
        };
        if matches!(&event, Event::Message { message: HostMessage::Ready { .. }, connection } if !self.connections.contains_key(connection))
        {
            return;
        }
        let commands = self.state.handle(unix(core), event);
        self.carry_out(core, commands);
    }

    /// Keeps what a client or operator changes, then brings it into force. Whether it survived.
    pub fn change(&mut self, core: &mut Core, decided: Decided) -> bool {
        if self.dead {
            return false;
        }
        let dies = self.dies.filter(|_| !decided.changes.is_empty() && core.draw.below(2) == 0);
        if dies != Some(Stage::BeforeKept) {
            self.journal.apply(&decided.changes).expect("memory takes all");
        }
        if dies.is_some() {
            self.dead = true;
            core.exits.push((self.pid, "killed before a change was in force".into()));
            return false;
        }
        let commands = self.state.adopt(unix(core), decided);
        self.carry_out(core, commands)
    }

    /// Keeps what is to be kept, then does the rest. Whether it survived.
    pub fn carry_out(&mut self, core: &mut Core, commands: Vec<Command>) -> bool {
        if self.dead {
            return false;
        }
        let (mut changes, mut others): (Vec<Change>, Vec<Command>) = Default::default();
        for command in commands {
            match command {
                Command::Persist(change) => changes.push(change),
                other => others.push(other),
            }
        }
        let dies = self.dies.filter(|_| !changes.is_empty());
        if dies != Some(Stage::BeforeKept) {
            self.journal.apply(&changes).expect("memory takes all");
        }
        if let Some(stage) = dies {
            let done = if stage == Stage::Midway { core.draw.below(others.len() as u64 + 1) } else { 0 };
            others.truncate(done as usize);
        }
        others.into_iter().for_each(|command| self.act(core, command));
        if dies.is_some() {
            self.dead = true;
            core.exits.push((self.pid, "killed among its commands".into()));
        }
        !self.dead
    }

    fn act(&mut self, core: &mut Core, command: Command) {
        match command {
            Command::Persist(_) | Command::Observe(_) | Command::Tell(_) => {}
            Command::Send { connection, command } => {
                if let Some(link) = self.connections.get(&connection) {
                    core.send(*link, Frame::Down(command));
                }
            }
            Command::Disconnect { connection, reason } => {
                if let Some(link) = self.connections.remove(&connection) {
                    core.close(link, &reason);
                    core.timer(self.pid, 100, What::Closed { link, cause: reason, lost: false });
                }
            }
            Command::Publish { job, event } => self.publish(core, job, event),
        }
    }

    fn publish(&mut self, core: &mut Core, job: u64, event: JobEvent) {
        match &event {
            JobEvent::Token { .. } => self.tokens.entry(job).or_default().push(event.clone()),
            JobEvent::Phase { phase } => self.phases.push(*phase),
            _ => {}
        }
        let ended = matches!(event, JobEvent::Finished { .. });
        let watchers = self.watchers.get(&job).into_iter().flatten();
        core.told.extend(watchers.map(|watcher| (*watcher, event.clone())));
        if ended {
            self.watchers.remove(&job);
            self.tokens.remove(&job);
        }
    }

    /// Tells a client what a job has said so far, and all that follows.
    pub fn watch(&mut self, core: &mut Core, client: usize, job: u64) {
        let Some(status) = self.state.job_status(unix(core), job) else { return };
        let said = self.tokens.get(&job).into_iter().flatten();
        core.told.extend(said.map(|event| (client, event.clone())));
        match status.phase {
            None => core.told.push((client, JobEvent::Finished { status: Box::new(status) })),
            Some(_) => self.watchers.entry(job).or_default().push(client),
        }
    }
}
