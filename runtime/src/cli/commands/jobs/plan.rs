//! `plan`: what a job would cost each host, whether it fits, and when it would be done, before anything runs.

mod placed;

use std::{collections::BTreeMap, sync::Arc};

use asterism_actors::{
    JobError,
    api::{JobRequest, PlacementPolicy, Prompt, SessionRequest},
    supervisor::{ModelFront, SupervisorConfig, island_of},
};
use asterism_plan::{
    Alternative, Calibration, Conditions, Cost, Forecast, HostCost, MethodConfig, ModelShape, Plan, Refresh,
    exact_layers,
};
use clap::Args;
use serde::Serialize;

use super::arguments::{MethodArgs, PlacementArgs};
use crate::{
    cli::output::{self, Table},
    cluster::{
        Cluster, Host,
        file::Role,
        sample::sample,
        size::{Tokens, bytes, count, duration, grouped},
    },
    data_dir::links,
    error::{CliError, Exit},
    globals::Globals,
    observe::logging,
    processes::{calibration, checkpoint, wiring},
};
use placed::{Holders, query_memory, weights_by_device};

/// `asterism plan`
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Tokens of the context, such as 128k
    #[arg(long, value_name = "TOKENS")]
    pub tokens: Tokens,
    /// Tokens of the query
    #[arg(long, value_name = "TOKENS", default_value = "64")]
    pub query_tokens: Tokens,
    /// Attention
    #[command(flatten)]
    pub method: MethodArgs,
    /// Hosts
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Model, of several [default: the cluster's first]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Plan a session: what encoding it costs, and each question to it
    #[arg(long)]
    pub session: bool,
    /// Show the plans between which auto chooses, and why it leaves the others
    #[arg(long)]
    pub explain: bool,
}

/// Plans a context of made-up tokens.
pub fn run(globals: &Globals, args: &PlanArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let planner = Planner::of(globals, args.model_name.as_deref())?;
    planner.refuse_too_long(args.tokens, args.query_tokens)?;
    let vocab = planner.model.config.vocab as u64;
    // Spread over the vocabulary, so that chunks differ.
    let ids = |count: usize| Prompt::Tokens((0..count as u64).map(|i| (i * 2_654_435_761 % vocab) as u32).collect());
    let request = JobRequest {
        method: args.method.resolve()?,
        max_tokens: 1,
        chat_template: false,
        placement: args.placement.policy(),
        ..JobRequest::new(Some(ids(args.tokens.0)), ids(args.query_tokens.0))
    };
    match (args.explain, args.session) {
        (true, as_session) => planner.explain(globals, request, as_session)?,
        (false, true) => planner.show_session(globals, request)?,
        (false, false) => {
            let follows_text = planner.follows_text(&request)?;
            planner.show(globals, request)?;
            if follows_text {
                globals
                    .note("planned for tokens that all differ; a text can change it: `asterism job submit --dry-run`");
            }
        }
    }
    Ok(Exit::Success)
}

/// Plans jobs for a cluster that need not run.
pub struct Planner {
    cluster: Cluster,
    model: Arc<ModelFront>,
    /// Islands of hosts that links were measured for and no label names one.
    measured: BTreeMap<String, String>,
}

/// One host's part of a plan.
#[derive(Serialize)]
struct PlannedHost {
    host: String,
    role: Role,
    /// Bytes of weights.
    weights_bytes: u64,
    /// Bytes that weights and KV leave of the memory limit; absent without one.
    headroom_bytes: Option<u64>,
    /// Phase 1 on it, seconds; absent when not calibrated.
    encode_s: Option<f64>,
    /// The query step, seconds; on the query host.
    #[serde(skip_serializing_if = "Option::is_none")]
    query_s: Option<f64>,
    /// A token after the first, seconds; on the query host.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_s: Option<f64>,
    shards: usize,
    linear_tokens: u64,
    attention_pairs: u64,
    gflops: f64,
    kept_tokens: u64,
    kv_bytes: u64,
    input_bytes: u64,
    exchange_bytes: u64,
    step_bytes_per_token: u64,
}

impl PlannedHost {
    fn new(host: &Host, weights_bytes: u64, cost: &HostCost) -> Self {
        let taken = weights_bytes + cost.kv_bytes;
        Self {
            host: host.name.clone(),
            role: host.role,
            weights_bytes,
            headroom_bytes: host.memory_limit.map(|limit| limit.saturating_sub(taken)),
            encode_s: None,
            query_s: None,
            token_s: None,
            shards: cost.shards,
            linear_tokens: cost.linear_tokens,
            attention_pairs: cost.attention_pairs,
            gflops: cost.flops as f64 / 1e9,
            kept_tokens: cost.kept_tokens,
            kv_bytes: cost.kv_bytes,
            input_bytes: cost.input_bytes,
            exchange_bytes: cost.exchange_bytes,
            step_bytes_per_token: cost.step_bytes_per_token,
        }
    }
}

impl Planner {
    /// For the cluster file, or the sample, and its model of a name, or the first.
    pub fn of(globals: &Globals, model: Option<&str>) -> Result<Self, CliError> {
        let cluster = match globals.cluster_if_any()? {
            Some(cluster) => cluster,
            None => Cluster::resolve(&sample(), std::path::Path::new(".")).map_err(CliError::usage)?,
        };
        let (cluster, measured) = links::with_islands(cluster);
        let mut known = Vec::new();
        for own in cluster.models() {
            let front = checkpoint::model_front(own)?;
            if model.is_none_or(|model| model == front.name) {
                return Ok(Self { model: Arc::new(front), cluster: cluster.of_model(own), measured });
            }
            known.push(format!("'{}'", front.name));
        }
        let error = JobError::NoModel { asked: model.unwrap_or_default().to_owned(), known };
        Err(CliError::of_code(error.code(), error.to_string()))
    }

    /// Refuses what the model does not take before it costs anything.
    fn refuse_too_long(&self, Tokens(context): Tokens, Tokens(query): Tokens) -> Result<(), CliError> {
        let (maximum, model, bound) = (self.model.max_tokens, &self.model.name, self.model.bound);
        if context == 0 || query == 0 {
            return Err(CliError::usage(format!(
                "--tokens {context} --query-tokens {query}: expected at least 1 each"
            )));
        }
        if context + query < maximum {
            return Ok(());
        }
        let message = format!(
            "--tokens {context} and --query-tokens {query} leave no room for an answer: {model} takes at most {maximum} in all{bound}"
        );
        let hint = match maximum.saturating_sub(query + 1) {
            0 => format!("give --query-tokens of less than {maximum}"),
            most => format!("with that query give --tokens of at most {most}"),
        };
        Err(CliError::of_code("context_too_long", message).hint(hint))
    }

    /// Whether the plan is another one for a text of the same length.
    fn follows_text(&self, request: &JobRequest) -> Result<bool, CliError> {
        let Some(Prompt::Tokens(context)) = &request.context else { return Ok(false) };
        let same = Some(Prompt::Tokens(vec![context[0]; context.len()]));
        let shards = |request: JobRequest| {
            let planned = self.model.preview(request, &self.cluster.method, &self.config().context_hosts());
            planned.map(|(plan, _)| plan.shards).map_err(|error| refused(&error))
        };
        Ok(shards(request.clone())? != shards(JobRequest { context: same, ..request.clone() })?)
    }

    /// Prints what `request` would cost, or refuses what does not fit.
    pub fn show(&self, globals: &Globals, request: JobRequest) -> Result<(), CliError> {
        let (policy, answer_tokens) = (request.placement.clone(), request.max_tokens);
        let planned = self.model.preview(request, &self.cluster.method, &self.config().context_hosts());
        let (plan, query_tokens) = planned.map_err(|error| refused(&error))?;
        self.show_plan(globals, (plan, policy), query_tokens, answer_tokens)
    }

    /// Prints what a session of the context would cost, and a question to it.
    fn show_session(&self, globals: &Globals, request: JobRequest) -> Result<(), CliError> {
        let (Some(Prompt::Tokens(context)), Prompt::Tokens(query)) = (&request.context, &request.query) else {
            return Err(CliError::usage("a session is planned for so many tokens, and not for a text"));
        };
        let plan = self.session_plan(&request)?;
        let refresh = plan.refresh(context, query);
        let (policy, answer_tokens) = (request.placement.clone(), request.max_tokens);
        let anew = refresh.as_ref().map_or(0, Refresh::tokens);
        self.show_plan(globals, (plan, policy), query.len(), answer_tokens + anew)?;
        globals.note(self.question(refresh.as_ref()));
        Ok(())
    }

    /// The plan of a session of a request's context.
    fn session_plan(&self, request: &JobRequest) -> Result<Plan, CliError> {
        let asked = serde_json::json!({"name": "plan", "context": request.context, "method": request.method});
        let asked: SessionRequest = serde_json::from_value(asked).expect("what a session is asked for with");
        let prepared = self.model.prepare_session(asked, &self.cluster.method, &self.config().context_hosts());
        Ok(Plan::clone(&prepared.map_err(|error| refused(&error))?.plan))
    }

    /// What a question to a session gets anew, and what that costs.
    fn question(&self, refresh: Option<&Refresh>) -> String {
        let Some(refresh) = refresh else { return "each question: nothing is encoded again for it".into() };
        let shape = self.model.config.shape(self.config().first_model().kv);
        let cost = Cost::of(&refresh.pass(), &shape);
        let flops: u64 = cost.hosts.iter().map(|host| host.flops).sum();
        let on = Conditions { shape: &shape, devices: &[0], query_tokens: 1 };
        let takes = calibration::find(&self.cluster, &self.model.checkpoint)
            .map(|speeds| format!(", in {}", duration(Forecast::of(&cost, &on, &speeds).encode_s)));
        format!(
            "each question: {} encoded again on the query host, {:.1} GFLOP{}",
            count(refresh.tokens(), "token"),
            flops as f64 / 1e9,
            takes.unwrap_or_default(),
        )
    }

    /// The method of requests that name none.
    pub fn method(&self) -> &MethodConfig {
        &self.cluster.method
    }

    /// What a simulation of the cluster begins with: what its supervisor is configured with, the model's shape, and how fast hosts
    /// are, where that was measured.
    pub fn to_simulate(&self) -> (SupervisorConfig, ModelShape, Option<Calibration>) {
        let config = self.config();
        let shape = self.model.config.shape(config.first_model().kv);
        (config, shape, calibration::find(&self.cluster, &self.model.checkpoint).ok())
    }

    /// Prints the plans between which `auto` chooses.
    fn explain(&self, globals: &Globals, request: JobRequest, as_session: bool) -> Result<(), CliError> {
        let hosts = self.config().context_hosts();
        let plan = match as_session {
            true => self.session_plan(&request)?,
            false => {
                let planned = self.model.preview(request.clone(), &self.cluster.method, &hosts);
                planned.map_err(|error| refused(&error))?.0
            }
        };
        let policy = request.placement.clone();
        let found = self.model.alternatives(request, &self.cluster.method, (&hosts, as_session));
        output::print_rows(&found.map_err(|error| refused(&error))?, globals.format, alternatives)?;
        let placed = Holders::of(&self.cluster, &self.model.config).explain(&plan, &policy)?;
        placed.into_iter().chain(self.islands()).for_each(|words| globals.note(words));
        Ok(())
    }

    /// The islands of its hosts, and where each comes from.
    fn islands(&self) -> Vec<String> {
        let island = |host: &Host| Some((host.name.clone(), island_of(&host.labels)?.to_owned()));
        let all: BTreeMap<String, String> = self.cluster.hosts.iter().filter_map(island).collect();
        let (measured, labelled) = all.into_iter().partition(|(host, _)| self.measured.contains_key(host));
        [links::in_words(&labelled, "label"), links::in_words(&measured, links::BY_LINKS)].concat()
    }

    fn config(&self) -> SupervisorConfig {
        wiring::supervisor_config(&self.cluster, std::slice::from_ref(&self.model))
    }

    fn show_plan(
        &self,
        globals: &Globals,
        (mut plan, policy): (Plan, PlacementPolicy),
        query_tokens: usize,
        answer_tokens: usize,
    ) -> Result<(), CliError> {
        let config = self.config();
        let holders = Holders::of(&self.cluster, &self.model.config);
        holders.place(&mut plan, &policy)?;
        let shape = self.model.config.shape(config.first_model().kv);
        let cost = Cost::of(&plan, &shape);
        let row = |(at, (host, cost)): (usize, (&&Host, &HostCost))| PlannedHost::new(host, holders.weights(at), cost);
        let mut rows: Vec<PlannedHost> = holders.hosts().iter().zip(&cost.hosts).enumerate().map(row).collect();
        rows.push(self.query_row(query_tokens + answer_tokens)?);
        let on = Conditions { shape: &shape, devices: &holders.devices(), query_tokens };
        let timing = match calibration::find(&self.cluster, &self.model.checkpoint) {
            Ok(speeds) => timed(&mut rows, &Forecast::of(&cost, &on, &speeds)),
            Err(missing) => missing,
        };
        rows.retain(|row| row.shards > 0 || row.role == Role::Query);
        output::print_rows(&rows, globals.format, table)?;
        globals.note(summary(&plan, query_tokens, &cost));
        if shape.has_windows() {
            globals.note(windows(&plan, &shape));
        }
        if let Some(reason) = &plan.method.reason {
            globals.note(format_args!("auto took {}: {reason}", plan.method.name));
        }
        globals.note(timing);
        weights_by_device(&self.cluster, &self.model.config).into_iter().for_each(|words| globals.note(words));
        Ok(())
    }

    /// The first query host, which holds the KV of query and answer.
    fn query_row(&self, tokens: usize) -> Result<PlannedHost, CliError> {
        let host = self.cluster.with_role(Role::Query).next().expect("a resolved cluster has a query host");
        let (weights, kv_bytes) = query_memory(host, &self.model.config, &self.cluster, tokens)?;
        Ok(PlannedHost::new(host, weights, &HostCost { kv_bytes, ..HostCost::default() }))
    }
}

/// Fills the expected times in; returns them in one line.
fn timed(rows: &mut [PlannedHost], forecast: &Forecast) -> String {
    let mut slowest = (0.0, "no host");
    for (row, &seconds) in rows.iter_mut().zip(&forecast.hosts).filter(|(row, _)| row.shards > 0) {
        row.encode_s = Some(seconds);
        if seconds > slowest.0 {
            slowest = (seconds, &row.host);
        }
    }
    let timing = format!(
        "expected: phase 1 in {} (the slowest is {}), the query step in {}, then {} a token",
        duration(forecast.encode_s),
        slowest.1,
        duration(forecast.query_s),
        duration(forecast.token_s),
    );
    if let Some(query) = rows.last_mut() {
        (query.query_s, query.token_s) = (Some(forecast.query_s), Some(forecast.token_s));
    }
    timing
}

fn refused(error: &JobError) -> CliError {
    CliError::of_code(error.code(), error)
}

fn alternatives(found: &[Alternative]) -> Table {
    let mut table = Table::new(["METHOD", "TAKEN", "PAIRS", "GFLOP", "ENCODE", "WHY"]);
    for alternative in found {
        table.row([
            alternative.method.clone(),
            if alternative.taken { "yes" } else { "no" }.into(),
            format!("{:.2e}", alternative.pairs as f64),
            format!("{:.1}", alternative.flops as f64 / 1e9),
            alternative.encode_s.map_or("-".into(), duration),
            alternative.why.clone(),
        ]);
    }
    table
}

fn summary(plan: &Plan, query_tokens: usize, cost: &Cost) -> String {
    format!(
        "{}: {} in {}, {}; {}{:.0}% of dense attention's pairs",
        plan.method.name,
        count(plan.context_tokens, "context token"),
        count(plan.shards.len(), "shard"),
        count(query_tokens, "query token"),
        if cost.at_most { "at most " } else { "" },
        100.0 * (1.0 - cost.sparsity()),
    )
}

/// Which layers are exact, of a model that has some with windows.
fn windows(plan: &Plan, shape: &ModelShape) -> String {
    let ModelShape { layers, windowed_layers, window, .. } = *shape;
    let [full, windowed] = exact_layers(plan, shape);
    let borders = match windowed {
        0 => ": at the beginning of a block, rows miss what the window reaches of the block before it",
        _ => "",
    };
    format!(
        "{windowed_layers} of {layers} layers have a window of {} tokens: {windowed} of these and {full} of the others are exact{borders}",
        grouped(window),
    )
}

fn table(hosts: &[PlannedHost]) -> Table {
    let columns = [
        "HOST", "SHARDS", "TOKENS", "PAIRS", "GFLOP", "KEPT", "KV", "WEIGHTS", "HEADROOM", "RECEIVED", "PER STEP",
        "ENCODE",
    ];
    let mut table = Table::new(columns);
    for host in hosts {
        let in_phase_1 = |cell: String| if host.shards > 0 { cell } else { "-".into() };
        table.row([
            host.host.clone(),
            host.shards.to_string(),
            in_phase_1(grouped(host.linear_tokens as usize)),
            in_phase_1(format!("{:.2e}", host.attention_pairs as f64)),
            in_phase_1(format!("{:.1}", host.gflops)),
            in_phase_1(grouped(host.kept_tokens as usize)),
            bytes(host.kv_bytes),
            bytes(host.weights_bytes),
            host.headroom_bytes.map_or("-".into(), bytes),
            in_phase_1(bytes(host.exchange_bytes)),
            in_phase_1(bytes(host.step_bytes_per_token)),
            host.encode_s.map_or("-".into(), duration),
        ]);
    }
    table
}
