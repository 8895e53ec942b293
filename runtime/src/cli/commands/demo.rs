//! `demo`: the sample cluster, a long document with needles, questions about them, times, memory. Leaves nothing behind.

use std::{
    fs,
    time::{Duration, Instant},
};

use asterism_actors::api::JobStatus;
use clap::Args;
use serde::Serialize;

use super::{
    evaluate::{TokenCounter, question},
    jobs::job::{follow, outcome},
};
use crate::{
    cli::output::{self, Table},
    client::Following,
    cluster::{
        sample::sample,
        size::{Tokens, bytes, count, grouped},
    },
    error::{CliError, Exit},
    eval::{self, EvalRecord, Task},
    globals::{Format, Globals},
    observe::logging,
    processes::temporary::TemporaryCluster,
};

const SUPERVISOR_START_LIMIT: Duration = Duration::from_secs(60);
/// What is asked, and the seed of its document.
const DEMO_QUESTIONS: [(Task, u64); 2] = [(Task::NiahMultikey1, 1), (Task::NiahMultiquery, 2)];
const MAX_ANSWER_TOKENS: usize = 64;

/// `asterism demo`
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Tokens of each document
    #[arg(long, value_name = "TOKENS", default_value = "15900")]
    pub tokens: Tokens,
}

/// Runs the demonstration; exit 1 when an answer is wrong.
pub fn run(globals: &Globals, args: &DemoArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let started = Instant::now();
    let file = sample();
    globals.note(format_args!("starting {} host processes", file.hosts.len()));
    let cluster = TemporaryCluster::start(file, SUPERVISOR_START_LIMIT)?;
    globals.note(format_args!("ready after {:.1} s", started.elapsed().as_secs_f64()));
    let asked = ask_all(globals, args, &cluster);
    let memory = peak_memory(&cluster.pids());
    cluster.stop();
    let asked = asked?;
    let wrong = asked.iter().filter(|question| !question.right).count();
    if globals.format == Format::Table {
        let seconds = started.elapsed().as_secs_f64();
        let memory = memory.map_or("unknown here".into(), bytes);
        output::print(&format!(
            "\npeak memory over all processes: {memory}; {seconds:.1} s in all, cluster stopped\n"
        ))?;
    } else {
        let report =
            DemoReport { questions: asked, peak_memory_bytes: memory, seconds: started.elapsed().as_secs_f64() };
        output::print_json(&report, globals.format)?;
    }
    match wrong {
        0 => Ok(Exit::Success),
        wrong => Err(CliError::new(Exit::JobFailed, format!("{wrong} of {} answers are wrong", DEMO_QUESTIONS.len()))
            .hint("`asterism bench prefill` checks the kernels of this machine; please report it")),
    }
}

/// The whole run, for `-o json`.
#[derive(Serialize)]
struct DemoReport {
    questions: Vec<DemoAnswer>,
    peak_memory_bytes: Option<u64>,
    seconds: f64,
}

/// One question and its answer.
#[derive(Serialize)]
struct DemoAnswer {
    task: String,
    query: String,
    answer: String,
    gold: String,
    right: bool,
    status: JobStatus,
}

fn ask_all(globals: &Globals, args: &DemoArgs, cluster: &TemporaryCluster) -> Result<Vec<DemoAnswer>, CliError> {
    let client = cluster.client(globals)?;
    let counter = TokenCounter::embedded()?;
    let mut asked = Vec::new();
    for (task, seed) in DEMO_QUESTIONS {
        let record = counter.generate(task, args.tokens.0, seed, None)?;
        let request = question(&record, None, MAX_ANSWER_TOKENS);
        let status = follow(Following::submit(&client, request, |text| globals.note(text))?, globals, |_| Ok(()))?;
        outcome(&status)?;
        let question = asked_of(&record, status);
        if globals.format == Format::Table {
            output::print(&shown(&question, asked.is_empty()))?;
        }
        asked.push(question);
    }
    Ok(asked)
}

fn asked_of(record: &EvalRecord, status: JobStatus) -> DemoAnswer {
    DemoAnswer {
        task: record.task.clone(),
        query: record.input_query.clone(),
        answer: status.text.trim().to_owned(),
        gold: record.answer.clone(),
        right: eval::score(record, &status.text) == 1.0,
        status,
    }
}

fn shown(asked: &DemoAnswer, first: bool) -> String {
    let DemoAnswer { query, answer, gold, right, status, .. } = asked;
    let verdict = if *right { "right".to_owned() } else { format!("WRONG, wanted {gold}") };
    let mut table = Table::new(["HOST", "SHARDS", "TOKENS", "KEPT", "KV", "ENCODE S"]);
    let mut hosts: Vec<_> = status.timings.hosts.iter().collect();
    hosts.sort_by(|a, b| a.host.cmp(&b.host));
    for host in hosts {
        table.row([
            host.host.clone(),
            host.shards.to_string(),
            grouped(host.encoded_tokens),
            grouped(host.kept_tokens),
            bytes(host.kv_bytes),
            format!("{:.2}", host.encode_s),
        ]);
    }
    let time = &status.timings;
    format!(
        "{}document  {}, {} attention\nquestion  {query}\nanswer    {answer}  [{verdict}]\n{table}phase 1 (encode) {:.2} s; \
         phase 2 (query) {:.2} s; phase 2 (decode) {:.2} s for {}; {:.2} s in all\n",
        if first { "" } else { "\n" },
        count(status.context_tokens, "token"),
        status.method,
        time.encode_s,
        time.query_s,
        time.decode_s,
        count(status.generated_tokens, "token"),
        time.total_s,
    )
}

/// Highest resident memory of each process, summed; `None` where the system does not tell.
fn peak_memory(pids: &[u32]) -> Option<u64> {
    pids.iter().map(|pid| peak_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)).sum()
}

fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_read_from_proc() {
        assert_eq!(peak_of("Name:\tx\nVmHWM:\t  1024 kB\nVmRSS:\t 512 kB\n"), Some(1 << 20));
        assert_eq!(peak_of("Name:\tx\n"), None);
        if cfg!(target_os = "linux") {
            assert!(peak_memory(&[std::process::id()]).is_some_and(|peak| peak > 1 << 20));
        }
    }
}
