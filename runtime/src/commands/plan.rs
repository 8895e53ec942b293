//! `plan`: what a job would cost each host, before anything runs.

use asterism_actors::{
    api::{JobRequest, Prompt},
    supervisor::ModelFront,
};
use asterism_models::Sampling;
use asterism_plan::Cost;
use clap::Args;
use serde::Serialize;

use super::{
    config::SAMPLE,
    job::{MethodArgs, PlacementArgs},
};
use crate::{
    cluster::Cluster,
    cluster_file::{self, ClusterFile, Role},
    error::{CliError, Exit},
    globals::Globals,
    logging,
    output::{self, Table},
    size::{Tokens, bytes, grouped},
    wiring,
};

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
}

/// Plans a context of made-up tokens.
pub fn run(globals: &Globals, args: &PlanArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let planner = Planner::of(globals)?;
    let vocab = planner.model.config.vocab as u64;
    // Spread over the vocabulary, so that chunks differ.
    let ids = |count: usize| Prompt::Tokens((0..count as u64).map(|i| (i * 2_654_435_761 % vocab) as u32).collect());
    let request = JobRequest {
        id: None,
        context: Some(ids(args.tokens.0)),
        session: None,
        query: ids(args.query_tokens.0),
        method: args.method.resolve()?,
        allow_idle_hosts: false,
        max_tokens: 1,
        sampling: Sampling::default(),
        stop: Vec::new(),
        ignore_eos: false,
        chat_template: false,
        placement: args.placement.policy(),
        timeout_s: None,
        labels: Default::default(),
    };
    planner.show(globals, request)?;
    Ok(Exit::Success)
}

/// Plans jobs for a cluster that need not run.
pub struct Planner {
    cluster: Cluster,
    model: ModelFront,
}

/// One host's part of a plan.
#[derive(Serialize)]
struct PlannedHost {
    host: String,
    shards: usize,
    linear_tokens: u64,
    attention_pairs: u64,
    gflops: f64,
    kept_tokens: u64,
    kv_bytes: u64,
    exchange_bytes: u64,
    step_bytes_per_token: u64,
}

impl Planner {
    /// For the cluster file, or the sample.
    pub fn of(globals: &Globals) -> Result<Self, CliError> {
        let cluster = match globals.cluster_if_any()? {
            Some(cluster) => cluster,
            None => {
                let file: ClusterFile = cluster_file::parse(SAMPLE, []).map_err(CliError::usage)?;
                Cluster::resolve(&file, std::path::Path::new(".")).map_err(CliError::usage)?
            }
        };
        Ok(Self { model: wiring::model_front(&cluster.model)?, cluster })
    }

    /// Prints what `request` would cost.
    pub fn show(&self, globals: &Globals, request: JobRequest) -> Result<(), CliError> {
        let (hosts, dtype) = (wiring::supervisor_config(&self.cluster, &self.model.name), self.cluster.model.dtype);
        let job = self.model.prepare(request, &self.cluster.method, &hosts.context_hosts());
        let job = job.map_err(|error| CliError::of_code(error.code(), &error).hint("nothing was started"))?;
        let cost = Cost::of(&job.plan, &self.model.config.shape(wiring::dtype(dtype)));
        let names: Vec<_> = self.cluster.with_role(Role::Context).map(|host| host.name.clone()).collect();
        let planned = cost.hosts.iter().map(|cost| PlannedHost {
            host: names[cost.host].clone(),
            shards: cost.shards,
            linear_tokens: cost.linear_tokens,
            attention_pairs: cost.attention_pairs,
            gflops: cost.flops as f64 / 1e9,
            kept_tokens: cost.kept_tokens,
            kv_bytes: cost.kv_bytes,
            exchange_bytes: cost.exchange_bytes,
            step_bytes_per_token: cost.step_bytes_per_token,
        });
        output::print_rows(&planned.collect::<Vec<_>>(), globals.format, table)?;
        let most = if cost.at_most { "at least " } else { "" };
        globals.note(format_args!(
            "{}: {} context tokens in {} shards, {} query tokens; {most}{:.0}% of dense attention's pairs saved",
            job.plan.method.name,
            grouped(job.plan.context_tokens),
            job.plan.shards.len(),
            grouped(job.query_ids.len()),
            100.0 * cost.sparsity(),
        ));
        if let Some(reason) = &job.plan.method.reason {
            globals.note(format_args!("auto took {}: {reason}", job.plan.method.name));
        }
        Ok(())
    }
}

fn table(hosts: &[PlannedHost]) -> Table {
    let columns = ["HOST", "SHARDS", "TOKENS", "PAIRS", "GFLOP", "KEPT", "KV", "RECEIVED", "PER STEP"];
    let mut table = Table::new(columns);
    for host in hosts {
        table.row([
            host.host.clone(),
            host.shards.to_string(),
            grouped(host.linear_tokens as usize),
            format!("{:.2e}", host.attention_pairs as f64),
            format!("{:.1}", host.gflops),
            grouped(host.kept_tokens as usize),
            bytes(host.kv_bytes),
            bytes(host.exchange_bytes),
            bytes(host.step_bytes_per_token),
        ]);
    }
    table
}
