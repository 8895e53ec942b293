//! The command line as typed, and the way from it to one verb. What a verb does stands in `commands/`.

pub(crate) mod checks;
pub mod commands;
pub mod method_spec;
pub mod output;
pub mod progress;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    error::{CliError, Exit},
    globals::{GlobalArgs, Globals},
    processes::template,
};
use commands::{
    bench, certificates, chaos,
    cluster::{self, backup, events, host, launch, process, top},
    completions, config, demo, doctor, evaluate,
    jobs::{job, plan, session, simulate},
    model, self_test,
};

/// Inference over very long contexts on a cluster of hosts.
#[derive(Debug, Parser)]
#[command(name = "asterism", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// Options of every verb.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Print a cluster.toml to start from
    Init(config::InitArgs),
    /// Check a cluster file and show what it resolves to
    Validate,
    /// Start the cluster's processes of this machine and stay; Ctrl-C stops them
    Up(cluster::UpArgs),
    /// Stop the cluster
    Down(cluster::DownArgs),
    /// Start a cluster on the nodes of a batch system's job
    #[command(subcommand)]
    Launch(launch::LaunchVerb),
    /// Show hosts and jobs
    Status,
    /// Show hosts, jobs and sessions on the terminal, again and again; `q` ends it
    Top(top::TopArgs),
    /// Print what happened lately to jobs, sessions and hosts
    Events(events::EventsArgs),
    /// Ask questions about documents
    #[command(subcommand)]
    Job(job::JobVerb),
    /// Documents that are encoded once and asked many times
    #[command(subcommand)]
    Session(session::SessionVerb),
    /// Hosts: look at them, keep work from them, move it, replace one
    #[command(subcommand)]
    Host(host::HostVerb),
    /// Models of a hub on this machine
    #[command(subcommand)]
    Model(model::ModelVerb),
    /// The cluster's certificates
    #[command(subcommand)]
    Cert(certificates::CertVerb),
    /// Write what the supervisor's data_dir has to one file, while the cluster runs or is down
    Backup(backup::BackupArgs),
    /// Put back what `backup` wrote, where there is no data_dir yet
    Restore(backup::RestoreArgs),
    /// What the cluster file can say
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// Score attention methods on benchmarks and question files
    Eval(Box<evaluate::EvalArgs>),
    /// What a job would cost each host, before anything runs
    Plan(plan::PlanArgs),
    /// What a cluster of any size would do with a document while hosts fail, before there is one
    Simulate(simulate::SimulateArgs),
    /// Time the model on this machine, without a cluster
    #[command(subcommand)]
    Bench(bench::BenchVerb),
    /// Start the sample cluster, hide needles in a document, ask for them, show times, stop
    Demo(demo::DemoArgs),
    /// Kill and stop processes of the running cluster at named points of jobs, and compare the answers
    Chaos(chaos::ChaosArgs),
    /// What this machine has to compute with, and what hosts of the cluster file lack here
    Doctor,
    /// Try whether the running cluster answers as it must: canaries over every host, compared
    SelfTest(self_test::SelfTestArgs),
    /// Show version and build
    Version,
    /// Print a shell's completion script
    Completions(completions::CompletionsArgs),
    /// Write manual pages, one a command
    Man(completions::ManArgs),
    /// Run the supervisor and its admin API alone, for service managers; `up` starts and keeps one
    Supervisor(process::SupervisorArgs),
    /// Run the hosts of a node alone, for further machines; `up` does so for its own
    Node(process::NodeArgs),
    /// Run one host; started by `up`
    #[command(hide = true)]
    RunHost(process::HostArgs),
    /// Render conversations by a chat template; started by whoever loads a model
    #[command(hide = true)]
    RenderTemplate,
}

/// Parses the process's arguments and runs the verb.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let globals = Globals::resolve(&cli.global);
    match run(&globals, cli.verb) {
        Ok(exit) => exit.into(),
        Err(error) => output::fail(&error, globals.color_stderr).into(),
    }
}

fn run(globals: &Globals, verb: Verb) -> Result<Exit, CliError> {
    match verb {
        Verb::Init(args) => config::init(globals, &args),
        Verb::Validate => config::validate(globals),
        Verb::Up(args) => cluster::up(globals, &args),
        Verb::Down(args) => cluster::down(globals, &args),
        Verb::Launch(verb) => launch::run(globals, &verb),
        Verb::Status => cluster::status(globals),
        Verb::Top(args) => top::run(globals, &args),
        Verb::Events(args) => events::run(globals, &args),
        Verb::Job(verb) => job::run(globals, verb),
        Verb::Session(verb) => session::run(globals, verb),
        Verb::Host(verb) => host::run(globals, verb),
        Verb::Model(verb) => model::run(globals, verb),
        Verb::Cert(verb) => certificates::run(globals, verb),
        Verb::Backup(args) => backup::backup(globals, &args),
        Verb::Restore(args) => backup::restore(globals, &args),
        Verb::Config(verb) => config::run(globals, verb),
        Verb::Eval(args) => evaluate::run(globals, &args),
        Verb::Plan(args) => plan::run(globals, &args),
        Verb::Simulate(args) => simulate::run(globals, &args),
        Verb::Bench(verb) => bench::run(globals, verb),
        Verb::Demo(args) => demo::run(globals, &args),
        Verb::Chaos(args) => chaos::run(globals, &args),
        Verb::Doctor => doctor::run(globals),
        Verb::SelfTest(args) => self_test::run(globals, &args),
        Verb::Version => config::version(globals),
        Verb::Completions(args) => completions::completions(globals, Cli::command(), &args),
        Verb::Man(args) => completions::man(globals, Cli::command(), &args),
        Verb::Supervisor(args) => process::supervisor(globals, &args),
        Verb::Node(args) => process::node(globals, &args),
        Verb::RunHost(args) => process::host(globals, &args),
        Verb::RenderTemplate => template::answer(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::globals::Format;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_may_follow_the_verb() {
        let cli = Cli::try_parse_from(["asterism", "status", "-o", "json", "-f", "x.toml"]).unwrap();
        assert_eq!(cli.global.output, Format::Json);
        assert_eq!(cli.global.file.as_deref(), Some(std::path::Path::new("x.toml")));
        let text = Cli::try_parse_from(["asterism", "job", "result", "a", "-o", "text"]).unwrap();
        assert_eq!(text.global.output, Format::Table);
    }
}
