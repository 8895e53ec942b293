//! Progress of a job on standard error: a bar a host on a terminal, a line every five seconds elsewhere.

use std::{
    io::{IsTerminal, stderr},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use asterism_actors::api::{HostProgress, JobPhase, RecoveryStatus, Waiting};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::{
    client::Client,
    cluster::size::{count, grouped},
    globals::{Globals, printable},
};

/// Between two lines of progress where there is no terminal.
pub const LINE_EVERY: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(200);
/// Longest that a person waits for an answer without a word.
pub const WORDLESS: Duration = Duration::from_secs(2);

/// What a supervisor answers, with a line for whoever waits for it longer than [`WORDLESS`].
pub fn answered<T>(globals: &Globals, client: &Client, ask: impl FnOnce(&Client) -> T) -> T {
    let (answer, awaited) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if awaited.recv_timeout(WORDLESS) == Err(RecvTimeoutError::Timeout) {
                let (base, most) = (client.base(), globals.request_timeout.as_secs());
                globals.note(format_args!(
                    "no answer from {base} yet; it is waited for, up to {most} s (--request-timeout)"
                ));
            }
        });
        let answered = ask(client);
        drop(answer);
        answered
    })
}

/// Shows how far a job is.
pub struct Progress {
    sink: Sink,
    started: Instant,
    pace: Pace,
}

enum Sink {
    Silent,
    Bars { all: MultiProgress, bars: Vec<HostBar>, waiting: Option<ProgressBar> },
    Lines { last: Option<Instant>, stated: Option<String> },
}

/// How fast work goes. Counted from when it began here, so that no time in a queue is in it.
#[derive(Default)]
struct Pace {
    /// When the first tokens were seen, and how many; again when tokens are lost.
    began: Option<(Duration, usize)>,
}

impl Progress {
    /// For the standard error of this process.
    pub fn new(globals: &Globals) -> Self {
        let sink = match (globals.quiet, stderr().is_terminal()) {
            (true, _) => Sink::Silent,
            (false, true) => Sink::Bars { all: MultiProgress::new(), bars: Vec::new(), waiting: None },
            (false, false) => Sink::Lines { last: None, stated: None },
        };
        Self { sink, started: Instant::now(), pace: Pace::default() }
    }

    /// The job moved on.
    pub fn phase(&mut self, phase: JobPhase) {
        if phase != JobPhase::Queued {
            self.waiting(None);
        }
        match &mut self.sink {
            Sink::Bars { all, bars, .. } if phase != JobPhase::Queued && phase != JobPhase::Encoding => {
                bars.iter().for_each(|bar| bar.line.finish_and_clear());
                bars.clear();
                let _ = all.clear();
            }
            _ => {}
        }
    }

    /// What it waits for, or that it waits no more.
    pub fn waiting(&mut self, waiting: Option<&Waiting>) {
        let text = waiting.map(|waiting| printable(&waiting.to_string()).into_owned());
        match (&mut self.sink, text) {
            (Sink::Silent, _) => {}
            (Sink::Bars { waiting, .. }, None) => waiting.take().iter().for_each(ProgressBar::finish_and_clear),
            (Sink::Bars { all, waiting, .. }, Some(text)) => {
                waiting.get_or_insert_with(|| all.add(waiting_line())).set_message(text);
            }
            (Sink::Lines { stated, .. }, None) => *stated = None,
            (Sink::Lines { last, stated }, Some(text)) => {
                let first = stated.is_none();
                if (first || is_due(*last)) && stated.as_ref() != Some(&text) {
                    eprintln!("{text}");
                    (*last, *stated) = (Some(Instant::now()), Some(text));
                }
            }
        }
    }

    /// Hosts moved on.
    pub fn hosts(&mut self, hosts: &[HostProgress]) {
        self.waiting(None);
        let elapsed = self.started.elapsed();
        self.pace.see(elapsed, hosts.iter().map(|host| host.done_tokens).sum());
        match &mut self.sink {
            Sink::Silent => {}
            Sink::Bars { all, bars, .. } => {
                for host in hosts {
                    let position = bars.iter().position(|bar| bar.host == host.host).unwrap_or_else(|| {
                        let mut bar = HostBar::new(host);
                        bar.line = all.add(bar.line);
                        bars.push(bar);
                        bars.len() - 1
                    });
                    bars[position].show(elapsed, host);
                }
            }
            Sink::Lines { last, .. } => {
                if is_due(*last.get_or_insert_with(Instant::now)) {
                    *last = Some(Instant::now());
                    eprintln!("{}", printable(&line(hosts, &self.pace, elapsed)));
                }
            }
        }
    }

    /// A host was lost, or its part goes on.
    pub fn recovery(&mut self, recovery: &RecoveryStatus) {
        let RecoveryStatus { host, reason, shards, .. } = recovery;
        let text = match recovery.recovered_s {
            None => {
                let shards = count(*shards, "shard");
                format!("host {host} is lost ({reason}), {shards} encoded anew; the answer goes on")
            }
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
        self.waiting(None);
        if let Sink::Bars { all, bars, .. } = &mut self.sink {
            bars.iter().for_each(|bar| bar.line.finish_and_clear());
            let _ = all.clear();
        }
    }
}

/// One host's part of the work.
struct HostBar {
    host: String,
    line: ProgressBar,
    pace: Pace,
}

impl HostBar {
    fn new(host: &HostProgress) -> Self {
        // One line in a terminal of 40 columns: lines that are wrapped cannot be read.
        let style = ProgressStyle::with_template("{prefix:9} {wide_bar} {human_pos:>6}/{human_len} {msg}")
            .expect("the template is a constant");
        let line = ProgressBar::new(host.total_tokens as u64).with_style(style);
        let line = line.with_prefix(printable(&host.host).into_owned());
        Self { host: host.host.clone(), line, pace: Pace::default() }
    }

    /// How far it is, and how fast since it was first seen: what was done before took a time that nobody here knows.
    fn show(&mut self, now: Duration, host: &HostProgress) {
        self.pace.see(now, host.done_tokens);
        if let Some(rate) = self.pace.rate(now, host.done_tokens) {
            let left = host.total_tokens.saturating_sub(host.done_tokens) as f64 / rate;
            self.line.set_message(format!("{:>5} tok/s {left:.0}s", grouped(rate as usize)));
        }
        self.line.set_position(host.done_tokens as u64);
    }
}

fn waiting_line() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}").expect("the template is a constant");
    let line = ProgressBar::new_spinner().with_style(style);
    line.enable_steady_tick(TICK);
    line
}

fn is_due(last: impl Into<Option<Instant>>) -> bool {
    last.into().is_none_or(|last| last.elapsed() >= LINE_EVERY)
}

impl Pace {
    fn see(&mut self, now: Duration, done: usize) {
        if self.began.is_none_or(|(_, first)| done < first) {
            self.began = Some((now, done));
        }
    }

    /// Tokens a second, once there is something to tell it from.
    fn rate(&self, now: Duration, done: usize) -> Option<f64> {
        let (began, first) = self.began.filter(|(_, first)| done > *first)?;
        let seconds = now.saturating_sub(began).as_secs_f64();
        (seconds > 0.0).then(|| (done - first) as f64 / seconds)
    }
}

fn line(hosts: &[HostProgress], pace: &Pace, now: Duration) -> String {
    let done: usize = hosts.iter().map(|host| host.done_tokens).sum();
    let total: usize = hosts.iter().map(|host| host.total_tokens).sum();
    let speed = match pace.rate(now, done) {
        Some(rate) => format!("{rate:.0} tokens/s, {:.0} s left", (total - done.min(total)) as f64 / rate),
        None => "just begun".into(),
    };
    let each: Vec<_> = hosts
        .iter()
        .map(|host| format!("{} {:.0}%", host.host, 100.0 * host.done_tokens as f64 / host.total_tokens.max(1) as f64))
        .collect();
    format!("encoding {}/{} tokens, {speed} ({})", grouped(done), grouped(total), each.join(", "))
}

#[cfg(test)]
mod tests {
    use indicatif::{ProgressDrawTarget, TermLike};
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    /// A terminal of so many columns that keeps what is written.
    #[derive(Clone, Debug)]
    struct Screen(u16, Arc<Mutex<Vec<String>>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            self.0
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.1.lock().unwrap().push(text.to_string());
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_is_one_line_of_a_narrow_terminal() {
        for columns in [40, 80, 200] {
            let screen = Screen(columns, Arc::default());
            let host = |done_tokens| HostProgress { host: "context-0".into(), done_tokens, total_tokens: 15_360 };
            let mut bar = HostBar::new(&host(0));
            bar.line.set_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
            bar.show(Duration::from_secs(60), &host(12_000));
            bar.show(Duration::from_secs(61), &host(12_345));
            bar.line.tick();
            let drawn = screen.1.lock().unwrap();
            let shown = drawn.iter().rev().find(|text| !text.trim().is_empty()).expect("a line");
            assert!(shown.contains("12,345/15,360   345 tok/s 9s"), "{shown:?}");
            assert!(
                shown.chars().count() <= usize::from(columns),
                "{} columns of {columns}: {shown:?}",
                shown.chars().count()
            );
        }
    }

    #[test]
    fn a_line_sums_the_hosts() {
        let host = |name: &str, done| HostProgress { host: name.into(), done_tokens: done, total_tokens: 4000 };
        let (hosts, at) = ([host("a", 1000), host("b", 3000)], Duration::from_secs);
        let mut pace = Pace::default();
        // A minute in the queue, and then two seconds of work.
        pace.see(at(60), 0);
        pace.see(at(62), 4000);
        let text = line(&hosts, &pace, at(62));
        assert_eq!(text, "encoding 4,000/8,000 tokens, 2000 tokens/s, 2 s left (a 25%, b 75%)");
        pace.see(at(63), 3000);
        let text = line(&hosts, &pace, at(64));
        assert_eq!(text, "encoding 4,000/8,000 tokens, 1000 tokens/s, 4 s left (a 25%, b 75%)", "tokens were lost");
        let text = line(&hosts, &Pace::default(), at(1));
        assert_eq!(text, "encoding 4,000/8,000 tokens, just begun (a 25%, b 75%)");
    }
}
