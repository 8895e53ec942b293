//! How a host process looks from outside, as /proc tells: stopped, waiting for memory or a disk, or well. Ends no process.
//!
//! A process that waits for a page is uninterruptible, or has had major faults since it was last looked at; one that hangs in its
//! own code has neither, and one that was stopped is told apart by its state.

use std::{collections::HashMap, fs};

use asterism_actors::messages::{Condition, HostMessage};
use tokio::sync::watch;

use super::Life;

/// Threads of a process that are looked at: the first are those that keep the link to the supervisor.
const THREADS: usize = 8;

/// What /proc says of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reading {
    /// State of each thread that was looked at, the first one's first.
    states: Vec<char>,
    /// Page faults that waited for a disk, since it started.
    major_faults: u64,
}

/// The processes of a node's hosts, by host.
pub struct Watched {
    hosts: Vec<(String, watch::Receiver<Option<Life>>)>,
    seen: HashMap<u64, (u64, Condition)>,
}

impl Watched {
    /// None looked at yet.
    pub fn new(hosts: Vec<(String, watch::Receiver<Option<Life>>)>) -> Self {
        Self { hosts, seen: HashMap::new() }
    }

    /// Looks at all of them; returns what is news of those that run.
    pub fn look(&mut self) -> Vec<HostMessage> {
        let lives: Vec<(String, Life)> =
            self.hosts.iter().filter_map(|(host, life)| Some((host.clone(), (*life.borrow())?))).collect();
        self.seen.retain(|start, _| lives.iter().any(|(_, life)| life.start == *start));
        let news = lives.into_iter().filter_map(|(host, Life { start, pid })| {
            let reading = Reading::of(pid)?;
            let last = self.seen.get(&start).copied();
            let condition = reading.judge(last.map(|(faults, _)| faults));
            self.seen.insert(start, (reading.major_faults, condition));
            let known = last.map_or(Condition::Well, |(_, condition)| condition);
            let is_news = condition == Condition::Starved || condition != known;
            is_news.then_some(HostMessage::Seen { host, start, condition })
        });
        news.collect()
    }
}

/// A process that is looked at now and then.
pub struct Watching {
    pid: u32,
    faults: Option<u64>,
}

impl Watching {
    /// At a process.
    pub fn at(pid: u32) -> Self {
        Self { pid, faults: None }
    }

    /// How it is, and has been since the last time; well where the system does not tell.
    pub fn again(&mut self) -> Condition {
        let Some(reading) = Reading::of(self.pid) else { return Condition::Well };
        reading.judge(self.faults.replace(reading.major_faults))
    }
}

impl Reading {
    /// Of a process; none when it is gone.
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut reading = Self::parsed(&stat)?;
        let mut threads: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok())
            .filter(|thread| *thread != pid)
            .collect();
        threads.sort_unstable();
        for thread in threads.into_iter().take(THREADS) {
            let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok();
            reading
                .states
                .extend(stat.and_then(|stat| Self::parsed(&stat)).into_iter().flat_map(|thread| thread.states));
        }
        Some(reading)
    }

    /// The state follows the program's name, which is in brackets and may hold some itself; major faults are the tenth field
    /// from there.
    fn parsed(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        Some(Self { states: vec![state], major_faults: fields.nth(8)?.parse().ok()? })
    }

    fn is_stopped(&self) -> bool {
        self.states.first().is_some_and(|state| matches!(state, 'T' | 't'))
    }

    /// How it is, with the major faults that it had when it was last looked at.
    fn judge(&self, faults_before: Option<u64>) -> Condition {
        if self.is_stopped() {
            Condition::Stopped
        } else if self.states.contains(&'D') || faults_before.is_some_and(|before| self.major_faults > before) {
            Condition::Starved
        } else {
            Condition::Well
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::Signal;

    use super::*;
    use crate::node::signal;

    fn reading(state: char, faults: u64) -> Reading {
        Reading::parsed(&format!("12 (a) S (b) {state} 1 12 12 0 -1 4194560 100 0 {faults} 0 250 50")).unwrap()
    }

    #[test]
    fn stopped_starved_and_hung_are_told_apart() {
        assert_eq!(reading('S', 3), Reading { states: vec!['S'], major_faults: 3 });
        assert_eq!(Reading::parsed(""), None);
        for (state, faults, before, expected) in [
            ('S', 3, None, Condition::Well),
            ('R', 3, Some(3), Condition::Well),
            ('R', 4, Some(3), Condition::Starved),
            ('D', 3, Some(3), Condition::Starved),
            ('T', 4, Some(3), Condition::Stopped),
            ('t', 3, Some(3), Condition::Stopped),
        ] {
            assert_eq!(reading(state, faults).judge(before), expected, "{state} {faults} {before:?}");
        }
        let behind = Reading { states: vec!['S', 'D'], major_faults: 3 };
        assert_eq!(behind.judge(Some(3)), Condition::Starved, "a thread waits");
    }

    #[test]
    fn a_process_that_is_stopped_and_goes_on_is_news_once_each() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let life = Life { start: 5, pid: child.id() };
        let (lives, seen) = watch::channel(None);
        let mut watched = Watched::new(vec![("c0".into(), seen)]);
        assert_eq!(watched.look(), [], "no process");
        lives.send_replace(Some(life));
        // A machine may starve any process at any time: that is news here as elsewhere.
        let mut next = |wanted| {
            while !watched.look().contains(&HostMessage::Seen { host: "c0".into(), start: 5, condition: wanted }) {
                std::thread::yield_now();
            }
            let busy = |news: &HostMessage| matches!(news, HostMessage::Seen { condition: Condition::Starved, .. });
            watched.look().into_iter().filter(|news| !busy(news)).collect::<Vec<_>>()
        };
        assert!(signal(life.pid, Signal::STOP));
        assert_eq!(next(Condition::Stopped), []);
        assert!(signal(life.pid, Signal::CONT));
        assert_eq!(next(Condition::Well), []);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(watched.look(), [], "it is gone");
    }
}
