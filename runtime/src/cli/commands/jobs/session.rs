//! `session create|list|show|ask|append|extend|drop`: contexts that are encoded once and asked many times.

use std::{
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use asterism_actors::api::{AppendRequest, Appending, SessionRequest, SessionState, SessionStatus};
use asterism_models::QuerySeparator;
use clap::{Args, Subcommand};

use super::{
    arguments::{MethodArgs, PlacementArgs},
    job::{self, GenerationArgs, SubmitArgs, WaitArgs, read_contexts, read_query, watch},
};
use crate::{
    cli::{
        output::{self, Table, lower},
        progress::{self, Progress},
    },
    client::{Client, PATIENCE},
    cluster::size::{bytes, count, grouped, span},
    error::{CliError, Exit},
    globals::{Format, Globals},
    observe::logging,
};

const STATUS_POLL: Duration = Duration::from_millis(200);

/// `asterism session`
#[derive(Debug, Subcommand)]
pub enum SessionVerb {
    /// Encode a document that stays; waits until it is ready
    Create(CreateArgs),
    /// Show all sessions
    List,
    /// Show one session: hosts, bytes, questions asked
    Show(SessionName),
    /// Ask a session; waits for the answer and shows it as it comes
    Ask(Box<AskArgs>),
    /// Append to a session's document; waits until questions see it
    Append(AppendArgs),
    /// Let a session live longer
    Extend(ExtendArgs),
    /// End a session and free what it holds
    Drop(SessionName),
}

/// A session by its name.
#[derive(Args, Debug)]
pub struct SessionName {
    /// Name of the session
    pub name: String,
}

/// `asterism session create`
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Document, or - for standard input; several are joined
    #[arg(long, value_name = "FILE", required = true)]
    pub context: Vec<String>,
    /// Name of the session: of letters, digits and the signs . - _
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Model that encodes it and answers, of several [default: the cluster's first]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// How long it lives, such as 90s, 30m, 2h, 1d [default: the cluster's]
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    pub ttl: Option<Duration>,
    /// Text between the document and each question, '' for none [default: the cluster's]
    #[arg(long, value_name = "TEXT")]
    pub query_separator: Option<QuerySeparator>,
    /// Attention
    #[command(flatten)]
    pub method: MethodArgs,
    /// Where shards go
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Take a block size that leaves context hosts without a block
    #[arg(long)]
    pub allow_idle_hosts: bool,
    /// Return while it is still being encoded
    #[arg(long)]
    pub no_wait: bool,
}

/// `asterism session ask`
#[derive(Args, Debug)]
pub struct AskArgs {
    /// Name of the session
    pub name: String,
    /// Question, or - for standard input
    pub query: String,
    /// Text between document and question, '' for none [default: the session's]
    #[arg(long, value_name = "TEXT")]
    pub query_separator: Option<QuerySeparator>,
    /// Tokens
    #[command(flatten)]
    pub generation: GenerationArgs,
    /// Waiting
    #[command(flatten)]
    pub wait: WaitArgs,
    /// Make the question and its answer a part of the session, for the questions that come
    #[arg(long, conflicts_with = "no_wait")]
    pub keep: bool,
    /// Idempotency key: the same id a second time is the same job
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
}

/// `asterism session append`
#[derive(Args, Debug)]
pub struct AppendArgs {
    /// Name of the session
    pub name: String,
    /// What follows its document, or - for standard input; several are joined
    #[arg(long, value_name = "FILE", required = true)]
    pub context: Vec<String>,
    /// Return while it is still being encoded
    #[arg(long)]
    pub no_wait: bool,
}

/// `asterism session extend`
#[derive(Args, Debug)]
pub struct ExtendArgs {
    /// Name of the session
    pub name: String,
    /// How long it lives from now on, such as 90s, 30m, 2h, 1d
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    pub ttl: Duration,
}

/// Runs a verb of the group.
pub fn run(globals: &Globals, verb: SessionVerb) -> Result<Exit, CliError> {
    if let SessionVerb::Ask(args) = verb {
        return ask(globals, *args);
    }
    logging::client(globals);
    let client = Client::find(globals)?;
    match verb {
        SessionVerb::Create(args) => create(globals, &client, &args)?,
        SessionVerb::List => {
            let sessions = progress::answered(globals, &client, Client::sessions)?;
            output::print_rows(&sessions, globals.format, table)?;
            globals.note(match sessions.first() {
                Some(session) => format!("next: asterism session ask {} \"QUESTION\"", session.name),
                None => "next: asterism session create --context FILE --name NAME".into(),
            });
        }
        SessionVerb::Show(SessionName { name }) => {
            show(globals, &progress::answered(globals, &client, |client| client.session(&name))?)?;
        }
        SessionVerb::Ask(_) => {}
        SessionVerb::Append(AppendArgs { name, context, no_wait }) => {
            let context = Some(read_contexts(&context)?.into());
            let status = append(globals, &client, &name, &AppendRequest { context, job: None }, no_wait)?;
            show(globals, &status)?;
        }
        SessionVerb::Extend(ExtendArgs { name, ttl }) => show(globals, &client.extend_session(&name, ttl)?)?,
        SessionVerb::Drop(SessionName { name }) => {
            client.drop_session(&name)?;
            globals.note(format_args!("session {name} is dropped; next: asterism session list"));
        }
    }
    Ok(Exit::Success)
}

fn create(globals: &Globals, client: &Client, args: &CreateArgs) -> Result<(), CliError> {
    let request = SessionRequest {
        name: args.name.clone(),
        context: read_contexts(&args.context)?.into(),
        model: args.model_name.clone(),
        method: args.method.resolve()?,
        allow_idle_hosts: args.allow_idle_hosts,
        chat_template: true,
        query_separator: args.query_separator.clone(),
        template_date: None,
        ttl_s: args.ttl.map(|ttl| ttl.as_secs_f64()),
        placement: args.placement.policy(),
    };
    let created = client.create_session(&request)?;
    let name = &created.name;
    watch::leaves(&format!(
        "session {name} goes on being encoded; `asterism session show {name}` says how far it is, `asterism session drop {name}` ends it"
    ));
    let status = if args.no_wait { created } else { encoded(globals, client, created)? };
    if let (SessionState::Failed, Some(error)) = (status.state, &status.error) {
        let message = format!("session {} could not be encoded: {}", status.name, error.message);
        return Err(CliError::of_code(&error.code, message)
            .hint(format!("`asterism session drop {}`, then create it anew", status.name)));
    }
    show(globals, &status)
}

/// Appends to a session, once it is ready, and waits until questions see it.
fn append(
    globals: &Globals,
    client: &Client,
    name: &str,
    request: &AppendRequest,
    no_wait: bool,
) -> Result<SessionStatus, CliError> {
    watch::leaves(&format!("nothing is appended to session {name}, which is not ready yet; append again once it is"));
    encoded(globals, client, client.session(name)?)?;
    let taken = client.append_session(name, request)?;
    watch::leaves(&format!(
        "what was appended to session {name} goes on being encoded, and questions see it once it is; `asterism session show {name}` \
         says how far it is"
    ));
    let status = if no_wait { taken } else { encoded(globals, client, taken)? };
    match &status.append_error {
        Some(error) => {
            let message = format!("nothing was appended to session {name}: {}", error.message);
            Err(CliError::of_code(&error.code, message)
                .hint(format!("the session is as it was: `asterism session show {name}`")))
        }
        None => Ok(status),
    }
}

/// Waits until the session can be asked and has grown to what it is to be, or has failed; a supervisor that is away for a while
/// is waited for.
fn encoded(globals: &Globals, client: &Client, mut status: SessionStatus) -> Result<SessionStatus, CliError> {
    let mut away: Option<Instant> = None;
    let mut progress = Progress::new(globals);
    while matches!(status.state, SessionState::Encoding | SessionState::Recovering)
        || (status.appending.is_some() && status.state != SessionState::Failed)
    {
        let (waiting, hosts) = match &status.appending {
            Some(Appending { waiting, progress, .. }) => (waiting, progress),
            None => (&status.waiting, &status.progress),
        };
        progress.waiting(waiting.as_ref());
        if waiting.is_none() && !hosts.is_empty() {
            progress.hosts(hosts);
        }
        thread::sleep(STATUS_POLL);
        match client.session(&status.name) {
            Ok(seen) => (status, away) = (seen, None),
            Err(error) if error.exit != Exit::Unreachable || !client.may_come_back() => return Err(error),
            Err(error) => match away {
                None => {
                    globals.note(format_args!("{} does not answer; waiting for it to come back", client.base()));
                    away = Some(Instant::now());
                }
                Some(since) if since.elapsed() > PATIENCE => return Err(error),
                Some(_) => {}
            },
        }
    }
    progress.clear();
    Ok(status)
}

fn ask(globals: &Globals, args: AskArgs) -> Result<Exit, CliError> {
    let AskArgs { name, query, query_separator, generation, wait, keep, id } = args;
    let query = read_query(&query, &format!("asterism session ask {name} \"QUESTION\""))?;
    let id = id.or_else(|| keep.then(own_id));
    let kept = id.clone().filter(|_| keep).map(|id| (name.clone(), id));
    let submit = SubmitArgs {
        model_name: None,
        context: Vec::new(),
        session: Some(name),
        query: Some(query),
        input: None,
        query_separator,
        method: MethodArgs::default(),
        generation,
        wait,
        id,
        labels: Vec::new(),
        placement: PlacementArgs::default(),
        allow_idle_hosts: false,
        cache_salt: None,
        dry_run: false,
    };
    let exit = job::run(globals, job::JobVerb::Submit(Box::new(submit)))?;
    if let Some((name, job)) = kept.filter(|_| matches!(exit, Exit::Success)) {
        let request = AppendRequest { context: None, job: Some(job) };
        let status = append(globals, &Client::find(globals)?, &name, &request, false)?;
        globals.note(format_args!("session {name} has {} now", count(status.context_tokens, "token")));
    }
    Ok(exit)
}

/// An id for a job that is looked up again.
fn own_id() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("ask-{:x}-{:x}", std::process::id(), since.as_nanos())
}

fn show(globals: &Globals, status: &SessionStatus) -> Result<(), CliError> {
    if globals.format != Format::Table {
        return output::print_json(status, globals.format);
    }
    let mut lines = vec![
        ("session", status.name.clone()),
        ("state", lower(&status.state)),
        ("method", status.method.clone()),
        ("context", count(status.context_tokens, "token")),
        ("not encoded again", count(status.cached_tokens, "token")),
        ("kv", bytes(status.kv_bytes)),
        ("questions", grouped(status.hits as usize)),
        ("encoding", format!("{:.2} s", status.encode_s)),
        ("ends in", span(status.expires_s)),
    ];
    let appending =
        |appending: &Appending| ("appending", format!("up to {}", count(appending.context_tokens, "token")));
    lines.extend(status.appending.iter().map(appending));
    let failed = status.append_error.iter();
    lines.extend(failed.map(|error| ("not appended", format!("{} ({})", error.message, error.code))));
    lines.extend(status.error.iter().map(|error| ("error", format!("{} ({})", error.message, error.code))));
    output::print_pairs(&lines)?;
    if !status.hosts.is_empty() {
        let mut table = Table::new(["HOST", "SHARDS", "TOKENS", "KV"]);
        for host in &status.hosts {
            table.row([host.host.clone(), host.shards.to_string(), grouped(host.kept_tokens), bytes(host.kv_bytes)]);
        }
        output::print(&format!("\n{table}"))?;
    }
    globals.note(match status.state {
        SessionState::Failed => format!("next: asterism session drop {}", status.name),
        _ => format!("next: asterism session ask {} \"QUESTION\"", status.name),
    });
    Ok(())
}

fn table(sessions: &[SessionStatus]) -> Table {
    let mut table = Table::new(["SESSION", "STATE", "METHOD", "TOKENS", "KV", "ASKED", "ENCODE S", "ENDS IN"]);
    for session in sessions {
        table.row([
            session.name.clone(),
            lower(&session.state),
            session.method.clone(),
            grouped(session.context_tokens),
            bytes(session.kv_bytes),
            session.hits.to_string(),
            format!("{:.2}", session.encode_s),
            span(session.expires_s),
        ]);
    }
    table
}

/// A duration typed with its unit; a bare number counts seconds.
pub fn lifetime(text: &str) -> Result<Duration, String> {
    let refusal = || format!("'{text}' is not a time; write 90s, 30m, 2h or 1d");
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let seconds = match unit {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(refusal()),
    };
    let number: f64 = number.trim().parse().map_err(|_| refusal())?;
    Duration::try_from_secs_f64(number * seconds).ok().filter(|time| !time.is_zero()).ok_or_else(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_units() {
        let seconds = ["90s", "90", "1.5m", "2h", "1d"].map(|text| lifetime(text).unwrap().as_secs());
        assert_eq!(seconds, [90, 90, 90, 7200, 86400]);
        for wrong in ["", "h", "-2h", "2y", "0s", "1h30"] {
            assert!(lifetime(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_list_fits_100_columns() {
        let session: SessionStatus = serde_json::from_value(serde_json::json!({
            "name": "moby-dick", "state": "recovering", "method": "pulsar", "context_tokens": 131_072, "hosts": [],
            "kv_bytes": 987_654_321_u64, "hits": 1234, "encode_s": 12.345, "expires_s": 7100.0,
        }))
        .unwrap();
        let text = table(&[session]).to_string();
        insta::assert_snapshot!(text, @r"
        SESSION    STATE       METHOD   TOKENS         KV  ASKED  ENCODE S     ENDS IN
        moby-dick  recovering  pulsar  131,072  941.9 MiB   1234     12.35  1 h 58 min
        ");
        assert!(text.lines().all(|line| line.chars().count() <= 100));
    }
}
