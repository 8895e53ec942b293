//! Inputs that nobody would write, by a generator that makes the same each time: bodies, lines of batches and forms with files. As
//! many as `ASTERISM_GENERATED` says.

use std::{sync::Arc, time::Duration};

use actix_multipart::Multipart;
use actix_web::{
    error::PayloadError,
    http::header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use asterism_actors::api::{AppendRequest, JobRequest, SessionRequest};
use bytes::Bytes;
use futures_util::stream;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{
    batching::{batch_run::BatchLine, files},
    chat,
    requests::{fields::Fields, form, tools},
    store::Store,
};
use crate::{api::http::body::weight, cluster::Limits};

/// How many where nothing is said.
const USUAL: usize = 20_000;
/// What the process may take beyond what it has, in bytes.
const MEMORY_BOUND: u64 = 64 << 20;

/// A sequence of numbers that is the same each time (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

const GENERATED_FIELDS: &[&str] = &[
    "messages",
    "input",
    "prompt",
    "context",
    "metadata",
    "role",
    "content",
    "type",
    "text",
    "custom_id",
    "method",
    "url",
    "body",
    "stop",
    "tools",
    "max_tokens",
    "stream_options",
    "attention",
    "",
    "a",
    "\\u0000",
    "name",
    "query",
    "labels",
    "sampling",
    "placement",
    "session_id",
    "logit_bias",
    "seed",
    "background",
    "tool_calls",
    "function",
    "arguments",
    "tool_choice",
    "response_format",
    "logprobs",
];
const SCALARS: &[&str] = &[
    "null",
    "true",
    "0",
    "-1",
    "1e999",
    "-0.0",
    "18446744073709551616",
    "\"\"",
    "\"user\"",
    "\"system\"",
    "\"assistant\"",
    "\"text\"",
    "\"message\"",
    "\"POST\"",
    "\"/v1/responses\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ud800\"",
    "\"\u{e9}\u{1f600}\"",
    "\"dense\"",
    "1.5",
    "NaN",
    "\"",
    "\\",
    "[",
    "}",
];

/// Something like JSON.
fn value(random: &mut Random, depth: usize, to: &mut String) {
    let list = |random: &mut Random| 1 << random.below(if depth < 2 { 7 } else { 3 });
    match random.below(if depth > 5 { 2 } else { 6 }) {
        0 | 1 => to.push_str(random.one(SCALARS)),
        2 => {
            let (part, times) = (random.one(&["x", "\\n", "0", "\u{20ac}", " "]), random.below(2000));
            *to += &format!("\"{}\"", part.repeat(times));
        }
        3 => {
            to.push('[');
            for at in 0..list(random) {
                to.push_str(if at > 0 { "," } else { "" });
                value(random, depth + 1, to);
            }
            to.push(']');
        }
        _ => object(random, depth, to),
    }
}

fn object(random: &mut Random, depth: usize, to: &mut String) {
    to.push('{');
    for at in 0..random.below(8) {
        to.push_str(if at > 0 { ", " } else { "" });
        *to += &format!("\"{}\":", random.one(GENERATED_FIELDS));
        value(random, depth + 1, to);
    }
    to.push('}');
}

/// The same with some bytes changed, cut off or doubled.
fn spoilt(random: &mut Random, text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    for _ in 0..random.below(3) {
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] = random.below(256) as u8,
            2 => bytes.extend_from_within(at..),
            _ => {}
        }
    }
    bytes
}

fn count() -> usize {
    std::env::var("ASTERISM_GENERATED").ok().and_then(|count| count.parse().ok()).unwrap_or(USUAL)
}

fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Whether something is what is wanted, whatever it is.
fn is_read<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    serde_json::from_slice::<T>(bytes).is_ok()
}

#[test]
fn what_nobody_would_write_is_read_or_refused_in_little_memory() {
    // Other tests of this process allocate, too.
    for test in [
        "bodies_and_lines_that_nobody_would_write_are_read_or_refused",
        "forms_that_nobody_would_write_are_read_or_refused",
    ] {
        let mut child = std::process::Command::new(std::env::current_exe().expect("a program"));
        let (_, module) = module_path!().split_once("::").expect("a module of the crate");
        let test = format!("{module}::{test}");
        let output = child.args(["--exact", &test, "--ignored"]).output().expect("it runs already");
        let reported = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && reported.contains("1 passed"), "{reported}");
    }
}

#[test]
#[ignore = "a child of what_nobody_would_write_is_read_or_refused_in_little_memory"]
fn bodies_and_lines_that_nobody_would_write_are_read_or_refused() {
    let (before, mut random, mut read) = (peak(), Random(0x9e37_79b9_7f4a_7c15), 0);
    for _ in 0..count() {
        let mut text = String::new();
        object(&mut random, 0, &mut text);
        let bytes = spoilt(&mut random, text);
        assert!(weight::structure(&bytes) >= bytes.iter().filter(|byte| **byte == b'{').count().min(1));
        if let Ok(mut fields) = serde_json::from_slice::<Fields>(&bytes) {
            read += 1;
            let _ = fields.messages.take().map(|messages| chat::read(messages, "messages"));
            let _ = fields.take::<u64>("max_tokens");
            let _ = tools::take(&mut fields).map(|tools| tools.and_then(|tools| tools.form()));
            let _ = form::take(&mut fields);
            let _ = fields.finish();
        }
        read += usize::from(is_read::<BatchLine>(&bytes));
        let _ = (is_read::<JobRequest>(&bytes), is_read::<SessionRequest>(&bytes), is_read::<AppendRequest>(&bytes));
    }
    assert!(read > count() / 50, "{read} of {}: the generator makes nothing that is read", count());
    assert!(peak() - before < MEMORY_BOUND);
}

/// A form with a file, or something like it, in pieces.
fn form(random: &mut Random) -> Vec<Result<Bytes, PayloadError>> {
    let mut form = String::new();
    // How many of each list a form takes from: half of them are put together rightly.
    let is_right = random.below(2) == 0;
    let of = |all: usize, right: usize| if is_right { right } else { all };
    for _ in 0..random.below(5) {
        let names = ["purpose", "file", "file\"; filename=\"../../x", "", "x\r\n", "\u{e9}"];
        let name = random.one(&names[..of(6, 3)]);
        let headers = ["Content-Disposition: form-data; name=", "Content-Disposition: ", "X: ", ""];
        let header = random.one(&headers[..of(4, 1)]);
        let content = random.one(&["batch", "", "--w", "\r\n--w\r\n", "\0", "x"]);
        let (end, times) = (random.one(&["\r\n", "\n", ""][..of(3, 1)]), random.below(300));
        let times = if random.below(2) == 0 { 1 } else { times };
        form += &format!("--w\r\n{header}\"{name}\"\r\n\r\n{}{end}", content.repeat(times));
    }
    form += random.one(&["--w--\r\n", "--w--", "--w", ""][..of(4, 1)]);
    let mut bytes = Bytes::from(spoilt(random, form));
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        pieces.push(Ok(bytes.split_to((1 + random.below(500)).min(bytes.len()))));
    }
    pieces
}

#[test]
#[ignore = "a child of what_nobody_would_write_is_read_or_refused_in_little_memory"]
fn forms_that_nobody_would_write_are_read_or_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { bytes: 1 << 20, bytes_per_key: 1 << 20 };
    let store = Arc::new(Store::open(folder.path(), limits).unwrap());
    let (before, mut random, mut read) = (peak(), Random(7), 0);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("multipart/form-data; boundary=w"));
    for _ in 0..count() / 4 {
        let form = Multipart::new(&headers, stream::iter(form(&mut random)));
        let reading = async { timeout(Duration::from_secs(10), files::read((&store, None), form)).await };
        read += usize::from(runtime.block_on(reading).expect("it comes to an end").is_ok());
    }
    assert!(read > 0, "the generator makes no form");
    assert_eq!((store.stored().bytes, std::fs::read_dir(folder.path().join("openai")).unwrap().count()), (0, 0));
    assert!(peak() - before < MEMORY_BOUND);
}
