//! `top`: the running cluster on a terminal, looked at again every second: hosts, jobs, sessions. Changes nothing.

mod view;

use std::{
    io::{self, IsTerminal},
    process,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use asterism_actors::api::{JobState, JobStatus, SessionStatus};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::{
    cli::{
        commands::cluster::process::{Hangup, Signals},
        output,
    },
    client::Client,
    cluster::size::seconds,
    error::{CliError, Exit},
    globals::Globals,
    observe::logging,
};
use view::{Look, Rates};

/// Jobs that are looked at.
const JOBS_ASKED: usize = 200;
/// Shortest time between two looks.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// `asterism top`
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = pause)]
    pub every: Duration,
}

/// Seconds between looks, each of which is three requests.
fn pause(text: &str) -> Result<Duration, String> {
    let every = seconds(text)?;
    let least = LEAST_PAUSE.as_secs_f64();
    if every < LEAST_PAUSE { Err(format!("'{text}' is too often: expected at least {least} s")) } else { Ok(every) }
}

/// Shows it until `q`, Escape or Ctrl-C.
pub fn run(globals: &Globals, args: &TopArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    if !io::stdout().is_terminal() {
        return Err(CliError::usage("top shows the cluster on a terminal, and standard output is none")
            .hint("`asterism status` prints it once"));
    }
    let client = Client::find(globals)?;
    // Before the screen is taken, so that a cluster that is not there is told as by any command.
    let mut look = look(&client)?;
    listen(globals.color_stderr);
    let mut terminal = ratatui::init();
    let ended = show(&mut terminal, (&client, args.every), &mut look);
    // A terminal that is gone needs nothing back.
    let _ = ratatui::try_restore();
    ended.map(|()| Exit::Success)
}

/// From when it returns a signal that asks the process to end gives the terminal back first, and a terminal that is gone ends it:
/// who waits for its keys meanwhile would read for ever.
fn listen(color: bool) {
    let (listens, heard) = mpsc::channel();
    thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        let asked = runtime.block_on(async {
            let mut signals = Signals::listen(Hangup::Ends)?;
            let _ = listens.send(());
            tokio::select! {
                _ = signals.next() => Ok(()),
                () = gone() => Err(CliError::unreachable("the terminal is gone")),
            }
        });
        // Before a word, which would go with the screen.
        let _ = ratatui::try_restore();
        let exit = match asked {
            Ok(()) => Exit::Interrupted,
            Err(error) => output::fail(&error, color),
        };
        process::exit(exit as i32);
    });
    // Without a runtime nobody listens, and `top` goes on.
    let _ = heard.recv();
}

/// Returns when standard output is a terminal no more.
async fn gone() {
    while io::stdout().is_terminal() {
        tokio::time::sleep(LEAST_PAUSE).await;
    }
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    (client, every): (&Client, Duration),
    look_now: &mut Look,
) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::unreachable(format!("the terminal fails: {error}"));
    let mut rates = Rates::default();
    loop {
        rates.see(&look_now.jobs, Instant::now());
        terminal.draw(|frame| view::draw(frame, look_now, &rates)).map_err(failed)?;
        let due = Instant::now() + every;
        while event::poll(due.saturating_duration_since(Instant::now())).map_err(failed)? {
            match event::read().map_err(failed)? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let interrupts = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    if interrupts || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                }
                Event::Resize(..) => break,
                _ => {}
            }
        }
        match look(client) {
            Ok(look) => *look_now = look,
            Err(error) => look_now.trouble = Some(error.message),
        }
    }
}

fn look(client: &Client) -> Result<Look, CliError> {
    let running: Vec<JobStatus> = client.jobs(&[JobState::Running, JobState::Pending], JOBS_ASKED)?;
    let sessions: Vec<SessionStatus> = client.sessions()?;
    Ok(Look { cluster: client.topology()?, jobs: running, sessions, trouble: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_is_not_asked_without_a_pause() {
        assert_eq!(pause("0.1"), Ok(LEAST_PAUSE));
        for wrong in ["0", "0.09", "-1", "often"] {
            assert!(pause(wrong).is_err(), "{wrong}");
        }
    }
}
