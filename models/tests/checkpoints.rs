//! Tiny checkpoints with config.json of every kind, against what transformers computes with them. tests/conformance/checkpoints.py
//! writes the cases and says how weights and prompts are drawn.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use asterism_kernels::{Backend, Cpu, CpuOptions, DType, DeviceGroup};
use asterism_models::{
    Checkpoint, ContextKeys, Decoder, DecoderParts, Generator, HeadNorms, LocalContext, ModelConfig, ModelError,
    StepPart, encode_plan, step,
};
use asterism_plan::{Method, MethodConfig, PlanRequest};
use safetensors::{Dtype, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

/// As far as logprobs may lie from the reference's.
const TOLERANCE: f32 = 1e-4;
/// Tokens of a prompt that are its question.
const QUESTION: usize = 4;

#[derive(Deserialize)]
struct Cases {
    new: usize,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    /// The text of config.json.
    config: String,
    generation: Option<String>,
    /// What stands before the names of tensors in place of `model.`.
    prefix: Option<String>,
    /// Shapes of the tensors, where they are not those of Llama.
    tensors: Option<BTreeMap<String, Vec<usize>>>,
    /// Tensors that are not stored.
    #[serde(default)]
    absent: Vec<String>,
    /// The key that the refusal names.
    refused: Option<String>,
    #[serde(default)]
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    /// Tokens of the prompt.
    tokens: usize,
    #[serde(default)]
    seed: u32,
    /// The key that does not let it be asked.
    refused: Option<String>,
    #[serde(default)]
    answer: Vec<u32>,
    #[serde(default)]
    logprobs: Vec<f32>,
    /// An end of sequence follows.
    #[serde(default)]
    ends: bool,
}

/// Those that are shaped as Llama is, and those of other families.
const FILES: [&str; 2] = ["checkpoints.json", "families.json"];

fn cases(file: &str) -> Cases {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance").join(file);
    serde_json::from_slice(&fs::read(path).expect("the cases are there"))
        .expect("they are as checkpoints.py writes them")
}

/// Numbers in `[-1, 1)` from a name.
fn unit(name: &str, count: usize) -> impl Iterator<Item = f32> {
    let seed = name.bytes().fold(2_166_136_261_u32, |seed, byte| (seed ^ u32::from(byte)).wrapping_mul(16_777_619));
    (0..count as u32).map(move |at| {
        let mut hash = at.wrapping_mul(0x9E37_79B9).wrapping_add(seed);
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85EB_CA6B);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xC2B2_AE35);
        ((hash ^ (hash >> 16)) >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}

fn tensor(name: &str, shape: &[usize]) -> Vec<u8> {
    let value = |u: f32| match shape {
        _ if name.ends_with(".bias") => 0.3 * u,
        [_] => 1.0 + 0.3 * u,
        [_, columns, ..] if !name.ends_with("embed_tokens.weight") => (2.0 / (*columns as f64).sqrt()) as f32 * u,
        _ => u,
    };
    unit(name, shape.iter().product()).flat_map(|u| value(u).to_le_bytes()).collect()
}

fn prompt(Run { tokens, seed, .. }: &Run, vocab: usize) -> Vec<u32> {
    let id = |u: f32| 8 + ((f64::from(u) + 1.0) / 2.0 * (vocab - 8) as f64) as u32;
    unit(&format!("prompt.{seed}"), *tokens).map(id).collect()
}

/// Names and shapes of a decoder's tensors, the head included.
fn shapes(config: &ModelConfig) -> BTreeMap<String, Vec<usize>> {
    let &ModelConfig { hidden, vocab, heads, ref layer, .. } = config;
    let (intermediate, biases) = (layer.feed_forward.intermediate(), layer.biases);
    let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
    let mut all = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        ("lm_head.weight".to_owned(), vec![vocab, hidden]),
    ]);
    let linears = [
        ("self_attn.q_proj", query, hidden, biases.qkv),
        ("self_attn.k_proj", kv, hidden, biases.qkv),
        ("self_attn.v_proj", kv, hidden, biases.qkv),
        ("self_attn.o_proj", hidden, query, biases.output),
        ("mlp.gate_proj", intermediate, hidden, biases.mlp),
        ("mlp.up_proj", intermediate, hidden, biases.mlp),
        ("mlp.down_proj", hidden, intermediate, biases.mlp),
    ];
    for at in 0..config.layers {
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            all.insert(format!("model.layers.{at}.{norm}.weight"), vec![hidden]);
        }
        for norm in ["q_norm", "k_norm"].iter().filter(|_| layer.head_norms != HeadNorms::None) {
            all.insert(format!("model.layers.{at}.self_attn.{norm}.weight"), vec![heads.dim]);
        }
        for (name, n, k, biased) in linears {
            all.insert(format!("model.layers.{at}.{name}.weight"), vec![n, k]);
            if biased {
                all.insert(format!("model.layers.{at}.{name}.bias"), vec![n]);
            }
        }
    }
    all
}

impl Case {
    fn checkpoint(&self, folder: &TempDir) -> Result<Checkpoint, ModelError> {
        let generation = self.generation.as_deref().map(str::as_bytes);
        let config = ModelConfig::from_json(self.config.as_bytes(), generation)?;
        let stored = |name: &str| match self.prefix.as_deref() {
            Some("model.model.") => format!("model.{name}"),
            Some(prefix) => name.strip_prefix("model.").map_or(name.to_owned(), |bare| format!("{prefix}{bare}")),
            None => name.to_owned(),
        };
        let drawn: Vec<_> = self
            .tensors
            .clone()
            .unwrap_or_else(|| shapes(&config))
            .into_iter()
            .filter(|(name, _)| !self.absent.contains(name))
            .map(|(name, shape)| (stored(&name), tensor(&name, &shape), shape))
            .collect();
        let views = drawn.iter().map(|(name, bytes, shape)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("as many bytes as the shape says"))
        });
        let write = |file: &str, bytes: &[u8]| fs::write(folder.path().join(file), bytes).unwrap();
        write("model.safetensors", &safetensors::serialize(views, None).unwrap());
        write("config.json", self.config.as_bytes());
        write("tokenizer.json", b"{}");
        generation.into_iter().for_each(|bytes| write("generation_config.json", bytes));
        Checkpoint::open(folder.path())
    }
}

/// What greedy search finds, and the logprobs: at most so many tokens, without an end of sequence.
fn answer<B: Backend>(
    decoder: &Decoder<B>,
    (method, hosts): (&MethodConfig, usize),
    ids: &[u32],
    most: usize,
) -> (Vec<u32>, Vec<f32>, bool) {
    let (context, query) = ids.split_at(ids.len().saturating_sub(QUESTION));
    let mut shards = Vec::new();
    let generator = match context {
        [] => Generator::new(ContextKeys::default(), 0),
        context => {
            let shape = decoder.config().shape(DType::F32);
            let request = PlanRequest { context, query, hosts, one_device: false, shape: &shape, speeds: None };
            let plan = method.plan(&request).unwrap();
            plan.check(context.len()).unwrap();
            shards = encode_plan(decoder, &plan, context, None, &mut |_, _| true).unwrap();
            Generator::of(&plan)
        }
    };
    let mut context = LocalContext::new(decoder.backend(), &shards);
    let mut generator = generator.asked(query.len());
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    // The question comes in two steps, as a long one does.
    if query.len() > 1 {
        generator.step(decoder, &query[..1], &mut context).unwrap();
    }
    let mut next = query[usize::from(query.len() > 1)..].to_vec();
    while tokens.len() < most {
        let logits = decoder.logits(&generator.step(decoder, &next, &mut context).unwrap()).unwrap();
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        if decoder.config().eos.contains(&(best as u32)) {
            return (tokens, logprobs, true);
        }
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - logits[best]).exp()).sum();
        tokens.push(best as u32);
        logprobs.push(-sum.ln() as f32);
        next = vec![best as u32];
    }
    (tokens, logprobs, false)
}

/// A run by a method on hosts; what is wrong with it, if something is.
fn wrong<B: Backend>(decoder: &Decoder<B>, run: &Run, by: (&MethodConfig, usize), new: usize) -> Option<String> {
    let (tokens, logprobs, ends) = answer(decoder, by, &prompt(run, decoder.config().vocab), new);
    let off = logprobs.iter().zip(&run.logprobs).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
    if tokens == run.answer && ends == run.ends && off < TOLERANCE {
        return None;
    }
    let expected = (&run.answer, run.ends);
    Some(format!("{} tokens by {}: {tokens:?}, {ends}, {off} off, expected {expected:?}", run.tokens, by.0.name()))
}

fn decoder(checkpoint: &Checkpoint) -> Decoder<Cpu> {
    let options = CpuOptions { dtype: DType::F32, threads: Some(1), ..CpuOptions::default() };
    Decoder::load(Arc::new(Cpu::new(options).unwrap()), checkpoint, DecoderParts::All).unwrap()
}

/// The model over a group of two processors, where its heads can be dealt out and the group has what it needs.
fn grouped(checkpoint: &Checkpoint) -> Option<Decoder<DeviceGroup<Cpu>>> {
    let options = CpuOptions { dtype: DType::F32, threads: Some(1), ..CpuOptions::default() };
    let members = (0..2).map(|_| Arc::new(Cpu::new(options).unwrap())).collect();
    let group = DeviceGroup::new(members, checkpoint.config().heads).ok()?;
    match Decoder::load(Arc::new(group), checkpoint, DecoderParts::All) {
        Ok(decoder) => Some(decoder),
        Err(ModelError::Kernel(error)) if error.code() == "kernel_missing" => None,
        Err(error) => panic!("{error}"),
    }
}

fn method(value: Value) -> MethodConfig {
    serde_json::from_value(value).expect("a method")
}

#[test]
fn greedy_tokens_and_logprobs_are_those_of_transformers() {
    let dense = method(json!({"dense": {}}));
    // These are exact, whoever holds which keys.
    let exact = [
        (method(json!({"ring": {"layout": "contiguous"}})), 3),
        (method(json!({"ring": {}})), 3),
        (method(json!({"ulysses": {}})), 2),
        (method(json!({"chain": {"block_tokens": 7}})), 2),
        // Behind an anchor that is all before it a block misses nothing.
        (method(json!({"star": {}})), 2),
    ];
    let (mut wrongs, mut answered, mut shared) = (Vec::new(), 0, 0);
    let all = FILES.map(cases);
    let runs = all.iter().flat_map(|Cases { new, cases }| cases.iter().map(|case| (*new, case)));
    for (new, case) in runs.filter(|(_, case)| case.refused.is_none()) {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = match case.checkpoint(&folder) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                wrongs.push(format!("{}: {error}", case.name));
                continue;
            }
        };
        checkpoint.verify().unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let (decoder, config, group) = (decoder(&checkpoint), checkpoint.config(), grouped(&checkpoint));
        for run in &case.runs {
            let fits = run.tokens + new <= config.max_position;
            if run.refused.as_deref().is_some_and(|key| fits || key != config.limiting_key())
                || (run.refused.is_none() && !fits)
            {
                wrongs.push(format!("{}: {} tokens, at most {}", case.name, run.tokens, config.max_position));
            }
            if run.refused.is_some() || !fits {
                continue;
            }
            answered += 1;
            let mut check =
                |by| wrongs.extend(wrong(&decoder, run, by, new).map(|cause| format!("{}: {cause}", case.name)));
            check((&dense, 1));
            // As many tokens of context as hosts at least.
            let fits = |hosts: &usize| run.tokens >= QUESTION + 2 * hosts;
            exact.iter().filter(|(_, hosts)| fits(hosts)).for_each(|(method, hosts)| check((method, *hosts)));
            if let Some(group) = group.as_ref().filter(|_| run.tokens <= 100) {
                shared += 1;
                wrongs.extend(
                    wrong(group, run, (&dense, 1), new).map(|cause| format!("{}, by two devices: {cause}", case.name)),
                );
            }
        }
    }
    assert!(wrongs.is_empty(), "{} of {answered} runs:\n{}", wrongs.len(), wrongs.join("\n"));
    assert!(answered > 150 && shared > 100, "{answered} runs, {shared} by two devices");
}

/// What no method computes exactly is computed all the same, and by each way that a shard may be encoded to the same bits.
#[test]
fn methods_that_cut_contexts_run_on_every_family() {
    let Cases { cases, .. } = cases("families.json");
    let methods = [
        json!({"star": {"block_tokens": 128, "anchor_tokens": 24}}),
        json!({"pulsar": {"block_tokens": 128, "summary_fraction": 0.25, "chunk_tokens": 8, "sink_tokens": 16}}),
        json!({"apb": {"anchor_tokens": 32, "passing_tokens": 16}}),
        json!({"streaming": {"sink_tokens": 4, "window_tokens": 64}}),
        json!({"auto": {"dense_below_tokens": 0}}),
    ];
    let methods = methods.map(method);
    let mut ran = 0;
    for case in cases.iter().filter(|case| case.refused.is_none()) {
        let Some(run) = case.runs.iter().find(|run| run.tokens >= 500) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let decoder = decoder(&case.checkpoint(&folder).unwrap());
        for method in &methods {
            let (tokens, logprobs, _) = answer(&decoder, (method, 3), &prompt(run, decoder.config().vocab), 3);
            let sound = tokens.len() == 3 && logprobs.iter().all(|logprob| logprob.is_finite() && *logprob <= 0.0);
            assert!(sound, "{} by {}: {tokens:?} {logprobs:?}", case.name, method.name());
            ran += 1;
        }
    }
    assert!(ran >= 60, "{ran} runs");
}

/// Rows of jobs whose sequences have other lengths go through a step together, each rotated as it is alone.
#[test]
fn a_step_of_many_lengths_gives_each_its_own_bits() {
    let case = cases(FILES[0]).cases.into_iter().find(|case| case.name == "dynamic, old").expect("a case");
    let folder = tempfile::tempdir().unwrap();
    let decoder = decoder(&case.checkpoint(&folder).unwrap());
    let dense = method(json!({"dense": {}}));
    let shape = decoder.config().shape(DType::F32);
    let plans = [20, 80, 100].map(|tokens: u32| {
        let (context, query) = ((0..tokens).map(|at| 8 + at * 37 % 88).collect::<Vec<_>>(), [9, 30, 10]);
        let request =
            PlanRequest { context: &context, query: &query, hosts: 1, one_device: true, shape: &shape, speeds: None };
        let plan = dense.plan(&request).unwrap();
        let shards = encode_plan(&decoder, &plan, &context, None, &mut |_, _| true).unwrap();
        (plan, shards)
    });
    assert_eq!(plans.each_ref().map(|(plan, _)| plan.shards[0].rope_length), [0, 83, 103]);
    let generators = || plans.iter().map(|(plan, _)| Generator::of(plan).asked(3)).collect::<Vec<_>>();
    let steps: [&[u32]; 3] = [&[9, 30, 10], &[50], &[60]];
    let mut alone = Vec::new();
    for (mut generator, (_, shards)) in generators().into_iter().zip(&plans) {
        let mut context = LocalContext::new(decoder.backend(), shards);
        let x = steps.map(|ids| generator.step(&decoder, ids, &mut context).unwrap());
        alone.push(x.map(|x| decoder.logits(&x).unwrap()));
    }
    let mut together = generators();
    let contexts = plans.iter().map(|(_, shards)| shards.iter().collect()).collect();
    let mut context = LocalContext::of(decoder.backend(), contexts);
    for (at, ids) in steps.into_iter().enumerate() {
        let mut parts: Vec<_> = together.iter_mut().map(|generator| StepPart { generator, ids }).collect();
        for (x, alone) in step(&decoder, &mut parts, &mut context).unwrap().into_iter().zip(&alone) {
            assert_eq!(decoder.logits(&x.unwrap()).unwrap(), alone[at], "step {at}");
        }
    }
}

#[test]
fn what_is_not_computed_as_transformers_does_is_refused_by_the_name_of_its_key() {
    for case in FILES.into_iter().flat_map(|file| cases(file).cases) {
        let Some(key) = &case.refused else { continue };
        let folder = tempfile::tempdir().unwrap();
        let error = case.checkpoint(&folder).err().unwrap_or_else(|| panic!("{} opens", case.name)).to_string();
        // A value, or a key within.
        let named = error.strip_prefix(&format!("config.json: {key}"));
        assert!(named.is_some_and(|rest| rest.starts_with(" = ") || rest.starts_with('.')), "{}: {error}", case.name);
    }
}
