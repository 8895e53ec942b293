//! Signs of life of hosts, and why one is not there. Decides nothing about jobs.

use std::time::Duration;

use super::{HostRecord, Hosts, judge::SilentPeriod};
use crate::{
    api::{HostHealth, Role, Scheduling},
    cluster_event::ClusterEventKind,
    messages::Condition,
    supervisor::config::Recovery,
};

/// How long shards wait for a host whose process is started, and for one that loads its model.
const STARTED_WITHIN: Duration = Duration::from_secs(10);
const LOADED_WITHIN: Duration = Duration::from_secs(60);
/// Longest silence that waiting for memory excuses, a host's own or the supervisor's.
pub const STARVED: Duration = Duration::from_secs(60);

impl HostRecord {
    /// Time since its last message or, while it could not speak for want of memory, since its node last saw that.
    pub fn unexcused(&self, now: Duration) -> Duration {
        let silence = self.silence(now);
        match self.seen {
            (Condition::Starved, at) if silence <= STARVED => now.saturating_sub(at.max(self.last_heard)),
            _ => silence,
        }
    }

    /// Why it says nothing, as far as its node sees that.
    pub fn why_silent(&self) -> &'static str {
        match self.seen.0 {
            Condition::Stopped => "its process was stopped by a signal",
            Condition::Starved => "its process waits for memory, a disk or a core",
            Condition::Well => "the process hangs, is stopped or is cut off",
        }
    }
}

impl Hosts {
    /// The supervisor's own process has waited for memory or a disk since the last tick.
    pub fn note_starved(&mut self) {
        self.judge.starved = true;
    }

    /// Takes out of everybody's silence the time in which the supervisor itself could hear nobody. That a process was stopped, its node has seen and said, and who has said nothing for a
    /// minute is not excused by a supervisor that only waits for memory now and then.
    pub fn excuse(&mut self, now: Duration, late: Duration) {
        let SilentPeriod { time, sure, judging } = self.judge.deaf(now, late);
        let stopped = |host: &HostRecord| host.seen.0 == Condition::Stopped;
        let gone = |host: &HostRecord| now.saturating_sub(host.spoke) > STARVED;
        for host in self.records.iter_mut().filter(|host| sure || !(stopped(host) || gone(host))) {
            host.last_heard = (host.last_heard + time).min(now);
            host.seen.1 = (host.seen.1 + time).min(now);
        }
        let others = if sure || judging <= STARVED { time } else { Duration::ZERO };
        self.nodes.values_mut().for_each(|(_, since)| *since = (*since + others).min(now));
        // Those that it has not heard yet.
        self.began += others;
    }

    /// Marks hosts silent for `suspect` and returns them, and those silent for `dead`.
    pub fn silent(&mut self, now: Duration, suspect: Duration, dead: Duration) -> (Vec<usize>, Vec<usize>) {
        let suspects = self.that(|host| host.health == HostHealth::Ready && host.silence(now) > suspect);
        suspects.iter().for_each(|&host| self.records[host].health = HostHealth::Suspect);
        let known = |host: &HostRecord| host.hello.is_some() && host.health != HostHealth::Dead;
        (suspects, self.that(|host| known(host) && host.unexcused(now) > dead))
    }

    /// Hosts of an earlier supervisor's that have not come back to this one. They dial as the agent of
    /// their node does: when that is back for as long as a host may be silent (`dead`), so would they be; and without an agent in
    /// `all`. One that its node sees waiting for memory is waited for.
    pub fn absent(&self, now: Duration, dead: Duration, all: Duration) -> Vec<usize> {
        let began = self.began;
        let over = |since: Duration, most: Duration| now.saturating_sub(since) > most;
        self.that(|host| {
            let starved = match host.seen {
                (Condition::Starved, at) if !over(began, STARVED) => at,
                _ => Duration::ZERO,
            };
            let node = self.node_since(host).is_some_and(|since| over(since.max(starved), dead));
            let known = host.health == HostHealth::Starting && host.kept.incarnation > 0;
            known && (node || over(began.max(starved), all))
        })
    }

    /// Whether shards that have no host wait for context hosts that are being started: as long as more of these come than are there,
    /// and for a bounded time, so that those that are there first after a restart do not take all of it for good. What was
    /// there before the others went takes over at once, and so do spares.
    pub fn expects_return(&self, now: Duration, recovery: Recovery) -> bool {
        let own = |host: &&HostRecord| {
            host.rank(Role::Context, recovery) == Some(0) && host.kept.scheduling == Scheduling::Open
        };
        let coming = || self.records.iter().filter(own).filter(|host| self.is_coming(host, now));
        let Some(first) = coming().map(|host| host.coming_since.unwrap_or(self.began)).min() else { return false };
        let able = |host: &&HostRecord| host.rank(Role::Context, recovery).is_some_and(|rank| rank <= 1);
        let there = || self.records.iter().filter(able).filter(|host| host.takes_work());
        there().all(|host| host.ready_since > first) && there().count() < coming().count()
    }

    /// Whether a host is known to be started, and has not been for too long.
    pub fn is_coming(&self, host: &HostRecord, now: Duration) -> bool {
        let within = |since: Duration, most: Duration| now.saturating_sub(since) < most;
        match host.health {
            HostHealth::Starting => host.kept.incarnation > 0 && within(self.began, STARTED_WITHIN),
            HostHealth::Loading => host.coming_since.is_some_and(|since| within(since, LOADED_WITHIN)),
            HostHealth::Dead => host.coming_since.is_some_and(|since| within(since, STARTED_WITHIN)),
            HostHealth::Ready | HostHealth::Suspect => false,
        }
    }

    /// Notes how a node sees a host's process. A suspect that is starved is busy.
    pub fn seen(&mut self, now: Duration, host: usize, condition: Condition) {
        let record = &mut self.records[host];
        record.seen = (condition, now);
        if record.health == HostHealth::Suspect && condition == Condition::Starved {
            record.cause = Some("busy: its process waits for memory, a disk or a core, says its node".into());
        }
    }

    /// Notes a sign of life; of a suspect it is an event.
    pub fn record_contact(&mut self, now: Duration, host: usize) -> Option<ClusterEventKind> {
        let record = &mut self.records[host];
        let silent_s = record.silence(now).as_secs_f64();
        (record.last_heard, record.spoke) = (now, now);
        if record.health != HostHealth::Suspect {
            return None;
        }
        record.health = HostHealth::Ready;
        record.cause = None;
        Some(ClusterEventKind::HostBack { host: record.spec.name.clone(), silent_s })
    }

    /// A connection ended; its process may be alive and come back. Whether it is a suspect by that, and was not told to end.
    pub fn disconnected(&mut self, host: usize, cause: String) -> bool {
        self.unplug(host);
        let record = &mut self.records[host];
        record.cause = Some(cause);
        let suspect = record.health == HostHealth::Ready;
        if suspect {
            record.health = HostHealth::Suspect;
        }
        suspect && !record.kept.ordered_to_end
    }

    /// Time since a host's last message.
    pub fn silence_of(&self, now: Duration, name: &str) -> Option<Duration> {
        self.by_name(name).map(|host| self.records[host].silence(now))
    }

    /// That a host is a suspect now.
    pub fn suspected(&self, now: Duration, host: usize) -> ClusterEventKind {
        let record = &self.records[host];
        let cause = record.cause.clone().unwrap_or_else(|| "no heartbeat".into());
        ClusterEventKind::HostSuspect {
            host: record.spec.name.clone(),
            silent_s: record.silence(now).as_secs_f64(),
            cause,
        }
    }

    /// Notes why a process that said that it is a host was turned away, where none was there before.
    pub fn refused(&mut self, name: &str, reason: &str) {
        let never_seen = |host: &&mut HostRecord| host.spec.name == name && host.health == HostHealth::Starting;
        if let Some(record) = self.records.iter_mut().find(never_seen) {
            record.cause = Some(format!("refused: {reason}"));
        }
    }

    /// Since when a host is not there, or that it never was.
    pub fn absence(&self, now: Duration, host: usize) -> Option<String> {
        let record = &self.records[host];
        match record.health {
            HostHealth::Dead => Some(format!("lost {:.0} s ago", record.silence(now).as_secs_f64())),
            HostHealth::Starting if record.cause.is_some() => None,
            HostHealth::Starting => {
                let seen = if record.kept.incarnation > 0 { "not back" } else { "never seen" };
                let node = &record.spec.node;
                Some(match self.nodes.contains_key(node) {
                    true => format!("{seen}; node {node} has joined and starts it"),
                    false => format!("{seen}; node {node} has not joined"),
                })
            }
            _ => None,
        }
    }
}
