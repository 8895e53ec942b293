//! What holding an answer to a form costs a token: which tokens may come, and taking in the one that came. Choosing among them costs no
//! more than choosing among all. Answers are those of a
//! model that likes every token as much, and each that ended is checked to be JSON.
//!
//!     cargo run --release -p asterism-models --example masks -- [--model DIR_OR_GGUF] [--tokens 2000]
//!
//! One row a form on stdout, in microseconds.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use asterism_models::{Checkpoint, Constraint, Guides, Sampler, Sampling, Tokenizer};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

/// Tokens of an answer, at most: then the next one begins.
const LONGEST: usize = 400;

fn forms() -> [(&'static str, Constraint); 4] {
    let row = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "depth": {"type": "integer"}, "kind": {"enum": ["sea", "lake"]}},
        "required": ["name", "depth", "kind"],
        "additionalProperties": false,
    });
    let nested = json!({
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[a-f0-9]{8}$"},
            "when": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
            "parts": {"type": "array", "items": row, "minItems": 1},
            "value": {"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}]},
        },
        "required": ["id", "when", "tags", "parts", "value"],
        "additionalProperties": false,
    });
    [
        ("any object", Constraint::JsonObject),
        ("rows", Constraint::JsonSchema(json!({"type": "array", "items": row, "minItems": 1000}))),
        ("nested", Constraint::JsonSchema(nested)),
        ("regex", Constraint::Regex("([a-z]{3,9} ){20,90}[0-9]+".to_owned())),
    ]
}

fn main() -> Result<()> {
    let (mut model, mut tokens) = (None::<PathBuf>, 2000);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} has no value"))?;
        match name.as_str() {
            "--model" => model = Some(value.into()),
            "--tokens" => tokens = value.parse()?,
            _ => anyhow::bail!("{name} is not known, expected --model or --tokens"),
        }
    }
    let checkpoint = match &model {
        Some(path) => Checkpoint::open(path)?,
        None => Checkpoint::embedded()?,
    };
    let (tokenizer, config) = (Tokenizer::from_checkpoint(&checkpoint)?, checkpoint.config().clone());
    let guides = Arc::new(Guides::new(&tokenizer, config.vocab, &config.eos)?);
    println!("{} tokens in the vocabulary; microseconds a token", config.vocab);
    println!("{:<12}{:>8}{:>8}{:>8}{:>8}{:>10}", "form", "mean", "p50", "p90", "p99", "answers");
    for (name, form) in forms() {
        let (mut took, answers) =
            (Vec::<Duration>::new(), answers(&guides, &form, (&tokenizer, &config.eos, config.vocab), tokens)?);
        for (text, is_whole, times) in &answers {
            let is_json = !matches!(form, Constraint::Regex(_));
            ensure!(!is_whole || !is_json || serde_json::from_str::<Value>(text).is_ok(), "{name}: {text}");
            took.extend(times);
        }
        took.sort();
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        let mean = took.iter().sum::<Duration>().as_secs_f64() * 1e6 / took.len() as f64;
        println!("{name:<12}{mean:>8.1}{:>8.1}{:>8.1}{:>8.1}{:>10}", at(0.5), at(0.9), at(0.99), answers.len());
    }
    Ok(())
}

/// Text, whether it is whole, and what each token took.
type HeldAnswer = (String, bool, Vec<Duration>);

fn answers(
    guides: &Arc<Guides>,
    form: &Constraint,
    (tokenizer, eos, vocab): (&Tokenizer, &[u32], usize),
    tokens: usize,
) -> Result<Vec<HeldAnswer>> {
    let (mut random, mut all, mut made) = (StdRng::seed_from_u64(7), Vec::new(), 0);
    while made < tokens {
        let mut guide = guides.guide(form)?;
        let mut sampler = Sampler::new(Sampling::default());
        let (mut ids, mut took, mut is_whole) = (Vec::new(), Vec::new(), false);
        while ids.len() < LONGEST && !is_whole {
            let logits: Vec<f32> = (0..vocab).map(|_| random.random_range(-4.0..4.0)).collect();
            let began = Instant::now();
            let mask = guide.mask(false)?;
            let masked = began.elapsed();
            let id = sampler.next_within(&logits, &mask);
            if eos.contains(&id) {
                is_whole = true;
                continue;
            }
            let began = Instant::now();
            guide.accept(id)?;
            took.push(masked + began.elapsed());
            ids.push(id);
            is_whole = guide.is_whole();
        }
        made += ids.len().max(1);
        all.push((tokenizer.decode(&ids)?, is_whole, took));
    }
    Ok(all)
}
