//! One frame of `top`: what is known as tables. Asks nobody.

use std::{collections::BTreeMap, time::Instant};

use asterism_actors::api::{ClusterStatus, GpuStatus, HostHealth, HostStatus, JobStatus, ModelStatus, SessionStatus};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::Line,
    widgets::{Block, Borders, Cell, Paragraph, Row, Table},
};

use crate::{cluster::size::bytes, globals::printable};

/// What is shown.
#[derive(Clone, Debug)]
pub struct Look {
    /// Hosts, and how many jobs there are.
    pub cluster: ClusterStatus,
    /// Jobs that wait or run, newest first.
    pub jobs: Vec<JobStatus>,
    /// Sessions.
    pub sessions: Vec<SessionStatus>,
    /// Why it is not how things are now.
    pub trouble: Option<String>,
}

/// Tokens that jobs generate a second, from one look to the next.
#[derive(Debug, Default)]
pub struct Rates {
    seen: BTreeMap<String, (usize, Instant)>,
    per_second: BTreeMap<String, f64>,
}

impl Rates {
    /// Takes a look in; jobs that are gone are forgotten.
    pub fn see(&mut self, jobs: &[JobStatus], now: Instant) {
        let before = std::mem::take(&mut self.seen);
        self.per_second.clear();
        for JobStatus { id, generated_tokens, .. } in jobs {
            if let Some((tokens, then)) = before.get(id) {
                let passed = now.saturating_duration_since(*then).as_secs_f64();
                let more = generated_tokens.saturating_sub(*tokens) as f64;
                self.per_second.insert(id.clone(), if passed > 0.0 { more / passed } else { 0.0 });
            }
            self.seen.insert(id.clone(), (*generated_tokens, now));
        }
    }

    fn of(&self, id: &str) -> String {
        self.per_second.get(id).map_or("-".into(), |rate| format!("{rate:.1}"))
    }
}

/// Draws all of it.
pub fn draw(frame: &mut Frame, look: &Look, rates: &Rates) {
    let height = frame.area().height;
    let hosts = (look.cluster.hosts.len() as u16 + 3).min(height / 2);
    let sessions = if look.sessions.is_empty() { 0 } else { (look.sessions.len() as u16 + 3).min(8) };
    // Hosts and jobs are what one looks for first.
    let sessions = if height < HEAD + hosts + JOBS_HEIGHT + sessions + 1 { 0 } else { sessions };
    let gpus = if look.cluster.gpus.is_empty() { 0 } else { (look.cluster.gpus.len() as u16 + 3).min(height / 4) };
    let gpus = if height < HEAD + hosts + JOBS_HEIGHT + sessions + gpus + 1 { 0 } else { gpus };
    let areas = Layout::vertical([
        Constraint::Length(HEAD),
        Constraint::Length(hosts),
        Constraint::Length(gpus),
        Constraint::Min(if sessions > 0 { JOBS_HEIGHT } else { 0 }),
        Constraint::Length(sessions),
        Constraint::Length(1),
    ]);
    let [head, of_hosts, of_gpus, of_jobs, of_sessions, foot] = areas.areas(frame.area());
    self::head(frame, head, look);
    table(frame, of_hosts, "hosts", HOSTS, look.cluster.hosts.iter().map(host));
    if gpus > 0 {
        table(frame, of_gpus, "gpus", GPUS, look.cluster.gpus.iter().map(gpu));
    }
    table(frame, of_jobs, "jobs", JOBS_SHOWN, look.jobs.iter().map(|status| job(status, rates)));
    if sessions > 0 {
        table(frame, of_sessions, "sessions", SESSIONS, look.sessions.iter().map(session));
    }
    frame.render_widget(Paragraph::new("q: quit"), foot);
}

fn head(frame: &mut Frame, area: Rect, look: &Look) {
    let ClusterStatus { name, method, ready, jobs_running, jobs_pending, version, .. } = &look.cluster;
    let model = models(&look.cluster);
    let state = if *ready { "ready" } else { "not ready" };
    let first = format!("{name}: {state}, {model}, {method}, asterism {version}");
    let second = match &look.trouble {
        Some(trouble) => format!("as it was last seen: {trouble}"),
        None => format!("{jobs_running} running, {jobs_pending} waiting"),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let lines = vec![Line::styled(printable(&first).into_owned(), bold), Line::from(printable(&second).into_owned())];
    frame.render_widget(Paragraph::new(lines), area);
}

/// The names of its models, and which of several do not answer.
fn models(cluster: &ClusterStatus) -> String {
    let shown = |ModelStatus { name, answers, .. }: &ModelStatus| match answers {
        true => name.clone(),
        false => format!("{name} (does not answer)"),
    };
    match &cluster.models[..] {
        [] => cluster.model.clone(),
        models => models.iter().map(shown).collect::<Vec<_>>().join(", "),
    }
}

/// Lines at the top, and those of jobs that are worth showing sessions beside.
const HEAD: u16 = 2;
const JOBS_HEIGHT: u16 = 4;

/// Name, width, and how soon a column goes where there is no room for all: the largest number first.
type Columns = &'static [(&'static str, u16, u8)];

const HOSTS: Columns = &[
    ("HOST", 20, 0),
    ("ROLE", 8, 4),
    ("STATE", 9, 0),
    ("SHARDS", 6, 2),
    ("KV", 10, 3),
    ("THREADS", 7, 6),
    ("HEARD", 7, 5),
    ("CAUSE", 20, 1),
];
const GPUS: Columns = &[
    ("GPU", 6, 0),
    ("NODE", 12, 2),
    ("BUSY", 5, 0),
    ("MEMORY", 19, 3),
    ("TEMP", 6, 1),
    ("CLOCK", 9, 5),
    ("NAME", 20, 6),
    ("ERRORS", 20, 0),
];
const JOBS_SHOWN: Columns = &[
    ("JOB", 36, 0),
    ("PHASE", 10, 0),
    ("METHOD", 9, 6),
    ("CONTEXT", 8, 5),
    ("TOKENS", 7, 1),
    ("TOK/S", 7, 3),
    ("SECONDS", 8, 2),
    ("WAITS FOR", 20, 4),
];
const SESSIONS: Columns =
    &[("SESSION", 20, 0), ("STATE", 10, 0), ("METHOD", 9, 3), ("CONTEXT", 8, 2), ("KV", 10, 1), ("ASKED", 6, 4)];

/// The places of the columns that fit into a width.
fn fitting(columns: Columns, width: u16) -> Vec<usize> {
    let mut places: Vec<usize> = (0..columns.len()).collect();
    let wide = |places: &[usize]| places.iter().map(|at| columns[*at].1 + 1).sum::<u16>() > width + 1;
    while wide(&places)
        && let Some(least) = places.iter().copied().filter(|at| columns[*at].2 > 0).max_by_key(|at| columns[*at].2)
    {
        places.retain(|at| *at != least);
    }
    places
}

fn table(
    frame: &mut Frame,
    area: Rect,
    title: &'static str,
    columns: Columns,
    rows: impl Iterator<Item = Vec<String>>,
) {
    let places = fitting(columns, area.width);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let header = Row::new(places.iter().map(|at| columns[*at].0)).style(bold);
    // What clients named, a terminal must not obey.
    let cell = |text: &String| Cell::from(printable(text).into_owned());
    let cells = |row: Vec<String>| Row::new(places.iter().map(|at| cell(&row[*at])).collect::<Vec<_>>());
    let widths = places.iter().map(|at| match at + 1 == columns.len() {
        true => Constraint::Min(columns[*at].1),
        false => Constraint::Length(columns[*at].1),
    });
    let table = Table::new(rows.map(cells), widths).header(header);
    frame.render_widget(table.block(Block::new().borders(Borders::TOP).title(title)), area);
}

fn host(host: &HostStatus) -> Vec<String> {
    let lower = |text: String| text.to_lowercase();
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let cause = if host.health == HostHealth::Ready { host.slow.clone() } else { host.explained() };
    vec![
        host.name.clone(),
        lower(format!("{:?}", host.role)),
        lower(format!("{:?}", host.health)),
        host.shards.to_string(),
        bytes(host.kv_bytes),
        known(host.threads.map(|threads| threads.to_string())),
        known(host.heartbeat_age_s.map(|age| format!("{age:.1} s"))),
        cause.unwrap_or_default(),
    ]
}

fn gpu(GpuStatus { node, gpu }: &GpuStatus) -> Vec<String> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let memory = gpu.used_bytes.zip(gpu.free_bytes);
    vec![
        gpu.index.to_string(),
        node.clone(),
        known(gpu.busy_percent.map(|percent| format!("{percent}%"))),
        known(memory.map(|(used, free)| format!("{} of {}", bytes(used), bytes(used.saturating_add(free))))),
        known(gpu.celsius.map(|celsius| format!("{celsius} C"))),
        known(gpu.sm_mhz.map(|mhz| format!("{mhz} MHz"))),
        gpu.name.clone(),
        gpu.errors().unwrap_or_default(),
    ]
}

fn job(status: &JobStatus, rates: &Rates) -> Vec<String> {
    let phase = status.phase.map_or_else(|| format!("{:?}", status.state), |phase| format!("{phase:?}"));
    vec![
        status.id.clone(),
        phase.to_lowercase(),
        status.method.clone(),
        status.context_tokens.to_string(),
        status.generated_tokens.to_string(),
        rates.of(&status.id),
        format!("{:.1}", status.timings.total_s),
        status.waiting.as_ref().map(ToString::to_string).unwrap_or_default(),
    ]
}

fn session(session: &SessionStatus) -> Vec<String> {
    vec![
        session.name.clone(),
        format!("{:?}", session.state).to_lowercase(),
        session.method.clone(),
        session.context_tokens.to_string(),
        bytes(session.kv_bytes),
        session.hits.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::{Terminal, backend::TestBackend};
    use serde_json::{Value, json};

    use super::*;

    fn host(name: &str, role: &str, health: &str, cause: Value) -> Value {
        json!({
            "name": name, "role": role, "device": "cpu", "health": health, "pid": 7, "address": null, "heartbeat_age_s": 0.25,
            "threads": 2, "kv_bytes": 1_572_864, "shards": 3, "cause": cause,
        })
    }

    fn job(id: &str, generated: usize) -> JobStatus {
        let timings =
            json!({"queue_s": 0.0, "encode_s": 1.0, "query_s": 0.1, "decode_s": 0.5, "total_s": 1.6, "hosts": []});
        let status = json!({
            "id": id, "state": "RUNNING", "phase": "decoding", "method": "pulsar", "model": "m", "context_tokens": 12_000,
            "query_tokens": 9, "generated_tokens": generated, "text": "", "tokens": [], "timings": timings,
        });
        serde_json::from_value(status).unwrap()
    }

    fn look() -> Look {
        let hosts = [
            host("context-0", "context", "ready", Value::Null),
            host("context-1", "context", "dead", json!("its process\u{1b}[2J ended")),
            host("query-0", "query", "ready", Value::Null),
        ];
        let cluster = json!({
            "name": "harbour", "model": "asterism-7m", "method": "auto", "version": "0.1.0", "ready": false, "hosts": hosts,
            "jobs_pending": 1, "jobs_running": 2,
        });
        let mut waiting = job("waits", 0);
        waiting.phase = Some(asterism_actors::api::JobPhase::Queued);
        waiting.waiting = Some(asterism_actors::api::Waiting::Turn { before: 2, running: 1 });
        let session = json!({
            "name": "whale", "state": "ready", "method": "pulsar", "context_tokens": 4096, "hosts": [], "kv_bytes": 4096, "hits": 3,
            "encode_s": 1.0, "expires_s": 60.0,
        });
        Look {
            cluster: serde_json::from_value(cluster).unwrap(),
            jobs: vec![job("job-a", 30), waiting],
            sessions: vec![serde_json::from_value(session).unwrap()],
            trouble: None,
        }
    }

    fn shown(look: &Look, rates: &Rates, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, look, rates)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn gpus_and_models_are_shown_where_there_are_several() {
        let mut look = look();
        let gpu = json!({"node": "west", "index": 0, "name": "NVIDIA H100", "uuid": "GPU-1", "busy_percent": 97, "celsius": 61,
            "used_bytes": 1 << 30, "free_bytes": 1 << 30, "sm_mhz": 1980, "uncorrected_errors": 2, "xids": 1, "last_xid": 79});
        look.cluster.gpus = vec![serde_json::from_value(gpu).unwrap()];
        let model = |name: &str, answers| ModelStatus { name: name.into(), digest: None, answers };
        look.cluster.models = vec![model("asterism-7m", true), model("next", false)];
        let frame = shown(&look, &Rates::default(), (120, 30));
        for part in [
            "asterism-7m, next (does not answer), auto",
            "0      west         97%   1.0 GiB of 2.0 GiB  61 C",
            "1980 MHz  NVIDIA H100          2 uncorrected ECC errors, Xid 79",
        ] {
            assert!(frame.contains(part), "{part}\n{frame}");
        }
        let small = shown(&look, &Rates::default(), (60, 12));
        assert!(!small.contains("gpus"), "hosts and jobs go first\n{small}");
    }

    #[test]
    fn a_frame_shows_hosts_jobs_and_sessions() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        rates.see(&[job("job-a", 10)], now);
        rates.see(&look().jobs, now + Duration::from_secs(2));
        insta::assert_snapshot!(shown(&look(), &rates, (120, 20)));
    }

    #[test]
    fn what_matters_is_there_on_a_terminal_of_60_columns_and_12_lines() {
        let text = shown(&look(), &Rates::default(), (60, 12));
        for host in &look().cluster.hosts {
            let line = text.lines().find(|line| line.starts_with(&host.name)).expect("each host has a line");
            assert!(line.contains(&format!("{:?}", host.health).to_lowercase()), "{text}");
        }
        let job = text.lines().find(|line| line.starts_with("job-a")).expect("and so has a job");
        assert!(job.contains("decoding") && job.contains("30"), "{text}");
        assert!(text.contains("CAUSE") && text.contains("TOKENS") && !text.contains("THREADS"), "{text}");
        let all = |columns: Columns, width| fitting(columns, width).len() == columns.len();
        assert!(all(HOSTS, 120) && all(JOBS_SHOWN, 120) && all(SESSIONS, 120));
    }

    #[test]
    fn a_small_terminal_and_a_cluster_that_is_gone_are_shown_too() {
        let lost = Look { trouble: Some("no cluster answers".into()), ..look() };
        for size in [(120, 20), (40, 12), (20, 5), (1, 1)] {
            let text = shown(&lost, &Rates::default(), size);
            assert!(!text.contains('\u{1b}'), "{text}");
            assert!(size.0 < 40 || text.contains("as it was last seen: no cluster"), "{text}");
        }
    }
}
