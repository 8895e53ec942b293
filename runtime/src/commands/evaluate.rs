//! `eval make` and `eval FILE.jsonl`: question sets, and how many of them the cluster answers right.

use std::{path::PathBuf, time::Duration};

use asterism_actors::api::{JobRequest, JobState};
use asterism_models::Sampling;
use asterism_plan::MethodConfig;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    config::SAMPLE,
    job::{MethodArgs, follow},
};
use crate::{
    cli::Format,
    client::Client,
    cluster::Model,
    cluster_file::{self, ClusterFile},
    error::{CliError, Exit},
    eval::{self, Record, Table, Task},
    globals::Globals,
    logging, output,
    size::Tokens,
    temporary::TemporaryCluster,
    wiring,
};

/// How long a temporary cluster may take to start.
const START_LIMIT: Duration = Duration::from_secs(120);

const EMBEDDED: Model = Model { path: None, dtype: cluster_file::DType::F32, max_context_tokens: None };

/// `asterism eval`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct EvalArgs {
    /// Questions: one JSON object a line with task, input_context, input_query and answer
    #[arg(value_name = "FILE.jsonl", required = true)]
    pub files: Vec<PathBuf>,
    /// Attention
    #[command(flatten)]
    pub method: MethodArgs,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value = "64")]
    pub max_tokens: Tokens,
    /// Only the first N questions
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Exit with 8 when the average is below
    #[arg(long, value_name = "PERCENT")]
    pub threshold: Option<f64>,
    /// Make questions instead
    #[command(subcommand)]
    pub verb: Option<EvalVerb>,
}

/// `asterism eval make`
#[derive(Debug, Subcommand)]
pub enum EvalVerb {
    /// Print questions of a task, one JSON object a line
    Make(MakeArgs),
}

/// What to make.
#[derive(Args, Debug)]
pub struct MakeArgs {
    /// niah_single_1, niah_multikey_1, niah_multiquery, vt, fwe, qa1 and so on, or all
    pub task: String,
    /// Tokens of a context
    #[arg(long, value_name = "TOKENS", default_value = "4k")]
    pub tokens: Tokens,
    /// The same seed makes the same questions
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Questions of each task
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub samples: u64,
    /// A text to hide facts in; without one, prose is generated
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
}

/// Makes or scores.
pub fn run(globals: &Globals, args: EvalArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    match &args.verb {
        Some(EvalVerb::Make(args)) => make(globals, args),
        None => score(globals, &args),
    }
}

fn make(globals: &Globals, args: &MakeArgs) -> Result<Exit, CliError> {
    let tasks = match args.task.as_str() {
        "all" => Task::all().to_vec(),
        name => vec![name.parse::<Task>().map_err(refusal)?],
    };
    let text = args.text.as_ref().map(eval::read_haystack).transpose().map_err(refusal)?;
    let counter = TokenCounter::load(globals)?;
    for task in tasks {
        for sample in 0..args.samples {
            let record = counter.generate(task, args.tokens.0, args.seed + sample, text.as_deref())?;
            output::print_json(&record, Format::Jsonl)?;
        }
    }
    Ok(Exit::Success)
}

/// Counts tokens as the cluster's model does.
pub struct TokenCounter(asterism_actors::supervisor::ModelFront);

impl TokenCounter {
    /// The model of the cluster file, or the embedded one.
    pub fn load(globals: &Globals) -> Result<Self, CliError> {
        let model = globals.cluster_if_any()?.map_or(EMBEDDED, |cluster| cluster.model);
        Ok(Self(wiring::model_front(&model)?))
    }

    /// The embedded model's.
    pub fn embedded() -> Result<Self, CliError> {
        Ok(Self(wiring::model_front(&EMBEDDED)?))
    }

    /// A record of `task` with a context of about `tokens`.
    pub fn generate(&self, task: Task, tokens: usize, seed: u64, text: Option<&str>) -> Result<Record, CliError> {
        let count = |text: &str| self.0.count_tokens(text).unwrap_or(usize::MAX);
        eval::generate(task, tokens, seed, &count, text).map_err(refusal)
    }
}

fn refusal(error: eval::EvalError) -> CliError {
    CliError::usage(error)
        .hint("`asterism eval make TASK --tokens 4k > questions.jsonl`, then `asterism eval questions.jsonl`")
}

/// One answer, for `-o jsonl`.
#[derive(Serialize)]
struct Answer<'a> {
    task: &'a str,
    right: bool,
    answer: &'a str,
    gold: &'a str,
    seconds: f64,
}

fn score(globals: &Globals, args: &EvalArgs) -> Result<Exit, CliError> {
    let mut records = Vec::new();
    for file in &args.files {
        records.extend(eval::read_jsonl(file).map_err(refusal)?);
    }
    records.truncate(args.limit.unwrap_or(usize::MAX));
    let method = args.method.resolve()?;
    let (client, temporary) = cluster(globals)?;
    let table = answer_all(globals, args, &client, &method, &records);
    if let Some(temporary) = temporary {
        temporary.stop();
    }
    let table = table?;
    match globals.format {
        Format::Table => output::print(&format!("{table}\n"))?,
        Format::Json => output::print_json(&table, Format::Json)?,
        Format::Jsonl => globals.note(&table),
    }
    match args.threshold {
        Some(threshold) if table.average_percent < threshold => Err(CliError::new(
            Exit::BelowThreshold,
            format!("the average is {:.1}%, below the threshold of {threshold}%", table.average_percent),
        )
        .hint("-o jsonl prints every answer with its gold strings")),
        _ => Ok(Exit::Success),
    }
}

fn answer_all(
    globals: &Globals,
    args: &EvalArgs,
    client: &Client,
    method: &Option<MethodConfig>,
    records: &[Record],
) -> Result<Table, CliError> {
    let mut table = Table::default();
    let quiet = Globals { quiet: true, ..globals.clone() };
    for (index, record) in records.iter().enumerate() {
        let request = question(record, method.clone(), args.max_tokens.0);
        let id = client.submit(&request).map_err(|error| CliError {
            message: format!("question {} ({}): {}", index + 1, record.task, error.message),
            ..error
        })?;
        let status = follow(client, &quiet, &id, |_| Ok(()))?;
        if status.state != JobState::Succeeded {
            super::job::outcome(&status)?;
        }
        let right = table.add(record, &status.text);
        let seconds = status.timings.total_s;
        if globals.format == Format::Jsonl {
            let answer = Answer { task: &record.task, right, answer: &status.text, gold: &record.answer, seconds };
            output::print_json(&answer, Format::Jsonl)?;
        }
        let mark = if right { "right" } else { "wrong" };
        globals.note(format_args!("{}/{} {} {mark} {seconds:.1} s", index + 1, records.len(), record.task));
    }
    Ok(table)
}

/// A record as a greedy job.
pub fn question(record: &Record, method: Option<MethodConfig>, max_tokens: usize) -> JobRequest {
    JobRequest {
        id: None,
        context: record.input_context.clone().into(),
        query: record.input_query.clone().into(),
        method,
        max_tokens,
        sampling: Sampling::default(),
        stop: Vec::new(),
        ignore_eos: false,
        chat_template: true,
        timeout_s: None,
        labels: [("task".to_owned(), record.task.clone())].into(),
    }
}

/// The running cluster, or one for the length of this command.
fn cluster(globals: &Globals) -> Result<(Client, Option<TemporaryCluster>), CliError> {
    let client = Client::find(globals)?;
    let asked = client.topology();
    if asked.is_ok() || globals.server.is_some() {
        return asked.map(|_| (client, None));
    }
    globals.note(format_args!("no cluster answers at {}: starting one for this run", client.base()));
    let file = match globals.typed_cluster_if_any()? {
        Some(file) => file,
        None => sample(),
    };
    let temporary = TemporaryCluster::start(file, START_LIMIT)?;
    Ok((temporary.client(globals)?, Some(temporary)))
}

/// The sample cluster file.
pub fn sample() -> ClusterFile {
    cluster_file::parse(SAMPLE, []).expect("the sample is checked by tests")
}
