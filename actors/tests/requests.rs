//! What clients may send as jobs and sessions, at random: reading and planning it never panics, wraps or takes much memory,
//! and what is taken is within its bounds.
//!
//! `ASTERISM_FUZZ_INPUTS` sets the number of inputs of all tests together; each is drawn from its own number, which a failure
//! prints.

use std::{
    env, fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use asterism_actors::{
    JobError,
    api::{JobRequest, SessionRequest, bounds},
    supervisor::{ContextHosts, ModelFront, PreparedContext, Source},
};
use asterism_kernels::{DType, KvType};
use asterism_models::{Checkpoint, TemplateSource};
use asterism_plan::{MethodConfig, Shard};
use asterism_transport::sim::Draw;
use serde_json::{Map, Value, json};

const DEFAULT_INPUTS: u64 = 20_000;
const TESTS: u64 = 2;
/// Far beyond what one input takes, even on a busy machine.
const LONGEST: Duration = Duration::from_secs(10);
/// What all inputs together may add to the memory of this process.
const MOST_GROWTH: u64 = 256 << 20;
const HOSTS: ContextHosts =
    ContextHosts { count: 3, one_device: false, kv: KvType::computed(DType::F32), speeds: None };

fn front() -> ModelFront {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
    let heads = models.join("tiny-llama/retaining_heads.safetensors");
    let front = ModelFront::load(
        &Checkpoint::open(&models.join("tiny-llama")).expect("a model"),
        None,
        TemplateSource::in_process,
    );
    front.and_then(|front| front.with_heads(&[("trained".to_string(), heads)].into())).expect("a tokenizer and heads")
}

/// Methods with all of their keys.
fn methods() -> Vec<Value> {
    let local = json!({"streaming": {"sink_tokens": 2, "window_tokens": 8}});
    vec![
        json!({"dense": {}}),
        json!({"auto": {"dense_below_tokens": 8}}),
        json!({"star": {"block_tokens": 16, "anchor_tokens": 4, "anchor_content": {"constant": {"token": 5}}, "balanced": false,
                        "anchor_position": {"given": [[0, 1, 2, 3], [0, 1, 2, 3]]}, "shared_prefix": false, "local_attention": local}}),
        json!({"star": {"anchor_tokens": 4, "anchor_content": {"shuffled": {"permutation": [3, 2, 1, 0]}},
                        "anchor_position": {"random": {"seed": 7, "sorted": true}}}}),
        json!({"star": {"anchor_content": {"random": {"tokens": [9, 8, 7, 6]}}, "anchor_tokens": 4, "balanced": true}}),
        json!({"pulsar": {"block_tokens": 16, "sink_tokens": 4, "chunk_tokens": 2, "summary_tokens": 4, "summary_fraction": 0.25,
                          "least_summary_tokens": 8, "heuristic": "bm25", "ties": "rarity", "spread": "shared", "balanced": false,
                          "positions": "contiguous", "keep_summary_kv": true, "shared_prefix": false}}),
        json!({"apb": {"anchor_tokens": 16, "passing_tokens": 2, "query_insert_at": 1, "score_pool": 3, "first_skip": "held",
                       "retaining_heads": "trained", "embed_query": true, "anchor_includes_query": true}}),
        json!({"anchor": {"theta": 3.5, "step": 2, "block_q": 4, "block_kv": 4}}),
        json!({"ring": {"layout": "zigzag"}}),
        json!({"ulysses": {}}),
        json!({"streaming": {"sink_tokens": 2, "window_tokens": 4, "phase2": "streaming"}}),
        json!({"minference": {"vertical": 4, "slash": 4}}),
        json!({"flexprefill": {"gamma": 0.5, "tau": 0.5, "min_budget": 4}}),
    ]
}

fn jobs() -> Vec<Value> {
    let text = "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse.";
    let job = |method: Value| {
        json!({"id": "a-job", "context": text, "query": "Who?", "method": method, "allow_idle_hosts": true, "max_tokens": 4,
               "sampling": {"temperature": 0.5, "top_p": 0.9, "seed": 3}, "stop": ["\n", "end"], "ignore_eos": false,
               "chat_template": false, "placement": {"arrangement": "pack", "labels": {"rack": "a"}}, "timeout_s": 30.5,
               "labels": {"who": "me"}})
    };
    let mut jobs: Vec<Value> = methods().into_iter().map(job).collect();
    jobs.push(json!({"context": (0..90).collect::<Vec<u32>>(), "query": [1, 2, 3], "chat_template": false}));
    jobs
}

fn sessions() -> Vec<Value> {
    let mut sessions = Vec::new();
    for job in jobs() {
        let mut session = json!({"name": "moby", "ttl_s": 60.5});
        for key in ["context", "method", "allow_idle_hosts", "chat_template", "placement"] {
            if let Some(value) = job.get(key) {
                session[key] = value.clone();
            }
        }
        sessions.push(session);
    }
    sessions
}

/// What stands in JSON in place of something else.
fn odd(draw: &mut Draw) -> Value {
    let length = draw.below(400);
    match draw.below(24) {
        0 => json!(u64::MAX),
        1 => json!(i64::MIN),
        2 => json!(-1),
        3 => json!(0),
        4 => json!(1e308),
        5 => json!(-1e308),
        6 => json!(1e-320),
        7 => json!(0.5),
        8 => json!(u32::MAX),
        9 => json!(1_u64 << 32),
        10 => json!((1_u64 << 30) - draw.below(2) as u64),
        11 => Value::Null,
        12 => json!(true),
        13 => json!([]),
        14 => json!({}),
        15 => json!("x".repeat(length)),
        16 => json!("/dev/zero"),
        17 => json!(".."),
        18 => json!("\u{1b}[2J\u{0}\u{202e}"),
        19 => json!(vec![draw.below(600); length]),
        20 => json!(" \n".repeat(length)),
        21 => json!({"streaming": {"window_tokens": draw.below(9), "sink_tokens": draw.below(9)}}),
        22 => methods().swap_remove(draw.below(13)),
        _ => json!(draw.below(40)),
    }
}

/// Changes something somewhere in `value`.
fn change(value: &mut Value, draw: &mut Draw) {
    match value {
        Value::Object(map) if !map.is_empty() && draw.below(8) > 0 => change_entry(map, draw),
        Value::Array(list) if !list.is_empty() && draw.below(4) > 0 => {
            let at = draw.below(list.len());
            match draw.below(4) {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                _ => change(&mut list[at], draw),
            }
        }
        _ => *value = odd(draw),
    }
}

/// Changes one value, to another of its kind, or leaves one key out: most readers take that, and what is behind them sees it.
fn nudge(value: &mut Value, draw: &mut Draw) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            let key = map.keys().nth(draw.below(map.len())).expect("it is not empty").clone();
            match draw.below(10) {
                0 => drop(map.remove(&key)),
                _ => nudge(map.get_mut(&key).expect("it has the key"), draw),
            }
        }
        Value::Array(list) if !list.is_empty() => {
            let at = draw.below(list.len());
            nudge(&mut list[at], draw);
        }
        Value::Bool(is) => *is = !*is,
        Value::Number(number) => match number.as_u64() {
            Some(is) => {
                let near = [is.saturating_sub(1), is.saturating_add(1), 2 * is, 0, 1, draw.below(3000) as u64];
                let far = [u64::from(u32::MAX), 1 << 32, i64::MAX as u64, u64::MAX];
                *value = json!([&near[..], &far[..]].concat()[draw.below(near.len() + far.len())]);
            }
            None => {
                let is = number.as_f64().unwrap_or(0.5);
                *value = json!([-is, is / 2.0, 2.0 * is, 0.0, 1.0, 1.5, 1e-320, 1e308, -0.0][draw.below(9)]);
            }
        },
        Value::String(text) => {
            let length = draw.below(3000);
            let words = [
                "",
                "x",
                "..",
                "/dev/zero",
                "\u{1b}[2J",
                "shared",
                "rarity",
                "zigzag",
                "given",
                "held",
                "pack",
                "trained",
            ];
            *text = match draw.below(words.len() + 2) {
                0 => "word ".repeat(length),
                1 => text.repeat(2),
                word => words[word - 2].to_string(),
            };
        }
        _ => {}
    }
}

fn change_entry(map: &mut Map<String, Value>, draw: &mut Draw) {
    let key = map.keys().nth(draw.below(map.len())).expect("it is not empty").clone();
    match draw.below(12) {
        0 => drop(map.remove(&key)),
        1 => {
            let value = map.remove(&key).expect("it has the key");
            map.insert(key + "s", value);
        }
        _ => change(map.get_mut(&key).expect("it has the key"), draw),
    }
}

/// This process's largest memory, in bytes.
fn largest_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// Feeds changed `samples` to `take`, which says whether it took them.
fn fuzz(samples: &[Value], take: impl Fn(&[u8]) -> Option<Result<(), JobError>>) {
    let inputs = env::var("ASTERISM_FUZZ_INPUTS").ok();
    let inputs = inputs.map_or(DEFAULT_INPUTS, |inputs| inputs.parse().expect("ASTERISM_FUZZ_INPUTS is a number"));
    for sample in samples {
        assert!(take(sample.to_string().as_bytes()).is_some(), "a sample is no request: {sample}");
    }
    let (start, before, mut counts) = (Instant::now(), largest_memory(), [0_u64; 3]);
    let (mut gentle, mut read) = (0_u64, 0_u64);
    for input in 0..inputs / TESTS {
        let (began, mut draw) = (Instant::now(), Draw::new(input));
        let mut value = samples[draw.below(samples.len())].clone();
        let is_gentle = draw.below(4) > 0;
        match is_gentle {
            true => nudge(&mut value, &mut draw),
            false => (0..=draw.below(3)).for_each(|_| change(&mut value, &mut draw)),
        }
        let mut bytes = value.to_string().into_bytes();
        if !is_gentle && draw.below(8) == 0 {
            draw.damage(&mut bytes);
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(&bytes)));
        let shown = || String::from_utf8_lossy(&bytes).into_owned();
        let outcome = outcome.unwrap_or_else(|_| panic!("input {input} panics: {}", shown()));
        (gentle, read) = (gentle + u64::from(is_gentle), read + u64::from(is_gentle && outcome.is_some()));
        match outcome {
            None => counts[0] += 1,
            Some(Err(error)) => {
                let (code, body) = (error.code(), error.body());
                assert!(!["internal", "stopping"].contains(&code), "input {input}: {error}: {}", shown());
                assert!(body.message.len() < 2000, "input {input}: {} bytes of error", body.message.len());
                assert!(!body.message.contains('\u{1b}'), "input {input}: {}", body.message);
                counts[1] += 1;
            }
            Some(Ok(())) => counts[2] += 1,
        }
        assert!(began.elapsed() < LONGEST, "input {input} took {:?}: {}", began.elapsed(), shown());
    }
    let grown = largest_memory().saturating_sub(before);
    let rate = (inputs / TESTS) as f64 / start.elapsed().as_secs_f64();
    let [unread, refused, taken] = counts;
    println!(
        "{unread} not read, {refused} refused, {taken} taken; of {gentle} with one change {read} read; {rate:.0} a second, {} MiB more",
        grown >> 20
    );
    assert!(inputs < DEFAULT_INPUTS || read > gentle / 2, "{read} of {gentle}");
    assert!(inputs < DEFAULT_INPUTS || (unread > 0 && refused > 0 && taken > 0));
    assert!(grown < MOST_GROWTH, "{grown} bytes");
}

fn check_context(front: &ModelFront, prepared: &PreparedContext) {
    let plan = &prepared.plan;
    assert!(prepared.ids.iter().all(|&id| (id as usize) < front.config.vocab));
    assert_eq!(plan.check(plan.context_tokens), Ok(()));
    assert!(plan.shards.iter().map(Shard::rows).sum::<usize>() <= 64 * plan.context_tokens + (1 << 16));
    assert!(plan.context_tokens <= front.max_tokens);
    assert!(prepared.placement.labels.values().all(|label| bounds::name("placement", label).is_ok()));
}

#[test]
fn jobs_as_json() {
    let front = front();
    let method = MethodConfig::default();
    fuzz(&jobs(), |bytes| {
        let request: JobRequest = serde_json::from_slice(bytes).ok()?;
        let prepared = match front.prepare(request, &method, &HOSTS, None) {
            Ok(prepared) => prepared,
            Err(error) => return Some(Err(error)),
        };
        let choice = &prepared.question.choice;
        assert!((1..=front.max_tokens).contains(&(choice.max_tokens as usize)));
        assert!((0.0..=100.0).contains(&choice.temperature) && choice.top_p > 0.0 && choice.top_p <= 1.0);
        assert!(prepared.question.timeout.is_none_or(|timeout| timeout <= bounds::LONGEST_REQUEST_TIME));
        assert!(prepared.id.is_empty() || bounds::client_id(&prepared.id).is_ok());
        assert!(
            prepared.labels.iter().all(|(key, value)| [key, value].iter().all(|part| bounds::name("l", part).is_ok()))
        );
        if let Source::Context(context) = &prepared.source {
            let tokens = context.plan.context_tokens + prepared.question.query_ids.len() + choice.max_tokens as usize;
            assert!(tokens <= front.max_tokens);
            check_context(&front, context);
        }
        Some(Ok(()))
    });
}

#[test]
fn sessions_as_json() {
    let front = front();
    let method = MethodConfig::default();
    fuzz(&sessions(), |bytes| {
        let request: SessionRequest = serde_json::from_slice(bytes).ok()?;
        Some(front.prepare_session(request, &method, &HOSTS).map(|context| check_context(&front, &context)))
    });
}
