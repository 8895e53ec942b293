//! The admin API from the outside: what commands ask a running cluster. Blocking; prints nothing.

mod cluster;
mod events;
mod following;
pub mod hub;
pub(crate) mod path;
mod tls;

use std::{
    io::{BufRead, BufReader},
    net::{IpAddr, UdpSocket},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use asterism_actors::api::{ClusterStatus, JobEvent, JobRequest, JobState, JobStatus};
use serde::{Serialize, de::DeserializeOwned};
use ureq::{Agent, Body, RequestBuilder, http::Response};

use crate::{
    api::admin::{self, CLUSTER, ErrorEnvelope, MAX_LISTED, PLACE},
    cluster::{Cluster, file::ApiSection},
    data_dir::{self, ServerRecord, place::Place},
    error::{CliError, Exit},
    globals::Globals,
};
pub use following::{Following, PATIENCE, new_id};
use path::segment;
pub use tls::{Trust, agent, tls_failure};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer read into memory: a list of jobs with their answers.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// The admin API of one cluster. Where several supervisors may lead it, all of them are named; the one that does is followed.
#[derive(Clone, Debug)]
pub struct Client {
    bases: Arc<[String]>,
    /// The one that answered last.
    at: Arc<AtomicUsize>,
    token: Option<String>,
    /// The cluster that it is to be, where a cluster file names one.
    cluster: Option<String>,
    /// Where that one keeps what it keeps, where nobody is known to run it: another of its name is not to answer for it.
    place: Option<Place>,
    request_timeout: Duration,
    agent: Agent,
    /// Whether it ever answered.
    answered: Arc<AtomicBool>,
    /// Whether it answered last that it is another cluster's.
    is_others: Arc<AtomicBool>,
    /// The data_dir of the `up` that starts the supervisor again, where one does.
    kept_in: Option<PathBuf>,
}

impl Client {
    /// The server named on the command line, else the one that runs the cluster file, else where that would listen.
    pub fn find(globals: &Globals) -> Result<Self, CliError> {
        // A server that is named is meant, whatever cluster file lies here; one that is named as well is meant too.
        let named = globals.server.is_none() || globals.file.is_some();
        let cluster = if named { globals.cluster_if_any()? } else { None };
        let (base, place) = match (&globals.server, &cluster) {
            (Some(url), _) => (url.clone(), None),
            (None, Some(cluster)) => match data_dir::served(&cluster.data_dir) {
                Some(record) => (record.url(), None),
                None => (data_dir::admin_url(cluster.admin_listen, cluster.admin_tls.is_some()), Place::of(cluster)),
            },
            (None, None) => (format!("http://{}", ApiSection::default().admin_listen), None),
        };
        let own = cluster.as_ref().and_then(|cluster| cluster.admin_tls.clone());
        let token_file = cluster.as_ref().and_then(|cluster| cluster.security.token_file.as_deref());
        let token = globals.token_file.as_deref().or(token_file).map(crate::globals::read_token).transpose()?;
        let meant = cluster.as_ref().map(|cluster| cluster.name.clone());
        let kept_in = cluster
            .filter(|_| globals.server.is_none())
            .map(|cluster| cluster.data_dir)
            .filter(|folder| data_dir::keeper(folder).is_some());
        let trust = match (&globals.cacert, own) {
            (Some(path), _) => Some(Trust::authorities(path)?),
            (None, Some(files)) => Some(Trust::shown(&files.cert)?),
            (None, None) => None,
        };
        let client = Self::trusting(&base, token, (globals.request_timeout, trust))?;
        Ok(Self { kept_in, cluster: meant, place, ..client })
    }

    /// The server of a cluster that runs here.
    pub fn of(
        cluster: &Cluster,
        record: &ServerRecord,
        token: Option<String>,
        request_timeout: Duration,
    ) -> Result<Self, CliError> {
        let trust = cluster.admin_tls.as_ref().map(|files| Trust::shown(&files.cert)).transpose()?;
        Self::trusting(&record.url(), token, (request_timeout, trust))
    }

    /// The server at `url`, which speaks plain HTTP.
    pub fn new(url: &str, token: Option<String>, request_timeout: Duration) -> Result<Self, CliError> {
        Self::trusting(url, token, (request_timeout, None))
    }

    fn trusting(
        url: &str,
        token: Option<String>,
        (request_timeout, trust): (Duration, Option<Trust>),
    ) -> Result<Self, CliError> {
        let base = |url: &str| {
            let base = url.trim().trim_end_matches('/');
            if base.contains("://") { base.to_owned() } else { format!("http://{base}") }
        };
        let bases: Arc<[String]> = url.split(',').map(base).collect();
        let known = |base: &String| ["http://", "https://"].iter().any(|scheme| base.starts_with(scheme));
        if !bases.iter().all(known) {
            return Err(CliError::usage(format!("--server {url}: the admin API speaks HTTP"))
                .hint("write http://ADDRESS:PORT, or https://NAME:PORT"));
        }
        if bases.iter().any(|base| base.starts_with("https://")) && trust.is_none() {
            return Err(CliError::usage(format!("--server {url}: nobody is trusted there yet"))
                .hint("name the authority of its certificate with --cacert FILE, or its cluster file with -f FILE"));
        }
        let config = Agent::config_builder().http_status_as_error(false).timeout_connect(Some(CONNECT_TIMEOUT));
        let (at, cluster, place, kept_in) = Default::default();
        let (agent, answered, is_others) = (tls::agent(config.build(), trust.as_ref()), Arc::default(), Arc::default());
        Ok(Self { bases, at, token, cluster, place, request_timeout, agent, answered, is_others, kept_in })
    }

    /// Whether a server that does not answer now may do so soon: `up` keeps it, or somebody else whom we do not know.
    pub fn may_come_back(&self) -> bool {
        match &self.kept_in {
            Some(folder) => data_dir::keeper(folder).is_some(),
            None => self.has_answered() && !self.is_others.load(Ordering::SeqCst),
        }
    }

    /// Whether anybody ever answered there.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Ordering::SeqCst)
    }

    /// The same server, asked with another patience.
    pub fn with_request_timeout(&self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self.clone() }
    }

    /// Where it is.
    pub fn base(&self) -> &str {
        &self.bases[self.at.load(Ordering::Relaxed) % self.bases.len()]
    }

    /// Asks the supervisor that answered last, and where it does not lead or is not there the others in turn.
    fn asked(&self, ask: impl Fn(&str) -> Result<Response<Body>, ureq::Error>) -> Result<Response<Body>, CliError> {
        let mut others = self.bases.len() - 1;
        loop {
            let asked = ask(self.base()).map_err(|error| (never_reached(&error), self.failed(&error)));
            let error = match asked.and_then(|answer| self.checked(answer)) {
                Ok(answer) => return Ok(answer),
                Err((elsewhere, error)) if elsewhere && others > 0 => error,
                Err((_, error)) => {
                    if matches!(error.exit, Exit::Unreachable | Exit::TimedOut) {
                        self.next();
                    }
                    return Err(error);
                }
            };
            tracing::debug!(%error, "another supervisor is asked");
            others -= 1;
            self.next();
        }
    }

    fn next(&self) {
        self.at.fetch_add(1, Ordering::Relaxed);
    }

    /// The cluster.
    pub fn topology(&self) -> Result<ClusterStatus, CliError> {
        self.get("/api/v1/topology")
    }

    /// Jobs in some states, or in any, newest first; at most `most`.
    pub fn jobs(&self, states: &[JobState], most: usize) -> Result<Vec<JobStatus>, CliError> {
        let states: Vec<String> = states.iter().map(|state| format!("{state:?}").to_lowercase()).collect();
        let mut jobs: Vec<JobStatus> = Vec::new();
        loop {
            let limit = MAX_LISTED.min(most - jobs.len());
            let after = jobs.last().map_or(String::new(), |job| format!("&after={}", job.id));
            let path = format!("/api/v1/jobs?limit={limit}&state={}{after}", states.join(","));
            let part: Vec<JobStatus> = if limit > 0 { self.get(&path)? } else { Vec::new() };
            let last = part.len() < limit;
            jobs.extend(part);
            if last || jobs.len() >= most {
                return Ok(jobs);
            }
        }
    }

    /// One job.
    pub fn job(&self, id: &str) -> Result<JobStatus, CliError> {
        self.get(&format!("/api/v1/jobs/{}", segment(id)?))
    }

    /// Submits a job; returns its id.
    pub fn submit(&self, request: &JobRequest) -> Result<String, CliError> {
        let submitted: admin::Submitted = self.post("/api/v1/jobs", request)?;
        Ok(submitted.id)
    }

    /// Cancels a job.
    pub fn cancel(&self, id: &str) -> Result<JobStatus, CliError> {
        self.post(&format!("/api/v1/jobs/{}/cancel", segment(id)?), &())
    }

    /// Asks the supervisor to end the cluster.
    pub fn shutdown(&self) -> Result<(), CliError> {
        self.post::<serde_json::Value>("/api/v1/shutdown", &()).map(drop)
    }

    /// What happens to a job, from its beginning to `Finished`.
    pub fn events(&self, id: &str) -> Result<impl Iterator<Item = Result<JobEvent, CliError>> + use<>, CliError> {
        let path = format!("/api/v1/jobs/{}/events", segment(id)?);
        let answer = self.asked(|base| self.bearing(self.agent.get(format!("{base}{path}"))).call())?;
        let lost = self.clone();
        let lines = BufReader::new(answer.into_body().into_with_config().limit(u64::MAX).reader()).lines();
        // An empty line says that the stream lives.
        let lines = lines.filter(|line| !line.as_ref().is_ok_and(String::is_empty));
        Ok(lines.map(move |line| match line {
            // Asking again would bring the same.
            Ok(line) => {
                serde_json::from_str(&line).map_err(|error| CliError { exit: Exit::JobFailed, ..lost.garbled(&error) })
            }
            Err(error) => Err(CliError::unreachable(format!("the connection to {} broke: {error}", lost.base()))
                .hint("the job goes on: `asterism job list`, if the supervisor still runs")),
        }))
    }

    /// What every request bears.
    fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let token = self.token.iter().map(|token| ("authorization", format!("Bearer {token}")));
        let cluster = self.cluster.iter().map(|name| (CLUSTER, name.clone()));
        let place = self.place.iter().map(|place| (PLACE, place.to_string()));
        token.chain(cluster).chain(place)
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        let limit = Some(self.request_timeout);
        let request = |base: &str| self.agent.get(format!("{base}{path}")).config().timeout_global(limit).build();
        self.read(self.asked(|base| self.bearing(request(base)).call())?)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, CliError> {
        let limit = Some(self.request_timeout);
        let request = |base: &str| self.agent.post(format!("{base}{path}")).config().timeout_global(limit).build();
        self.read(self.asked(|base| self.bearing(request(base)).send_json(body))?)
    }

    fn delete(&self, path: &str) -> Result<(), CliError> {
        let limit = Some(self.request_timeout);
        let request = |base: &str| self.agent.delete(format!("{base}{path}")).config().timeout_global(limit).build();
        self.asked(|base| self.bearing(request(base)).call()).map(drop)
    }

    fn bearing<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        self.headers().fold(request, |request, (name, value)| request.header(name, value))
    }

    fn read<T: DeserializeOwned>(&self, mut answer: Response<Body>) -> Result<T, CliError> {
        let text = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
        let text = text.map_err(|error| self.failed(&error))?;
        serde_json::from_str(&text).map_err(|error| self.garbled(&error))
    }

    /// An answer that is a success; else why it is none, and whether another supervisor is to be asked.
    fn checked(&self, mut answer: Response<Body>) -> Result<Response<Body>, (bool, CliError)> {
        self.answered.store(true, Ordering::SeqCst);
        self.is_others.store(false, Ordering::SeqCst);
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = answer.body_mut().read_to_string().unwrap_or_default();
        let Ok(ErrorEnvelope { error }) = serde_json::from_str(&text) else {
            let what = format!("{} answered {status} and no error of ours", self.base());
            return Err((false, CliError::unreachable(what).hint("is that an asterism supervisor? check --server")));
        };
        self.is_others.store(error.code == "other_cluster", Ordering::SeqCst);
        let elsewhere = ["standby", "journal_deposed"].contains(&error.code.as_str());
        let hint = next_step(&error.code).map(str::to_owned);
        Err((elsewhere, CliError { hint, ..CliError::of_code(&error.code, &error.message) }))
    }

    fn failed(&self, error: &ureq::Error) -> CliError {
        if let Some(cause) = tls_failure(error) {
            let what = format!("{} does not prove who it is: {cause}", self.base());
            return CliError::new(Exit::Authentication, what).hint(
                "is it the cluster of this file, with the certificate that [api] admin_tls_cert names? else --cacert FILE",
            );
        }
        match error {
            ureq::Error::Timeout(_) => CliError::new(
                Exit::TimedOut,
                format!("{} did not answer within {:.0} s", self.base(), self.request_timeout.as_secs_f64()),
            )
            .hint("try again with a longer --request-timeout"),
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                CliError::usage(format!("--server {}: {error}", self.base())).hint("write http://ADDRESS:PORT")
            }
            // Any port: nobody has said which.
            _ if self.base().ends_with(":0") && self.cluster.is_some() => {
                let name = self.cluster.as_deref().unwrap_or_default();
                CliError::unreachable(format!("cluster '{name}' is not running"))
                    .hint("start it with `asterism up --detach`, or name another with --server URL or -f FILE")
            }
            _ => CliError::unreachable(format!("no cluster answers at {}: {error}", self.base())).hint(
                match self.is_elsewhere() {
                    true => {
                        "see on that machine whether its supervisor runs, or name another with --server URL or -f FILE"
                    }
                    false => "start it with `asterism up --detach`, or name it with --server URL or -f FILE",
                },
            ),
        }
    }

    /// Whether its address is another machine's, where nobody could start it from here.
    fn is_elsewhere(&self) -> bool {
        let host = self.base().split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_matches(['[', ']']);
        match host.parse::<IpAddr>() {
            Ok(address) => UdpSocket::bind((address, 0)).is_err(),
            Err(_) => host != "localhost",
        }
    }

    fn garbled(&self, error: &serde_json::Error) -> CliError {
        CliError::unreachable(format!("{} answered something that is not of this version: {error}", self.base()))
            .hint("run the same version of asterism here and there: `asterism version`")
    }
}

/// Whether a request did not leave this machine.
fn never_reached(error: &ureq::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    match error {
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => true,
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => true,
        ureq::Error::Io(cause) => [ConnectionRefused, HostUnreachable, NetworkUnreachable].contains(&cause.kind()),
        _ => false,
    }
}

/// What to do, where an answer's message does not say it.
fn next_step(code: &str) -> Option<&'static str> {
    Some(match code {
        "job_not_found" | "session_not_found" | "session_exists" | "host_not_found" | "session_busy"
        | "session_replaced" => return None,
        "other_cluster" => {
            "start yours with `asterism up`, with an [api] admin_listen of its own; or name the one that runs with -f FILE or --server URL"
        }
        "needs_restart" => "leave these keys as they are, or restart what they name (docs/operations.md)",
        "joining_closed" => "set [security] join_listen in the cluster file, then start the supervisor again",
        "unauthorized" => "give the token with --token-file FILE, or [security] token_file in the cluster file",
        "job_ended" => "`asterism job list` shows the jobs there are",
        "job_exists" => "give another --id, or none",
        "not_ready" | "stopping" => "`asterism status` shows which host is missing",
        "self_test_failed" => "mend what it names, then `asterism self-test`",
        "session_expired" => "`asterism session list` shows the sessions there are",
        "model_changed" => "drop the session and create it anew; a job, submit again",
        "session_failed" => "`asterism session show NAME` says why; drop it and create it anew",
        "last_host" | "host_conflict" => "`asterism host list` shows the hosts there are",
        "spare_busy" => "`asterism host list` shows which spare hosts are free",
        "capacity_exhausted" => "`asterism session list` shows what is pinned; drop a session, or wait",
        "disk_full" => "make room on the disk of data_dir",
        "standby" => "name every supervisor with --server URL,URL",
        "journal_unreachable" => "see that a majority of etcd's members runs",
        "overloaded" => "try again when a job has ended: `asterism job list`",
        "context_too_long" => "shorten the context, or serve a model with a longer one ([model] path)",
        "placement_impossible" => "`asterism status` shows the hosts there are",
        _ => "correct the request; `--help` behind the command shows what it takes",
    })
}
