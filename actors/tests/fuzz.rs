//! What hosts may send each other, at random: reading it never panics or hangs, and what is read is a message.
//!
//! `ASTERISM_FUZZ_INPUTS` sets the number of inputs of all messages together; each is drawn from its own number, which a
//! failure prints.

use std::{
    collections::BTreeMap,
    env,
    fmt::Debug,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use asterism_actors::{
    api::{TokenLogprobs, TopLogprob, TraceContext},
    cores::GpuMemory,
    messages::{
        Attach, ChannelOpening, Condition, ContextIds, EncodeShards, Encoded, Generate, Hello, HostCommand,
        HostMessage, HostRole, LinkPeer, MeasuredLink, ParcelMeta, ParcelPart, ParcelsTaken, PartialsAnswer,
        PartialsMeta, PartialsPart, QueryMeta, QueryPart, RefreshOrder, RelayChild, RelayOrder, ShardHolder, ShardKeys,
        ShardSent, StreamingMask, TokenChoice, TokenShaping, WireMessage,
    },
    readings::{AnswerReading, Carried, LinkReading, LinkReport, Phase2Times, ProcessReading, Refused, Traffic},
    ticket::Secret,
};
use asterism_models::Sampling;
use asterism_plan::{ContextView, Exchange, HiddenKeys, KeptShard, LocalAttention, Shard, Span};
use asterism_transport::{Endpoint, sim::Draw};
use rkyv::util::AlignedVec;

const DEFAULT_INPUTS: u64 = 300_000;
const MESSAGES: u64 = 6;
/// FNV-1a.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
/// Far beyond what one input takes, even on a busy machine.
const LONGEST: Duration = Duration::from_secs(10);

/// Damages archives of `samples`, and reads them and random bytes as `M`.
fn fuzz<M: WireMessage + Debug>(samples: &[M]) {
    let inputs = env::var("ASTERISM_FUZZ_INPUTS").ok();
    let inputs = inputs.map_or(DEFAULT_INPUTS, |inputs| inputs.parse().expect("ASTERISM_FUZZ_INPUTS is a number"));
    let archives: Vec<AlignedVec> = samples.iter().map(|sample| sample.archive()).collect();
    keeps_its_bytes(samples, &archives);
    for (sample, archive) in samples.iter().zip(&archives) {
        assert_eq!(print(&M::read(archive, "peer").expect("it was just written")), print(sample));
    }
    let (start, mut read) = (Instant::now(), 0);
    for input in 0..inputs / MESSAGES {
        let began = Instant::now();
        let mut draw = Draw::new(input);
        let mut bytes = match draw.below(5) {
            0 => {
                let length = draw.below(300);
                draw.bytes(length)
            }
            _ => archives[draw.below(archives.len())].to_vec(),
        };
        draw.damage(&mut bytes);
        let mut archive = AlignedVec::with_capacity(bytes.len());
        archive.extend_from_slice(&bytes);
        if let Ok(message) = M::read(&archive, "peer") {
            read += 1;
            let again = M::read(&message.archive(), "peer").unwrap_or_else(|error| panic!("input {input}: {error}"));
            assert_eq!(print(&again), print(&message), "input {input}");
        }
        assert!(began.elapsed() < LONGEST, "input {input} took {:?}", began.elapsed());
    }
    assert!(inputs < DEFAULT_INPUTS || read > 0, "no damaged archive is a message");
    let rate = (inputs / MESSAGES) as f64 / start.elapsed().as_secs_f64();
    println!("{}: {read} of {} inputs read, {rate:.0} a second", std::any::type_name::<M>(), inputs / MESSAGES);
}

/// Two builds that follow each other talk: what a message is archived as stays. A line here that would change is a message that processes
/// of the last release read wrongly; what is new is a variant of its own (see `messages.rs`), and a line more.
fn keeps_its_bytes<M: WireMessage + Debug>(samples: &[M], archives: &[AlignedVec]) {
    let kept = include_str!("fuzz/archives.txt");
    let kind = std::any::type_name::<M>().rsplit("::").next().expect("a type has a name");
    let mut told = BTreeMap::new();
    let line = |(sample, archive): (&M, &AlignedVec)| {
        let words = print(sample);
        let variant = words.split([' ', '(', '{']).next().expect("it has a name");
        let number = told.entry(variant.to_owned()).and_modify(|number| *number += 1).or_insert(0);
        let hash = archive.iter().fold(FNV_START, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
        format!("{kind} {variant} {number}: {} bytes, {hash:016x}", archive.len())
    };
    let lines: Vec<String> = samples.iter().zip(archives).map(line).collect();
    let other: Vec<&String> = lines.iter().filter(|line| !kept.lines().any(|known| known == **line)).collect();
    assert!(other.is_empty(), "not among the kept archives: {other:#?}");
}

/// Equal for equal messages, numbers that are none among them.
fn print(message: &impl Debug) -> String {
    format!("{message:?}")
}

fn endpoints(address: &str) -> Vec<Endpoint> {
    vec![Endpoint::new("ucx", address), Endpoint::new("quic", address)]
}

fn link(peer: &str, transport: &str, why: &str, rtt_s: Option<f64>) -> LinkReading {
    LinkReading { peer: peer.into(), transport: transport.into(), why: why.into(), open: true, rtt_s }
}

fn measured(peer: &str, error: &str) -> MeasuredLink {
    MeasuredLink {
        peer: peer.into(),
        transport: "ucx".into(),
        why: "ucx: the peer does not offer it".into(),
        round_trip_s: 33e-6,
        bytes_per_s: 1.75e9,
        error: error.into(),
    }
}

fn holders() -> Vec<ShardHolder> {
    let holder =
        |host: &str| ShardHolder { host: host.into(), endpoints: endpoints("10.0.0.1:7400"), blocks: vec![0, 2, 4] };
    vec![holder("context-0"), holder("a-context-host-with-a-longer-name")]
}

#[test]
fn host_messages() {
    let mut times = Phase2Times::default();
    times.step.add(Duration::from_millis(30));
    times.layer_wait.add(Duration::from_millis(1));
    let masks = Box::new(times.step.clone());
    let logprobs = TokenLogprobs { logprob: -0.5, top: vec![TopLogprob { id: 3, logprob: -0.25 }; 3] };
    fuzz(&[
        HostMessage::Hello(Hello {
            name: "context-0".into(),
            role: HostRole::Context,
            incarnation: 7,
            start: 9,
            pid: 4242,
            endpoints: endpoints("127.0.0.1:7402"),
            cluster: 5,
            contexts: vec![3, 4],
            jobs: vec![(5, Secret::new([1; 32]).ticket(5))],
        }),
        HostMessage::Encoded(Encoded {
            digest: 77,
            context: 1,
            block: 2,
            kept_tokens: 4096,
            kv_bytes: 1 << 30,
            seconds: 0.25,
            computing_s: 0.125,
            operations: 1 << 50,
            pairs: 1 << 40,
            exchange_bytes: 0,
            cached: false,
        }),
        HostMessage::Token {
            job: 3,
            index: 8,
            id: 128_000,
            text: "an answer".into(),
            logprobs: Some(Box::new(logprobs)),
        },
        HostMessage::Generated { job: 3, tokens: 9, stopped: true, text: ".".into(), times: Box::new(times) },
        HostMessage::Links(LinkReport {
            links: vec![
                link("supervisor", "quic", "", Some(0.0002)),
                link("context-0", "quic", "ucx: the peer does not offer it", None),
            ],
            reconnects: 1,
            fallbacks: 1,
            unix_s: 1.7e9,
            process: ProcessReading {
                resident_bytes: 1 << 30,
                cpu_s: 12.5,
                threads: 9,
                computing: 2,
                gpu: Some(GpuMemory { used: 1 << 36, free: 1 << 35 }),
            },
            traffic: Traffic {
                carried: vec![Carried { transport: "quic".into(), sent_bytes: 1 << 40, received_bytes: 7 }],
                refused: vec![Refused { reason: "frame".into(), peers: 2 }],
                spans_dropped: 0,
                certificate_ends_s: Some(1.9e9),
            },
            answered: AnswerReading { seconds: 1.5, operations: 1 << 40 },
        }),
        HostMessage::Measured { links: vec![measured("context-0", ""), measured("context-1", "it is not there")] },
        HostMessage::Ready { numerics: "avx512 bf16".into(), model: Box::default() },
        HostMessage::Unfit { cause: "the model is not there; see [model] path".into() },
        HostMessage::Heartbeat { kv_bytes: 1 << 40, idle_bytes: 7 },
        HostMessage::Progress { context: 1, block: 2, layers: 3, of: 32 },
        HostMessage::NotEncoded {
            context: 1,
            attempt: 2,
            peer_lost: true,
            code: "stalled".into(),
            message: "context-1 does not answer".into(),
        },
        HostMessage::Stalled { job: 3, host: "context-0".into(), wrong: true, cause: "nothing came for 5 s".into() },
        HostMessage::Failed { job: 3, code: "internal".into(), message: "a fault; report it".into() },
        HostMessage::Exited { host: "query-0".into(), start: 9, cause: "signal 9".into(), restarting: true },
        HostMessage::Seen { host: "query-0".into(), start: 9, condition: Condition::Starved },
        HostMessage::Leaving { grace_ms: 8000 },
        HostMessage::Masked { job: 3, masks },
        HostMessage::Gpus { gpus: "[{\"index\":1,\"celsius\":61}]".into() },
    ]);
}

#[test]
fn host_commands() {
    let shard = Shard {
        block: 1,
        host: 0,
        prefix: vec![Span { start: 0, tokens: 4, position: 10 }],
        own: Span { start: 20, tokens: 16, position: 14 },
        keeps_prefix: false,
        apart_rows: 0,
        behind: 0,
        attention: LocalAttention::Causal,
        rope_length: 0,
    };
    let hidden = vec![HiddenKeys { block: 1, runs: vec![(0, 16)] }];
    let refresh_order = RefreshOrder { shard: shard.clone(), ids: vec![5; 20], hidden };
    let choice = TokenChoice {
        max_tokens: 64,
        temperature: 0.0,
        top_p: 1.0,
        seed: 0,
        shaping: TokenShaping::of(&Sampling { top_k: 3, logit_bias: [(7, 1.0)].into(), ..Sampling::default() }),
        stop: vec!["\n".into(), "the end of the answer".into()],
        ignore_eos: false,
        logprobs: Some(3),
        scored: Some(vec![4, 5]),
    };
    let ticket = Secret::new([7; 32]).ticket(1);
    let trace = Some(Box::new(TraceContext { trace: 1 << 100, span: 7 }));
    fuzz(&[
        HostCommand::Welcome { heartbeat_ms: 500, cluster: 5, incarnation: 2 },
        HostCommand::Ids(ContextIds::of(1, &[5; 60], [0..4, 20..36]).remove(0)),
        HostCommand::Encode(EncodeShards {
            context: 1,
            tenant: 7,
            attempt: 2,
            shards: vec![shard.clone(), shard],
            blocks: 5,
            exchange: Exchange::SharedPrefix { sink_rows: 4 },
            peers: holders(),
            ticket,
            room: Some(1 << 30),
            trace: trace.clone(),
            identities: vec![(1, [7; 32]), (2, [9; 32])],
        }),
        HostCommand::Generate(Generate {
            job: 1,
            tenant: 7,
            context: 1,
            query_ids: (0..9).collect(),
            generated: vec![4, 5],
            query_start: 1000,
            shards: vec![KeptShard { keys: 1000, group: 0 }; 3],
            refresh_order: Some(Box::new(refresh_order)),
            lookup: Some((0..100).collect()),
            fan_in: 32,
            view: ContextView::All,
            holders: holders(),
            choice: Box::new(choice),
            ticket,
            trace,
        }),
        HostCommand::Measure {
            peers: vec![LinkPeer { host: "context-0".into(), endpoints: endpoints("127.0.0.1:7402") }; 2],
        },
        HostCommand::Refuse { reason: "another host has that name".into() },
        HostCommand::Holders { job: 1, holders: holders() },
        HostCommand::Stop { job: 1 },
        HostCommand::Release { context: 1, keep: true },
        HostCommand::Kill { host: "context-0".into(), start: 9 },
        HostCommand::Shutdown,
        HostCommand::Leave,
        HostCommand::Start { host: "query-0".into() },
        HostCommand::Configure { settings: "{\"log\": \"debug\"}".into() },
    ]);
}

#[test]
fn openings() {
    let ticket = Secret::new([7; 32]).ticket(9);
    let below = RelayChild {
        host: "c1".into(),
        endpoints: endpoints("127.0.0.1:1"),
        answers: vec![vec![4, 5]],
        opening: vec![7; 40],
    };
    let relay = RelayOrder { below: vec![below; 2], merges: vec![vec![0, 2], vec![4, 1]] };
    let hidden = vec![HiddenKeys { block: 2, runs: vec![(0, 4), (9, 90)] }];
    let groups = vec![vec![1, 2], vec![3]];
    fuzz(&[
        ChannelOpening::Attach(Attach { attachment: 4, context: 9, groups, hidden, relay, hands_over: true, ticket }),
        ChannelOpening::Detach { attachment: 4 },
        ChannelOpening::Pass { context: 4, attempt: 1, ticket },
        ChannelOpening::Probe,
        ChannelOpening::Trace { attachment: 4, trace: TraceContext { trace: 1 << 100, span: 7 } },
        ChannelOpening::Fetch { context: 4, block: 2, ticket },
    ]);
    fuzz(&[ShardSent { context: 4, block: 2, digest: 9, checksum: [7; 32] }]);
    fuzz(&[ParcelsTaken { context: 4, attempt: 1 }]);
}

#[test]
fn parcels() {
    fuzz(&[ParcelMeta {
        layer: 3,
        part: ParcelPart::Keys,
        from: 0,
        to: Some(3),
        shapes: vec![vec![8, 128, 64], vec![8, 128]],
        piece: 0,
        pieces: 2,
    }]);
}

#[test]
fn masks() {
    let mask = StreamingMask { sink: 4, window: 512, first_row: 1000, first_key: 0 };
    let part = |attachment, mask| QueryPart { attachment, rows: 3, mask };
    fuzz(&[QueryMeta { layer: 3, parts: vec![part(1, None), part(7, Some(mask))] }]);
}

#[test]
fn partials() {
    let part = |answer| PartialsMeta { parts: vec![PartialsPart { attachment: 7, rows: 1, answer }; 2] };
    fuzz(&[
        part(PartialsAnswer::Groups(vec![(0..5).map(|block| ShardKeys { block, keys: 4096 }).collect(); 2])),
        part(PartialsAnswer::Failed { cause: "block 3 is not held here".into(), host: Some("c1".into()) }),
    ]);
}

/// Archives are validated before they are read: what reads them otherwise is unsafe, and this crate holds nothing of it.
#[test]
fn nothing_is_read_unchecked() {
    fn search(folder: &Path, files: &mut usize) {
        for entry in fs::read_dir(folder).expect("the folder is there").flatten() {
            let path = entry.path();
            if path.is_dir() {
                search(&path, files);
            } else {
                let text = fs::read_to_string(&path).expect("UTF-8 source");
                for word in ["_unchecked", "unsafe "] {
                    assert!(!text.contains(word), "{} contains `{word}`", path.display());
                }
                *files += 1;
            }
        }
    }
    let mut files = 0;
    search(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files > 0);
}
