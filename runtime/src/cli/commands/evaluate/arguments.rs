//! The arguments of `eval` as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::{cluster::size::Tokens, eval::Scoring};

/// `asterism eval`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct EvalArgs {
    /// Questions, one JSON object a line: input_context, input_query and answer, or as RULER, LongBench or InfiniteBench publish them
    #[arg(value_name = "FILE.jsonl", required = true)]
    pub files: Vec<PathBuf>,
    /// Only the first N questions
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Methods, output and limits
    #[command(flatten)]
    pub run: RunArgs,
    /// A benchmark instead of a file
    #[command(subcommand)]
    pub verb: Option<EvalVerb>,
}

/// `asterism eval VERB`
#[derive(Debug, Subcommand)]
pub enum EvalVerb {
    /// RULER: needles, variable tracking, common and frequent words; questions about documents with --squad, --hotpotqa
    Ruler(RulerArgs),
    /// BABILong's qa1 to qa5: facts about people, rooms and objects, hidden in prose
    Babilong(SuiteArgs),
    /// Questions in natural language for instruction-tuned models, about a book (--haystack): lex, para, hop2, para2, list3, next, first,
    /// code
    Real(SuiteArgs),
    /// One needle over a grid of lengths and depths
    Niah(NiahArgs),
    /// InfiniteBench: passkey, number, kv, math_find; qa_eng and choice_eng with --data; no summaries, dialogue or code
    Infinitebench(InfiniteArgs),
    /// Merge files of --save and print their table
    Report(ReportArgs),
    /// Print questions of a task, one JSON object a line
    Make(MakeArgs),
}

/// How a run is done, whatever it asks.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Attention methods, separated by commas, options behind colons: dense,star:block_tokens=4k [default: the cluster's]
    #[arg(long, visible_alias = "method", value_name = "METHODS")]
    pub methods: Option<String>,
    /// Model that answers, of several [default: the cluster's first]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Most tokens of an answer [default: the benchmark's; 64 for files]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<Tokens>,
    /// How questions are asked
    #[arg(long = "as", value_enum, value_name = "HOW", default_value_t)]
    pub asked_as: AskedAs,
    /// Compare with an oracle, too: the default's budget spent on the chunks that dense attention itself looks at, computed in this
    /// process
    #[arg(long)]
    pub oracle: bool,
    /// Questions in flight at once; more than one makes each take longer
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// Add every answer to this file, for `eval report`
    #[arg(long, value_name = "FILE.jsonl")]
    pub save: Option<PathBuf>,
    /// Ask only what the file of --save does not answer yet: of the same model, method, question and --max-tokens
    #[arg(long, requires = "save")]
    pub resume: bool,
    /// Table and chart
    #[command(flatten)]
    pub show: ShowArgs,
}

/// How questions are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AskedAs {
    /// Context and question together
    #[default]
    Jobs,
    /// The question to a session of its context, which was encoded without it
    Sessions,
}

/// How answers are shown.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// What counts [default: benchmark; exact for files of input_context]
    #[arg(long, value_enum, value_name = "SCORE")]
    pub score: Option<Scoring>,
    /// Draw accuracy against length, an SVG
    #[arg(long, value_name = "FILE.svg")]
    pub chart: Option<PathBuf>,
    /// Exit with 8 when a method's average at a length is below
    #[arg(long, value_name = "PERCENT")]
    pub fail_below: Option<f64>,
}

/// How many questions, how long.
#[derive(Args, Debug)]
pub struct SizeArgs {
    /// Tokens of a question with context and answer, such as 4k,8k,16k
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "4k")]
    pub lengths: Vec<Tokens>,
    /// Questions of each task and length
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub samples: u64,
    /// Seed of the first question; the others count on from it
    #[arg(long, value_name = "N", default_value_t = 42, value_parser = clap::value_parser!(u64).range(..=1 << 53))]
    pub seed: u64,
    /// Prose to hide facts in; without it, prose is generated
    #[arg(long, value_name = "FILE")]
    pub haystack: Option<PathBuf>,
}

/// A suite of tasks.
#[derive(Args, Debug)]
pub struct SuiteArgs {
    /// Lengths and samples
    #[command(flatten)]
    pub size: SizeArgs,
    /// Only these tasks
    #[arg(long, value_name = "TASK,...", value_delimiter = ',')]
    pub tasks: Vec<String>,
    /// Methods, output and limits
    #[command(flatten)]
    pub run: RunArgs,
}

/// `asterism eval ruler`
#[derive(Args, Debug)]
pub struct RulerArgs {
    /// What every suite takes
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// SQuAD's JSON, for qa_1
    #[arg(long, value_name = "FILE.json")]
    pub squad: Option<PathBuf>,
    /// HotpotQA's JSON (distractor setting), for qa_2
    #[arg(long, value_name = "FILE.json")]
    pub hotpotqa: Option<PathBuf>,
}

/// `asterism eval niah`
#[derive(Args, Debug)]
pub struct NiahArgs {
    /// Lengths and samples
    #[command(flatten)]
    pub size: SizeArgs,
    /// Depths from the context's beginning to its end
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub depths: u16,
    /// Methods, output and limits
    #[command(flatten)]
    pub run: RunArgs,
}

/// `asterism eval infinitebench`
#[derive(Args, Debug)]
pub struct InfiniteArgs {
    /// What every suite takes
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// Folder with longbook_qa_eng.jsonl and longbook_choice_eng.jsonl, for qa_eng and choice_eng
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// `asterism eval report`
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Files of --save; an answer given twice counts once, the last time
    #[arg(value_name = "FILE.jsonl", required = true)]
    pub files: Vec<PathBuf>,
    /// Table and chart
    #[command(flatten)]
    pub show: ShowArgs,
}

/// What to make.
#[derive(Args, Debug)]
pub struct MakeArgs {
    /// niah_single_1, niah_multikey_1, niah_multiquery, vt, fwe, qa1, passkey and so on, or all
    pub task: String,
    /// Tokens of a context
    #[arg(long, value_name = "TOKENS", default_value = "4k")]
    pub tokens: Tokens,
    /// The same seed makes the same questions
    #[arg(long, value_name = "N", default_value_t = 42, value_parser = clap::value_parser!(u64).range(..=1 << 53))]
    pub seed: u64,
    /// Questions of each task
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub samples: u64,
    /// A text to hide facts in; without one, prose is generated
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
}
