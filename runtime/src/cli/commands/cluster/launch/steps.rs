//! A step of a job: one process of the cluster on one node, kept running by `srun`. What it runs decides nothing here.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use tokio::process::{Child, Command};

use crate::error::{CliError, Exit};

/// Waits before a step is started again: doubled from the one to the other.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Who has lived so long begins with the shortest wait.
const STEADY: Duration = Duration::from_secs(60);

/// What `srun` would take from the job, and which holds for the job's own tasks.
const OF_TASKS: &[&str] = &[
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_EXACT",
    "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NPROCS",
    "SLURM_TRES_BIND",
    "SLURM_TRES_PER_TASK",
];

/// What a step runs.
#[derive(Clone, Debug)]
pub struct Work {
    /// What it is called in messages and by `squeue --steps`.
    pub name: String,
    /// The node that it runs on.
    pub node: String,
    /// Arguments of this program.
    pub arguments: Vec<OsString>,
    /// Variables beside those of this process.
    pub variables: Vec<(&'static str, OsString)>,
    /// What it writes is added here.
    pub log: PathBuf,
}

/// A step that is kept running.
pub struct Step {
    work: Work,
    child: Option<Child>,
    started: Instant,
    wait: Duration,
    /// Not before then is it started again.
    due: Instant,
}

/// What a look at a step found.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    /// It runs, or waits for its next start.
    Fine,
    /// It wants to be started now.
    Due,
    /// It ended well, which is for good.
    Done,
    /// It refused its configuration, which is for good.
    Refused,
}

impl Step {
    /// A step that wants to be started.
    pub fn new(work: Work) -> Self {
        let now = Instant::now();
        Self { work, child: None, started: now, wait: WAITS.0, due: now }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.work.name
    }

    /// Where it runs.
    pub fn node(&self) -> &str {
        &self.work.node
    }

    /// Where to read why it ended.
    pub fn log(&self) -> &Path {
        &self.work.log
    }

    /// Whether a process of it is there.
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Has `srun` start it.
    ///
    /// # Errors
    /// Where there is no `srun`.
    pub fn start(&mut self) -> Result<(), CliError> {
        let program = std::env::current_exe()
            .map_err(|error| CliError::unreachable(format!("the path of this program is not known: {error}")))?;
        let mut command = Command::new("srun");
        OF_TASKS.iter().for_each(|name| {
            command.env_remove(name);
        });
        let child = command
            .args(srun_arguments(&self.work))
            .arg(program)
            .args(&self.work.arguments)
            .envs(self.work.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            // Ctrl-C reaches this process alone, which then ends them in order.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                CliError::unreachable(format!("srun cannot be started: {error}"))
                    .hint("start this inside an allocation, where Slurm's commands are")
            })?;
        (self.child, self.started) = (Some(child), Instant::now());
        Ok(())
    }

    /// Puts the next start off.
    pub fn put_off(&mut self) {
        self.due = Instant::now() + self.wait;
        self.wait = (self.wait * 2).min(WAITS.1);
    }

    /// Looks after it.
    pub fn look(&mut self) -> Seen {
        let Some(child) = &mut self.child else {
            return if Instant::now() < self.due { Seen::Fine } else { Seen::Due };
        };
        let code = match child.try_wait() {
            Ok(None) => return Seen::Fine,
            Ok(Some(status)) => status.code(),
            Err(_) => None,
        };
        self.child = None;
        match code {
            Some(0) => return Seen::Done,
            Some(code) if code == Exit::Usage as i32 => return Seen::Refused,
            _ => {}
        }
        if self.started.elapsed() > STEADY {
            self.wait = WAITS.0;
        }
        self.put_off();
        tracing::warn!(step = self.work.name, code, log = %self.work.log.display(), "a step ended, and is started again");
        Seen::Fine
    }
}

/// One process with all of the node that the job has. The loss of another node does not end it.
fn srun_arguments(work: &Work) -> Vec<OsString> {
    let fixed = [
        "--nodes=1",
        "--ntasks=1",
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--cpu-bind=none",
        "--export=ALL",
        "--input=none",
        "--open-mode=append",
    ];
    let mut log = OsString::from("--output=");
    log.push(&work.log);
    let named = [format!("--nodelist={}", work.node), format!("--job-name={}", work.name)];
    fixed.into_iter().map(OsString::from).chain(named.into_iter().map(OsString::from)).chain([log]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_one_process_that_ends_nobody() {
        let work = Work {
            name: "node-n2".into(),
            node: "n2".into(),
            arguments: vec![],
            variables: vec![],
            log: "/shared/logs/n2.log".into(),
        };
        let words: Vec<_> = srun_arguments(&work).into_iter().map(|word| word.into_string().unwrap()).collect();
        for word in ["--ntasks=1", "--kill-on-bad-exit=0", "--no-kill", "--nodelist=n2", "--output=/shared/logs/n2.log"]
        {
            assert!(words.iter().any(|given| given == word), "{word} in {words:?}");
        }
        assert_eq!(Step::new(work).look(), Seen::Due);
    }
}
