//! How a host process looks from outside, as /proc tells: stopped, waiting for memory, a disk or a core, or well. Ends no process.
//!
//! A process that waits for a page is uninterruptible, or has had major faults since it was last looked at; one that waits for a core
//! wants to run and has not, or has stood in the queue for long; one that hangs in its own code has none of these, and one that was
//! stopped is told apart by its state.

use std::{collections::HashMap, fs};

use asterism_actors::messages::{Condition, HostMessage};
use tokio::sync::watch;

/// Threads of a process that are looked at: the first are those that keep the link to the supervisor.
const THREADS: usize = 8;

/// How long a thread has stood in the queue for a core between two looks where the machine is too busy for it.
const LONG_WAIT_NS: u64 = 200_000_000;

/// What /proc says of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reading {
    /// The threads that were looked at, the first one first.
    threads: Vec<Thread>,
    /// Page faults that waited for a disk, since it started.
    major_faults: u64,
}

/// What it says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    id: u32,
    state: char,
    /// Nanoseconds that it has run, and that it has waited for a core, where the system counts them.
    times: Option<(u64, u64)>,
}

/// The processes of a node's hosts.
#[derive(Default)]
pub struct Watched {
    seen: HashMap<u64, (Reading, Condition)>,
}

/// The hosts of a process, and its life.
pub type WatchedProcess = (Vec<String>, watch::Receiver<Option<ProcessLife>>);

impl Watched {
    /// Looks at all of these; returns what is news of those that run.
    pub fn look(&mut self, processes: &[WatchedProcess]) -> Vec<HostMessage> {
        let lives: Vec<(&[String], ProcessLife)> =
            processes.iter().filter_map(|(hosts, life)| Some((&hosts[..], (*life.borrow())?))).collect();
        self.seen.retain(|start, _| lives.iter().any(|(_, life)| life.start == *start));
        let update = lives.into_iter().filter_map(|(hosts, ProcessLife { start, pid })| {
            let reading = Reading::of(pid)?;
            let last = self.seen.remove(&start);
            let condition = reading.judge(last.as_ref().map(|(before, _)| before));
            self.seen.insert(start, (reading, condition));
            let known = last.map_or(Condition::Well, |(_, condition)| condition);
            let is_news = condition == Condition::Starved || condition != known;
            is_news.then(|| {
                let seen = |host: &String| HostMessage::Seen { host: host.clone(), start, condition };
                hosts.iter().map(seen).collect::<Vec<_>>()
            })
        });
        update.flatten().collect()
    }
}

/// A process that is looked at now and then.
pub struct Watching {
    pid: u32,
    before: Option<Reading>,
}

impl Watching {
    /// At a process.
    pub fn at(pid: u32) -> Self {
        Self { pid, before: None }
    }

    /// How it is, and has been since the last time; well where the system does not tell.
    pub fn again(&mut self) -> Condition {
        let Some(reading) = Reading::of(self.pid) else { return Condition::Well };
        let condition = reading.judge(self.before.as_ref());
        self.before = Some(reading);
        condition
    }
}

impl Reading {
    /// Of a process; none when it is gone.
    fn of(pid: u32) -> Option<Self> {
        let read = |thread: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
            let times = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok();
            Thread::parsed(thread, &stat, times.as_deref())
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut threads: Vec<u32> = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        // The first thread has the process's number.
        threads.sort_unstable_by_key(|thread| (*thread != pid, *thread));
        let threads = threads.into_iter().take(1 + THREADS).filter_map(read).collect();
        Some(Self { threads, major_faults: fields(&stat)?.nth(9)?.parse().ok()? })
    }

    fn is_stopped(&self) -> bool {
        self.threads.first().is_some_and(|thread| matches!(thread.state, 'T' | 't'))
    }

    /// How it is, with what was read when it was last looked at.
    fn judge(&self, before: Option<&Self>) -> Condition {
        let waits = |thread: &Thread| {
            let earlier = before.and_then(|before| before.threads.iter().find(|earlier| earlier.id == thread.id));
            thread.state == 'D' || earlier.is_some_and(|earlier| thread.waits_for_a_core(earlier))
        };
        if self.is_stopped() {
            Condition::Stopped
        } else if before.is_some_and(|before| self.major_faults > before.major_faults) || self.threads.iter().any(waits)
        {
            Condition::Starved
        } else {
            Condition::Well
        }
    }
}

impl Thread {
    fn parsed(id: u32, stat: &str, times: Option<&str>) -> Option<Self> {
        let state = fields(stat)?.next()?.chars().next()?;
        let times = times.and_then(|times| {
            let mut times = times.split_whitespace().map(str::parse);
            Some((times.next()?.ok()?, times.next()?.ok()?))
        });
        Some(Self { id, state, times })
    }

    /// Whether it wants to run and has not since then, or has stood in the queue for long.
    fn waits_for_a_core(&self, before: &Self) -> bool {
        let (Some((ran, waited)), Some((ran_before, waited_before))) = (self.times, before.times) else { return false };
        self.state == 'R' && ran == ran_before || waited.saturating_sub(waited_before) >= LONG_WAIT_NS
    }
}

/// Fields of a `stat` file from the state on, which follows the program's name, which is in brackets and may hold some itself.
/// Major faults are the tenth from there.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

/// A process of one host or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLife {
    /// Its number.
    pub start: u64,
    /// Its id.
    pub pid: u32,
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::Signal;

    use super::*;
    use crate::processes::node::signal;

    fn thread(id: u32, state: char, times: &str) -> Thread {
        let stat = format!("{id} (a) S (b) {state} 1 12 12 0 -1 4194560 100 0 3 0 250 50");
        assert_eq!(fields(&stat).unwrap().nth(9), Some("3"), "major faults");
        Thread::parsed(id, &stat, Some(times)).unwrap()
    }

    #[test]
    fn stopped_starved_and_hung_are_told_apart() {
        let reading =
            |state, major_faults, times: &str| Reading { threads: vec![thread(1, state, times)], major_faults };
        assert!(Thread::parsed(1, "", None).is_none() && thread(1, 'S', "").times.is_none());
        let before = reading('S', 3, "5000 1000 7");
        for (now, before, expected) in [
            (reading('S', 3, "5000 1000 7"), None, Condition::Well),
            (reading('S', 3, "5000 1000 7"), Some(&before), Condition::Well),
            (reading('R', 3, "6000 1000 8"), Some(&before), Condition::Well),
            (reading('R', 4, "6000 1000 8"), Some(&before), Condition::Starved),
            (reading('D', 3, "6000 1000 8"), Some(&before), Condition::Starved),
            (reading('R', 3, "5000 1000 7"), Some(&before), Condition::Starved),
            (reading('S', 3, "6000 250001000 8"), Some(&before), Condition::Starved),
            (reading('R', 3, ""), Some(&before), Condition::Well),
            (reading('T', 4, "5000 250001000 7"), Some(&before), Condition::Stopped),
            (reading('t', 3, "5000 1000 7"), Some(&before), Condition::Stopped),
        ] {
            assert_eq!(now.judge(before), expected, "{now:?} {before:?}");
        }
        let mut behind = reading('S', 3, "5000 1000 7");
        behind.threads.push(thread(2, 'D', ""));
        assert_eq!(behind.judge(Some(&before)), Condition::Starved, "a thread waits");
    }

    #[test]
    fn a_process_that_is_stopped_and_goes_on_is_news_once_each() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let life = ProcessLife { start: 5, pid: child.id() };
        let (lives, seen) = watch::channel(None);
        let (mut watched, processes) = (Watched::default(), [(vec!["c0".into()], seen)]);
        assert_eq!(watched.look(&processes), [], "no process");
        lives.send_replace(Some(life));
        // A machine may starve any process at any time: that is news here as elsewhere.
        let mut next = |wanted| {
            while !watched.look(&processes).contains(&HostMessage::Seen {
                host: "c0".into(),
                start: 5,
                condition: wanted,
            }) {
                std::thread::yield_now();
            }
            let busy = |update: &HostMessage| matches!(update, HostMessage::Seen { condition: Condition::Starved, .. });
            watched.look(&processes).into_iter().filter(|update| !busy(update)).collect::<Vec<_>>()
        };
        assert!(signal(life.pid, Signal::STOP));
        assert_eq!(next(Condition::Stopped), []);
        assert!(signal(life.pid, Signal::CONT));
        assert_eq!(next(Condition::Well), []);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(watched.look(&processes), [], "it is gone");
    }
}
