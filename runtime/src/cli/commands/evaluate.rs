//! `eval`: benchmarks and question files answered by methods on the cluster, scored, compared and drawn.

mod arguments;
mod asked_session;
pub(crate) mod common;
mod contender;
mod meter;
mod oracle;
mod questions;
mod run;

use std::{collections::BTreeSet, fs::File, io::Write, path::Path, time::Duration};

use asterism_actors::api::{ClusterStatus, HostStatus, Role};
use serde::Serialize;

use crate::{
    cli::{method_spec, output},
    client::Client,
    cluster::sample::sample,
    error::{CliError, Exit},
    eval::{self, Answer, Results, Scoring, Task},
    globals::{Format, Globals},
    observe::logging,
    processes::temporary::TemporaryCluster,
};
pub use arguments::{
    EvalArgs, EvalVerb, InfiniteArgs, MakeArgs, NiahArgs, ReportArgs, RulerArgs, RunArgs, ShowArgs, SizeArgs, SuiteArgs,
};
pub(crate) use common::question;
use common::refusal;
use contender::Contender;
use oracle::Oracle;
use questions::Questions;
pub use questions::TokenCounter;
use run::{Asking, Failure, RunOutcome, answer_all};

/// How long a temporary cluster may take to start.
const EVAL_START_TIMEOUT: Duration = Duration::from_secs(120);

/// Makes, asks or reports.
pub fn run(globals: &Globals, args: &EvalArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    match &args.verb {
        Some(EvalVerb::Ruler(args)) => ask(globals, &args.suite.run, || Questions::ruler(globals, args)),
        Some(EvalVerb::Babilong(args)) => ask(globals, &args.run, || Questions::babilong(globals, args)),
        Some(EvalVerb::Real(args)) => ask(globals, &args.run, || Questions::real(globals, args)),
        Some(EvalVerb::Niah(args)) => ask(globals, &args.run, || Questions::niah(globals, args)),
        Some(EvalVerb::Infinitebench(args)) => {
            ask(globals, &args.suite.run, || Questions::infinitebench(globals, args))
        }
        Some(EvalVerb::Report(args)) => report(globals, args),
        Some(EvalVerb::Make(args)) => make(globals, args),
        None => ask(globals, &args.run, || Questions::of_files(&args.files, args.limit, args.run.max_tokens)),
    }
}

fn make(globals: &Globals, args: &MakeArgs) -> Result<Exit, CliError> {
    let tasks = match args.task.as_str() {
        "all" => Task::all().collect(),
        name => vec![name.parse::<Task>().map_err(refusal)?],
    };
    let text = args.text.as_ref().map(eval::read_haystack).transpose().map_err(refusal)?;
    let counter = TokenCounter::load(globals, None)?;
    for task in tasks {
        for sample in 0..args.samples {
            let record = counter.generate(task, args.tokens.0, args.seed + sample, text.as_deref())?;
            output::print_json(&record, Format::Jsonl)?;
        }
    }
    Ok(Exit::Success)
}

fn report(globals: &Globals, args: &ReportArgs) -> Result<Exit, CliError> {
    let mut answers = Vec::new();
    for file in &args.files {
        answers.extend(eval::read_answers(file).map_err(refusal)?);
    }
    if answers.is_empty() {
        return Err(
            CliError::usage("the files hold no answers").hint("`asterism eval ... --save FILE.jsonl` fills one")
        );
    }
    let mut answers = eval::merged(answers);
    let models: BTreeSet<&str> = answers.iter().map(|answer| answer.model.as_str()).collect();
    if models.len() > 1 {
        let models: Vec<&str> = models.into_iter().collect();
        return Err(CliError::usage(format!("the files hold answers of several models: {}", models.join(", ")))
            .hint("report one model at a time; each line of a file names its own"));
    }
    // Saved answers stand in the order in which they came. The method that others are compared with comes first, the others
    // by name, so that two reports show the same columns.
    answers.sort_by_cached_key(|answer| (answer.method != eval::BASELINE, answer.method.clone()));
    if globals.format == Format::Jsonl {
        answers.iter().try_for_each(|answer| output::print_json(answer, Format::Jsonl))?;
    }
    let scoring = match answers.iter().all(|answer| answer.suite == "file") {
        true => Scoring::Exact,
        false => Scoring::Benchmark,
    };
    conclude(globals, &args.show, scoring, RunOutcome { answers, ..RunOutcome::default() })
}

/// Asks what `questions` makes; arguments are checked before a cluster is looked for.
fn ask(
    globals: &Globals,
    args: &RunArgs,
    questions: impl FnOnce() -> Result<Questions, CliError>,
) -> Result<Exit, CliError> {
    let methods = args.methods.as_deref().map(method_spec::parse_list).transpose()?;
    let mut save = args.save.as_deref().map(|path| appended(globals, path)).transpose()?;
    let mut known = match &args.save {
        Some(path) if args.resume => eval::read_answers(path).map_err(refusal)?,
        _ => Vec::new(),
    };
    let questions = questions()?;
    let (client, temporary) = cluster(globals)?;
    let asked = args.model_name.as_deref();
    let outcome = client.topology().and_then(|cluster| {
        let mut contenders = match methods {
            Some(methods) => {
                methods.into_iter().map(|(label, method)| Contender::new(label, Some(method), args.asked_as)).collect()
            }
            None => vec![Contender::new(cluster.method.clone(), None, args.asked_as)],
        };
        if args.oracle {
            let of_model = |host: &&HostStatus| host.role == Role::Context && host.model == label_of(&cluster, asked);
            let hosts = cluster.hosts.iter().filter(of_model).count();
            contenders.push(Contender::oracle(Oracle::load(globals, asked, hosts)?));
        }
        let model = asked.unwrap_or(&cluster.model);
        known.retain(|answer| answer.model == model);
        let jobs = args.jobs.into();
        let asking = Asking {
            client: &client,
            model,
            named: asked,
            contenders: &contenders,
            questions: &questions,
            jobs,
            known,
        };
        answer_all(globals, asking, |meter, answer| {
            if let Some((file, path)) = &mut save {
                saved(file, path, answer)?;
            }
            match globals.format {
                Format::Jsonl => meter.aside(|| output::print_json(answer, Format::Jsonl)),
                Format::Table | Format::Json => Ok(()),
            }
        })
    });
    if let Some(temporary) = temporary {
        temporary.stop();
    }
    conclude(globals, &args.show, questions.scoring(), outcome?)
}

/// What the hosts of a model are labelled with: those of the first may have no name.
fn label_of<'a>(cluster: &ClusterStatus, asked: Option<&'a str>) -> &'a str {
    asked.filter(|name| cluster.hosts.iter().any(|host| host.model == *name)).unwrap_or_default()
}

fn appended<'a>(globals: &Globals, path: &'a Path) -> Result<(File, &'a Path), CliError> {
    let (file, torn) = eval::append_answers(path).map_err(|error| unwritable(path, &error))?;
    if torn {
        globals.note(format_args!("{}: the last line was not whole and is cut off", path.display()));
    }
    Ok((file, path))
}

fn saved(file: &mut File, path: &Path, answer: &Answer) -> Result<(), CliError> {
    let line = serde_json::to_string(answer).expect("plain values are JSON") + "\n";
    file.write_all(line.as_bytes()).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::usage(format!("cannot write {}: {error}", path.display())).hint("check the path and its rights")
}

/// What `-o json` prints.
#[derive(Serialize)]
struct EvalReport<'a> {
    #[serde(flatten)]
    results: &'a Results,
    failures: &'a [Failure],
    interrupted: bool,
}

/// Prints what there is, then says how the run ended.
fn conclude(globals: &Globals, args: &ShowArgs, scoring: Scoring, outcome: RunOutcome) -> Result<Exit, CliError> {
    let RunOutcome { answers, failures, interrupted, refused } = outcome;
    let results = Results::of(&answers, args.score.unwrap_or(scoring));
    match globals.format {
        Format::Json => {
            output::print_json(&EvalReport { results: &results, failures: &failures, interrupted }, Format::Json)?
        }
        Format::Table if !answers.is_empty() => output::print(&format!("{results}\n"))?,
        Format::Jsonl if !answers.is_empty() => globals.note(&results),
        Format::Table | Format::Jsonl => {}
    }
    if let Some(path) = args.chart.as_deref().filter(|_| !answers.is_empty()) {
        std::fs::write(path, eval::svg(&results)).map_err(|error| unwritable(path, &error))?;
        globals.note(format_args!("chart: {}", path.display()));
    }
    if interrupted {
        return Ok(Exit::Interrupted);
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    if let Some(first) = failures.first() {
        let (count, all) = (failures.len(), failures.len() + answers.len());
        return Err(CliError::new(
            Exit::JobFailed,
            format!("of {all} questions {count} got no answer; the first {first}"),
        )
        .hint("`asterism status` shows the hosts; with --save, ask again and merge with `asterism eval report`"));
    }
    match (args.fail_below, results.lowest()) {
        (Some(least), Some((block, method))) if method.average.mean < least => {
            let (average, length) = (method.average.mean, block.length);
            let (name, suite) = (&method.method, &block.suite);
            let at = if length == 0 { String::new() } else { format!(" at {length} tokens") };
            Err(CliError::new(
                Exit::BelowThreshold,
                format!("{name}'s average on {suite}{at} is {average:.1}%, below --fail-below {least}%"),
            )
            .hint("-o jsonl prints every answer with its gold strings"))
        }
        _ => Ok(Exit::Success),
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
    let temporary = TemporaryCluster::start(file, EVAL_START_TIMEOUT)?;
    Ok((temporary.client(globals)?, Some(temporary)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use asterism_models::QuerySeparator;

    #[test]
    fn records_are_asked_with_their_own_bytes() {
        let record = TokenCounter::embedded().unwrap().generate(Task::NiahSingle2, 1024, 1, None).unwrap();
        let asked = question(&record, None, 8);
        assert_eq!(asked.context, Some(record.input_context.as_str().into()));
        assert_eq!((asked.query, asked.query_separator), (record.input_query.into(), Some(QuerySeparator::NONE)));
    }
}
