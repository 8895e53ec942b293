//! What a collector hears of a job: one trace over all processes that worked on it. And that a collector which takes nothing costs
//! spans alone.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Instant,
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, DEADLINE};

use crate::api::openai::{BINARY, CHAT, JSON, send, whale};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

/// Two context hosts and a query host whose spans go to `endpoint`.
fn cluster(endpoint: SocketAddr) -> Cluster {
    let spec = ClusterSpec {
        contexts: 2,
        model: None,
        method: "[attention.star]\nblock_tokens = 128",
        listen: "127.0.0.1:0".into(),
    };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        let section =
            format!("[observability]\notlp_endpoint = \"http://{endpoint}\"\n\n[api]\nlisten = \"127.0.0.1:0\"\n");
        text.replace("[api]\n", &section)
    });
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

/// A span, and the process that told it.
#[derive(Clone, Debug)]
struct Told {
    instance: String,
    span: Value,
}

impl Told {
    fn text(&self, field: &str) -> &str {
        self.span[field].as_str().expect("text")
    }

    fn attribute(&self, name: &str) -> &Value {
        let attributes = self.span["attributes"].as_array().expect("attributes");
        attributes
            .iter()
            .find(|attribute| attribute["key"] == name)
            .map_or(&Value::Null, |attribute| &attribute["value"])
    }

    fn nanoseconds(&self, field: &str) -> u64 {
        self.text(field).parse().expect("a number")
    }
}

/// A collector that keeps what it is told.
#[derive(Clone, Default)]
struct Collector(Arc<(Mutex<Vec<Told>>, Condvar)>);

impl Collector {
    fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (address, collector) = (listener.local_addr().expect("an address"), self.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let collector = collector.clone();
                thread::spawn(move || collector.hear(stream));
            }
        });
        address
    }

    fn hear(&self, mut stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let (mut length, mut first) = (0, String::new());
            reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
            assert!(first.starts_with("POST /v1/traces "), "{first}");
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok()?;
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse().ok()?;
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            for of in body["resourceSpans"].as_array().expect("resources") {
                let attributes = of["resource"]["attributes"].as_array().expect("attributes");
                let instance =
                    attributes.iter().find(|attribute| attribute["key"] == "service.instance.id").expect("its process");
                let instance = instance["value"]["stringValue"].as_str().expect("a name").to_owned();
                let spans = of["scopeSpans"][0]["spans"].as_array().expect("spans");
                let reported = spans.iter().map(|span| Told { instance: instance.clone(), span: span.clone() });
                self.0.0.lock().expect("nobody panics").extend(reported);
            }
            self.0.1.notify_all();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
                .ok()?;
        }
    }

    /// The spans of a trace, once `is_whole` of them.
    fn spans(&self, trace: &str, is_whole: impl Fn(&[Told]) -> bool) -> Vec<Told> {
        let (spans, news) = &*self.0;
        let (began, mut all) = (Instant::now(), spans.lock().expect("nobody panics"));
        loop {
            let of: Vec<Told> = all.iter().filter(|reported| reported.span["traceId"] == trace).cloned().collect();
            if is_whole(&of) {
                return of;
            }
            let left = DEADLINE.checked_sub(began.elapsed());
            let left = left.unwrap_or_else(|| panic!("these came in time: {of:#?}"));
            all = news.wait_timeout(all, left).expect("nobody panics").0;
        }
    }
}

fn named(spans: &[Told], name: &str) -> Vec<Told> {
    spans.iter().filter(|reported| reported.span["name"] == name).cloned().collect()
}

fn ask(cluster: &Cluster, traceparent: &str, stream: bool) -> Value {
    let messages = json!([{"role": "system", "content": whale()}, {"role": "user", "content": "Which colour?"}]);
    let body = json!({"messages": messages, "max_tokens": 4, "ignore_eos": true, "stream": stream});
    let (status, answer) = send(cluster, ("POST", CHAT), &[JSON, ("traceparent", traceparent)], &body.to_string());
    assert_eq!(status, 200, "{answer}");
    answer
}

#[test]
fn a_job_is_one_trace_over_all_who_work_on_it() {
    let collector = Collector::default();
    let cluster = cluster(collector.listen());
    let answer = ask(&cluster, &format!("00-{TRACE}-{CLIENT}-01"), false);
    let of_both = |spans: &[Told], name: &str| {
        let told = named(spans, name);
        told.iter().map(|reported| &reported.instance).collect::<std::collections::BTreeSet<_>>().len() == 2
    };
    let ended = |spans: &[Told]| {
        ["job", "generate", "POST /v1/chat/completions"].iter().all(|name| !named(spans, name).is_empty())
            && ["encode shards", "answer queries"].iter().all(|name| of_both(spans, name))
    };
    let spans = collector.spans(TRACE, ended);
    let by_id: BTreeMap<&str, &Told> = spans.iter().map(|reported| (reported.text("spanId"), reported)).collect();
    assert_eq!(by_id.len(), spans.len(), "each has an id of its own");

    let [request] = &named(&spans, "POST /v1/chat/completions")[..] else { panic!("one request: {spans:#?}") };
    assert_eq!(
        (request.text("parentSpanId"), &request.span["kind"], &*request.instance),
        (CLIENT, &json!(2), "supervisor")
    );
    let number = |name: &str| request.attribute(name)["intValue"].as_str().expect("a number").parse::<u64>().ok();
    assert_eq!(number("gen_ai.usage.input_tokens"), answer["usage"]["prompt_tokens"].as_u64());
    assert_eq!(number("gen_ai.usage.output_tokens"), Some(4));
    assert_eq!(number("http.response.status_code"), Some(200));
    assert_eq!(request.attribute("gen_ai.request.model")["stringValue"], "asterism-7m");
    assert_eq!(request.attribute("gen_ai.response.finish_reasons")["arrayValue"]["values"][0]["stringValue"], "length");

    let [job] = &named(&spans, "job")[..] else { panic!("one job: {spans:#?}") };
    assert_eq!((job.text("parentSpanId"), &*job.instance), (request.text("spanId"), "supervisor"));
    for reported in &spans {
        assert!(reported.nanoseconds("startTimeUnixNano") <= reported.nanoseconds("endTimeUnixNano"), "{reported:?}");
        let (mut above, mut steps) = (reported, 0);
        while above.text("parentSpanId") != CLIENT {
            above = by_id.get(above.text("parentSpanId")).unwrap_or_else(|| panic!("{above:?} is under nothing"));
            steps += 1;
            assert!(steps < 8, "{reported:?}");
        }
        assert_eq!(above.text("spanId"), request.text("spanId"));
    }
    let under = |parent: &Told| -> Vec<&Told> {
        spans.iter().filter(|reported| reported.text("parentSpanId") == parent.text("spanId")).collect()
    };
    let names = |spans: &[&Told]| spans.iter().map(|reported| reported.text("name").to_owned()).collect::<Vec<_>>();
    for phase in ["queued", "encoding", "querying", "decoding"] {
        assert!(names(&under(job)).contains(&phase.to_owned()), "{phase}: {spans:#?}");
    }
    for encoded in named(&spans, "encode shards") {
        assert!(
            encoded.instance.starts_with("context-") && encoded.text("parentSpanId") == job.text("spanId"),
            "{encoded:?}"
        );
        let layers = under(&encoded);
        assert!(
            layers.len() > 1 && layers.iter().all(|reported| reported.text("name").starts_with("layers ")),
            "{layers:?}"
        );
        // One after the other, from the beginning to the end.
        assert!(
            layers.windows(2).all(|two| two[0].nanoseconds("endTimeUnixNano") <= two[1].nanoseconds("endTimeUnixNano"))
        );
    }
    for answered in named(&spans, "answer queries") {
        let queries = answered.attribute("asterism.queries")["intValue"].as_str().and_then(|text| text.parse().ok());
        assert!(queries > Some(4) && answered.text("parentSpanId") == job.text("spanId"), "{answered:?}");
        assert!(answered.instance.starts_with("context-"), "{answered:?}");
    }
    let [generated] = &named(&spans, "generate")[..] else { panic!("one answer: {spans:#?}") };
    assert_eq!((&*generated.instance, generated.text("parentSpanId")), ("query-0", job.text("spanId")));
    let [question] = &named(&spans, "question")[..] else { panic!("one question: {spans:#?}") };
    assert!(under(question).iter().any(|reported| reported.text("name").starts_with("layers 0")), "{spans:#?}");
    assert!(names(&under(generated)).contains(&"decode".to_owned()), "{spans:#?}");

    // A stream is over when its last word is; who wants no spans has none, and what is no traceparent begins a trace.
    let streamed = "11111111111111111111111111111111";
    ask(&cluster, &format!("00-{streamed}-{CLIENT}-01"), true);
    let spans = collector.spans(streamed, |spans| {
        !named(spans, "job").is_empty() && !named(spans, "POST /v1/chat/completions").is_empty()
    });
    assert_eq!(named(&spans, "POST /v1/chat/completions")[0].attribute("gen_ai.usage.output_tokens")["intValue"], "4");
    let unwanted = "22222222222222222222222222222222";
    ask(&cluster, &format!("00-{unwanted}-{CLIENT}-00"), false);
    ask(&cluster, &"x".repeat(500), false);
    let own =
        |reported: &Told| reported.span["parentSpanId"] == "" && reported.span["name"] == "POST /v1/chat/completions";
    let began = Instant::now();
    while !collector.0.0.lock().expect("nobody panics").iter().any(own) {
        assert!(began.elapsed() < DEADLINE);
        thread::yield_now();
    }
    assert!(collector.spans(unwanted, |_| true).is_empty());
}

#[test]
fn a_collector_that_takes_nothing_costs_spans_alone() {
    // One that is not there, and one that never answers.
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    for endpoint in [gone, silent.local_addr().expect("an address")] {
        let cluster = cluster(endpoint);
        for _ in 0..3 {
            ask(&cluster, "", false);
        }
        let dropped = |host: &str| -> f64 {
            let text = ureq::get(format!("{}/metrics", cluster.server())).call().expect("metrics");
            let text = text.into_body().read_to_string().expect("text");
            let line = format!("asterism_spans_dropped_total{{host=\"{host}\"}} ");
            text.lines().find_map(|found| found.strip_prefix(&line)).expect("it counts").parse().expect("a number")
        };
        let began = Instant::now();
        for host in ["supervisor", "context-0", "query-0"] {
            while dropped(host) == 0.0 {
                assert!(began.elapsed() < DEADLINE, "{host}");
            }
        }
    }
}
