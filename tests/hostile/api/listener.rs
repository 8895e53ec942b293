//! The listener of OpenAI's API under clients that read nothing, ask too much or ask nothing at all.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use asterism_transport::certificates::{CLUSTER_DNS_NAME, CertificateAuthority, Identity, MemberRole, Validity};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, DEADLINE, kill};

use super::{
    connections::raised_files,
    openai::{BINARY, CHAT, JSON, api, send, wait_until_cancelled, whale},
};
use crate::machine::edges::is_alive;

/// A cluster with this in its `[api]`.
fn cluster(settings: &str) -> Cluster {
    let cluster = written(settings);
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

fn written(settings: &str) -> Cluster {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() };
    Cluster::written(BINARY, &spec, |text| {
        text.replace("[api]\n", &format!("[api]\nlisten = \"127.0.0.1:0\"\n{settings}\n"))
    })
}

/// A connection that sent `bytes`.
fn sent(cluster: &Cluster, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(api(cluster)).expect("a listener");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    stream.write_all(bytes).expect("sent");
    stream
}

fn question(tokens: usize) -> Value {
    json!({"messages": [{"role": "user", "content": whale()}, {"role": "user", "content": "Which colour?"}], "max_tokens": tokens, "ignore_eos": true})
}

/// The head of a request for `body`, and `body`.
fn posted(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

/// Status, `Retry-After` and body of what comes.
fn answered(stream: impl Read) -> (u16, Option<String>, Value) {
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (Vec::new(), 0);
    for line in stream.by_ref().lines().map(|line| line.expect("a head")) {
        if line.is_empty() {
            break;
        }
        if let Some(found) = line.to_lowercase().strip_prefix("content-length: ") {
            length = found.parse().expect("a length");
        }
        head.push(line);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a body");
    let status = head[0].split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let after = head.iter().find_map(|line| line.to_lowercase().strip_prefix("retry-after: ").map(str::to_owned));
    (status, after, serde_json::from_slice(&body).expect("JSON"))
}

#[test]
fn who_reads_nothing_holds_up_nobody() {
    let cluster = cluster("");
    let mut long = question(4000);
    long["stream"] = json!(true);
    let unread: Vec<TcpStream> = (0..4).map(|_| sent(&cluster, &posted(&long))).collect();
    for stream in &unread {
        // It has begun to be answered.
        let mut first = [0; 1];
        stream.peek(&mut first).expect("an answer");
    }
    let (status, answer) = send(&cluster, ("POST", CHAT), &[JSON], &question(4).to_string());
    assert_eq!((status, answer["usage"]["completion_tokens"].as_u64()), (200, Some(4)), "{answer}");
    drop(unread);
    is_alive(&cluster);
}

#[test]
fn a_full_queue_says_when_to_come_again_and_a_deadline_is_kept() {
    let cluster = cluster("max_queue = 1");
    for host in ["context-0", "query-0"] {
        let cordoned = cluster.run(&["host", "cordon", host]);
        assert!(cordoned.status.success(), "{}", String::from_utf8_lossy(&cordoned.stderr));
    }
    let mut limited = question(4);
    limited["timeout_s"] = json!(8);
    let waiting = sent(&cluster, &posted(&limited));
    cluster.wait_for("a job that waits", |status| status["jobs_pending"] == 1);
    for _ in 0..3 {
        let (status, after, answer) = answered(sent(&cluster, &posted(&question(4))));
        assert_eq!((status, after.as_deref()), (503, Some("1")), "{answer}");
        assert_eq!(answer["error"]["code"], "overloaded", "{answer}");
        assert_eq!(answer["error"]["type"], "overloaded_error", "{answer}");
    }
    // Looking is not asking.
    assert_eq!(send(&cluster, ("GET", "/v1/models"), &[], "").0, 200);
    let (status, _, answer) = answered(waiting);
    assert_eq!((status, answer["error"]["code"].as_str()), (504, Some("timeout")), "{answer}");
    for host in ["context-0", "query-0"] {
        assert!(cluster.run(&["host", "uncordon", host]).status.success(), "{host}");
    }
    let (status, _, answer) = answered(sent(&cluster, &posted(&question(4))));
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn idle_connections_leave_both_listeners_answering() {
    let Some(most) = raised_files() else { return };
    let cluster = cluster("");
    let began = Instant::now();
    let idle: Vec<TcpStream> = (0..most).map(|_| sent(&cluster, b"GET /v1/mod")).collect();
    let opened = began.elapsed();
    let asked = Instant::now();
    is_alive(&cluster);
    let admin = asked.elapsed();
    let (status, answer) = send(&cluster, ("POST", CHAT), &[JSON], &question(4).to_string());
    let waited = asked.elapsed();
    println!("{} idle connections in {opened:?}, then /livez in {admin:?}, an answer in {waited:?}", idle.len());
    assert_eq!(status, 200, "{answer}");
    assert!(admin < Duration::from_secs(5) && waited < Duration::from_secs(30), "{admin:?} {waited:?}");
    drop(idle);
}

#[test]
fn no_path_leads_to_a_file() {
    let cluster = cluster("");
    let admin = cluster.server().trim_start_matches("http://").to_owned();
    let traversals = [
        "/../../../../etc/passwd",
        "/console.js/../../../etc/passwd",
        "/console.js/..%2f..%2fcluster.toml",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/cluster.toml",
        "//etc/passwd",
        "/console.js%00.txt",
        "/.%00./cluster.toml",
        "/v1/files/../../cluster.toml/content",
        "/v1/files/..%2f..%2fcluster.toml/content",
        "/v1/files/%2fetc%2fpasswd/content",
        "/v1/batches/..%2f..%2fjournal",
        "/api/v1/jobs/..%2f..%2fcluster.toml",
        "/api/v1/sessions/%2e%2e%2f%2e%2e",
    ];
    for (address, path) in [admin, api(&cluster)].iter().flat_map(|address| traversals.map(|path| (address, path))) {
        let mut stream = TcpStream::connect(address).expect("a listener");
        stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(["400", "404"].contains(&status), "{address} {path}: {answer}");
        assert!(!answer.contains("root:") && !answer.contains("[cluster]"), "{path}: {answer}");
    }
    is_alive(&cluster);
}

/// Over TLS all is as without: answers, and that who goes away is not worked for.
#[test]
fn with_a_certificate_the_api_speaks_tls_alone() {
    let cluster = written("tls_cert = \"api.pem\"\ntls_key = \"api.key\"");
    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
    let authority = CertificateAuthority::create("office", validity).expect("an authority");
    let identity = authority.issue(MemberRole::Supervisor, "api", validity).expect("a certificate");
    let (cert, key) = (cluster.folder().join("api.pem"), cluster.folder().join("api.key"));
    let missing = cluster.run(&["validate"]);
    let printed = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(2) && printed.contains("api.pem: No such file"), "{printed}");
    fs::write(cert, &identity.certificate).and_then(|()| fs::write(&key, &identity.key)).expect("files");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("a mode");
    let open = cluster.run(&["validate"]);
    let printed = String::from_utf8_lossy(&open.stderr).into_owned();
    assert!(open.status.code() == Some(2) && printed.contains("mode 0644"), "{printed}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
    let up = cluster.run(&["up", "--detach"]);
    let printed = String::from_utf8_lossy(&up.stderr).into_owned();
    assert!(up.status.success() && printed.contains("https://"), "{printed}");

    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.certificate().as_bytes()).expect("a certificate");
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let sent = |body: &Value| {
        let name = CLUSTER_DNS_NAME.try_into().expect("a name");
        let client = ClientConnection::new(config.clone(), name).expect("a client");
        let mut stream = StreamOwned::new(client, sent(&cluster, b""));
        stream.write_all(&posted(body)).expect("sent");
        BufReader::new(stream)
    };
    let (status, _, answer) = answered(sent(&question(4)));
    assert_eq!((status, answer["usage"]["completion_tokens"].as_u64()), (200, Some(4)), "{answer}");
    // Plain HTTP is no handshake.
    let mut plain = sent_plain(&cluster);
    let mut printed = Vec::new();
    let _ = plain.read_to_end(&mut printed);
    assert!(!printed.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&printed));
    let mut long = question(8000);
    long["stream"] = json!(true);
    let mut streamed = sent(&long);
    let first = streamed.by_ref().lines().map(|line| line.expect("a line")).find(|line| line.starts_with("data: "));
    assert!(first.is_some(), "it begins");
    drop(streamed);
    wait_until_cancelled(&cluster, "a stream over TLS that nobody reads");
}

fn sent_plain(cluster: &Cluster) -> TcpStream {
    sent(cluster, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

/// What was encoded for a job that is given up stands nowhere any more.
#[test]
fn giving_a_job_up_frees_what_it_held() {
    let cluster = cluster("");
    let mut long = question(8000);
    long["stream"] = json!(true);
    let streamed = sent(&cluster, &posted(&long));
    let held = |status: &Value| {
        let hosts = status["hosts"].as_array().expect("hosts");
        hosts.iter().map(|host| host["kv_bytes"].as_u64().expect("bytes")).sum::<u64>()
    };
    let bytes = held(&cluster.wait_for("keys and values", |status| held(status) > 0));
    let began = Instant::now();
    drop(streamed);
    cluster.wait_for("their end", |status| held(status) == 0);
    println!("{bytes} bytes are free after {:?}", began.elapsed());
}

/// Commands know the admin API by the very certificate that the cluster file names, whatever names stand in it.
#[test]
fn with_a_certificate_the_admin_api_speaks_tls_alone() {
    let cluster = written("admin_tls_cert = \"admin.pem\"\nadmin_tls_key = \"admin.key\"");
    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
    let made = || Identity::self_signed("admin", validity).expect("a certificate");
    let (cert, key) = (cluster.folder().join("admin.pem"), cluster.folder().join("admin.key"));
    let put = |identity: &Identity| {
        fs::write(&cert, &identity.certificate).and_then(|()| fs::write(&key, &identity.key)).expect("files");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
    };
    let (mine, other) = (made(), made());
    put(&mine);
    let up = cluster.run(&["up", "--detach"]);
    let printed = String::from_utf8_lossy(&up.stderr).into_owned();
    assert!(up.status.success() && printed.contains("admin API https://"), "{printed}");
    // Progress and tokens come over a stream.
    let job = cluster.run(&[
        "job",
        "submit",
        "--context",
        "cluster.toml",
        "--query",
        "What?",
        "--max-tokens",
        "4",
        "--id",
        "one",
    ]);
    assert!(job.status.success(), "{}", String::from_utf8_lossy(&job.stderr));
    let lost = cluster.supervisor();
    kill(lost);
    cluster.wait_for("another supervisor", |status| status["ready"] == true && cluster.supervisor() != lost);
    let admin = cluster.record()["admin"].as_str().expect("it listens").to_owned();
    let mut plain = TcpStream::connect(&admin).expect("a listener");
    plain.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    plain.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));

    put(&other);
    let stranger = cluster.run(&["status"]);
    let printed = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert!(stranger.status.code() == Some(6) && printed.contains("does not prove who it is"), "{printed}");
    let authority = cluster.run(&["status", "--server", &format!("https://{admin}"), "--cacert", "admin.pem"]);
    assert_eq!(authority.status.code(), Some(6), "another authority, and another name");
    put(&mine);
    assert!(cluster.run(&["status"]).status.success());
}
