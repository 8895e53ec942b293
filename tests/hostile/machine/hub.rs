//! Hubs that cut or stall transfers, hand out something else, refuse, send elsewhere, or have more than the disk takes; and two pulls at
//! once, or a pull of what is removed.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use rcgen::CertifiedKey;
use rustls::{ServerConfig, ServerConnection, StreamOwned, crypto::ring};
use rustls_pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, DEADLINE, golden};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
const COMMIT: &str = "0123456789012345678901234567890123456789";
const WEIGHTS: &str = "model.safetensors";
/// What a test asks for when the weights of `held` may go out.
const RELEASED: &str = "released";
/// Between pieces of the weights of `slow`.
const PIECE_EVERY: Duration = Duration::from_millis(400);

/// A server that speaks the hub's paths, and another beside it that it sends to. What they do, a repository's name says.
struct Hub {
    address: String,
    /// Of who is at the other's address over TLS, in PEM.
    certificate: String,
    seen: Arc<Seen>,
}

/// Each ask of a path: the token and the range that came with it.
type Asks = Vec<(Option<String>, Option<u64>)>;

#[derive(Default)]
struct Seen {
    /// By path.
    asked: Mutex<HashMap<String, Asks>>,
    changed: Condvar,
    /// The address of the server beside it.
    elsewhere: String,
    /// Another address of that, over TLS.
    sealed: String,
}

impl Seen {
    /// Waits until a path was asked for so many times.
    fn wait_for(&self, path: &str, times: usize) {
        let asked = self.asked.lock().expect("no panic holds it");
        let less = |asked: &mut HashMap<String, Asks>| asked.get(path).map_or(0, Vec::len) < times;
        drop(self.changed.wait_timeout_while(asked, DEADLINE, less).expect("no panic holds it"));
    }

    fn ask(&self, path: &str, ask: (Option<String>, Option<u64>)) -> usize {
        let mut asked = self.asked.lock().expect("no panic holds it");
        let asks = asked.entry(path.to_owned()).or_default();
        asks.push(ask);
        self.changed.notify_all();
        asks.len()
    }
}

impl Hub {
    fn start() -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [address, elsewhere] =
            [0, 1].map(|at| format!("http://{}", listeners[at].local_addr().expect("an address")));
        let (sealed, certificate) = seal(&elsewhere);
        let seen = Arc::new(Seen { elsewhere, sealed, ..Seen::default() });
        for listener in listeners {
            let shared = seen.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let seen = shared.clone();
                    thread::spawn(move || serve(stream, &seen));
                }
            });
        }
        Self { address, certificate, seen }
    }

    /// A command with its cache in a folder.
    fn command(&self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).current_dir(folder).stdin(Stdio::null()).env_remove("HF_TOKEN").env("NO_COLOR", "1");
        command.env("HF_ENDPOINT", &self.address).env("HF_HUB_CACHE", folder.join("cache"));
        command.env("HF_HOME", folder.join("home"));
        command
    }

    fn run(&self, folder: &Path, arguments: &[&str]) -> Output {
        self.command(folder, arguments).output().expect("the binary under test")
    }

    fn asked(&self, path: &str) -> Asks {
        self.seen.asked.lock().expect("no panic holds it").get(path).cloned().unwrap_or_default()
    }
}

/// Another address of a server, over TLS, and the certificate that is shown there.
fn seal(plain: &str) -> (String, String) {
    let shown = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
    let CertifiedKey { cert, signing_key } = shown.expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of the provider")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())
        .expect("a key of the certificate");
    let (listener, config) = (TcpListener::bind("127.0.0.1:0").expect("a port"), Arc::new(config));
    let address = format!("https://{}", listener.local_addr().expect("an address"));
    let plain = plain.trim_start_matches("http://").to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(config.clone()).expect("a configuration");
            let plain = TcpStream::connect(&plain).expect("the server beside the hub");
            thread::spawn(move || pass_on(StreamOwned::new(connection, stream), plain));
        }
    });
    (address, cert.pem())
}

/// One request to a server, and its answer back. Who speaks no TLS gets none.
fn pass_on(mut sealed: StreamOwned<ServerConnection, TcpStream>, mut plain: TcpStream) {
    let mut request = Vec::new();
    let mut read = BufReader::new(&mut sealed);
    while !request.ends_with(b"\r\n\r\n") {
        let Ok(1..) = read.read_until(b'\n', &mut request) else { return };
    }
    plain.write_all(&request).expect("the server beside the hub");
    // A client that has gone is the test's to see.
    let _ = io::copy(&mut plain, &mut sealed);
    sealed.conn.send_close_notify();
    let _ = sealed.flush();
}

fn model() -> PathBuf {
    golden().join("models/tiny-qwen2")
}

fn hash_of(path: &Path, program: &[&str]) -> String {
    let output = Command::new(program[0]).args(&program[1..]).arg(path).output().expect("a program that hashes");
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().expect("a hash").to_owned()
}

fn listing(name: &str) -> Value {
    let sibling = |file: &str| {
        let path = model().join(file);
        let bytes = fs::metadata(&path).expect("a file").len();
        match file {
            WEIGHTS => {
                let sha256 = match name {
                    "wrong" => "ab".repeat(32),
                    _ => hash_of(&path, &["sha256sum"]),
                };
                let size = if name == "huge" { 1 << 60 } else { bytes };
                json!({"rfilename": file, "size": size, "lfs": {"sha256": sha256, "size": size}})
            }
            // Of small files only the headers say what they are.
            "config.json" => json!({"rfilename": file}),
            _ => json!({"rfilename": file, "size": bytes, "blobId": hash_of(&path, &["git", "hash-object"])}),
        }
    };
    let mut siblings: Vec<Value> = ["config.json", "tokenizer.json", WEIGHTS].map(sibling).into();
    siblings.push(json!({"rfilename": if name == "escape" { "../../escaped" } else { "README.md" }, "size": 1}));
    json!({"sha": COMMIT, "siblings": siblings})
}

fn serve(mut stream: TcpStream, seen: &Seen) {
    let mut lines = BufReader::new(stream.try_clone().expect("a stream")).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let (mut token, mut range) = (None, None);
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap_or_default();
        match name.to_lowercase().as_str() {
            "authorization" => token = Some(value.to_owned()),
            "range" => range = value.trim_start_matches("bytes=").trim_end_matches('-').parse::<u64>().ok(),
            _ => {}
        }
    }
    let mut words = first.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_owned());
    let count = seen.ask(&path, (token.clone(), range));
    let parts: Vec<&str> = path.split(['/', '?']).filter(|part| !part.is_empty()).collect();
    let (name, file) = match parts[..] {
        ["api", "models", _, name, "revision", ..] => (name, None),
        [_, name, "resolve", COMMIT, file] => (name, Some(file)),
        _ => return answer(&mut stream, "404 Not Found", &[], b""),
    };
    match (name, file) {
        ("gone", _) => answer(&mut stream, "404 Not Found", &[], b""),
        ("private", _) if token.as_deref() != Some("Bearer secret") => {
            answer(&mut stream, "401 Unauthorized", &[], b"");
        }
        ("renamed", _) => {
            let location = format!("location: {}", path.replace("renamed", "private"));
            answer(&mut stream, "307 Temporary Redirect", &[&location], b"");
        }
        ("circle", _) => answer(&mut stream, "302 Found", &[&format!("location: {path}")], b""),
        ("kept" | "sealed", Some(file)) => {
            let beside = if name == "kept" { &seen.elsewhere } else { &seen.sealed };
            let location = format!("location: {beside}{}", path.replace(name, "shelf"));
            let path = model().join(file);
            let hash = format!("x-linked-etag: {}", hash_of(&path, &["git", "hash-object"]));
            let size = format!("x-linked-size: {}", fs::metadata(&path).expect("a file").len());
            answer(&mut stream, "302 Found", &[&location, &hash, &size], b"");
        }
        ("limited", _) => answer(&mut stream, "429 Too Many Requests", &["retry-after: 0"], b""),
        ("busy", None) if count == 1 => answer(&mut stream, "429 Too Many Requests", &["retry-after: 1"], b""),
        ("busy", None) if count == 2 => answer(&mut stream, "500 Internal Server Error", &[], b""),
        ("busy", None) if count == 3 => {}
        ("busy", Some(WEIGHTS)) if count == 1 => answer(&mut stream, "429 Too Many Requests", &[], b""),
        ("busy", Some("config.json")) if count == 1 => answer(&mut stream, "503 Service Unavailable", &[], b""),
        (_, None) => answer(&mut stream, "200 OK", &[], listing(name).to_string().as_bytes()),
        (_, Some(file)) => hand_out(&mut stream, (name, file, method), (range, count), seen),
    }
}

fn hand_out(
    stream: &mut TcpStream,
    (name, file, method): (&str, &str, &str),
    (range, count): (Option<u64>, usize),
    seen: &Seen,
) {
    let path = model().join(file);
    let bytes = fs::read(&path).expect("a file");
    if method == "HEAD" {
        let hash = format!("etag: \"{}\"", hash_of(&path, &["git", "hash-object"]));
        return answer(stream, "200 OK", &[&hash, &format!("x-linked-size: {}", bytes.len())], b"");
    }
    if name == "together" && file == WEIGHTS {
        // The second pull has begun, and finds this one at it.
        seen.wait_for(&listing_path(name), 2);
    }
    if name == "held" && file == WEIGHTS {
        seen.wait_for(RELEASED, 1);
    }
    let start = range.unwrap_or(0) as usize;
    let cut = match (name, file == WEIGHTS) {
        ("cut", true) if count < 3 => bytes.len() * count / 4,
        ("stalled", true) if count == 1 => bytes.len() / 4,
        ("stuck", true) => 1000,
        _ => bytes.len(),
    };
    let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
    let part = &bytes[start..cut.max(start)];
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", bytes.len() - start);
    let _ = stream.write_all(head.as_bytes());
    match name {
        "slow" if file == WEIGHTS => part.chunks(bytes.len() / 4).for_each(|part| {
            let asked = seen.asked.lock().expect("no panic holds it");
            let never = |_: &mut HashMap<String, Asks>| true;
            drop(seen.changed.wait_timeout_while(asked, PIECE_EVERY, never).expect("no panic holds it"));
            let _ = stream.write_all(part);
        }),
        _ => drop(stream.write_all(part)),
    }
    if name == "stalled" && part.len() < bytes.len() - start {
        // Until whoever waits for the rest leaves.
        let _ = stream.read(&mut [0]);
    }
}

fn listing_path(name: &str) -> String {
    format!("/api/models/org/{name}/revision/main?blobs=true")
}

fn file_path(name: &str, file: &str) -> String {
    format!("/org/{name}/resolve/{COMMIT}/{file}")
}

fn answer(stream: &mut TcpStream, status: &str, headers: &[&str], body: &[u8]) {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}connection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Ends with an exit code and says so in some words.
fn refuses(output: &Output, exit: i32, words: &[&str]) {
    let printed = printed(output);
    assert_eq!(output.status.code(), Some(exit), "{printed}");
    words.iter().for_each(|word| assert!(printed.contains(word), "{word} in {printed}"));
}

#[test]
fn a_model_is_pulled_once_and_named_from_then_on() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let pulled = hub.run(folder.path(), &["model", "pull", "org/fine", "-o", "json"]);
    assert!(pulled.status.success(), "{}", printed(&pulled));
    let report: Value = serde_json::from_slice(&pulled.stdout).expect("JSON");
    assert_eq!((&report["files"], &report["fetched"], &report["revision"]), (&json!(3), &json!(3), &json!(COMMIT)));
    let snapshot = folder.path().join("cache/models--org--fine/snapshots").join(COMMIT);
    assert_eq!(fs::read(snapshot.join(WEIGHTS)).expect("weights"), fs::read(model().join(WEIGHTS)).expect("weights"));
    assert!(fs::read_link(snapshot.join(WEIGHTS)).expect("a link").starts_with("../../blobs"));
    let again = hub.run(folder.path(), &["model", "pull", "org/fine", "-o", "json"]);
    let report: Value = serde_json::from_slice(&again.stdout).expect("JSON");
    assert_eq!(report["fetched"], json!(0));
    for (verb, words) in [
        (&["model", "list"][..], &["org/fine", "012345678901"][..]),
        (&["model", "inspect", "org/fine"], &["qwen2", "stored in", "tensors", "template"]),
        (&["model", "verify", "org/fine"], &["all with the right hash", "finite"]),
    ] {
        refuses(&hub.run(folder.path(), verb), 0, words);
    }
    let spec = ClusterSpec { contexts: 1, model: None, method: "[attention.star]", listen: "127.0.0.1:0".to_string() };
    let cluster = Cluster::written(BINARY, &spec, |text| format!("{text}\n[model]\npath = \"org/fine\"\n"));
    let validate = cluster.command(&["validate"]).env("HF_HUB_CACHE", folder.path().join("cache")).output();
    refuses(&validate.expect("the binary under test"), 0, &[]);
    let blob = fs::canonicalize(snapshot.join("tokenizer.json")).expect("a blob");
    fs::write(blob, b"{}").expect("a blob");
    refuses(&hub.run(folder.path(), &["model", "verify", "org/fine"]), 1, &["1 of 3 files", "another hash"]);
    refuses(&hub.run(folder.path(), &["model", "rm", "org/fine"]), 0, &["removed org/fine"]);
    refuses(&hub.run(folder.path(), &["model", "rm", "org/fine"]), 5, &["org/fine"]);
    refuses(&hub.run(folder.path(), &["model", "inspect", "org/fine"]), 2, &["asterism model pull org/fine"]);
    let cache = folder.path().join("cache").display().to_string();
    let verify = hub.run(folder.path(), &["model", "verify", "org/fine"]);
    refuses(&verify, 5, &["org/fine is not in the hub's cache", &cache, "asterism model pull org/fine"]);
    refuses(&hub.run(folder.path(), &["model", "list"]), 0, &[&cache, "has no model", "asterism model pull ORG/NAME"]);
    for typed in ["smol.gguf", "models/smol.gguf", "./models/smol", "../models/smol", "~/models/smol", "/no/such/model"]
    {
        let missing = hub.run(folder.path(), &["init", "--model", typed]);
        let printed = printed(&missing);
        refuses(&missing, 2, &[typed.trim_start_matches("./")]);
        assert!(printed.contains("is not there") || printed.contains("does not exist"), "{printed}");
        assert!(!printed.contains("model pull"), "{printed}");
    }
    let looked_at = folder.path().join("models/smol.gguf").display().to_string();
    refuses(&hub.run(folder.path(), &["model", "verify", "models/smol.gguf"]), 2, &[&looked_at, "does not exist"]);
}

#[test]
fn a_transfer_that_is_cut_goes_on_where_it_ended() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    refuses(&hub.run(folder.path(), &["model", "pull", "org/cut"]), 0, &["3 fetched"]);
    let quarter = fs::metadata(model().join(WEIGHTS)).expect("weights").len() / 4;
    let ranges: Vec<_> = hub.asked(&file_path("cut", WEIGHTS)).into_iter().map(|ask| ask.1).collect();
    assert_eq!(ranges, [None, Some(quarter), Some(2 * quarter)]);
    let stuck = hub.run(folder.path(), &["model", "pull", "org/stuck"]);
    refuses(&stuck, 3, &["model.safetensors", "ended after 1000 of", "pull again: it goes on where it ended"]);
    assert!(!folder.path().join("cache/models--org--stuck/snapshots").join(COMMIT).join(WEIGHTS).exists());
}

#[test]
fn what_a_hub_should_not_hand_out_is_not_kept() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let wrong = hub.run(folder.path(), &["model", "pull", "org/wrong"]);
    refuses(&wrong, 1, &["model.safetensors", "expected SHA-256 abab", "thrown away"]);
    let blobs = fs::read_dir(folder.path().join("cache/models--org--wrong/blobs")).expect("blobs").count();
    assert_eq!(blobs, 1, "the file before it");
    refuses(&hub.run(folder.path(), &["model", "pull", "org/escape"]), 3, &["\"../../escaped\" is no name of a file"]);
    refuses(&hub.run(folder.path(), &["model", "pull", "org/huge"]), 4, &["bytes are needed", "free some space"]);
    refuses(&hub.run(folder.path(), &["model", "pull", "org/fine:no.gguf"]), 5, &["no file no.gguf", WEIGHTS]);
}

#[test]
fn who_may_not_have_a_model_is_told_so() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    refuses(&hub.run(folder.path(), &["model", "pull", "org/private"]), 6, &["HTTP 401", "HF_TOKEN_PATH"]);
    refuses(&hub.run(folder.path(), &["model", "pull", "org/gone"]), 5, &["no model org/gone"]);
    refuses(&hub.run(folder.path(), &["model", "pull", "../etc"]), 2, &["no name of a hub"]);
    let token = folder.path().join("token.txt");
    fs::write(&token, "secret\n").expect("a file");
    let named = hub.command(folder.path(), &["model", "pull", "org/private"]).env("HF_TOKEN_PATH", &token).output();
    refuses(&named.expect("the binary under test"), 0, &["3 fetched"]);
    let away =
        hub.command(folder.path(), &["model", "pull", "org/fine"]).env("HF_ENDPOINT", "http://127.0.0.1:1").output();
    refuses(&away.expect("the binary under test"), 3, &["cannot be fetched", "HF_ENDPOINT"]);
}

#[test]
fn two_pulls_at_once_fetch_a_file_once() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let pulls = [(); 2].map(|()| {
        let mut command = hub.command(folder.path(), &["model", "pull", "org/together"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary under test")
    });
    for pull in pulls {
        refuses(&pull.wait_with_output().expect("an end"), 0, &["org/together"]);
    }
    assert_eq!(hub.asked(&file_path("together", WEIGHTS)).len(), 1);
    refuses(&hub.run(folder.path(), &["model", "verify", "org/together"]), 0, &["3, all with the right hash"]);
}

#[test]
fn who_is_sent_elsewhere_by_the_hub_takes_the_token_along_within_it_alone() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let pull = |name: &str| {
        let mut command = hub.command(folder.path(), &["model", "pull", name]);
        command.env("HF_TOKEN", "secret").output().expect("the binary under test")
    };
    refuses(&pull("org/renamed"), 0, &["3 fetched"]);
    refuses(&pull("org/kept"), 0, &["3 fetched"]);
    for file in ["config.json", "tokenizer.json", WEIGHTS] {
        let tokens = |name: &str| hub.asked(&file_path(name, file)).into_iter().map(|ask| ask.0).collect::<Vec<_>>();
        assert!(tokens("kept").iter().all(|token| token.as_deref() == Some("Bearer secret")), "{file}");
        assert_eq!(tokens("shelf"), [None], "{file}: another port is somebody else");
    }
    refuses(&pull("org/circle"), 3, &["model org/circle", "more than 10 redirects"]);
}

#[test]
fn files_that_are_kept_behind_tls_are_fetched_from_whom_authorities_know() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let known = folder.path().join("known.pem");
    fs::write(&known, &hub.certificate).expect("a file");
    let pull = |authorities: &Path| {
        let mut command = hub.command(folder.path(), &["model", "pull", "org/sealed"]);
        command.env("SSL_CERT_FILE", authorities).output().expect("the binary under test")
    };
    let path = file_path("shelf", WEIGHTS);
    let nowhere = folder.path().join("missing.pem");
    refuses(&pull(&nowhere), 3, &["nobody is trusted there", "SSL_CERT_FILE"]);
    assert_eq!(hub.asked(&path), [], "nothing goes there in the clear");
    refuses(&pull(&known), 0, &["3 fetched"]);
    assert_eq!(hub.asked(&path).len(), 1);
}

#[test]
fn who_is_busy_is_asked_again() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let busy = hub.run(folder.path(), &["model", "pull", "org/busy"]);
    let said = [
        "model org/busy: HTTP 429, it is asked too often; try 2 of 5 in 1.0 s",
        "model org/busy: HTTP 500; try 3 of 5 in 0.6 s",
        "try 4 of 5 in 1.8 s",
        "org/busy:config.json: HTTP 503; try 2 of 5 in 0.2 s",
        "org/busy:model.safetensors: HTTP 429, it is asked too often; try 2 of 5 in 0.2 s",
        "3 fetched",
    ];
    refuses(&busy, 0, &said);
    assert_eq!(hub.asked(&listing_path("busy")).len(), 4);
    let limited = hub.run(folder.path(), &["model", "pull", "org/limited", "--quiet"]);
    refuses(&limited, 3, &["asked too often (HTTP 429 for model org/limited)", "pull again in some minutes"]);
    assert!(!printed(&limited).contains("try 2 of 5"), "{}", printed(&limited));
    assert_eq!(hub.asked(&listing_path("limited")).len(), 5);
}

#[test]
fn who_stalls_is_left_and_who_is_slow_is_not() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let pull = |name: &str, seconds: &str| {
        let mut command = hub.command(folder.path(), &["model", "pull", name]);
        command.env("HF_HUB_DOWNLOAD_TIMEOUT", seconds).output().expect("the binary under test")
    };
    refuses(&pull("org/stalled", "1"), 0, &["model.safetensors: no byte came for 1 s; try 2 of 5", "3 fetched"]);
    let ranges = |name| hub.asked(&file_path(name, WEIGHTS)).into_iter().map(|ask| ask.1).collect::<Vec<_>>();
    let quarter = fs::metadata(model().join(WEIGHTS)).expect("weights").len() / 4;
    assert_eq!(ranges("stalled"), [None, Some(quarter)]);
    let slow = pull("org/slow", "1");
    refuses(&slow, 0, &["3 fetched"]);
    assert_eq!(ranges("slow"), [None], "{}", printed(&slow));
    for wrong in ["0", "soon", "-1"] {
        refuses(&pull("org/fine", wrong), 2, &["HF_HUB_DOWNLOAD_TIMEOUT", wrong, "expected whole seconds"]);
    }
}

#[test]
fn what_is_being_pulled_is_not_removed() {
    let (hub, folder) = (Hub::start(), tempfile::tempdir().expect("a folder"));
    let mut pull = hub.command(folder.path(), &["model", "pull", "org/held"]);
    let pull = pull.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary under test");
    hub.seen.wait_for(&file_path("held", WEIGHTS), 1);
    let removed = hub.run(folder.path(), &["model", "rm", "org/held"]);
    refuses(&removed, 5, &["org/held is being fetched or removed", ".lock", "nothing is removed", "wait for the pull"]);
    hub.seen.ask(RELEASED, (None, None));
    refuses(&pull.wait_with_output().expect("an end"), 0, &["3 fetched"]);
    refuses(&hub.run(folder.path(), &["model", "verify", "org/held"]), 0, &["3, all with the right hash"]);
    refuses(&hub.run(folder.path(), &["model", "rm", "org/held"]), 0, &["removed org/held"]);
}
