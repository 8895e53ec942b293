//! `self-test`: has the running cluster try itself, and shows what came out.

use std::{thread, time::Duration};

use asterism_actors::api::{SelfTestReport, SelfTestState, Verdict};
use clap::Args;

use crate::{
    cli::output::{self, Table, lower},
    client::Client,
    cluster::size::grouped,
    error::{CliError, Exit},
    globals::{Format, Globals},
    observe::logging,
};

/// How often it is looked at.
const RESULT_POLL: Duration = Duration::from_millis(100);

/// `asterism self-test`
#[derive(Args, Debug)]
pub struct SelfTestArgs {
    /// Show what the latest one found, and begin none
    #[arg(long)]
    pub last: bool,
}

/// Runs one to its end; exit 1 when an answer is wrong, 3 when not everything could be tried.
pub fn run(globals: &Globals, args: &SelfTestArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let client = Client::find(globals)?;
    let mut report = if args.last { client.self_test()? } else { client.start_self_test()? };
    let mut stated = None;
    while report.state == SelfTestState::Running {
        if stated != report.doing
            && let Some(doing) = &report.doing
        {
            globals.note(format_args!("{} of {}: {doing}", report.done + 1, report.total));
            stated.clone_from(&report.doing);
        }
        thread::sleep(RESULT_POLL);
        report = client.self_test()?;
    }
    match globals.format {
        Format::Table if report.checks.is_empty() => {}
        Format::Table => output::print(&table(&report).to_string())?,
        format => output::print_json(&report, format)?,
    }
    outcome(globals, &report)
}

fn outcome(globals: &Globals, report: &SelfTestReport) -> Result<Exit, CliError> {
    let cause = report.cause.as_deref().unwrap_or_default();
    match report.state {
        SelfTestState::Wrong => Err(CliError::new(Exit::JobFailed, format!("the cluster answers wrongly: {cause}"))
            .hint("it takes no work until a self-test passes: see the hosts named, their model files and memory, start them anew, and try again")),
        SelfTestState::Undone => Err(CliError::unreachable(format!("the self-test could not be done: {cause}"))
            .hint("`asterism status` shows the hosts")),
        SelfTestState::Pending => Err(CliError::unreachable("the self-test waits for hosts").hint("`asterism status` shows them")),
        SelfTestState::None => Err(CliError::new(Exit::NotFound, "no self-test has run").hint("`asterism self-test`")),
        SelfTestState::Passed | SelfTestState::Running => {
            let unjudged = report.checks.iter().filter(|check| check.verdict == Verdict::Unjudged).count();
            let right = report.checks.len() - unjudged;
            let rest = if unjudged > 0 { format!(", {unjudged} that nothing can be compared with") } else { String::new() };
            globals.note(format_args!("the self-test passed: {right} canaries right{rest}, {:.1} s", report.seconds));
            Ok(Exit::Success)
        }
    }
}

fn table(report: &SelfTestReport) -> Table {
    let mut table = Table::new(["CANARY", "TOKENS", "SECONDS", "VERDICT", "ANSWER", "NOTE"]);
    for check in &report.checks {
        table.row([
            check.name.clone(),
            grouped(check.context_tokens),
            format!("{:.2}", check.seconds),
            lower(&check.verdict),
            check.text.trim().to_owned(),
            check.note.clone().unwrap_or_default(),
        ]);
    }
    table
}
