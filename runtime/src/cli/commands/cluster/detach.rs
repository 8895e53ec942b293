//! `up --detach`: `up` in the background, waited for until the cluster is ready or it has said why not.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::Readiness;
use crate::{
    certificates::{credentials, members},
    cli::commands::cluster::process::cluster_file,
    client::Client,
    cluster::Cluster,
    data_dir::{self, LockRole, private},
    error::{CliError, Exit},
    globals::Globals,
    processes::node::signal,
};

const DETACH_POLL: Duration = Duration::from_millis(50);
/// What the background process gets beyond its own limit to name the host at fault and to stop.
const STOP_MARGIN: Duration = Duration::from_secs(15);

/// Starts `up` in the background and waits until the cluster is ready.
pub fn up(globals: &Globals, limit: Duration) -> Result<Exit, CliError> {
    let cluster = globals.cluster()?;
    // Refuses a second cluster on one data_dir here, where the person is, rather than in a log file.
    for role in [LockRole::Up, LockRole::Supervisor] {
        drop(data_dir::lock(&cluster.data_dir, &cluster.name, role)?);
    }
    if credentials::found(&cluster)? {
        let folder = members::ca_folder(&cluster);
        globals.note(format_args!("made the cluster's certificate authority in {}", folder.display()));
    }
    let token = cluster.security.token_file.as_deref().map(crate::globals::read_token).transpose()?;
    let log = data_dir::log_file(&cluster.data_dir, "up");
    // What an earlier one said stays there.
    let from = std::fs::metadata(&log).map_or(0, |log| log.len());
    let started = Instant::now();
    let mut child = start(globals, &cluster, &log, limit)?;
    let mut readiness = Readiness::default();
    loop {
        if let Some(error) = ended(&mut child, &log, from) {
            return Err(error);
        }
        let ours = data_dir::keeper(&cluster.data_dir) == Some(child.id());
        if let Some(record) = data_dir::running(&cluster.data_dir).filter(|_| ours) {
            let client = Client::of(&cluster, &record, token.clone(), globals.request_timeout)?;
            if let Ok(status) = client.topology() {
                readiness.see(globals, &status, started.elapsed());
                if status.is_settled() {
                    readiness.show(globals, &status, &record)?;
                    globals.note("`asterism down` stops it");
                    return Ok(if status.is_wrong() { Exit::JobFailed } else { Exit::Success });
                }
            }
        } else {
            readiness.tell(globals, started.elapsed(), format_args!("the supervisor; its log is {}", log.display()));
        }
        if started.elapsed() > limit + STOP_MARGIN {
            signal(child.id(), Signal::KILL);
            let _ = child.wait();
            let seconds = limit.as_secs_f64();
            return Err(CliError::unreachable(format!("the cluster was not ready after {seconds:.0} s"))
                .hint(format!("see {}", log.display())));
        }
        thread::sleep(DETACH_POLL);
    }
}

fn start(globals: &Globals, cluster: &Cluster, log: &Path, limit: Duration) -> Result<Child, CliError> {
    let failed =
        |error: std::io::Error| CliError::unreachable(format!("cluster '{}' cannot be started: {error}", cluster.name));
    // It is appended to, as every log, so that it may be emptied while it is written.
    let output = private::options().create(true).append(true).open(log).map_err(failed)?;
    Command::new(std::env::current_exe().map_err(failed)?)
        .args(["up", "--in-background"])
        .arg("--file")
        .arg(cluster_file(globals)?)
        .args(["--timeout", &limit.as_secs_f64().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output)
        .process_group(0)
        .spawn()
        .map_err(failed)
}

/// Why the background process, which writes its log from byte `from` on, ended, if it did.
fn ended(child: &mut Child, log: &Path, from: u64) -> Option<CliError> {
    let status = child.try_wait().ok()??;
    let cause = data_dir::last_error(log, from).unwrap_or_else(|| format!("`up` ended: {status}"));
    let known = [Exit::Usage, Exit::NotFound, Exit::Authentication, Exit::Capacity];
    let exit = known.into_iter().find(|exit| status.code() == Some(*exit as i32)).unwrap_or(Exit::Unreachable);
    let folder = log.parent().unwrap_or(log);
    Some(CliError::new(exit, cause).hint(format!("see the logs in {}", folder.display())))
}
