//! A network in simulated time: links that keep order, with latency, partitions and silence. Knows what no frame means.

use std::collections::{BTreeMap, VecDeque};

use asterism_actors::messages::{HostCommand, HostMessage, ShardKeys};

use crate::clock::{Core, Happening, Pid, Time, What};

/// Silence after which an end gives a link up.
pub const IDLE: Time = 5_000_000;
/// Longest wait for a link.
const CONNECT_DEADLINE: Time = 5_000_000;
const TRY_EVERY: Time = 100_000;

/// What travels.
#[derive(Clone, Debug)]
pub enum Frame {
    /// Host or node to supervisor.
    Up(HostMessage),
    /// Supervisor to host or node.
    Down(HostCommand),
    /// A generation wants these shards to answer.
    Attach { context: u64, blocks: Vec<u32> },
    /// A layer of a step.
    Query { step: u32, layer: u32, query: u64 },
    /// Answers to it.
    Answers { step: u32, layer: u32, shards: Vec<ShardKeys>, values: Vec<u64> },
    /// No answer.
    Refused,
    /// Parcels of an attempt follow.
    Pass { context: u64, attempt: u32 },
    /// What a shard passes in a layer.
    Parcel { layer: u32, from: u32, value: u64 },
    /// No more parcels of this attempt come; who takes them closes the link.
    Passed,
    /// The sender closed the link.
    Bye { cause: String },
}

/// An end of a link: twice the link's number, and one more for the end that was opened to. A host has links to itself.
pub type LinkId = usize;

/// A link between two processes; end 0 opened it.
pub struct Link {
    /// Who is at its ends; the second once it is open.
    pub ends: [Option<Pid>; 2],
    open: [bool; 2],
    address: String,
    deadline: Time,
    /// By receiving end.
    queues: [VecDeque<Frame>; 2],
    last: [Time; 2],
}

impl Link {
    /// A frame of the opener comes late, whenever it is delivered.
    pub fn delayed(&mut self, frame: Frame) {
        self.queues[1].push_back(frame);
    }
}

/// What happens to the network.
#[derive(Clone, Debug)]
pub enum NetEvent {
    /// Time to see whether the link can be opened.
    Try(usize),
    /// The oldest frame for an end arrives.
    Deliver(usize, usize),
    /// Time to see whether both ends were silent too long.
    Idle(usize),
    /// An end learns that the link is gone.
    Gone(usize, usize, String),
}

/// Who cannot reach whom.
#[derive(Clone, Debug)]
pub struct Partition {
    /// What is cut.
    pub cut: Cut,
    /// Since when.
    pub from: Time,
    /// Until when.
    pub until: Time,
}

/// What a partition cuts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut {
    /// A node from all others.
    Node(usize),
    /// Two places from each other.
    Pair(Place, Place),
}

/// A place that a pair is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The supervisor.
    Supervisor,
    /// A node agent.
    Node(usize),
    /// A host.
    Host(usize),
}

/// Frames of a place that take longer.
#[derive(Clone, Debug)]
pub struct Slow {
    /// Whose.
    pub place: Place,
    /// Until when.
    pub until: Time,
    /// Added to each latency.
    pub extra: Time,
}

/// All links.
#[derive(Default)]
pub struct Network {
    pub links: Vec<Link>,
    pub partitions: Vec<Partition>,
    pub slow: Vec<Slow>,
    /// Which process listens where.
    pub addresses: BTreeMap<String, Pid>,
}

impl Core {
    /// Begins to open a link; `Opened` or `Failed` follows. What is sent before waits.
    pub fn connect(&mut self, from: Pid, address: &str) -> LinkId {
        let link = self.net.links.len();
        let latency = self.latency(from, None);
        self.net.links.push(Link {
            ends: [Some(from), None],
            open: [true, false],
            address: address.to_string(),
            deadline: self.now + CONNECT_DEADLINE,
            queues: Default::default(),
            last: [0; 2],
        });
        self.after(latency, Happening::Net(NetEvent::Try(link)));
        2 * link
    }

    /// Sends on a link, unless its own end is closed. Whether it was sent.
    pub fn send(&mut self, end: LinkId, frame: Frame) -> bool {
        let (link, end) = (end / 2, end % 2);
        if !self.net.links[link].open[end] {
            return false;
        }
        let to = 1 - end;
        self.net.links[link].queues[to].push_back(frame);
        if self.net.links[link].ends[1].is_some() {
            self.carry(link, to);
        }
        true
    }

    /// Closes an end; the other one learns after what was sent.
    pub fn close(&mut self, end: LinkId, cause: &str) {
        self.send(end, Frame::Bye { cause: cause.to_string() });
        self.net.links[end / 2].open[end % 2] = false;
    }

    /// A process is no more: its ends fall silent.
    pub fn drop_links(&mut self, pid: Pid, quickly: bool) {
        for link in self.links_of(pid) {
            for end in 0..2 {
                if self.net.links[link].ends[end] == Some(pid) {
                    self.net.links[link].open[end] = false;
                } else {
                    let after = if quickly { self.draw.between(500, 50_000) } else { IDLE };
                    let cause = "the peer fell silent".to_string();
                    self.after(after, Happening::Net(NetEvent::Gone(link, end, cause)));
                }
            }
        }
        self.net.addresses.retain(|_, listener| *listener != pid);
    }

    /// A link is lost with all that is on its way.
    pub fn break_link(&mut self, link: usize, cause: &str) {
        self.net.links[link].queues = Default::default();
        for end in 0..2 {
            let after = self.draw.between(100, 20_000);
            self.after(after, Happening::Net(NetEvent::Gone(link, end, cause.to_string())));
        }
    }

    /// Numbers of the links that a process has an open end of.
    pub fn links_of(&self, pid: Pid) -> Vec<usize> {
        let links = self.net.links.iter().enumerate();
        let open = |link: &Link| (0..2).any(|end| link.ends[end] == Some(pid) && link.open[end]);
        links.filter(|(_, link)| open(link)).map(|(number, _)| number).collect()
    }

    /// After a partition or a hang began: links that stay silent are given up.
    pub fn watch_silence(&mut self) {
        let open: Vec<usize> =
            (0..self.net.links.len()).filter(|&link| self.net.links[link].open.contains(&true)).collect();
        for link in open {
            self.after(IDLE, Happening::Net(NetEvent::Idle(link)));
        }
    }

    /// Applies a network event.
    pub fn on_net(&mut self, event: NetEvent) {
        match event {
            NetEvent::Try(link) => self.try_link(link),
            NetEvent::Deliver(link, end) => self.deliver(link, end),
            NetEvent::Idle(link) => {
                let silent = |since: Time| self.now.saturating_sub(since) >= IDLE;
                if self.blocked(link).is_some_and(|(since, _)| silent(since)) {
                    self.net.links[link].queues = Default::default();
                    for end in 0..2 {
                        self.on_net(NetEvent::Gone(link, end, "no sign of life for 5 s".into()));
                    }
                }
            }
            NetEvent::Gone(link, end, cause) => {
                let link_end = &mut self.net.links[link];
                if let Some(pid) = link_end.ends[end].filter(|_| link_end.open[end]) {
                    link_end.open[end] = false;
                    self.hand(pid, What::Closed { link: 2 * link + end, cause, lost: true });
                }
            }
        }
    }

    fn try_link(&mut self, link: usize) {
        let Link { ends, open, address, deadline, .. } = &self.net.links[link];
        let (Some(from), true, deadline) = (ends[0], open[0], *deadline) else { return };
        let to = self.net.addresses.get(address).copied();
        let reachable = to.is_some_and(|to| self.apart(from, to).is_none() && !self.is_hung(to));
        match to {
            Some(to) if reachable => {
                let link_now = &mut self.net.links[link];
                (link_now.ends[1], link_now.open[1]) = (Some(to), true);
                let waiting = link_now.queues[1].len();
                self.hand(to, What::Accepted { link: 2 * link + 1 });
                self.hand(from, What::Opened { link: 2 * link });
                (0..waiting).for_each(|_| self.carry(link, 1));
            }
            None if self.quick_refusal => self.fail(link, from, "nobody listens there"),
            _ if self.now >= deadline => self.fail(link, from, "no answer in 5 s"),
            _ => self.after(TRY_EVERY, Happening::Net(NetEvent::Try(link))),
        }
    }

    fn fail(&mut self, link: usize, from: Pid, cause: &str) {
        self.net.links[link].open[0] = false;
        self.hand(from, What::Failed { link: 2 * link, cause: cause.to_string() });
    }

    fn carry(&mut self, link: usize, to: usize) {
        let [Some(a), Some(b)] = self.net.links[link].ends else { return };
        let at = (self.now + self.latency(a, Some(b))).max(self.net.links[link].last[to]);
        self.net.links[link].last[to] = at;
        self.at(at, Happening::Net(NetEvent::Deliver(link, to)));
    }

    fn deliver(&mut self, link: usize, end: usize) {
        if let Some((_, until)) = self.blocked_on_the_way(link) {
            return self.at(until + 1_000, Happening::Net(NetEvent::Deliver(link, end)));
        }
        let link_now = &mut self.net.links[link];
        let Some(frame) = link_now.queues[end].pop_front() else { return };
        let Some(pid) = link_now.ends[end].filter(|_| link_now.open[end]) else { return };
        if let Frame::Bye { cause } = frame {
            link_now.open[end] = false;
            return self.hand(pid, What::Closed { link: 2 * link + end, cause, lost: false });
        }
        self.hand(pid, What::Frame { link: 2 * link + end, frame });
    }

    /// Since and until when nothing passes, by a partition or because an end hangs.
    fn blocked(&self, link: usize) -> Option<(Time, Time)> {
        let hung = self.net.links[link].ends.iter().flatten().filter_map(|pid| self.hung(*pid));
        hung.chain(self.blocked_on_the_way(link)).min()
    }

    fn blocked_on_the_way(&self, link: usize) -> Option<(Time, Time)> {
        let [Some(a), Some(b)] = self.net.links[link].ends else { return None };
        self.apart(a, b)
    }

    /// The partition between two processes.
    pub fn apart(&self, a: Pid, b: Pid) -> Option<(Time, Time)> {
        let (a, b) = (&self.processes[&a], &self.processes[&b]);
        let cuts = |partition: &&Partition| {
            partition.until > self.now
                && match partition.cut {
                    Cut::Node(node) => (a.node == node) != (b.node == node),
                    Cut::Pair(x, y) => (a.place == x && b.place == y) || (a.place == y && b.place == x),
                }
        };
        let found = self.net.partitions.iter().find(cuts)?;
        Some((found.from, found.until))
    }

    fn latency(&mut self, a: Pid, b: Option<Pid>) -> Time {
        let place = |pid: Pid| self.processes[&pid].place;
        let slow = |slow: &&Slow| {
            slow.until > self.now && (slow.place == place(a) || b.is_some_and(|b| slow.place == place(b)))
        };
        let extra = self.net.slow.iter().filter(slow).map(|slow| slow.extra).max().unwrap_or(0);
        extra + self.draw.between(200, 2_000)
    }
}
