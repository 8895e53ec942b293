//! Connections that are slow, idle, many, or speak nothing that is meant.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::json;
use tests::{Cluster, DEADLINE};

use crate::machine::edges::{ask, is_alive, started};

/// A connection to the admin API that sent `bytes`.
fn sent(cluster: &Cluster, bytes: &[u8]) -> TcpStream {
    let address = cluster.server().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(bytes).expect("sent");
    stream
}

/// What came until the server refused the request or closed the connection.
fn answer(mut stream: TcpStream) -> String {
    let (mut got, mut piece) = (String::new(), [0; 4096]);
    while !got.contains(" 408 ") {
        match stream.read(&mut piece).expect("an answer") {
            0 => break,
            length => got.push_str(&String::from_utf8_lossy(&piece[..length])),
        }
    }
    got
}

const POST: &str = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

#[test]
fn a_body_by_halves_ends_with_408() {
    let cluster = started();
    let began = Instant::now();
    let halves = [
        format!("{POST}Content-Length: 1000\r\n\r\n{{\"context\": "),
        format!("{POST}Transfer-Encoding: chunked\r\n\r\n5\r\n{{\"con\r\n"),
        format!("{POST}Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n"),
        "GET /livez HTT".to_owned(),
        String::new(),
    ];
    let streams = halves.map(|half| sent(&cluster, half.as_bytes()));
    for stream in streams {
        let printed = answer(stream);
        assert!(printed.contains(" 408 "), "{printed}");
    }
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    is_alive(&cluster);
}

/// In chunks without end, and of a length without end.
#[test]
fn an_endless_body_ends_with_its_connection() {
    let cluster = started();
    for head in ["Transfer-Encoding: chunked", "Content-Length: 1000000000000000"] {
        let began = Instant::now();
        let mut stream = sent(&cluster, format!("{POST}{head}\r\n\r\n").as_bytes());
        let chunk = [b"10000\r\n".as_slice(), &[b' '; 1 << 16], b"\r\n"].concat();
        while stream.write_all(&chunk).is_ok() {
            assert!(began.elapsed() < DEADLINE, "{head}: it reads for ever");
        }
    }
    is_alive(&cluster);
}

#[test]
fn ten_thousand_idle_connections_leave_the_server_answering() {
    let Some(most) = raised_files() else { return };
    let cluster = started();
    let began = Instant::now();
    let idle: Vec<TcpStream> = (0..most).map(|_| sent(&cluster, b"GET /livez HTT")).collect();
    let opened = began.elapsed();
    let asked = Instant::now();
    is_alive(&cluster);
    println!("{} idle connections in {opened:?}, then /livez in {:?}", idle.len(), asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    drop(idle);
    is_alive(&cluster);
}

/// How many connections this process may open, if that is of any use; the limit is this process's own.
pub fn raised_files() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    let soft: usize = line.split_whitespace().nth(3)?.parse().ok()?;
    Some(10_000.min(soft.saturating_sub(256))).filter(|most| *most > 100)
}

#[test]
fn junk_fills_no_log() {
    let cluster = started();
    let huge = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(200_000));
    for _ in 0..50 {
        let mut stream = sent(&cluster, b"");
        // It may be cut off in the middle.
        let _ = stream.write_all(huge.as_bytes());
        let mut tls = sent(&cluster, b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03");
        let _ = tls.write_all(&[0; 200]);
        let mut ignored = Vec::new();
        let _ = stream.read_to_end(&mut ignored);
        let _ = tls.read_to_end(&mut ignored);
    }
    let listen = cluster.record()["listen"].as_str().expect("an address").to_owned();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for length in 1..1200 {
        socket.send_to(&vec![0xc3; length], &listen).expect("sent");
    }
    is_alive(&cluster);
    let log = fs::read_to_string(cluster.folder().join("data/logs/supervisor.log")).expect("a log");
    let loud: Vec<&str> = log.lines().filter(|line| line.contains("ERROR") || line.contains("WARN")).collect();
    assert!(loud.len() <= 2, "{} lines such as {:?}", loud.len(), loud.first());
}

#[test]
fn events_live_while_nothing_happens() {
    let cluster = started();
    for host in ["context-0", "query-0"] {
        let cordoned = cluster.run(&["host", "cordon", host]);
        assert!(cordoned.status.success(), "{}", String::from_utf8_lossy(&cordoned.stderr));
    }
    let request = json!({"context": "word ".repeat(100), "query": "what?", "max_tokens": 4});
    let (status, last) = ask(&cluster, &request);
    assert_eq!(status, 202, "{last}");
    // It waits for a host that takes work, and has nothing to say.
    let id = last["id"].as_str().expect("an id");
    let mut stream =
        sent(&cluster, format!("GET /api/v1/jobs/{id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    let mut got = Vec::new();
    // An empty line is a chunk of one byte.
    while !String::from_utf8_lossy(&got).contains("\r\n1\r\n\n\r\n") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).expect("a live stream");
        got.extend_from_slice(&piece[..length]);
        assert!(length > 0, "the stream ended: {}", String::from_utf8_lossy(&got));
    }
}
