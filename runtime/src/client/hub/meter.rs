//! How far a pull is, on standard error, once it takes longer than two seconds: a bar on a terminal, a line every five seconds
//! elsewhere.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::globals::printable;

const SILENT: Duration = Duration::from_secs(2);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Counts bytes.
pub struct PullMeter {
    quiet: bool,
    started: Instant,
    stated: Option<Instant>,
    bar: Option<ProgressBar>,
    total: u64,
    done: u64,
}

impl PullMeter {
    /// Of nothing yet.
    pub fn new(quiet: bool) -> Self {
        Self { quiet, started: Instant::now(), stated: None, bar: None, total: 0, done: 0 }
    }

    /// So many bytes are to come in all.
    pub fn expect(&mut self, total: u64) {
        self.total = total;
    }

    /// So many more bytes of a file are here.
    pub fn add(&mut self, file: &str, bytes: u64) {
        self.done += bytes;
        self.show(file);
    }

    /// Bytes that were here do not count.
    pub fn take_back(&mut self, bytes: u64) {
        self.done = self.done.saturating_sub(bytes);
    }

    /// Says something at once.
    pub fn note(&self, text: &str) {
        match (&self.bar, self.quiet) {
            (Some(bar), _) => bar.suspend(|| eprintln!("{}", printable(text))),
            (None, false) => eprintln!("{}", printable(text)),
            (None, true) => {}
        }
    }

    fn show(&mut self, file: &str) {
        let elapsed = self.started.elapsed();
        if self.quiet || elapsed < SILENT {
            return;
        }
        if stderr().is_terminal() {
            let total = self.total;
            let bar = self.bar.get_or_insert_with(|| {
                let style =
                    ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
                let bar = ProgressBar::new(total);
                bar.set_style(style.expect("a template that is right"));
                bar
            });
            bar.set_message(printable(file).into_owned());
            bar.set_position(self.done);
        } else if self.stated.is_none_or(|stated| stated.elapsed() >= LINE_EVERY) {
            self.stated = Some(Instant::now());
            let percent = 100 * self.done / self.total.max(1);
            eprintln!("{}: {} of {} bytes ({percent}%)", printable(file), self.done, self.total);
        }
    }
}

impl Drop for PullMeter {
    fn drop(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}
