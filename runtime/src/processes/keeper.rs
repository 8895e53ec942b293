//! The supervisor as a child of `up`: started, asked whether it lives, ended when it hangs, started again on the same ports.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use asterism_actors::messages::Condition;
use tokio::{sync::oneshot, task::JoinHandle};
use ureq::Agent;

use crate::{
    client::{self, Trust},
    cluster::Cluster,
    data_dir::{ServerRecord, log_file, start_file::StartFile},
    error::{CliError, Exit},
    processes::node::{ChildEnd, Fate, Process, Restarts, Watching},
};

/// How long a supervisor may say nothing from its start until it serves; while it waits for its disk it says so.
const SUPERVISOR_START_LIMIT: Duration = Duration::from_secs(60);
/// How often it is asked whether it lives.
const ASK_SUPERVISOR_EVERY: Duration = Duration::from_millis(500);
/// Without an answer for so long it counts as hung if its process is stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(2);
/// And for so long if it is not: on a busy machine it may only wait for a core.
const HUNG_AFTER: Duration = Duration::from_secs(10);
/// And for so long in all where it waits for memory, a disk or a core meanwhile.
const STARVED_AFTER: Duration = Duration::from_secs(60);
/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_millis(1500);
/// How long it may take to end by itself.
const SUPERVISOR_GRACE: Duration = Duration::from_secs(5);

/// The name of its log.
pub const LOG: &str = "supervisor";

/// A supervisor that is kept running.
pub struct Keeper {
    /// Where it serves; a restart changes only the process id.
    pub record: ServerRecord,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), CliError>>,
}

struct Kept {
    process: Process,
    file: StartFile,
    data_dir: PathBuf,
    record: ServerRecord,
    /// Where its admin API's certificate is, if it has one.
    certificate: Option<PathBuf>,
    max_restarts: u32,
}

impl Keeper {
    /// Starts the supervisor of `cluster`, which `file` describes, and waits until it serves; `waits` is called with why it does not yet.
    pub async fn start(cluster: &Cluster, file: StartFile, waits: impl Fn(&str)) -> Result<Self, CliError> {
        let log = log_file(&cluster.data_dir, LOG);
        // What earlier runs logged would be read as the cause of today's ends.
        let _ = std::fs::remove_file(&log);
        let failed = |error| CliError::unreachable(format!("the supervisor cannot be started: {error}"));
        let mut process = Process::start(arguments(&file, None), &log).map_err(failed)?;
        let record = serving(&mut process, waits).await.map_err(|ended| refusal(&ended, &log))?;
        let max_restarts = cluster.max_restarts;
        let certificate = cluster.admin_tls.as_ref().map(|files| files.cert.clone());
        let (data_dir, record_of) = (cluster.data_dir.clone(), record.clone());
        let kept = Kept { process, file, data_dir, record: record_of, certificate, max_restarts };
        let (stop, stopped) = oneshot::channel();
        Ok(Self { record, stop, task: tokio::spawn(kept.keep(stopped)) })
    }

    /// Completes when the supervisor ended as it was asked to, or is not started again.
    pub async fn ended(&mut self) -> Result<(), CliError> {
        (&mut self.task).await.unwrap_or_else(|panic| Err(CliError::unreachable(panic)))
    }

    /// Ends the supervisor, if it has not ended.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        if !self.task.is_finished() {
            let _ = self.task.await;
        }
    }
}

impl Kept {
    async fn keep(mut self, mut stopped: oneshot::Receiver<()>) -> Result<(), CliError> {
        let origin = Instant::now();
        let mut restarts = Restarts::new(self.max_restarts);
        loop {
            // It serves: that is its report.
            restarts.reported(origin.elapsed());
            let mut ended = tokio::select! {
                ended = self.end() => ended,
                _ = &mut stopped => {
                    self.process.stop(SUPERVISOR_GRACE).await;
                    return Ok(());
                }
            };
            loop {
                let after = match restarts.ended(origin.elapsed(), ended.ending) {
                    Fate::Finished => return Ok(()),
                    Fate::Restarting { after } => after,
                    Fate::GivenUp { reason } => {
                        let error = refusal(&ended, &log_file(&self.data_dir, LOG));
                        return Err(CliError { message: format!("{}; {reason}", error.message), ..error });
                    }
                };
                tracing::warn!(cause = ended.cause, wait_s = after.as_secs_f64(), "the supervisor is started again");
                tokio::select! {
                    () = tokio::time::sleep(after) => {}
                    _ = &mut stopped => return Ok(()),
                }
                restarts.started(origin.elapsed());
                match self.start_again().await {
                    Ok(()) => break,
                    Err(again) => ended = again,
                }
            }
        }
    }

    /// Waits until the supervisor has ended; ends it when it hangs.
    async fn end(&mut self) -> ChildEnd {
        let (url, pid) = (format!("{}/livez", self.record.url()), self.record.pid);
        // The certificate that it has read at its start.
        let shown = self.certificate.as_ref().map(|path| Trust::shown(path));
        let trust = shown.and_then(|shown| shown.inspect_err(|error| tracing::error!(%error, "no certificate")).ok());
        let silence = tokio::select! {
            ended = self.process.wait() => return ended,
            silence = silent((url, trust), pid) => silence,
        };
        let cause = format!("it did not answer /livez for {:.1} s", silence.as_secs_f64());
        tracing::warn!(pid = self.process.pid(), cause, "the supervisor hangs and is ended");
        self.process.kill().await;
        ChildEnd::failed(cause)
    }

    async fn start_again(&mut self) -> Result<(), ChildEnd> {
        let log = log_file(&self.data_dir, LOG);
        let started = Process::start(arguments(&self.file, Some(&self.record)), &log);
        self.process = started.map_err(|error| ChildEnd::failed(format!("it cannot be started: {error}")))?;
        let waits = |cause: &str| tracing::error!(cause, "the supervisor waits");
        self.record = serving(&mut self.process, waits).await?;
        tracing::info!(pid = self.record.pid, "the supervisor serves again");
        Ok(())
    }
}

/// Waits until the process says that it serves, or has ended; `waits` is called with each new cause why it does not yet.
async fn serving(process: &mut Process, waits: impl Fn(&str)) -> Result<ServerRecord, ChildEnd> {
    let (mut report, mut heard) = (process.report(), String::new());
    loop {
        let line = tokio::select! {
            ended = process.wait() => return Err(ended),
            line = report.line() => line,
            () = tokio::time::sleep(SUPERVISOR_START_LIMIT) => {
                process.kill().await;
                return Err(ChildEnd::failed(format!("it said nothing for {} s and does not serve", SUPERVISOR_START_LIMIT.as_secs())));
            }
        };
        match line.split_once(' ') {
            Some(("serving", record)) => {
                process.listen(report);
                let unknown = |error| ChildEnd::failed(format!("it said that it serves, and not where: {error}"));
                return serde_json::from_str(record).map_err(unknown);
            }
            Some(("waiting", cause)) if cause != heard => {
                waits(cause);
                heard = cause.to_owned();
            }
            _ => {}
        }
    }
}

/// Completes when `url`, served by the process `pid`, has not answered for too long; returns for how long.
async fn silent((url, trust): (String, Option<Trust>), pid: u32) -> Duration {
    let agent = client::agent(Agent::config_builder().timeout_global(Some(ANSWER)).build(), trust.as_ref());
    let (origin, mut silence, mut look) = (Instant::now(), Silence::default(), Watching::at(pid));
    loop {
        tokio::time::sleep(ASK_SUPERVISOR_EVERY).await;
        let (agent, url) = (agent.clone(), url.clone());
        let answered = tokio::task::spawn_blocking(move || agent.get(&url).call().is_ok()).await;
        if let Some(silence) = silence.judge(origin.elapsed(), answered.unwrap_or(false), look.again()) {
            return silence;
        }
    }
}

/// How long the supervisor has said nothing, as far as that is not the keeper's own doing.
#[derive(Default)]
struct Silence {
    /// When it last answered; later by what the keeper was late itself.
    heard: Duration,
    /// When it was last seen to wait for memory or a disk.
    starved: Duration,
    asked: Duration,
}

impl Silence {
    /// After a question that took its time; whether and for how long it has been silent for too long.
    fn judge(&mut self, now: Duration, answered: bool, condition: Condition) -> Option<Duration> {
        let passed = now.saturating_sub(std::mem::replace(&mut self.asked, now));
        self.heard += passed.saturating_sub(ASK_SUPERVISOR_EVERY + ANSWER);
        if answered {
            self.heard = now;
        }
        if condition == Condition::Starved {
            self.starved = now;
        }
        let silence = now.saturating_sub(self.heard);
        let over = match condition {
            Condition::Stopped => silence >= STOPPED_AFTER,
            _ => silence >= STARVED_AFTER || now.saturating_sub(self.heard.max(self.starved)) >= HUNG_AFTER,
        };
        over.then_some(silence)
    }
}

fn arguments(file: &StartFile, ports: Option<&ServerRecord>) -> Vec<OsString> {
    let mut arguments = vec![OsString::from("supervisor")];
    arguments.extend(file.arguments());
    if let Some(record) = ports {
        arguments.extend(["--listen".into(), record.listen.to_string().into()]);
        arguments.extend(["--admin-listen".into(), record.admin.to_string().into()]);
        if let Some(api) = record.api {
            arguments.extend(["--api-listen".into(), api.to_string().into()]);
        }
    }
    arguments
}

/// A supervisor that ended before it served, or for good, as a command's error.
pub fn refusal(ended: &ChildEnd, log: &Path) -> CliError {
    let cause = ended.error.clone().unwrap_or_else(|| format!("the supervisor: {}", ended.cause));
    let known = [Exit::Usage, Exit::NotFound, Exit::Authentication, Exit::Capacity];
    let exit = known.into_iter().find(|exit| ended.code == Some(*exit as i32)).unwrap_or(Exit::Unreachable);
    let folder = log.parent().unwrap_or(log);
    CliError::new(exit, cause).hint(format!("see the logs in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asked every two seconds up to `until`, without an answer; returns when it counts as hung.
    fn hung(until: u64, condition: impl Fn(u64) -> Condition, step: u64) -> Option<u64> {
        let mut silence = Silence::default();
        (0..=until)
            .step_by(step as usize)
            .find(|now| silence.judge(Duration::from_secs(*now), false, condition(*now)).is_some())
    }

    #[test]
    fn who_is_starved_or_asked_late_is_not_hung() {
        assert_eq!(hung(60, |_| Condition::Well, 2), Some(10));
        assert_eq!(hung(60, |_| Condition::Stopped, 2), Some(2));
        assert_eq!(hung(80, |_| Condition::Starved, 2), Some(60), "not for ever");
        let starved_until_20 = |now| if now <= 20 { Condition::Starved } else { Condition::Well };
        assert_eq!(hung(60, starved_until_20, 2), Some(30));
        // A keeper that was away for eight seconds each time has heard nothing for its own sake.
        assert_eq!(hung(40, |_| Condition::Well, 10), None);
        let mut silence = Silence::default();
        assert_eq!(silence.judge(Duration::from_secs(9), true, Condition::Well), None);
        assert_eq!(silence.judge(Duration::from_secs(11), false, Condition::Stopped), Some(Duration::from_secs(2)));
    }
}
