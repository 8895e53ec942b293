//! How far a run is: a bar with rate and time left on a terminal, a line every five seconds elsewhere. Standard error only.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::globals::Globals;

/// How often a line comes.
pub const LINE_EVERY: Duration = Duration::from_secs(5);

/// Counts answers.
pub struct Meter {
    bar: Option<ProgressBar>,
    lines: bool,
    started: Instant,
    last: Instant,
    done: usize,
    total: usize,
}

impl Meter {
    /// For `total` answers.
    pub fn new(globals: &Globals, total: usize) -> Self {
        let terminal = stderr().is_terminal();
        let bar = (terminal && !globals.quiet).then(|| {
            let style =
                ProgressStyle::with_template("{bar:32} {human_pos}/{human_len} answers  {rate}/s  eta {eta}  {msg}")
                    .expect("the template is a constant")
                    .with_key("rate", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
                        // Writing to indicatif's own buffer cannot fail.
                        let _ = write!(text, "{:.2}", state.per_sec());
                    });
            ProgressBar::new(total as u64).with_style(style)
        });
        let now = Instant::now();
        Self { bar, lines: !terminal && !globals.quiet, started: now, last: now, done: 0, total }
    }

    /// One answer more, or one failure.
    pub fn step(&mut self, about: String) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_message(about);
            bar.inc(1);
        }
        self.tick();
    }

    /// Prints a line when one is due.
    pub fn tick(&mut self) {
        if self.lines && self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            eprintln!("{}", line(self.done, self.total, self.started.elapsed()));
        }
    }

    /// A line of text that the bar does not overwrite.
    pub fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Runs what prints to standard output, out of the bar's way.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn line(done: usize, total: usize, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = if done > 0 { format!("{:.0} s", (total - done.min(total)) as f64 / rate) } else { "unknown".into() };
    format!("{done}/{total} answers, {rate:.2}/s, {left} left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_rate_and_time_left() {
        assert_eq!(line(3, 9, Duration::from_secs(6)), "3/9 answers, 0.50/s, 12 s left");
        assert_eq!(line(0, 9, Duration::from_secs(6)), "0/9 answers, 0.00/s, unknown left");
    }
}
