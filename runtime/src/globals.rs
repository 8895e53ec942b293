//! The options of every verb, resolved: which cluster file, which server, how to speak. Opens no connection.

use std::{
    borrow::Cow,
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};

use crate::{
    cluster::{
        Cluster,
        file::{self as cluster_file, ClusterFile, FileError, anchored},
        size::seconds,
    },
    error::CliError,
};

/// The cluster file looked for when none is named.
pub const DEFAULT_FILE: &str = "cluster.toml";

/// Options of every verb, which `-h` leaves to `--help`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every command")]
pub struct GlobalArgs {
    /// Cluster file [default: cluster.toml here, if there is one]
    #[arg(short = 'f', long = "file", global = true, hide_short_help = true, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What goes to standard output
    #[arg(short = 'o', long = "output", global = true, hide_short_help = true, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Admin API to talk to [env: ASTERISM_SERVER] [default: the running cluster of the cluster file]
    #[arg(long, global = true, hide_short_help = true, value_name = "URL")]
    pub server: Option<String>,
    /// File whose first line is the admin API's token; for `node`, its join token
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM file of the authorities that an admin API at https:// is proved by [default: the cluster file's own certificate]
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Folder that relative paths of the cluster file start from [default: the file's own]
    #[arg(long, global = true, hide = true, value_name = "FOLDER")]
    pub beside: Option<PathBuf>,
    /// Only results and errors
    #[arg(short, long, global = true, hide_short_help = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// More of what happens, on standard error; twice for debugging
    #[arg(short, long, global = true, hide_short_help = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Colour on terminals; NO_COLOR is honoured
    #[arg(long, global = true, hide_short_help = true, value_enum, default_value_t = ColorChoice::Auto)]
    pub color: ColorChoice,
    /// Seconds to wait for an answer of the admin API
    #[arg(long, global = true, hide_short_help = true, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub request_timeout: Duration,
}

/// What goes to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[value(alias = "text")]
    Table,
    /// One JSON value
    Json,
    /// One JSON value a line
    Jsonl,
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On terminals
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The options of every verb, resolved.
#[derive(Clone, Debug)]
pub struct Globals {
    /// The cluster file named with `-f`.
    pub file: Option<PathBuf>,
    /// What goes to standard output.
    pub format: Format,
    /// The admin API named with `--server` or `ASTERISM_SERVER`.
    pub server: Option<String>,
    /// The file of the admin API's token, or of a node's join token.
    pub token_file: Option<PathBuf>,
    /// The file of the authorities that an admin API is proved by.
    pub cacert: Option<PathBuf>,
    /// Where relative paths of the cluster file start, if not beside it.
    pub beside: Option<PathBuf>,
    /// Only results and errors.
    pub quiet: bool,
    /// 0 to 2.
    pub verbose: u8,
    /// Colour on standard error.
    pub color_stderr: bool,
    /// How long to wait for an answer of the admin API.
    pub request_timeout: Duration,
}

impl Globals {
    /// Looks at the environment and the terminal.
    pub fn resolve(args: &GlobalArgs) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let color_stderr = match args.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => io::stderr().is_terminal() && !no_color,
        };
        Self {
            file: args.file.clone(),
            format: args.output,
            server: args.server.clone().or_else(|| std::env::var("ASTERISM_SERVER").ok().filter(|url| !url.is_empty())),
            token_file: args.token_file.clone(),
            cacert: args.cacert.clone(),
            beside: args.beside.clone(),
            quiet: args.quiet,
            verbose: args.verbose,
            color_stderr,
            request_timeout: args.request_timeout,
        }
    }

    /// The cluster file of this call, which must exist.
    pub fn cluster(&self) -> Result<Cluster, CliError> {
        self.read_cluster().map(|read| read.cluster)
    }

    /// The same with its text.
    pub fn read_cluster(&self) -> Result<ReadFile, CliError> {
        let path = self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        let directory = self.beside.clone().unwrap_or_else(|| directory_of(path));
        let text = read(path)?;
        let cluster = resolve(path, &typed(path, &text)?, &directory)?;
        Ok(ReadFile { cluster, text, directory })
    }

    /// The cluster file of this call, or `None` when none is named and none is here.
    pub fn cluster_if_any(&self) -> Result<Option<Cluster>, CliError> {
        match &self.file {
            None if !Path::new(DEFAULT_FILE).exists() => Ok(None),
            _ => self.cluster().map(Some),
        }
    }

    /// The same as typed, its paths absolute.
    pub fn typed_cluster_if_any(&self) -> Result<Option<ClusterFile>, CliError> {
        let path = self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        match &self.file {
            None if !path.exists() => Ok(None),
            _ => Ok(Some(anchored(typed(path, &read(path)?)?, &directory_of(path)))),
        }
    }

    /// Refuses `-o json` of a command whose `result` has a form of its own, which is no JSON.
    pub fn refuse_json(&self, command: &str, result: &str) -> Result<(), CliError> {
        if self.format == Format::Table {
            return Ok(());
        }
        let format = self.format.to_possible_value();
        let format = format.as_ref().map_or("json", |format| format.get_name());
        Err(CliError::usage(format!("`asterism {command}` has no -o {format}: {result}")).hint("leave -o out"))
    }

    /// A line for the person at the terminal, on standard error.
    pub fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            // Nobody reads it on a full disk.
            let _ = writeln!(io::stderr(), "{}", printable(&text.to_string()));
        }
    }
}

/// A cluster file as one look at it found it.
#[derive(Debug)]
pub struct ReadFile {
    /// What it says, with the overrides of the environment.
    pub cluster: Cluster,
    /// As it stands.
    pub text: String,
    /// Where its relative paths start.
    pub directory: PathBuf,
}

/// Reads, types and resolves a cluster file, with the overrides of the environment.
pub fn load(path: &Path) -> Result<Cluster, CliError> {
    resolve(path, &typed(path, &read(path)?)?, &directory_of(path))
}

/// Types and resolves the text of a cluster file whose relative paths start in `directory`, with the overrides of the environment.
pub fn resolved(text: &str, directory: &Path) -> Result<Cluster, CliError> {
    let path = Path::new("the new cluster file");
    resolve(path, &typed(path, text)?, directory)
}

/// The text as it stands: what the environment of this process overrides is its own, and not for other machines.
pub fn as_typed(text: &str) -> Result<ClusterFile, FileError> {
    cluster_file::parse(text, std::env::vars().filter(|(name, _)| name == "HOME"))
}

fn resolve(path: &Path, file: &ClusterFile, directory: &Path) -> Result<Cluster, CliError> {
    Cluster::resolve(file, directory).map_err(|error| {
        CliError::usage(format!("{}: {error}", path.display())).hint("correct the file, then `asterism validate`")
    })
}

fn directory_of(path: &Path) -> PathBuf {
    let directory = path.parent().unwrap_or(Path::new(""));
    std::path::absolute(directory.join(".")).unwrap_or_else(|_| directory.to_owned())
}

fn read(path: &Path) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|error| {
        let message = match error.kind() {
            io::ErrorKind::NotFound => format!("there is no cluster file {}", path.display()),
            io::ErrorKind::InvalidData => format!("{} is not UTF-8 text", path.display()),
            _ => format!("cannot read {}: {error}", path.display()),
        };
        CliError::usage(message).hint("`asterism init > cluster.toml` makes one; -f FILE names another")
    })
}

fn typed(path: &Path, text: &str) -> Result<ClusterFile, CliError> {
    cluster_file::parse(text, std::env::vars()).map_err(|error| {
        CliError::usage(format!("{}: {error}", path.display()))
            .hint("correct it, then `asterism validate`; `asterism config default` prints every section")
    })
}

/// The first line of a token file.
pub fn read_token(path: &Path) -> Result<String, CliError> {
    let text = fs::read_to_string(path)
        .map_err(|error| CliError::usage(format!("cannot read the token file {}: {error}", path.display())))?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(token.to_owned()),
        _ => Err(CliError::usage(format!("the token file {} is empty; its first line is the token", path.display()))),
    }
}

/// Text whose control characters, and those that turn the direction of others, are written out as `\u001b`; lines and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let controls = |c: char| {
        c.is_control() && c != '\n' && c != '\t'
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(controls) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| match controls(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escaped).collect())
}
