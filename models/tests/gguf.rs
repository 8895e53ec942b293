//! Files that are what their folder is, files that are damaged, and files that are not what they say.

#[path = "gguf/writer.rs"]
mod writer;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use asterism_kernels::{BlockFormat, Cpu, CpuOptions, DType, Stored};
use asterism_models::{
    Checkpoint, ContextKeys, Decoder, DecoderParts, Generator, LocalContext, ModelConfig, Rope, RopeScaling, Tokenizer,
    Written,
};
use tempfile::TempDir;
use writer::{Gguf, Put, PutTensor, converted};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models").join(name)
}

fn written(file: &Gguf) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("tiny-q.gguf");
    fs::write(&path, file.bytes()).unwrap();
    (place, path)
}

fn opened(file: &Gguf) -> Checkpoint {
    let (_place, path) = written(file);
    Checkpoint::open(&path).unwrap()
}

fn refusal(file: &Gguf) -> String {
    let (_place, path) = written(file);
    let opened = Checkpoint::open(&path).and_then(|checkpoint| {
        Tokenizer::from_checkpoint(&checkpoint)?;
        checkpoint.verify()
    });
    let error = opened.expect_err("a file that is not as it must be");
    assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
    error.to_string().split_once(": ").unwrap().1.to_owned()
}

fn logits(checkpoint: &Checkpoint, dtype: DType) -> Vec<f32> {
    let backend = Arc::new(Cpu::new(CpuOptions { dtype, ..CpuOptions::default() }).unwrap());
    let decoder = Decoder::load(backend, checkpoint, DecoderParts::All).unwrap();
    let mut nowhere = LocalContext::new(decoder.backend(), &[]);
    let ids: Vec<u32> = (0..40).map(|at| at * 37 % 500).collect();
    let x = Generator::new(ContextKeys::default(), 0).step(&decoder, &ids, &mut nowhere).unwrap();
    decoder.all_logits(&x).unwrap()
}

const TEXT: &str = "Ruth said: I'll go 1,234 ways,  and\n\n then <|eot_id|> naïve — 日本.";

#[test]
fn a_file_is_the_model_that_it_was_converted_from() {
    for name in ["tiny-llama", "tiny-qwen2"] {
        let whole = Checkpoint::open(&folder(name)).unwrap();
        let mut file = converted(&folder(name));
        if name == "tiny-llama" {
            // What llama.cpp writes for this way to scale.
            let plain = Rope { scaling: RopeScaling::Plain, ..whole.config().rope.clone() };
            let (plain, own) = (plain.inv_freq(16, 0), whole.config().inv_freq(0));
            let bytes = plain.iter().zip(own).flat_map(|(plain, own)| (plain / own).to_le_bytes()).collect();
            let tensor = PutTensor { name: "rope_freqs.weight".into(), shape: vec![8], kind: 0, bytes };
            file.tensors.push(tensor);
        }
        let checkpoint = opened(&file);
        assert_eq!(checkpoint.name(), "tiny-q");
        let [own, others] = [&checkpoint, &whole].map(|checkpoint| {
            let ModelConfig { layers, heads, hidden, vocab, max_position, eps, tied, bos, .. } = *checkpoint.config();
            (layers, heads, hidden, vocab, max_position, eps, tied, bos, checkpoint.config().layer.clone())
        });
        assert_eq!(own, others);
        // The folder's config.json names one end, the tokens of the file another too.
        assert_eq!(checkpoint.config().eos, [1, 4]);
        let (got, expected) = (logits(&checkpoint, DType::F32), logits(&whole, DType::F32));
        let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(if name == "tiny-llama" { worst < 1e-4 } else { got == expected }, "{name}: {worst}");
        let [own, others] = [&checkpoint, &whole].map(|checkpoint| {
            let tokenizer = Tokenizer::from_checkpoint(checkpoint).unwrap();
            let ids = tokenizer.encode_most(&Written::from(TEXT.to_owned()), 1000).unwrap();
            (tokenizer.decode(&ids).unwrap(), ids)
        });
        assert_eq!(own, others);
        checkpoint.verify().unwrap();
    }
}

#[test]
fn parts_are_one_file_whichever_is_named() {
    let whole = converted(&folder("tiny-qwen2"));
    let place = tempfile::tempdir().unwrap();
    let mut tensors = whole.tensors.clone();
    let rest = tensors.split_off(7);
    for (number, tensors) in [tensors, rest].into_iter().enumerate() {
        let metadata = if number == 0 { whole.metadata.clone() } else { Vec::new() };
        let mut part = Gguf { metadata, tensors };
        part.set("split.no", Put::U32(number as u32));
        part.set("split.count", Put::U32(2));
        part.set("split.tensors.count", Put::U32(whole.tensors.len() as u32));
        fs::write(place.path().join(format!("m-0000{}-of-00002.gguf", number + 1)), part.bytes()).unwrap();
    }
    let part = |number: u32| place.path().join(format!("m-0000{number}-of-00002.gguf"));
    let (first, second) = (Checkpoint::open(&part(1)).unwrap(), Checkpoint::open(&part(2)).unwrap());
    assert_eq!((first.name(), second.name()), ("m", "m"));
    let one = opened(&whole).digest(place.path()).unwrap();
    for parts in [first, second] {
        assert_eq!(one.difference(&parts.digest(place.path()).unwrap()), None);
    }
    fs::remove_file(part(2)).unwrap();
    let lacks = Checkpoint::open(&part(1)).err().unwrap().to_string();
    assert!(lacks.contains("m-00002-of-00002.gguf") && lacks.contains("fetch all of them"), "{lacks}");
    fs::copy(part(1), part(2)).unwrap();
    let twice = Checkpoint::open(&part(1)).err().unwrap().to_string();
    assert!(twice.contains("split.no is 0; expected 1"), "{twice}");
}

#[test]
fn a_weight_that_differs_is_another_digest() {
    let mut file = converted(&folder("tiny-qwen2"));
    let before = opened(&file).digest(Path::new("/nowhere")).unwrap();
    file.tensor("blk.1.ffn_up.weight").bytes[5] ^= 1;
    let after = opened(&file).digest(Path::new("/nowhere")).unwrap();
    let stated = before.difference(&after).unwrap();
    assert_eq!(stated, "weights differ in 1 tensor, first model.layers.1.mlp.up_proj.weight");
    file.set("tokenizer.ggml.pre", Put::Text("smollm".into()));
    assert!(
        before.difference(&opened(&file).digest(Path::new("/nowhere")).unwrap()).unwrap().contains("tokenizer.json")
    );
}

#[test]
fn what_is_wrong_is_named_with_its_field() {
    let sound = converted(&folder("tiny-qwen2"));
    type Damage = (&'static str, fn(&mut Gguf), &'static str);
    let cases: [Damage; 26] = [
        (
            "architecture",
            |file| file.set("general.architecture", Put::Text("mamba".into())),
            "general.architecture is mamba; expected one of llama",
        ),
        (
            "no architecture",
            |file| file.metadata.retain(|(key, _)| key != "general.architecture"),
            "general.architecture is missing",
        ),
        (
            "a type",
            |file| file.tensor("blk.0.attn_q.weight").kind = 99,
            "tensor blk.0.attn_q.weight is of type 99; expected F32",
        ),
        ("a known type", |file| file.tensor("blk.0.attn_q.weight").kind = 18, "is of type IQ3_XXS"),
        (
            "a count",
            |file| file.set("qwen2.block_count", Put::Text("3".into())),
            "qwen2.block_count is \"3\"; expected a number",
        ),
        (
            "no count",
            |file| file.metadata.retain(|(key, _)| key != "qwen2.embedding_length"),
            "qwen2.embedding_length is missing",
        ),
        (
            "another shape",
            |file| file.set("qwen2.feed_forward_length", Put::U32(100)),
            "tensor blk.0.ffn_gate.weight is [192, 96]; expected [100, 96]",
        ),
        (
            "a lost tensor",
            |file| file.tensors.retain(|tensor| tensor.name != "blk.2.attn_v.bias"),
            "tensor blk.2.attn_v.bias is missing",
        ),
        (
            "no table",
            |file| file.tensors.retain(|tensor| tensor.name != "token_embd.weight"),
            "tensor token_embd.weight is missing",
        ),
        (
            "rows of blocks",
            |file| file.tensor("blk.0.ffn_up.weight").kind = 12,
            "tensor blk.0.ffn_up.weight is [192, 96] of Q4_K; expected rows of whole blocks of 256",
        ),
        ("an axis", |file| file.tensor("blk.0.ffn_up.weight").shape[0] = 1 << 60, "expected no more than the"),
        ("beyond the end", |file| file.tensors.last_mut().unwrap().shape[0] = 1 << 20, "expected its end within the"),
        (
            "twice",
            |file| {
                let tensor = file.tensors[3].clone();
                file.tensors.push(tensor)
            },
            "listed twice",
        ),
        (
            "no number",
            |file| file.tensor("output_norm.weight").bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
            "tensor output_norm.weight has NaN",
        ),
        (
            "a splitting",
            |file| file.set("tokenizer.ggml.pre", Put::Text("grok-2".into())),
            "tokenizer.ggml.pre is grok-2; expected one of default",
        ),
        (
            "a tokenizer",
            |file| file.set("tokenizer.ggml.model", Put::Text("rwkv".into())),
            "tokenizer.ggml.model is rwkv; expected gpt2",
        ),
        (
            "a merge of nothing",
            |file| file.set("tokenizer.ggml.merges", Put::Texts(vec!["zzz q".into()])),
            "which lacks \"zzz\"",
        ),
        (
            "too many tokens",
            |file| file.set("tokenizer.ggml.tokens", Put::Texts(vec!["a".into(); 600])),
            "tokenizer.ggml.tokens is 600 tokens; expected 1 to 512",
        ),
        (
            "kinds",
            |file| file.set("tokenizer.ggml.token_type", Put::I32s(vec![1; 3])),
            "tokenizer.ggml.token_type is 3 kinds; expected 512",
        ),
        (
            "an end that is none",
            |file| file.set("tokenizer.ggml.eos_token_id", Put::U32(512)),
            "tokenizer.ggml.eos_token_id is 512; expected an id below 512",
        ),
        (
            "experts",
            |file| file.set("qwen2.expert_count", Put::U32(8)),
            "qwen2.expert_count is 8; expected no mixture of experts",
        ),
        (
            "a bias that nothing is computed with",
            |file| {
                let bias =
                    PutTensor { name: "blk.1.attn_output.bias".into(), ..file.tensor("blk.1.attn_q.bias").clone() };
                file.tensors.push(bias);
            },
            "tensor blk.1.attn_output.bias is there; expected no such tensor in a model of qwen2",
        ),
        (
            "a layer too many",
            |file| file.set("qwen2.block_count", Put::U32(2)),
            "is there; expected no such tensor in a model of qwen2: nothing would be computed",
        ),
        (
            "a key that is not known",
            |file| file.set("qwen2.attention.temperature_length", Put::U32(8)),
            "qwen2.attention.temperature_length is 8; expected no such key",
        ),
        (
            "a factor of attention",
            |file| {
                file.set("qwen2.rope.scaling.type", Put::Text("yarn".into()));
                file.set("qwen2.rope.scaling.factor", Put::F32(4.0));
                file.set("qwen2.rope.scaling.attn_factor", Put::F32(2.0));
            },
            "qwen2.rope.scaling.attn_factor is 2; expected 1",
        ),
        (
            "later tokens",
            |file| file.set("qwen2.attention.causal", Put::Bool(false)),
            "qwen2.attention.causal is false; expected true",
        ),
    ];
    for (name, damage, words) in cases {
        let mut file = sound.clone();
        damage(&mut file);
        let stated = refusal(&file);
        assert!(stated.contains(words), "{name}: {stated}");
    }
}

/// So many numbers, f32.
fn floats(name: &str, numbers: Vec<f32>) -> PutTensor {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    PutTensor { name: name.into(), shape: vec![numbers.len() as u64], kind: 0, bytes }
}

#[test]
fn biases_of_a_file_are_computed_with() {
    let plain = converted(&folder("tiny-llama"));
    let shape = opened(&plain).config().clone();
    let (mut biased, mut silent) = (plain.clone(), plain.clone());
    for layer in 0..shape.layers {
        for (name, weight) in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
            .map(|name| (format!("blk.{layer}.{name}.bias"), format!("blk.{layer}.{name}.weight")))
        {
            let outputs = biased.tensor(&weight).shape[0] as usize;
            biased.tensors.push(floats(&name, (0..outputs).map(|at| (at as f32 * 0.7).sin()).collect()));
            silent.tensors.push(floats(&name, vec![0.0; outputs]));
        }
    }
    let [plain, biased, silent] = [plain, biased, silent].map(|file| {
        let checkpoint = opened(&file);
        checkpoint.verify().unwrap();
        logits(&checkpoint, DType::F32)
    });
    assert!(plain == silent && plain != biased);
}

/// Qwen3's class has heads of 128 elements where config.json says nothing; a file that says nothing divides the width by the heads.
#[test]
fn heads_of_qwen3_divide_the_width_where_a_file_has_no_length_of_keys() {
    let mut file = converted(&folder("tiny-qwen2"));
    for (key, value) in &mut file.metadata {
        *key = key.replace("qwen2.", "qwen3.");
        if key == "general.architecture" {
            *value = Put::Text("qwen3".into());
        }
    }
    file.tensors.retain(|tensor| !tensor.name.ends_with(".bias"));
    for layer in 0..3 {
        for norm in ["attn_q_norm", "attn_k_norm"] {
            let weights = (0..16).map(|at| 1.0 + at as f32 / 64.0).collect();
            file.tensors.push(floats(&format!("blk.{layer}.{norm}.weight"), weights));
        }
    }
    let mut told = file.clone();
    told.set("qwen3.attention.key_length", Put::U32(16));
    assert!(!file.metadata.iter().any(|(key, _)| key.contains("key_length")));
    let [silent, told] = [file, told].map(|file| {
        let checkpoint = opened(&file);
        checkpoint.verify().unwrap();
        (checkpoint.config().heads, logits(&checkpoint, DType::F32))
    });
    assert_eq!((silent.0.query, silent.0.kv, silent.0.dim), (6, 2, 16));
    assert!(silent == told, "other logits");
}

#[test]
fn rotary_scaling_is_read_by_older_keys_and_without_its_type() {
    let plain = converted(&folder("tiny-qwen2"));
    let scaling = |keys: &[(&str, Put)]| {
        let mut file = plain.clone();
        keys.iter().for_each(|(key, value)| file.set(&format!("qwen2.rope.{key}"), value.clone()));
        opened(&file).config().rope.scaling.clone()
    };
    let linear = scaling(&[("scaling.type", Put::Text("linear".into())), ("scaling.factor", Put::F32(4.0))]);
    assert_ne!(linear, RopeScaling::Plain);
    assert_eq!(scaling(&[("scaling.factor", Put::F32(4.0))]), linear);
    assert_eq!(scaling(&[("scale_linear", Put::F32(4.0))]), linear);
    let none = [("scaling.type", Put::Text("none".into())), ("scaling.factor", Put::F32(4.0))];
    assert_eq!(scaling(&none), RopeScaling::Plain);
}

#[test]
fn a_header_that_claims_what_is_not_there_is_refused() {
    let sound = converted(&folder("tiny-qwen2")).bytes();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m.gguf");
    let stated = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = Checkpoint::open(&path).err().expect("a file that is not as it must be").to_string();
        error.strip_prefix(&format!("{}/", place.path().display())).expect("the file first").to_owned()
    };
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = sound.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        stated(&bytes)
    };
    for (at, to, words) in [
        (0, &b"GGML"[..], "begins with \"GGML\""),
        (4, &[1, 0, 0, 0], "version is 1; expected 2 or 3"),
        (4, &[0, 0, 0, 3], "version is that of a big-endian file"),
        (8, &(1u64 << 60).to_le_bytes(), "tensor count is 1152921504606846976; expected no more than"),
        (16, &u64::MAX.to_le_bytes(), "metadata count is 18446744073709551615; expected no more than"),
        (24, &(1u64 << 60).to_le_bytes(), "metadata entry 0 is cut short"),
    ] {
        let got = changed(at, to);
        assert!(got.starts_with("m.gguf") && got.contains(words), "{got}");
    }
    for length in (0..sound.len()).step_by(997).chain([sound.len() - 1]) {
        stated(&sound[..length]);
    }
}

/// Headers at random and sound ones that are damaged: no panic, and nothing is allocated by what they claim.
/// `ASTERISM_FUZZ_INPUTS` sets their number.
#[test]
fn headers_at_random_are_read_or_refused() {
    let inputs = env::var("ASTERISM_FUZZ_INPUTS").map_or(20_000, |inputs| inputs.parse::<u64>().expect("a number"));
    let mut small = converted(&folder("tiny-qwen2"));
    small.tensors.sort_by_key(|tensor| tensor.name != "token_embd.weight");
    small.tensors.truncate(6);
    small.tensors.iter_mut().for_each(|tensor| (tensor.shape, tensor.bytes) = (vec![32], vec![0; 128]));
    (small.tensors[0].shape, small.tensors[0].bytes) = (vec![32, 32], vec![0; 4096]);
    let tokens = (0..31).map(|at| format!("t{at}")).chain(["t1t2".to_owned()]).collect();
    small.set("tokenizer.ggml.tokens", Put::Texts(tokens));
    small.set("tokenizer.ggml.token_type", Put::I32s(vec![1; 32]));
    small.set("tokenizer.ggml.merges", Put::Texts(vec!["t1 t2".into()]));
    small.set("tokenizer.ggml.scores", Put::F32s(vec![0.5; 32]));
    small.set("general.alignment", Put::U32(32));
    small.set("general.size", Put::U64(7));
    let sound = small.bytes();
    let place = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" }).unwrap();
    let path = place.path().join("m.gguf");
    fs::write(&path, &sound).unwrap();
    Checkpoint::open(&path).unwrap();
    let mut read = 0;
    for input in 0..inputs {
        let mut state = input.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % below
        };
        let mut bytes = sound.clone();
        for _ in 0..1 + draw(4) {
            let (at, edge) = (draw(bytes.len()), [0, 1, 0x7f, 0x80, 0xff][draw(5)]);
            match draw(4) {
                0 => bytes[at] = draw(256) as u8,
                1 => bytes[at] = edge,
                2 => bytes.truncate(at.max(24)),
                _ => {
                    let end = (at + 8).min(bytes.len());
                    bytes[at..end].fill(edge);
                }
            }
        }
        fs::write(&path, &bytes).unwrap();
        match Checkpoint::open(&path) {
            Ok(checkpoint) => {
                read += 1;
                let _ = checkpoint.verify().and_then(|()| Tokenizer::from_checkpoint(&checkpoint).map(drop));
            }
            Err(error) => assert!(error.to_string().len() < 1000, "input {input}: {error}"),
        }
    }
    assert!(read > inputs / 100, "{read} of {inputs} damaged headers are read");
}

/// SentencePiece's own way: of all neighbours the two are joined whose join has the best score, the first of several.
fn joined_by_scores(text: &str, tokens: &[String], scores: &[f32]) -> Vec<u32> {
    let id = |piece: &str| tokens.iter().position(|token| token == piece);
    let mut pieces: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let join = |at: usize| id(&[pieces[at].as_str(), &pieces[at + 1]].concat()).map(|id| (scores[id], at));
        let best =
            (1..pieces.len()).filter_map(|at| join(at - 1)).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        let Some((_, at)) = best else { break };
        let right = pieces.remove(at + 1);
        pieces[at] += &right;
    }
    let bytes = |piece: String| -> Vec<u32> {
        let one = |byte: u8| id(&format!("<0x{byte:02X}>")).unwrap() as u32;
        id(&piece).map_or_else(|| piece.bytes().map(one).collect(), |id| vec![id as u32])
    };
    pieces.into_iter().flat_map(bytes).collect()
}

#[test]
fn sentencepiece_joins_by_scores() {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut kinds = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    kinds.resize(tokens.len(), 6);
    tokens.extend("▁abcdeté".chars().map(String::from));
    let first = tokens.len() - 8;
    let mut state = 7usize;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    while tokens.len() < 480 {
        let piece = [first, first].map(|first| tokens[first + draw(tokens.len() - first)].clone()).concat();
        if piece.chars().count() <= 6 && !tokens.contains(&piece) && !piece.chars().skip(1).any(|c| c == '▁') {
            tokens.push(piece);
        }
    }
    kinds.resize(tokens.len(), 1);
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let mut file = converted(&folder("tiny-llama"));
    file.set("tokenizer.ggml.model", Put::Text("llama".into()));
    file.metadata.retain(|(key, _)| key != "tokenizer.ggml.merges" && key != "tokenizer.ggml.add_bos_token");
    file.set("tokenizer.ggml.tokens", Put::Texts(tokens.clone()));
    file.set("tokenizer.ggml.scores", Put::F32s(scores.clone()));
    file.set("tokenizer.ggml.token_type", Put::I32s(kinds));
    file.set("tokenizer.ggml.bos_token_id", Put::U32(1));
    file.set("tokenizer.ggml.eos_token_id", Put::U32(2));
    file.tensors.push(PutTensor {
        name: "rope_freqs.weight".into(),
        shape: vec![8],
        kind: 0,
        bytes: [1f32; 8].iter().flat_map(|factor| factor.to_le_bytes()).collect(),
    });
    for prefix in [true, false] {
        file.set("tokenizer.ggml.add_space_prefix", Put::Bool(prefix));
        let tokenizer = Tokenizer::from_checkpoint(&opened(&file)).unwrap();
        assert_eq!((tokenizer.around().before.as_slice(), tokenizer.around().behind.as_slice()), (&[1][..], &[][..]));
        for _ in 0..100 {
            let text: String =
                (0..1 + draw(30)).map(|_| ['a', 'b', 'c', 'd', 'e', 't', 'é', ' ', 'x'][draw(9)]).collect();
            let marked = format!("{}{}", if prefix { "▁" } else { "" }, text.replace(' ', "▁"));
            let ids = tokenizer.encode_most(&Written::from(text.clone()), 1000).unwrap();
            assert_eq!(ids, joined_by_scores(&marked, &tokens, &scores), "{text:?}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        }
    }
}

/// Weights in blocks, drawn; and the same numbers in f32.
fn in_blocks(file: &Gguf, format: BlockFormat, kind: u32) -> [Gguf; 2] {
    let (mut blocks, mut plain) = (file.clone(), file.clone());
    let mut state = 43u64;
    for at in 0..file.tensors.len() {
        let elements: u64 = file.tensors[at].shape.iter().product();
        let stored = Stored::Blocks(format);
        let whole = file.tensors[at].shape.last().is_some_and(|row| row.is_multiple_of(format.elements() as u64));
        if file.tensors[at].shape.len() != 2 || !whole {
            continue;
        }
        let mut bytes: Vec<u8> = (0..stored.bytes_of(elements as usize).unwrap())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        format.set_factors(&mut bytes, 0.004);
        let mut values = vec![0.0; elements as usize];
        format.dequantize(&bytes, &mut values);
        (blocks.tensors[at].kind, blocks.tensors[at].bytes) = (kind, bytes);
        plain.tensors[at].bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    }
    [blocks, plain]
}

#[test]
fn blocks_compute_what_their_numbers_do() {
    let numbered = [2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 39];
    for (format, kind) in BlockFormat::GGML.into_iter().zip(numbered) {
        // Rows of 128 and 256: of formats with blocks of 256 the last projection alone.
        let file = converted(&folder("tiny-llama"));
        let [blocks, plain] = in_blocks(&file, format, kind);
        assert!(blocks.bytes().len() < plain.bytes().len());
        for dtype in [DType::F32, DType::Bf16] {
            let [got, expected] = [&blocks, &plain].map(|file| logits(&opened(file), dtype));
            assert!(got == expected, "{format} in {dtype:?}");
        }
    }
}
