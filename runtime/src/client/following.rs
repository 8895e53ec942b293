//! A job followed to its end though its supervisor is killed and comes back: nothing is received twice, nothing is missed.

use std::{
    thread,
    time::{Duration, Instant},
};

use asterism_actors::api::{JobEvent, JobRequest, RecoveryStatus, bounds};

use super::Client;
use crate::error::{CliError, Exit};

/// How long a supervisor that does not answer is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);
const FOLLOWING_RETRY_INTERVAL: Duration = Duration::from_millis(200);

type Events = Box<dyn Iterator<Item = Result<JobEvent, CliError>>>;

/// The events of one job, to `Finished`.
pub struct Following<'a> {
    client: &'a Client,
    id: String,
    /// Submitted anew when a supervisor that came back does not know the job.
    request: Option<JobRequest>,
    /// Hears once that the supervisor does not answer.
    note: Box<dyn Fn(&str) + 'a>,
    events: Option<Events>,
    heard: SeenEvents,
    outage: Option<Instant>,
    ended: bool,
}

/// What was handed out: a new connection begins with the first token again.
#[derive(Default)]
struct SeenEvents {
    tokens: usize,
    tokens_here: usize,
    recoveries: Vec<RecoveryStatus>,
}

impl SeenEvents {
    /// Whether the event was not received on an earlier connection.
    fn is_new(&mut self, event: &JobEvent) -> bool {
        match event {
            JobEvent::Token { .. } => {
                self.tokens_here += 1;
                let new = self.tokens_here > self.tokens;
                self.tokens = self.tokens.max(self.tokens_here);
                new
            }
            JobEvent::Recovery { recovery } if self.recoveries.contains(recovery) => false,
            JobEvent::Recovery { recovery } => {
                self.recoveries.push(recovery.clone());
                true
            }
            JobEvent::Phase { .. }
            | JobEvent::Waiting { .. }
            | JobEvent::Progress { .. }
            | JobEvent::Finished { .. } => true,
        }
    }
}

impl<'a> Following<'a> {
    /// Submits `request`, with an id of its own where it has none, and follows the job.
    pub fn submit(client: &'a Client, mut request: JobRequest, note: impl Fn(&str) + 'a) -> Result<Self, CliError> {
        let id = request.id.get_or_insert_with(new_id).clone();
        let mut following = Self::new(client, id, Some(request), note);
        following.reach(|this| this.submitted())?;
        Ok(following)
    }

    /// Follows a job that was submitted before.
    pub fn of(client: &'a Client, id: &str, note: impl Fn(&str) + 'a) -> Result<Self, CliError> {
        let mut following = Self::new(client, id.to_owned(), None, note);
        following.reach(|this| this.connect())?;
        Ok(following)
    }

    fn new(client: &'a Client, id: String, request: Option<JobRequest>, note: impl Fn(&str) + 'a) -> Self {
        let (note, heard) = (Box::new(note), SeenEvents::default());
        Self { client, id, request, note, events: None, heard, outage: None, ended: false }
    }

    /// The job's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn submitted(&mut self) -> Result<(), CliError> {
        match &self.request {
            Some(request) => self.client.submit(request).map(drop),
            None => Ok(()),
        }
    }

    fn connect(&mut self) -> Result<(), CliError> {
        self.events = Some(Box::new(self.client.events(&self.id)?));
        self.heard.tokens_here = 0;
        Ok(())
    }

    /// Connects again; a job that is not known any more is submitted again.
    fn connect_again(&mut self) -> Result<(), CliError> {
        match self.connect() {
            Err(error) if error.exit == Exit::NotFound && self.request.is_some() => {
                self.submitted().and_then(|()| self.connect())
            }
            connected => connected,
        }
    }

    /// Does `what` until it is done, or until the supervisor has been away for too long.
    fn reach(&mut self, what: impl Fn(&mut Self) -> Result<(), CliError>) -> Result<(), CliError> {
        loop {
            let error = match what(self) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let away = matches!(error.exit, Exit::Unreachable | Exit::TimedOut);
            if !away || !self.client.may_come_back() {
                return Err(error);
            }
            self.missed();
            if self.outage.is_some_and(|since| since.elapsed() > PATIENCE) {
                let seconds = PATIENCE.as_secs();
                return Err(CliError::unreachable(format!("{error}; it did not come back within {seconds} s"))
                    .hint(format!("`asterism status`; once it is back, `asterism job result {}`", self.id)));
            }
            thread::sleep(FOLLOWING_RETRY_INTERVAL);
        }
    }

    /// The supervisor did not answer; says so the first time.
    fn missed(&mut self) {
        if self.outage.is_none() {
            self.outage = Some(Instant::now());
            (self.note)(&format!(
                "{} does not answer; waiting up to {} s for it to come back, job {} goes on then",
                self.client.base(),
                PATIENCE.as_secs(),
                self.id
            ));
        }
    }
}

impl Iterator for Following<'_> {
    type Item = Result<JobEvent, CliError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            if self.events.is_none() {
                let reached = match self.outage {
                    None => self.reach(Self::connect),
                    Some(_) => self.reach(Self::connect_again),
                };
                if let Err(error) = reached {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
            match self.events.as_mut().and_then(Iterator::next) {
                Some(Ok(event)) => {
                    // A supervisor that is about to end still tells the phase.
                    if !matches!(event, JobEvent::Phase { .. }) {
                        self.outage = None;
                    }
                    self.ended = matches!(event, JobEvent::Finished { .. });
                    if self.heard.is_new(&event) {
                        return Some(Ok(event));
                    }
                }
                Some(Err(error)) if error.exit != Exit::Unreachable => return Some(Err(error)),
                Some(Err(_)) | None => {
                    self.events = None;
                    if self.outage.is_some() {
                        thread::sleep(FOLLOWING_RETRY_INTERVAL);
                    }
                    self.missed();
                }
            }
        }
        None
    }
}

/// An id as the supervisor would draw it, known before the request is sent, so that it can be sent again.
pub fn new_id() -> String {
    bounds::drawn_id(uuid::Uuid::new_v4().as_u128())
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        io::{BufRead, BufReader, Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    const TOKENS: [&str; 3] = [
        r#"{"event":"token","id":1,"text":"a"}"#,
        r#"{"event":"token","id":2,"text":"b"}"#,
        r#"{"event":"token","id":3,"text":"c"}"#,
    ];

    fn finished() -> String {
        let status = serde_json::json!({
            "id": "j", "state": "SUCCEEDED", "method": "star", "model": "m", "context_tokens": 1, "query_tokens": 1,
            "generated_tokens": 3, "text": "abc", "tokens": [1, 2, 3],
            "timings": {"queue_s": 0.0, "encode_s": 0.0, "query_s": 0.0, "decode_s": 0.0, "total_s": 0.0, "hosts": []},
        });
        serde_json::json!({"event": "finished", "status": status}).to_string()
    }

    /// Answers one request with `status` and `body`; `whole`: the body's length is told truthfully.
    fn answer(stream: &mut TcpStream, status: &str, body: &str, whole: bool) -> String {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut first, mut length) = (String::new(), 0);
        reader.read_line(&mut first).unwrap();
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().unwrap();
            }
            line.clear();
        }
        reader.take(length).read_to_end(&mut Vec::new()).unwrap();
        let promised = if whole { body.len() } else { body.len() + 100 };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {promised}\r\nConnection: close\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
        first.split(' ').take(2).collect::<Vec<_>>().join(" ")
    }

    /// A supervisor killed after two tokens, that knows nothing of the job when it comes back.
    #[test]
    fn tokens_go_on_where_they_were() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let unknown = r#"{"error":{"message":"m","type":"not_found_error","code":"job_not_found","param":null}}"#;
        let server = thread::spawn(move || {
            let lines = |count: usize| TOKENS[..count].iter().map(|line| format!("{line}\n")).collect::<String>();
            let script = [
                ("202 Accepted", r#"{"id":"j"}"#.to_owned(), true),
                ("200 OK", lines(2), false),
                ("404 Not Found", unknown.to_owned(), true),
                ("202 Accepted", r#"{"id":"j"}"#.to_owned(), true),
                ("200 OK", lines(3) + &finished() + "\n", true),
            ];
            script.map(|(status, body, whole)| answer(&mut listener.accept().unwrap().0, status, &body, whole))
        });
        let client = Client::new(&url, None, Duration::from_secs(10)).unwrap();
        let request = JobRequest { id: Some("j".into()), ..JobRequest::new(Some("c".into()), "q".into()) };
        let notes = RefCell::new(0);
        let following = Following::submit(&client, request, |_| *notes.borrow_mut() += 1).unwrap();
        let text: String = following
            .filter_map(|event| match event.unwrap() {
                JobEvent::Token { text, .. } => Some(text),
                JobEvent::Finished { .. } => Some(".".into()),
                _ => None,
            })
            .collect();
        assert_eq!((text.as_str(), notes.into_inner()), ("abc.", 1));
        let requests = server.join().unwrap();
        assert_eq!(
            requests,
            [
                "POST /api/v1/jobs",
                "GET /api/v1/jobs/j/events",
                "GET /api/v1/jobs/j/events",
                "POST /api/v1/jobs",
                "GET /api/v1/jobs/j/events"
            ]
        );
    }

    /// Three supervisors are named: one that is gone, one that stands by, and the leader, which is asked first from then on.
    #[test]
    fn whoever_leads_is_found_and_followed() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let [standby, leader] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let named = format!("http://{gone}, {},{}", url(&standby), url(&leader));
        let refused = r#"{"error":{"message":"stands by","type":"overloaded_error","code":"standby","param":null}}"#;
        let asked = thread::spawn(move || {
            let status = "503 Service Unavailable";
            answer(&mut standby.accept().unwrap().0, status, refused, true)
        });
        let led = thread::spawn(move || {
            [(); 2].map(|()| answer(&mut leader.accept().unwrap().0, "202 Accepted", r#"{"id":"j"}"#, true))
        });
        let client = Client::new(&named, None, Duration::from_secs(10)).unwrap();
        let request = JobRequest { id: Some("j".into()), ..JobRequest::new(Some("c".into()), "q".into()) };
        assert_eq!([(); 2].map(|()| client.submit(&request).unwrap()), ["j", "j"]);
        assert_eq!(asked.join().unwrap(), "POST /api/v1/jobs");
        assert_eq!(led.join().unwrap(), ["POST /api/v1/jobs"; 2]);
    }

    #[test]
    fn a_server_that_never_answered_is_not_waited_for() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = Client::new(&format!("http://{free}"), None, Duration::from_secs(10)).unwrap();
        let refused = Following::of(&client, "j", |_| panic!("nothing to wait for")).err().unwrap();
        assert_eq!(refused.exit, Exit::Unreachable);
    }
}
