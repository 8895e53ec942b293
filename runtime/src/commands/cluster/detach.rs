//! `up --detach`: the supervisor in the background, waited for until it is ready or has said why not.

use std::{
    fs::File,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{Readiness, cluster_file, signal};
use crate::{
    client::Client,
    cluster::Cluster,
    credentials, data_dir,
    error::{CliError, Exit},
    globals::Globals,
};
use rustix::process::Signal;

const POLL: Duration = Duration::from_millis(50);
/// What the supervisor gets beyond its own limit to name the host at fault and to stop.
const MARGIN: Duration = Duration::from_secs(10);

/// Starts the supervisor in the background and waits until the cluster is ready.
pub fn up(globals: &Globals, limit: Duration) -> Result<Exit, CliError> {
    let cluster = globals.cluster()?;
    // Refuses a second cluster on one data_dir here, where the person is, rather than in a log file.
    drop(data_dir::lock(&cluster.data_dir, &cluster.name)?);
    if credentials::provide(&cluster, [])? {
        let folder = credentials::ca_folder(&cluster);
        globals.note(format_args!("made the cluster's certificate authority in {}", folder.display()));
    }
    let started = Instant::now();
    let mut child = start(globals, &cluster, limit)?;
    let mut readiness = Readiness::default();
    loop {
        if let Some(error) = ended(&mut child, &cluster) {
            return Err(error);
        }
        if let Some(record) = data_dir::running(&cluster.data_dir).filter(|record| record.pid == child.id()) {
            let token = cluster.security.token_file.as_deref().map(crate::globals::read_token).transpose()?;
            let client = Client::new(&format!("http://{}", record.admin), token, globals.request_timeout)?;
            if let Ok(status) = client.topology() {
                readiness.see(globals, &status, started.elapsed());
                if status.ready {
                    readiness.show(globals, &status, &record)?;
                    globals.note("`asterism down` stops it");
                    return Ok(Exit::Success);
                }
            }
        }
        if started.elapsed() > limit + MARGIN {
            signal(child.id(), Signal::KILL);
            let _ = child.wait();
            return Err(CliError::unreachable(format!(
                "the supervisor was not ready after {:.0} s",
                limit.as_secs_f64()
            ))
            .hint(format!("see {}", data_dir::log_file(&cluster.data_dir, "supervisor").display())));
        }
        thread::sleep(POLL);
    }
}

fn start(globals: &Globals, cluster: &Cluster, limit: Duration) -> Result<Child, CliError> {
    let log = data_dir::log_file(&cluster.data_dir, "supervisor");
    let failed = |error: std::io::Error| CliError::unreachable(format!("cannot start the supervisor: {error}"));
    let output = File::create(&log).map_err(failed)?;
    Command::new(std::env::current_exe().map_err(failed)?)
        .arg("supervisor")
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

/// Why the supervisor ended, if it did.
fn ended(child: &mut Child, cluster: &Cluster) -> Option<CliError> {
    let status = child.try_wait().ok()??;
    let log = data_dir::log_file(&cluster.data_dir, "supervisor");
    let cause = data_dir::last_error(&log).unwrap_or_else(|| format!("the supervisor ended: {status}"));
    let exit = match status.code() {
        Some(code) if code == Exit::Usage as i32 => Exit::Usage,
        Some(code) if code == Exit::NotFound as i32 => Exit::NotFound,
        Some(code) if code == Exit::Authentication as i32 => Exit::Authentication,
        _ => Exit::Unreachable,
    };
    Some(CliError::new(exit, cause).hint(format!("see the logs in {}", cluster.data_dir.join("logs").display())))
}
