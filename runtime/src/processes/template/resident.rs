//! One process that renders, as whoever asks it sees it. Knows no template.

use std::{
    io::{self, Read},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::{MEMORY_A_BYTE, RENDERER_MEMORY_BYTES, VERB, write};

/// Time for a rendering, and so many bytes that it is asked with for each second more.
const MOST_RENDER_SECONDS: u64 = 10;
const BYTES_A_SECOND: u64 = 1 << 20;
/// Bytes of an answer beside those that were asked with.
const MOST_ADDED: u64 = 64 << 20;

/// A process that renders. It ends where this does.
pub struct Resident {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

/// Why a process gave no answer; it is no more.
pub enum RenderFailure {
    /// It took more than a template may.
    Limit(String),
    /// Something else ended it.
    Otherwise(String),
}

impl Resident {
    /// Starts one for a template.
    pub fn start(source: &[u8]) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(VERB)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut resident = Self { child, input, output };
        write(&mut resident.input, source)?;
        Ok(resident)
    }

    /// Asks for a rendering, and ends the process that takes too long.
    pub fn ask(&mut self, asked: &[u8]) -> Result<Vec<u8>, RenderFailure> {
        let seconds = MOST_RENDER_SECONDS + asked.len() as u64 / BYTES_A_SECOND;
        let pid = Pid::from_child(&self.child);
        let (answered, waited) = mpsc::channel::<()>();
        let (answer, late) = thread::scope(|scope| {
            let watch = scope.spawn(move || {
                let late = waited.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout);
                // It has not been waited for, so that nobody else has its number.
                late && kill_process(pid, Signal::KILL).is_ok()
            });
            let answer = self.exchange(asked);
            drop(answered);
            (answer, watch.join().expect("it only waits"))
        });
        answer.map_err(|error| match late {
            true => RenderFailure::Limit(format!("it takes more than {seconds} s")),
            false => self.ended(&error, asked.len() as u64),
        })
    }

    fn exchange(&mut self, asked: &[u8]) -> io::Result<Vec<u8>> {
        write(&mut self.input, asked)?;
        let mut length = [0; 8];
        self.output.read_exact(&mut length)?;
        let (length, most) = (u64::from_le_bytes(length), MOST_ADDED + 8 * asked.len() as u64);
        if length > most {
            return Err(io::Error::other(format!("an answer of {length} bytes, expected at most {most}")));
        }
        let mut answer = vec![0; length as usize];
        self.output.read_exact(&mut answer)?;
        Ok(answer)
    }

    /// Why it is no more: it aborts when it gets no memory, and its stack ends where calls within calls do.
    fn ended(&mut self, error: &io::Error, asked: u64) -> RenderFailure {
        let _ = self.child.kill();
        let status = self.child.wait();
        let aborted = |status: &ExitStatus| matches!(status.signal(), Some(6 | 11));
        match status {
            Ok(status) if aborted(&status) => RenderFailure::Limit(format!(
                "it takes more than {} MiB",
                (RENDERER_MEMORY_BYTES + MEMORY_A_BYTE * asked) >> 20
            )),
            Ok(status) => RenderFailure::Otherwise(format!("{error}; {status}")),
            Err(waiting) => RenderFailure::Otherwise(format!("{error}; {waiting}")),
        }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
