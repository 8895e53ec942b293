//! Log lines on standard error, which a detached supervisor and every host have in a file. Opens no file.

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
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        CliError::usage(format!("observability.log = \"{filter}\" is not a log filter: {error}"))
            .hint("write a level such as \"info\", or \"warn,asterism_actors=debug\"")
    })?;
    // It tells every malformed request as an error of its own, which a stranger could fill the disk with.
    let quiet = filter.add_directive("actix_http::h1=off".parse().expect("a directive"));
    install(quiet, log.format, globals.color_stderr);
    Ok(())
}

/// A second call, as tests in one process make, changes nothing.
fn install(filter: EnvFilter, format: LogFormat, ansi: bool) {
    // A log on a full disk takes no line, and no word about that either, which would be a panic.
    let builder = tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter);
    let builder = builder.with_writer(std::io::stderr).with_ansi(ansi);
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
