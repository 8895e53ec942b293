//! Which rule each message of a host or a node goes to, and what it may change of who works on what.

use std::time::Duration;

use super::SupervisorState;
use crate::{
    api::GpuReading,
    error::codes,
    messages::HostMessage,
    metric::{self, Observation},
    supervisor::{
        command::{SupervisorCommand, WorkChange},
        tables::{hosts::host_report::HostReport, job::Outcome},
    },
};

/// Longest that a host may say that its end takes: a day.
const LONGEST_GRACE_MS: u64 = 86_400_000;

impl SupervisorState {
    /// Applies a message. Says what it may change of who works on what.
    pub(super) fn on_message(
        &mut self,
        now: Duration,
        from: u64,
        message: HostMessage,
        out: &mut Vec<SupervisorCommand>,
    ) -> WorkChange {
        if let HostMessage::Hello(hello) = message {
            self.joining(now, out).on_hello(from, hello);
            return WorkChange::Everything;
        }
        let Some(host) = self.hosts.by_connection(from) else {
            if self.hosts.is_node(from) {
                return self.on_node_message(now, from, message, out);
            }
            let reason = "this host was declared dead or never said hello".to_string();
            out.push(SupervisorCommand::Disconnect { connection: from, reason });
            return WorkChange::Nothing;
        };
        out.extend(self.hosts.record_contact(now, host).map(SupervisorCommand::Notify));
        match message {
            HostMessage::Heartbeat { kv_bytes, idle_bytes } => {
                let record = self.hosts.at_mut(host);
                (record.kv_bytes, record.idle_bytes) = (kv_bytes, idle_bytes);
                return WorkChange::Nothing;
            }
            HostMessage::Links(mut report) => {
                // What stands in labels is of this cluster, or not counted.
                report.links.retain(|link| {
                    let known = link.peer == metric::SUPERVISOR_LABEL || self.hosts.by_name(&link.peer).is_some();
                    known && metric::TRANSPORTS.contains(&link.transport.as_str())
                });
                report.traffic.carried.retain(|carried| metric::TRANSPORTS.contains(&carried.transport.as_str()));
                report.traffic.refused.retain(|refused| metric::REJECTIONS.contains(&refused.reason.as_str()));
                self.hosts.note_answered(now, host, report.answered);
                self.hosts.at_mut(host).reported = HostReport::of(&report, now);
                let host = self.hosts.name(host).to_string();
                out.push(SupervisorCommand::Observe(Observation::Links { host, report }));
                return WorkChange::Nothing;
            }
            HostMessage::Ready { numerics, model } => {
                self.model_check(now, out).on_loaded(host, (numerics, *model));
                return WorkChange::Everything;
            }
            HostMessage::Leaving { grace_ms } => {
                // A part is left for the word that it is to end.
                let deadline = now + Duration::from_millis(grace_ms.min(LONGEST_GRACE_MS)) * 3 / 4;
                self.departures(now, out).begin(host, deadline);
                self.draining(now, out).move_out();
                return WorkChange::Everything;
            }
            HostMessage::Unfit { cause } => {
                self.loss(now, out).lose(host, ("unfit", cause));
                return WorkChange::Everything;
            }
            HostMessage::Progress { context, block, layers, of } => {
                self.reports(now, out).on_progress(host, context, block, (layers, of));
                return WorkChange::Nothing;
            }
            HostMessage::Encoded(encoded) => self.reports(now, out).on_encoded(host, encoded),
            HostMessage::NotEncoded { context, attempt, peer_lost, code, message } => {
                let code = codes::of_host(&code).to_string();
                self.loss(now, out).on_not_encoded(host, (context, attempt), (peer_lost, code, message));
            }
            HostMessage::Token { job, index, id, text, logprobs } => {
                self.reports(now, out).on_token(host, job, (index, (id, text, logprobs)));
                return WorkChange::Nothing;
            }
            HostMessage::Generated { job, tokens, stopped, text, times } => {
                self.reports(now, out).on_generated(host, job, (tokens, stopped, text, times));
            }
            HostMessage::Masked { job, masks } => {
                self.reports(now, out).on_masked(host, job, masks);
                return WorkChange::Nothing;
            }
            HostMessage::Stalled { job, host: silent, wrong: false, cause } => {
                self.loss(now, out).on_stalled(host, job, (silent, cause));
            }
            HostMessage::Stalled { job, host: liar, wrong: true, cause } => {
                self.accusations(now, out).on_wrong(host, job, (liar, cause));
            }
            HostMessage::Failed { job, code, message } => {
                if self.jobs.running_mut(job).is_some_and(|job| job.query_host == Some(host)) {
                    let code = codes::of_host(&code).to_string();
                    self.loss(now, out).teardown().end(job, Outcome::Failed { code, message });
                }
            }
            HostMessage::Hello(_)
            | HostMessage::Measured { .. }
            | HostMessage::Exited { .. }
            | HostMessage::Gpus { .. }
            | HostMessage::Seen { .. } => return WorkChange::Nothing,
        }
        WorkChange::Touched
    }

    /// What an agent says of the hosts of its node.
    fn on_node_message(
        &mut self,
        now: Duration,
        from: u64,
        message: HostMessage,
        out: &mut Vec<SupervisorCommand>,
    ) -> WorkChange {
        match message {
            HostMessage::Exited { host, start, cause, restarting } => {
                self.loss(now, out).on_exited(from, (&host, start), (cause, restarting));
                WorkChange::Everything
            }
            HostMessage::Seen { host, start, condition } => {
                self.loss(now, out).on_seen(from, (&host, start), condition);
                WorkChange::Nothing
            }
            HostMessage::Gpus { gpus } => {
                self.hosts.note_gpus(now, from, GpuReading::of_json(&gpus));
                WorkChange::Nothing
            }
            _ => WorkChange::Everything,
        }
    }
}
