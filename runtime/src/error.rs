//! How a command fails: an exit code, what went wrong, and what to do next. Knows nothing of any one command.

pub mod wording;

use std::{fmt, net::SocketAddr};

/// The exit codes of the command line; scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Success = 0,
    /// A job failed.
    JobFailed = 1,
    /// Usage, input or cluster file invalid.
    Usage = 2,
    /// The cluster is unreachable or not ready.
    Unreachable = 3,
    /// Placement impossible or capacity exhausted.
    Capacity = 4,
    /// Not found, or in conflict with what exists.
    NotFound = 5,
    /// Authentication or TLS.
    Authentication = 6,
    /// Timed out.
    TimedOut = 7,
    /// A quality or speed threshold missed.
    BelowThreshold = 8,
    /// Interrupted by the user.
    Interrupted = 130,
    /// A process that serves was asked to end by SIGTERM, and whoever keeps it running starts it again.
    Terminated = 143,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What every command returns when it fails.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// The process's exit code.
    pub exit: Exit,
    /// One paragraph: what failed, where, expected and got.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
    /// Whether it may pass by itself, so that a process that is to serve waits for that.
    pub may_pass: bool,
}

impl CliError {
    /// An error that ends the process with `exit`.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string(), hint: None, may_pass: false }
    }

    /// Invalid usage, input or cluster file: exit 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// A cluster that cannot be reached or is not ready: exit 3.
    pub fn unreachable(message: impl fmt::Display) -> Self {
        Self::new(Exit::Unreachable, message)
    }

    /// A disk that takes nothing now: exit 4.
    pub fn no_room(message: impl fmt::Display) -> Self {
        let hint = "free some space on its disk, or see that it can be written".to_string();
        Self { hint: Some(hint), may_pass: true, ..Self::new(Exit::Capacity, message) }
    }

    /// An address that `key` of the cluster file sets and that cannot be listened on. What to do is in the message: of a process that ends
    /// whoever started it tells that alone.
    pub fn no_listener(what: &str, (address, key): (SocketAddr, &str), cause: impl fmt::Display) -> Self {
        let port = address.port();
        Self::unreachable(format!(
            "{what} cannot listen on {address}: {cause}; set {key} to one of this machine that is free (port 0: one is chosen), or end \
             what has it (`ss -lnp | grep :{port}`)"
        ))
    }

    /// Adds what to do next.
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The error of a stable code of the admin API or of a job.
    pub fn of_code(code: &str, message: impl fmt::Display) -> Self {
        Self::new(exit_of_code(code), message)
    }
}

/// Which exit code a stable error code ends in; an unknown code is a failed job.
pub fn exit_of_code(code: &str) -> Exit {
    match code {
        "invalid_request"
        | "context_too_long"
        | "empty_context"
        | "block_too_small"
        | "invalid_method"
        | "sampling"
        | "chat_template"
        | "template_limit"
        | "payload_too_large"
        | "unsupported_media_type"
        | "plan_too_large"
        | "retaining_heads"
        | "journal_damaged"
        | "journal_other_version"
        | "journal_other_cluster"
        | "needs_restart"
        | "joining_closed" => Exit::Usage,
        "other_cluster"
        | "not_ready"
        | "self_test_failed"
        | "stopping"
        | "journal_in_use"
        | "journal_io"
        | "journal_unreachable"
        | "journal_deposed"
        | "standby" => Exit::Unreachable,
        "placement_impossible" | "overloaded" | "capacity_exhausted" | "disk_full" => Exit::Capacity,
        "job_exists" | "job_not_found" | "job_ended" | "not_found" | "method_not_allowed" | "session_exists"
        | "session_not_found" | "session_expired" | "host_not_found" | "model_not_found" | "last_host"
        | "spare_busy" | "host_conflict" | "session_busy" | "session_replaced" | "session_rewritten" => Exit::NotFound,
        "unauthorized" => Exit::Authentication,
        "timeout" => Exit::TimedOut,
        _ => Exit::JobFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_end_in_the_documented_exits() {
        assert_eq!(exit_of_code("context_too_long"), Exit::Usage);
        assert_eq!(exit_of_code("host_lost"), Exit::JobFailed);
        assert_eq!(exit_of_code("job_not_found"), Exit::NotFound);
        assert_eq!(exit_of_code("timeout") as u8, 7);
        let codes = [
            "session_exists",
            "session_expired",
            "session_failed",
            "capacity_exhausted",
            "journal_damaged",
            "disk_full",
        ];
        assert_eq!(codes.map(|code| exit_of_code(code) as u8), [5, 5, 1, 4, 2, 4]);
    }
}
