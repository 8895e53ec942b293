//! A node agent: starts host processes, says when they end, starts them again later, kills those declared dead.

use std::collections::{BTreeMap, VecDeque};

use asterism_actors::messages::{Hello, HostCommand, HostMessage, HostRole};

use crate::{
    clock::{Core, Pid, Time, What},
    network::{Frame, LinkId},
};

const FIRST_WAIT: Time = 200_000;
const LONGEST_WAIT: Time = 10_000_000;
const JOIN_AGAIN: Time = 500_000;
const MOST_RESTARTS: usize = 5;
const WINDOW: Time = 300_000_000;

/// A node agent.
pub struct Node {
    pub pid: Pid,
    name: String,
    supervisor: Option<(LinkId, bool)>,
    cluster: u64,
    hosts: BTreeMap<usize, Slot>,
    unsaid: Vec<HostMessage>,
    /// Hosts that ended too often.
    pub given_up: Vec<usize>,
}

struct Slot {
    name: String,
    start: u64,
    wait: Time,
    recent: VecDeque<Time>,
}

impl Node {
    /// An agent for these hosts.
    pub fn new(pid: Pid, name: String, hosts: &[(usize, String)]) -> Self {
        let slot = |(host, name): &(usize, String)| {
            (*host, Slot { name: name.clone(), start: 0, wait: FIRST_WAIT, recent: VecDeque::new() })
        };
        let hosts = hosts.iter().map(slot).collect();
        Self { pid, name, supervisor: None, cluster: 0, hosts, unsaid: Vec::new(), given_up: Vec::new() }
    }

    /// What reached it.
    pub fn handle(&mut self, core: &mut Core, what: What) {
        match what {
            What::Begin => {
                self.supervisor = Some((core.connect(self.pid, "supervisor"), false));
                let hosts: Vec<usize> = self.hosts.keys().copied().collect();
                for host in hosts {
                    let soon = core.draw.below(300_000);
                    core.timer(self.pid, soon, What::Start { host });
                }
            }
            What::Join if self.supervisor.is_none() => {
                self.supervisor = Some((core.connect(self.pid, "supervisor"), false));
            }
            What::Opened { link } => {
                let hello =
                    Hello { name: self.name.clone(), role: HostRole::Node, cluster: self.cluster, ..Hello::default() };
                core.send(link, Frame::Up(HostMessage::Hello(hello)));
            }
            What::Failed { link, .. } | What::Closed { link, .. } if self.supervisor.is_some_and(|s| s.0 == link) => {
                self.supervisor = None;
                core.timer(self.pid, JOIN_AGAIN, What::Join);
            }
            What::Frame { link, frame: Frame::Down(HostCommand::Welcome { cluster, .. }) } => {
                (self.supervisor, self.cluster) = (Some((link, true)), cluster);
                core.send(link, Frame::Up(HostMessage::Ready { numerics: "toy".into() }));
                for exit in &self.unsaid {
                    core.send(link, Frame::Up(exit.clone()));
                }
            }
            What::Frame { frame: Frame::Down(HostCommand::Kill { host, start }), .. } => {
                let slot = self.hosts.iter().find(|(_, slot)| slot.name == host);
                if let Some((&host, slot)) = slot.filter(|(_, slot)| slot.start <= start) {
                    core.kills.push((host, slot.start));
                }
            }
            What::Start { host } => self.start(core, host),
            What::Ended { host, start, cause } => self.ended(core, host, start, cause),
            _ => {}
        }
    }

    fn start(&mut self, core: &mut Core, host: usize) {
        let Some(slot) = self.hosts.get_mut(&host) else { return };
        slot.start += 1;
        core.starts.push((host, slot.start));
    }

    fn ended(&mut self, core: &mut Core, host: usize, start: u64, cause: String) {
        let Some(slot) = self.hosts.get_mut(&host) else { return };
        slot.recent.retain(|at| core.now - at < WINDOW);
        let restarting = slot.recent.len() < MOST_RESTARTS;
        match restarting {
            true => {
                slot.recent.push_back(core.now);
                core.timer(self.pid, slot.wait, What::Start { host });
                slot.wait = (2 * slot.wait).min(LONGEST_WAIT);
            }
            false => self.given_up.push(host),
        }
        let exit = HostMessage::Exited { host: slot.name.clone(), start, cause, restarting };
        if let Some((link, true)) = self.supervisor {
            core.send(link, Frame::Up(exit.clone()));
        }
        self.unsaid.push(exit);
    }
}
