//! Log lines on standard error, which a detached supervisor and every host have in a file. Opens no file.

use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::{
    cluster::{Log, file::LogFormat},
    error::CliError,
    globals::Globals,
};

/// Starts logging for a command that only talks to a cluster: warnings, more with `-v`.
pub fn client(globals: &Globals) {
    let filter = match (globals.quiet, globals.verbose) {
        (true, _) => "error",
        (_, 0) => "warn",
        (_, 1) => "info",
        _ => "debug",
    };
    install(EnvFilter::new(filter), LogFormat::Text, globals.color_stderr);
}

/// Starts logging for a process of the cluster, as the cluster file says; `-v` and `-q` win.
pub fn process(log: &Log, globals: &Globals) -> Result<(), CliError> {
    let filter = match (globals.quiet, globals.verbose) {
        (true, _) => "error",
        (_, 0) => &log.filter,
        (_, 1) => "info",
        _ => "debug",
    };
    if globals.quiet || globals.verbose > 0 {
        // What the command line says is not the cluster file's to change.
        changing(|_| Ok(()));
    }
    install(filter_of(filter)?, log.format, globals.color_stderr);
    Ok(())
}

/// How what is logged is changed, once that began.
static CHANGE: OnceLock<Box<ChangeFilter>> = OnceLock::new();

type ChangeFilter = dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync;

/// From now on this is logged, as `[observability] log` says it. `-v` and `-q` of the process win.
pub fn change(filter: &str) -> Result<(), CliError> {
    let parsed = filter_of(filter)?;
    let Some(change) = CHANGE.get() else { return Ok(()) };
    change(parsed).map_err(CliError::unreachable)?;
    tracing::info!(filter, "this is logged from now on");
    Ok(())
}

/// # Errors
/// When it is no filter.
pub fn filter_of(filter: &str) -> Result<EnvFilter, CliError> {
    let parsed = EnvFilter::try_new(filter).map_err(|error| {
        CliError::usage(format!("observability.log = \"{filter}\" is not a log filter: {error}"))
            .hint("write a level such as \"info\", or \"warn,asterism_actors=debug\"")
    })?;
    // It tells every malformed request as an error of its own, which a stranger could fill the disk with.
    Ok(parsed.add_directive("actix_http::h1=off".parse().expect("a directive")))
}

/// A second call, as tests in one process make, changes nothing.
fn install(filter: EnvFilter, format: LogFormat, ansi: bool) {
    // A log on a full disk takes no line, and no word about that either, which would be a panic.
    let builder = tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter);
    let builder = builder.with_writer(std::io::stderr).with_ansi(ansi);
    let installed = match format {
        LogFormat::Text => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            builder
                .try_init()
                .map(|()| changing(move |filter| handle.reload(filter).map_err(|error| error.to_string())))
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            builder
                .try_init()
                .map(|()| changing(move |filter| handle.reload(filter).map_err(|error| error.to_string())))
        }
    };
    drop(installed);
}

/// The first one counts.
fn changing(change: impl Fn(EnvFilter) -> Result<(), String> + Send + Sync + 'static) {
    let _ = CHANGE.set(Box::new(change));
}
