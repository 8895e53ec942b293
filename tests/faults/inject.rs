//! Carries faults and operations out, and notes what they met.

use asterism_actors::{api::JobPhase, messages::HostMessage};

use crate::{
    checks::every_job,
    clock::{Happening, Pid, Time},
    network::{Cut, Frame, NetEvent, Partition, Place, Slow},
    scenario::{FaultKind, Operation, Trigger, role_name},
    supervisor::{Supervisor, unix},
    world::World,
};

/// Longest hang of a process that has not said hello.
const UNKNOWN_HANG: Time = 8_000_000;

impl World {
    /// Plans the faults that wait for a phase which a job just entered.
    pub(super) fn phase_entered(&mut self, phase: JobPhase) {
        for (number, fault) in self.scenario.faults.iter().enumerate() {
            let Trigger::Phase(wanted, later) = fault.trigger else { continue };
            if wanted == phase && self.planned_faults.insert(number) {
                self.core.after(later, Happening::Fault(number));
            }
        }
    }

    /// A fault happens.
    pub(super) fn inject(&mut self, number: usize) {
        let kind = self.scenario.faults[number].kind.clone();
        let over = match kind {
            FaultKind::Hang(_, time) if time > 1_000_000_000 => 0,
            FaultKind::Hang(_, time)
            | FaultKind::HangSupervisor(time)
            | FaultKind::Cut(_, time)
            | FaultKind::Slow(_, time, _) => time,
            _ => 0,
        };
        self.calm = self.calm.max(self.core.now + over);
        let phase = self.phase();
        let met = match kind {
            FaultKind::Kill(host) => self.process(host).map(|pid| {
                self.end_host(pid, "signal 9");
                ("kill", self.role(host))
            }),
            FaultKind::KillSupervisor(stage) => self.supervisor.as_mut().map(|supervisor| {
                supervisor.dies = stage;
                if stage.is_none() {
                    self.core.exits.push((supervisor.pid, "signal 9".into()));
                }
                ("kill", "supervisor")
            }),
            FaultKind::Hang(host, time) => self.process(host).map(|pid| {
                // Nobody knows of a process that has not said hello, so that nobody would end it.
                let known = self.hosts.get(&pid).is_some_and(|host| host.is_known());
                self.core.hang(pid, if known { time } else { time.min(UNKNOWN_HANG) });
                ("hang", self.role(host))
            }),
            FaultKind::HangSupervisor(time) => self.supervisor.as_ref().map(|supervisor| {
                self.core.hang(supervisor.pid, time);
                ("hang", "supervisor")
            }),
            FaultKind::Cut(cut, time) => self.cut(cut, time),
            FaultKind::Slow(host, time, extra) => {
                let until = self.core.now + time;
                self.core.net.slow.push(Slow { place: Place::Host(host), until, extra });
                Some(("slow", self.role(host)))
            }
            FaultKind::Corrupt(host) => self.corrupt(host).then(|| ("corrupt", self.role(host))),
            FaultKind::Echo(host) => self.echo(host).then(|| ("echo", self.role(host))),
            FaultKind::Misread(host) => self.misread(host).then(|| ("misread", self.role(host))),
        };
        if let Some((fault, role)) = met {
            self.note(|| format!("FAULT {fault} of {role}: {kind:?} while {phase}"));
            self.core.coverage.count(fault, role, phase);
        }
    }

    /// What the jobs are doing.
    fn phase(&self) -> &'static str {
        let Some(supervisor) = &self.supervisor else { return "recovering" };
        let statuses = supervisor.state.job_statuses(unix(&self.core), &every_job()).unwrap_or_default();
        let rank = |phase: Option<JobPhase>| match phase {
            Some(JobPhase::Recovering) => 4,
            Some(JobPhase::Decoding) => 3,
            Some(JobPhase::Querying) => 2,
            Some(JobPhase::Encoding) => 1,
            Some(JobPhase::Queued) | None => 0,
        };
        crate::coverage::PHASES[statuses.iter().map(|status| rank(status.phase)).max().unwrap_or(0)]
    }

    fn role(&self, host: usize) -> &'static str {
        role_name(self.scenario.config.hosts[host].role)
    }

    /// The process of a host, if it is there.
    fn process(&self, host: usize) -> Option<Pid> {
        self.hosts.values().find(|other| other.config.name == self.scenario.config.hosts[host].name).map(|h| h.pid)
    }

    fn cut(&mut self, cut: Cut, time: Time) -> Option<(&'static str, &'static str)> {
        let met = match cut {
            Cut::Node(_) if self.scenario.node_count < 2 => None,
            Cut::Node(_) => Some(("cut off", "node")),
            Cut::Pair(a, b) if a == b => None,
            Cut::Pair(Place::Host(host), Place::Supervisor) => Some(("cut off supervisor", self.role(host))),
            Cut::Pair(Place::Host(host), _) => Some(("cut off host", self.role(host))),
            Cut::Pair(..) => None,
        };
        if met.is_some() {
            let (from, until) = (self.core.now, self.core.now + time);
            self.core.net.partitions.push(Partition { cut, from, until });
            self.core.watch_silence();
        }
        met
    }

    fn corrupt(&mut self, host: usize) -> bool {
        let Some(pid) = self.process(host) else { return false };
        let links = self.core.links_of(pid);
        if links.is_empty() {
            return false;
        }
        let link = self.core.draw.pick(&links);
        self.core.break_link(link, "a frame does not have its checksum");
        true
    }

    /// A host reads what it encodes next from somewhere else.
    fn misread(&mut self, host: usize) -> bool {
        let Some(host) = self.process(host).and_then(|pid| self.hosts.get_mut(&pid)) else { return false };
        host.encoder.misreads = true;
        true
    }

    /// A host loses its link, and what it said last comes twice: late on the old link, and again on the new one.
    fn echo(&mut self, host: usize) -> bool {
        let Some(host) = self.process(host).and_then(|pid| self.hosts.get_mut(&pid)) else { return false };
        let Some((end, true)) = host.supervisor else { return false };
        let link = end / 2;
        host.echoes = true;
        for _ in 0..2 {
            let late = self.core.draw.below(2_000_000);
            let frame = Frame::Up(HostMessage::Heartbeat { kv_bytes: 0 });
            self.core.net.links[link].delayed(frame);
            self.core.after(late, Happening::Net(NetEvent::Deliver(link, 1)));
        }
        let late = self.core.draw.between(100_000, 2_500_000);
        self.core.after(100, Happening::Net(NetEvent::Gone(link, 0, "reset".into())));
        self.core.after(late, Happening::Net(NetEvent::Gone(link, 1, "reset".into())));
        true
    }

    /// An operator does something; what is refused is not done.
    pub(super) fn operate(&mut self, number: usize) {
        let ready = |supervisor: &&mut Supervisor| !supervisor.dead && !self.core.is_hung(supervisor.pid);
        let Some(supervisor) = self.supervisor.as_mut().filter(ready).filter(|_| number == self.operated) else {
            return self.core.after(500_000, Happening::Operator(number));
        };
        self.operated += 1;
        self.calm = self.calm.max(self.core.now);
        let name = |host: usize| self.scenario.config.hosts[host].name.clone();
        let now = unix(&self.core);
        let done = match self.scenario.operations[number].1 {
            Operation::Schedule(host, scheduling) => supervisor.state.schedule_host(now, &name(host), scheduling, None),
            Operation::Replace(old, new) => supervisor.state.replace_host(now, &name(old), &name(new)),
        };
        match done {
            Ok(decided) => {
                supervisor.change(&mut self.core, decided);
                self.note(|| format!("OPERATOR {number}"));
            }
            Err(error) => self.note(|| format!("OPERATOR {number} refused: {error}")),
        }
    }

    /// Whether the faults are over: what has not happened by now does not happen any more.
    pub(super) fn is_calm(&self) -> bool {
        self.core.now >= self.calm + 500_000 && self.operated == self.scenario.operations.len()
    }
}
