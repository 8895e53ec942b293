//! A process of this program as a child: started, waited for, ended. Decides nothing.
//!
//! A child holds the reading end of a pipe whose writing end is ours: however we end, it reads the end and ends too. What it
//! writes to its standard output is its report that its start succeeded; a child that hangs writes none.

use std::{
    ffi::OsString,
    future::pending,
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::state::Ending;
use crate::{
    data_dir::{self, private},
    error::Exit,
};

/// How long a killed process may take to be gone.
const KILLED: Duration = Duration::from_secs(5);

/// A child of this process.
pub struct Process {
    child: Child,
    log: PathBuf,
    /// Where this life begins in the log.
    from: u64,
    _pipe: Option<ChildStdin>,
    report: ChildReport,
}

/// Where a child reports.
pub struct ChildReport(Option<Lines<BufReader<ChildStdout>>>);

/// How a child ended.
#[derive(Clone, Debug)]
pub struct ChildEnd {
    /// Whether it is worth starting again.
    pub ending: Ending,
    /// Its exit code, when it ended by itself.
    pub code: Option<i32>,
    /// Why, as its log says it, when it does.
    pub error: Option<String>,
    /// Exit status and `error`, for a person.
    pub cause: String,
}

impl Process {
    /// Starts this program with `arguments` and `--end-with-stdin`; what it logs is added to `log`.
    pub fn start(arguments: impl IntoIterator<Item = OsString>, log: &Path) -> io::Result<Self> {
        Self::start_program(&std::env::current_exe()?, arguments, log)
    }

    /// Starts another program in the same way.
    pub fn start_program(
        program: &Path,
        arguments: impl IntoIterator<Item = OsString>,
        log: &Path,
    ) -> io::Result<Self> {
        let opened = private::options().create(true).append(true).open(log);
        let opened = opened.and_then(|output| Ok((output.metadata()?.len(), Stdio::from(output))));
        let (from, output) = opened.unwrap_or_else(|error| {
            // It is of more use without a log than not at all.
            tracing::error!(log = %log.display(), %error, "a process is started that cannot log");
            (0, Stdio::null())
        });
        let mut child = Command::new(program)
            .args(arguments)
            .arg("--end-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(output)
            .kill_on_drop(true)
            // Ctrl-C reaches the parent alone, which then ends its children in order.
            .process_group(0)
            .spawn()?;
        // Waiting for a child would close a pipe that it still has.
        let (pipe, report) =
            (child.stdin.take(), ChildReport(child.stdout.take().map(|output| BufReader::new(output).lines())));
        Ok(Self { child, log: log.to_owned(), from, _pipe: pipe, report })
    }

    /// Takes out where it reports; to be kept for as long as it lives.
    pub fn report(&mut self) -> ChildReport {
        ChildReport(self.report.0.take())
    }

    /// Goes on holding where it reports: a child that writes when nobody does would fail.
    pub fn listen(&mut self, report: ChildReport) {
        self.report = report;
    }

    /// Its process id; none once it has been waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for its end; may be asked again when abandoned.
    pub async fn wait(&mut self) -> ChildEnd {
        match self.child.wait().await {
            Ok(status) => self.ended(status),
            Err(error) => ChildEnd::failed(format!("its process cannot be waited for: {error}")),
        }
    }

    /// Ends it with no warning.
    pub async fn kill(&mut self) -> ChildEnd {
        // A process that is gone already needs no signal.
        let _ = self.child.start_kill();
        match timeout(KILLED, self.wait()).await {
            Ok(ended) => ended,
            Err(_) => ChildEnd::failed("its process does not end when killed".into()),
        }
    }

    /// Asks it to end; ends it when it has not within `grace`.
    pub async fn stop(&mut self, grace: Duration) -> ChildEnd {
        if let Some(pid) = self.pid() {
            signal(pid, Signal::TERM);
        }
        match timeout(grace, self.wait()).await {
            Ok(ended) => ended,
            Err(_) => self.kill().await,
        }
    }

    fn ended(&self, status: ExitStatus) -> ChildEnd {
        let error = data_dir::last_error(&self.log, self.from);
        let ending = match status.code() {
            Some(0) => Ending::Finished,
            Some(code) if code == Exit::Usage as i32 => Ending::Unfit,
            Some(code) if code == Exit::Authentication as i32 => Ending::Unauthenticated,
            Some(code) if code == Exit::Terminated as i32 => Ending::Terminated,
            // It came before it was listened to.
            None if status.signal() == Some(Signal::TERM.as_raw()) => Ending::Terminated,
            _ => Ending::Failed,
        };
        let cause = match &error {
            Some(line) => format!("its process ended ({status}): {line}"),
            None => format!("its process ended ({status})"),
        };
        ChildEnd { ending, code: status.code(), error, cause }
    }
}

impl ChildReport {
    /// Completes when the child has reported; may be asked again when abandoned.
    pub async fn acknowledged(&mut self) {
        self.line().await;
    }

    /// What the child says next; may be asked again when abandoned.
    pub async fn line(&mut self) -> String {
        if let Some(output) = &mut self.0
            && let Ok(Some(line)) = output.next_line().await
        {
            return line;
        }
        // The child closed its output and said nothing: it will not report any more.
        pending().await
    }
}

impl ChildEnd {
    /// A process that failed, or could not be started.
    pub fn failed(cause: String) -> Self {
        Self { ending: Ending::Failed, code: None, error: None, cause }
    }
}

/// Whether the signal reached the process.
pub fn signal(pid: u32, signal: Signal) -> bool {
    i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| kill_process(pid, signal).is_ok())
}
