//! The simulated clock: what happens when and to whom, and which processes can act. Knows no rule of a host.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::Duration,
};

use asterism_actors::{api::JobEvent, messages::HostMessage};

use crate::{
    coverage::Coverage,
    draw::Draw,
    network::{Frame, LinkId, NetEvent, Network, Place},
};

/// Microseconds since the beginning.
pub type Time = u64;
/// A process; never used again.
pub type Pid = u64;

/// What reaches a process.
#[derive(Clone, Debug)]
pub enum What {
    /// A link that it wanted is open.
    Opened { link: LinkId },
    /// A link that it wanted is not to be had.
    Failed { link: LinkId, cause: String },
    /// Somebody opened a link to it.
    Accepted { link: LinkId },
    /// A frame came.
    Frame { link: LinkId, frame: Frame },
    /// A link ended; `lost`: not by the other end's will.
    Closed { link: LinkId, cause: String, lost: bool },
    /// Its first moment.
    Begin,
    /// Time to join the supervisor.
    Join,
    /// The answer to a hello is overdue.
    JoinDeadline { link: LinkId },
    /// The model is there.
    Loaded,
    /// Time for a heartbeat on this link.
    Beat { link: LinkId },
    /// The supervisor's tick.
    Tick,
    /// A layer of an order to encode is computed, or it is time to look again.
    Layer { work: u64 },
    /// Answers of shards are computed.
    Attended { link: LinkId, step: u32, layer: u32, query: u64 },
    /// A generation has computed its own part of a layer.
    Computed { job: u64, life: u64 },
    /// A generation wanted to be woken.
    GatherTick { job: u64, life: u64 },
    /// A node: a process ended.
    Ended { host: usize, start: u64, cause: String },
    /// A node: time to start a host.
    Start { host: usize },
    /// Says again what it said last.
    Echo(Vec<HostMessage>),
}

/// What happens.
#[derive(Clone, Debug)]
pub enum Happening {
    /// To a process.
    Process(Pid, Box<What>),
    /// To the network.
    Net(NetEvent),
    /// A hung process goes on.
    Wake(Pid),
    /// A planned fault is due.
    Fault(usize),
    /// A supervisor is started.
    Supervisor,
    /// A client acts.
    Client(usize),
    /// An operator acts.
    Operator(usize),
    /// Time to see how far the schedule is.
    Check,
}

/// A process as the machine sees it.
pub struct Process {
    /// Node it runs on.
    pub node: usize,
    /// What it is.
    pub place: Place,
    /// Since and until when it does nothing.
    hung: Option<(Time, Time)>,
    backlog: VecDeque<What>,
    alive: bool,
}

/// Clock, network and processes.
pub struct Core {
    pub now: Time,
    pub draw: Draw,
    pub net: Network,
    pub processes: BTreeMap<Pid, Process>,
    /// Whether an address without a listener refuses at once.
    pub quick_refusal: bool,
    /// What reached processes at this moment and is still to be handled.
    pub inbox: VecDeque<(Pid, What)>,
    /// What watchers are told: client, event.
    pub told: Vec<(usize, JobEvent)>,
    /// Processes that end themselves, with the cause.
    pub exits: Vec<(Pid, String)>,
    /// Host processes to be started: host, start.
    pub starts: Vec<(usize, u64)>,
    /// Host processes to be killed by their node.
    pub kills: Vec<(usize, u64)>,
    pub coverage: Coverage,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    planned: BTreeMap<u64, Happening>,
    last: u64,
    last_pid: Pid,
}

impl Core {
    /// At the beginning.
    pub fn new(draw: Draw, quick_refusal: bool) -> Self {
        Self {
            now: 0,
            draw,
            net: Network::default(),
            processes: BTreeMap::new(),
            quick_refusal,
            inbox: VecDeque::new(),
            told: Vec::new(),
            exits: Vec::new(),
            starts: Vec::new(),
            kills: Vec::new(),
            coverage: Coverage::default(),
            queue: BinaryHeap::new(),
            planned: BTreeMap::new(),
            last: 0,
            last_pid: 0,
        }
    }

    /// The time as the state machines take it.
    pub fn duration(&self) -> Duration {
        Duration::from_micros(self.now)
    }

    /// Plans something.
    pub fn at(&mut self, at: Time, happening: Happening) {
        self.last += 1;
        self.planned.insert(self.last, happening);
        self.queue.push(Reverse((at.max(self.now), self.last)));
    }

    /// Plans something.
    pub fn after(&mut self, time: Time, happening: Happening) {
        self.at(self.now + time, happening);
    }

    /// Plans something for a process.
    pub fn timer(&mut self, pid: Pid, after: Time, what: What) {
        self.after(after, Happening::Process(pid, Box::new(what)));
    }

    /// What happens next; the clock goes on to it.
    pub fn next(&mut self) -> Option<Happening> {
        let Reverse((at, number)) = self.queue.pop()?;
        self.now = at;
        self.planned.remove(&number)
    }

    /// Hands something to a process: at once, when it wakes, or never.
    pub fn hand(&mut self, pid: Pid, what: What) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.alive) else { return };
        match process.hung {
            Some(_) => process.backlog.push_back(what),
            None => self.inbox.push_back((pid, what)),
        }
    }

    /// A new process.
    pub fn spawn(&mut self, node: usize, place: Place, address: &str) -> Pid {
        self.last_pid += 1;
        let pid = self.last_pid;
        let process = Process { node, place, hung: None, backlog: VecDeque::new(), alive: true };
        self.processes.insert(pid, process);
        self.net.addresses.insert(address.to_string(), pid);
        self.hand(pid, What::Begin);
        pid
    }

    /// Ends a process.
    pub fn end(&mut self, pid: Pid, quickly: bool) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        (process.alive, process.hung) = (false, None);
        process.backlog.clear();
        self.inbox.retain(|(other, _)| *other != pid);
        self.drop_links(pid, quickly);
    }

    /// Stops a process for a while.
    pub fn hang(&mut self, pid: Pid, time: Time) {
        let until = self.now.saturating_add(time);
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.alive) else { return };
        process.hung = Some((self.now, until));
        let mut rest = VecDeque::new();
        for (other, what) in std::mem::take(&mut self.inbox) {
            match other == pid {
                true => process.backlog.push_back(what),
                false => rest.push_back((other, what)),
            }
        }
        self.inbox = rest;
        self.at(until, Happening::Wake(pid));
        self.watch_silence();
    }

    /// A stopped process goes on with what it missed.
    pub fn wake(&mut self, pid: Pid) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.hung.is_some_and(|(_, until)| until <= now) {
            process.hung = None;
            let backlog = std::mem::take(&mut process.backlog);
            self.inbox.extend(backlog.into_iter().map(|what| (pid, what)));
        }
    }

    /// Since and until when a process hangs, if it does.
    pub fn hung(&self, pid: Pid) -> Option<(Time, Time)> {
        self.processes.get(&pid).and_then(|process| process.hung)
    }

    /// Whether a process hangs.
    pub fn is_hung(&self, pid: Pid) -> bool {
        self.hung(pid).is_some()
    }
}
