//! How long steps of phase 2 take, from jobs of a cluster of this machine's hosts: what a plan's cost does not count, such as
//! threads that wake each other, is in them. Computes nothing itself.

use std::time::Duration;

use asterism_actors::api::{JobEvent, JobRequest, Prompt, Timings};
use asterism_models::synthetic_prompt;
use asterism_plan::StepSeconds;

use crate::{
    client::{Client, Following},
    cluster::{
        file::{ClusterFile, HostSection, ModelSection, ModelSections, Role},
        sample::sample,
    },
    error::CliError,
    globals::Globals,
    processes::{calibration::CalibrationSetup, temporary::TemporaryCluster},
};

/// Rounds of each measurement. The best counts: whatever else the machine does only adds time.
const ROUNDS: usize = 5;
/// Rows of a query step.
const QUERY_ROWS: usize = 64;
/// Tokens of each answer.
const STEPS_ANSWER_TOKENS: usize = 24;
/// Keys of a host in a context so short that keys hardly matter, and in a long one.
const CALIBRATION_KEYS: [usize; 2] = [64, 2048];
/// How long the hosts may take to be ready.
const CALIBRATION_START_TIMEOUT: Duration = Duration::from_secs(120);

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// See [`asterism_plan::Calibration::start_s`].
    pub start_s: f64,
    /// See [`asterism_plan::Calibration::step`].
    pub step: StepSeconds,
    /// See [`asterism_plan::Calibration::key`].
    pub key: StepSeconds,
}

/// What is known of a step before it is timed.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Seconds of the round trips of one step.
    pub trips_s: f64,
    /// Seconds of the bytes of one row of a step.
    pub row_s: f64,
    /// Context hosts that compute at once, over those that do so at full speed; at least 1.
    pub crowd: f64,
}

/// Seconds of steps as jobs saw them: after a phase 1 of few or many keys, in this order.
#[derive(Clone, Copy, Debug)]
struct Seen {
    keys: [f64; 2],
    /// A token after the first.
    token: [f64; 2],
    /// The query step with one row, from the end of phase 1.
    short_query: f64,
    /// The same with [`QUERY_ROWS`].
    query: [f64; 2],
}

/// Times jobs of as many hosts as `setup` says.
pub fn measure(
    globals: &Globals,
    setup: &CalibrationSetup,
    (vocab, most): (usize, usize),
    known: Known,
) -> Result<Steps, CliError> {
    let model = globals.typed_cluster_if_any()?.map(|file| file.model.first).unwrap_or_default();
    let cluster = TemporaryCluster::start(hosts_of(setup, model), CALIBRATION_START_TIMEOUT)?;
    let client = cluster.client(globals)?;
    let room = most.saturating_sub(QUERY_ROWS + STEPS_ANSWER_TOKENS) / setup.context_hosts;
    let many = CALIBRATION_KEYS[1].min(room);
    // Fewer than those, however few positions the model has: their difference tells what a key costs.
    let keys = [CALIBRATION_KEYS[0].min(many / 2), many];
    let timed = |keys: usize, rows: usize| -> Result<[f64; 2], CliError> {
        let mut best = [f64::INFINITY; 2];
        for _ in 0..ROUNDS {
            let Timings { query_s, decode_s, .. } = ask(&client, request(vocab, keys * setup.context_hosts, rows))?;
            best = [best[0].min(query_s), best[1].min(decode_s / (STEPS_ANSWER_TOKENS - 1) as f64)];
        }
        Ok(best)
    };
    let (short, few, many) = (timed(keys[0], 1)?, timed(keys[0], QUERY_ROWS)?, timed(keys[1], QUERY_ROWS)?);
    cluster.stop();
    let seen = Seen {
        keys: keys.map(|keys| keys as f64),
        token: [few[1].min(short[1]), many[1]],
        short_query: short[0],
        query: [few[0], many[0]],
    };
    Ok(seen.apart(&known))
}

/// A cluster of this machine alone.
fn hosts_of(setup: &CalibrationSetup, model: ModelSection) -> ClusterFile {
    let host = |name: &str, role, threads| HostSection { threads: Some(threads), ..HostSection::new(name, role) };
    let contexts = (0..setup.context_hosts).map(|at| host(&format!("context-{at}"), Role::Context, setup.threads));
    let query = host("query-0", Role::Query, setup.query_threads);
    // It is the only one, whatever it is called.
    let model = ModelSections { first: ModelSection { name: None, ..model }, further: Vec::new() };
    ClusterFile { model, hosts: contexts.chain([query]).collect(), ..sample() }
}

/// A block a host, so that all hold as many keys.
fn request(vocab: usize, tokens: usize, rows: usize) -> JobRequest {
    let [context, query] = [tokens, rows].map(|tokens| Prompt::Tokens(synthetic_prompt(tokens, vocab)));
    JobRequest {
        method: Some("star".parse().expect("a method of this name")),
        max_tokens: STEPS_ANSWER_TOKENS,
        ignore_eos: true,
        chat_template: false,
        ..JobRequest::new(Some(context), query)
    }
}

fn ask(client: &Client, request: JobRequest) -> Result<Timings, CliError> {
    for event in Following::submit(client, request, |_| ())? {
        if let JobEvent::Finished { status } = event? {
            return match status.error {
                None => Ok(status.timings),
                Some(error) => {
                    Err(CliError::unreachable(format!("a job for timing phase 2 failed: {}", error.message)))
                }
            };
        }
    }
    Err(CliError::unreachable("a job for timing phase 2 ended without a result"))
}

impl Seen {
    /// Each part of a step by itself. Times that contradict each other on a busy machine give 0, never less.
    fn apart(&self, known: &Known) -> Steps {
        let further = (QUERY_ROWS - 1) as f64;
        let start_s = (self.short_query - self.token[0]).max(0.0);
        let key = |[few, many]: [f64; 2]| ((many - few) / (self.keys[1] - self.keys[0]) / known.crowd).max(0.0);
        let keys = [key(self.token), key(self.query)];
        let rest = |seen: f64, key: f64, rows: usize| {
            (seen - known.trips_s - key * self.keys[0] * known.crowd - known.row_s * rows as f64).max(0.0)
        };
        let one = rest(self.token[0], keys[0], 1);
        let all = rest(self.query[0] - start_s, keys[1], QUERY_ROWS);
        let step = |one: f64, all: f64| StepSeconds { one_row: one, further_row: ((all - one) / further).max(0.0) };
        Steps { start_s, step: step(one, all), key: step(keys[0], keys[1]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_steps_are_told_apart() {
        let known = Known { trips_s: 0.5, row_s: 0.001, crowd: 2.0 };
        let wanted = Steps {
            start_s: 0.25,
            step: StepSeconds { one_row: 1.0, further_row: 0.125 },
            key: StepSeconds { one_row: 0.01, further_row: 0.002 },
        };
        let taken = |keys: f64, rows: usize| {
            wanted.step.of(rows) + wanted.key.of(rows) * keys * known.crowd + known.trips_s + known.row_s * rows as f64
        };
        let seen = Seen {
            keys: [10.0, 100.0],
            token: [taken(10.0, 1), taken(100.0, 1)],
            short_query: wanted.start_s + taken(10.0, 1),
            query: [10.0, 100.0].map(|keys| wanted.start_s + taken(keys, QUERY_ROWS)),
        };
        let got = seen.apart(&known);
        let pairs = [
            (got.start_s, wanted.start_s),
            (got.step.one_row, wanted.step.one_row),
            (got.step.further_row, wanted.step.further_row),
            (got.key.one_row, wanted.key.one_row),
            (got.key.further_row, wanted.key.further_row),
        ];
        assert!(pairs.iter().all(|(got, wanted)| (got - wanted).abs() < 1e-9), "{got:?} is not {wanted:?}");
        let noisy = Seen { token: [2.0, 1.0], short_query: 0.1, query: [0.2, 0.1], ..seen }.apart(&known);
        assert!(noisy.start_s == 0.0 && noisy.key == StepSeconds::default() && noisy.step.one_row > 0.0);
    }
}
