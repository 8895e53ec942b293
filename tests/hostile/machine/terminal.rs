//! Terminals that go away, and signals while the screen is taken.

use std::{
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    process::{Child, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tests::{Cluster, DEADLINE};

use crate::api::openai;

/// `top` on a terminal of its own, and what that shows.
fn top(cluster: &Cluster) -> (Child, Screen) {
    let shown = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&shown).and_then(|()| unlockpt(&shown)).expect("it may be opened");
    let name = ptsname(&shown, Vec::new()).expect("it has a name");
    let terminal =
        rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("it opens");
    tcsetwinsize(&terminal, Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).expect("it has a size");
    let again = || Stdio::from(terminal.try_clone().expect("a descriptor"));
    let child = cluster.command(&["top"]).stdin(again()).stdout(again()).stderr(Stdio::null()).spawn().expect("top");
    (child, Screen::of(shown))
}

/// The other end of a terminal, with all that it showed so far: several sequences come by one read, and none comes twice.
struct Screen {
    terminal: File,
    shown: Vec<u8>,
}

impl Screen {
    fn of(terminal: OwnedFd) -> Self {
        Self { terminal: File::from(terminal), shown: Vec::new() }
    }

    /// Reads until `sequence` was shown.
    fn shows(&mut self, sequence: &str) {
        let until = Instant::now() + DEADLINE;
        while !String::from_utf8_lossy(&self.shown).contains(sequence) {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).expect("it is short");
            let ready = poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&left)).expect("it can be asked");
            assert!(ready > 0, "no {sequence:?} in {:?}", String::from_utf8_lossy(&self.shown));
            let mut part = [0; 4096];
            let read = self.terminal.read(&mut part).unwrap_or_else(|error| panic!("no {sequence:?}: {error}"));
            self.shown.extend(&part[..read]);
        }
    }
}

fn end(mut child: Child) -> ExitStatus {
    let (reported, ended) = mpsc::channel();
    let (pid, started) = (child.id(), Instant::now());
    thread::spawn(move || reported.send(child.wait()));
    match ended.recv_timeout(DEADLINE) {
        Ok(status) => status.expect("it can be waited for"),
        Err(_) => {
            tests::kill(pid.into());
            panic!("top goes on after {:?}", started.elapsed());
        }
    }
}

const TAKEN: &str = "\u{1b}[?1049h";
const GIVEN_BACK: &str = "\u{1b}[?1049l";

#[test]
fn top_gives_its_terminal_back_and_ends_with_it() {
    let cluster = openai::cluster(None);
    let (child, mut screen) = top(&cluster);
    // It listens for signals before it takes the screen.
    screen.shows(TAKEN);
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id")).expect("not zero");
    kill_process(pid, Signal::TERM).expect("it lives");
    screen.shows(GIVEN_BACK);
    let status = end(child);
    assert_eq!((status.code(), status.signal()), (Some(130), None));

    // It has no controlling terminal here, so that no signal tells it.
    let (child, mut screen) = top(&cluster);
    screen.shows("context-0");
    drop(screen);
    assert_eq!(end(child).code(), Some(3));
}
