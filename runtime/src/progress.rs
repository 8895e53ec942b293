//! Progress of a job on standard error: a bar a host on a terminal, a line every five seconds elsewhere.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use asterism_actors::api::{HostProgress, JobPhase, RecoveryStatus};
use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use crate::{globals::Globals, output::printable, size::grouped};

const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows how far a job is.
pub struct Progress {
    sink: Sink,
    started: Instant,
}

enum Sink {
    Silent,
    Bars { all: MultiProgress, bars: Vec<(String, ProgressBar)> },
    Lines { last: Instant },
}

impl Progress {
    /// For the standard error of this process.
    pub fn new(globals: &Globals) -> Self {
        let started = Instant::now();
        let sink = match (globals.quiet, stderr().is_terminal()) {
            (true, _) => Sink::Silent,
            (false, true) => Sink::Bars { all: MultiProgress::new(), bars: Vec::new() },
            (false, false) => Sink::Lines { last: started },
        };
        Self { sink, started }
    }

    /// The job moved on.
    pub fn phase(&mut self, phase: JobPhase) {
        match &mut self.sink {
            Sink::Bars { all, bars } if phase != JobPhase::Queued && phase != JobPhase::Encoding => {
                bars.iter().for_each(|(_, bar)| bar.finish_and_clear());
                bars.clear();
                let _ = all.clear();
            }
            _ => {}
        }
    }

    /// Hosts moved on.
    pub fn hosts(&mut self, hosts: &[HostProgress]) {
        match &mut self.sink {
            Sink::Silent => {}
            Sink::Bars { all, bars } => {
                for host in hosts {
                    let position = bars.iter().position(|(name, _)| *name == host.host).unwrap_or_else(|| {
                        bars.push((host.host.clone(), all.add(bar(host))));
                        bars.len() - 1
                    });
                    bars[position].1.set_position(host.done_tokens as u64);
                }
            }
            Sink::Lines { last } => {
                if last.elapsed() >= LINE_EVERY {
                    *last = Instant::now();
                    eprintln!("{}", printable(&line(hosts, self.started.elapsed())));
                }
            }
        }
    }

    /// A host was lost, or its part goes on.
    pub fn recovery(&mut self, recovery: &RecoveryStatus) {
        let RecoveryStatus { host, reason, shards, .. } = recovery;
        let text = match recovery.recovered_s {
            None => format!("host {host} is lost ({reason}); {shards} shards are encoded anew, the answer goes on"),
            Some(seconds) => format!("recovered from the loss of {host} in {seconds:.1} s"),
        };
        match &self.sink {
            Sink::Silent => {}
            Sink::Bars { all, .. } => drop(all.println(printable(&text))),
            Sink::Lines { .. } => eprintln!("{}", printable(&text)),
        }
    }

    /// Takes the bars away.
    pub fn clear(&mut self) {
        if let Sink::Bars { all, bars } = &mut self.sink {
            bars.iter().for_each(|(_, bar)| bar.finish_and_clear());
            let _ = all.clear();
        }
    }
}

fn bar(host: &HostProgress) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{prefix:14} {bar:32} {human_pos:>9}/{human_len} tokens {rate:>7} tok/s eta {eta}",
    )
    .expect("the template is a constant")
    .with_key("rate", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
        // Writing to indicatif's own buffer cannot fail.
        let _ = write!(text, "{}", grouped(state.per_sec() as usize));
    });
    ProgressBar::new(host.total_tokens as u64).with_style(style).with_prefix(printable(&host.host).into_owned())
}

fn line(hosts: &[HostProgress], elapsed: Duration) -> String {
    let done: usize = hosts.iter().map(|host| host.done_tokens).sum();
    let total: usize = hosts.iter().map(|host| host.total_tokens).sum();
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = if done > 0 { format!("{:.0} s", (total - done.min(total)) as f64 / rate) } else { "unknown".into() };
    let each: Vec<_> = hosts
        .iter()
        .map(|host| format!("{} {:.0}%", host.host, 100.0 * host.done_tokens as f64 / host.total_tokens.max(1) as f64))
        .collect();
    format!(
        "encoding {}/{} tokens, {rate:.0} tokens/s, {left} left ({})",
        grouped(done),
        grouped(total),
        each.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_sums_the_hosts() {
        let host = |name: &str, done| HostProgress { host: name.into(), done_tokens: done, total_tokens: 4000 };
        let text = line(&[host("a", 1000), host("b", 3000)], Duration::from_secs(2));
        assert_eq!(text, "encoding 4,000/8,000 tokens, 2000 tokens/s, 2 s left (a 25%, b 75%)");
    }
}
