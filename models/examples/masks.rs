//! What holding an answer to a form costs a token: to take in the token that came and to compute which may come next (`made`), and what
//! of that a token waits for where the model takes a step meanwhile (`waited`). Choosing among them costs no more than choosing among all.
//! Answers are those of a model that likes every token as much, and each that ended is checked: as JSON, or by the regular expression.
//!
//!     cargo run --release -p asterism-models --example masks -- [--model DIR_OR_GGUF] [--tokens 500] [--step-ms 5]
//!
//! One row a form on stdout, in microseconds.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use asterism_models::{Checkpoint, Constraint, Guide, Guides, Sampler, Sampling, Tokenizer};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

/// Tokens of an answer, at most: then the next one begins.
const LONGEST: usize = 400;

/// Regular expressions by their kind.
const REGEXES: [(&str, &str); 9] = [
    ("letters", "([a-z]{3,9} ){20,90}[0-9]+"),
    ("any letters", "[a-z]+"),
    ("words", r"\w+(-\w+)*"),
    ("with spaces", "[A-Za-z ]{10,400}"),
    ("sentences", r"([A-Z][a-z ,']+[.?!] ?)+"),
    ("digits", "[0-9]{3}-[0-9]{4}( [0-9]{5})*"),
    ("unicode", r"\p{L}+( \p{L}+)*"),
    ("anything", "(?s:.*)"),
    ("counted", "(.{1,2000};){1,40}"),
];

fn forms() -> Vec<(&'static str, Constraint)> {
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
    let json = [
        ("any object", Constraint::JsonObject),
        ("rows", Constraint::JsonSchema(json!({"type": "array", "items": row, "minItems": 1000}))),
        ("nested", Constraint::JsonSchema(nested)),
    ];
    json.into_iter().chain(REGEXES.map(|(kind, regex)| (kind, Constraint::Regex(regex.to_owned())))).collect()
}

fn main() -> Result<()> {
    let (mut model, mut tokens, mut step) = (None::<PathBuf>, 500, Duration::from_millis(5));
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} has no value"))?;
        match name.as_str() {
            "--model" => model = Some(value.into()),
            "--tokens" => tokens = value.parse()?,
            "--step-ms" => step = Duration::from_millis(value.parse()?),
            _ => anyhow::bail!("{name} is not known, expected --model, --tokens or --step-ms"),
        }
    }
    let checkpoint = match &model {
        Some(path) => Checkpoint::open(path)?,
        None => Checkpoint::embedded()?,
    };
    let (tokenizer, config) = (Tokenizer::from_checkpoint(&checkpoint)?, checkpoint.config().clone());
    let guides = Arc::new(Guides::new(&tokenizer, config.vocab, &config.eos)?);
    println!("{} tokens in the vocabulary; microseconds a token", config.vocab);
    println!("{:<14}{:>31}{:>31}", "form", "made: mean     p50     p90", "waited: mean     p50     p90");
    for (name, form) in forms() {
        print!("{name:<14}");
        for step in [Duration::ZERO, step] {
            let model = AnyModel { tokenizer: &tokenizer, eos: &config.eos, vocab: config.vocab, step };
            let mut took = Vec::new();
            for answer in model.answers(&guides, &form, tokens)? {
                ensure!(!answer.is_whole || has_form(&form, &answer.text)?, "{name}: {}", answer.text);
                took.extend(answer.took);
            }
            took.sort();
            let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
            let mean = took.iter().sum::<Duration>().as_secs_f64() * 1e6 / took.len() as f64;
            print!("{mean:>15.1}{:>8.1}{:>8.1}", at(0.5), at(0.9));
        }
        println!();
    }
    Ok(())
}

fn has_form(form: &Constraint, text: &str) -> Result<bool> {
    Ok(match form {
        Constraint::Regex(regex) => regex::Regex::new(&format!("^(?:{regex})$"))?.is_match(text),
        _ => serde_json::from_str::<Value>(text).is_ok(),
    })
}

/// A model that likes every token as much.
struct AnyModel<'m> {
    tokenizer: &'m Tokenizer,
    eos: &'m [u32],
    vocab: usize,
    /// What a step takes.
    step: Duration,
}

/// An answer that was held to a form.
struct HeldAnswer {
    text: String,
    is_whole: bool,
    /// What each token waited for.
    took: Vec<Duration>,
}

impl AnyModel<'_> {
    /// Answers of so many tokens together.
    fn answers(&self, guides: &Arc<Guides>, form: &Constraint, tokens: usize) -> Result<Vec<HeldAnswer>> {
        let (mut random, mut all, mut made) = (StdRng::seed_from_u64(7), Vec::new(), 0);
        while made < tokens {
            let answer = self.answer(guides.guide(form)?, &mut random)?;
            made += answer.took.len().max(1);
            all.push(answer);
        }
        Ok(all)
    }

    fn answer(&self, mut guide: Guide, random: &mut StdRng) -> Result<HeldAnswer> {
        let mut sampler = Sampler::new(Sampling::default());
        let (mut ids, mut took, mut mask) = (Vec::new(), Vec::new(), guide.masks()?.remove(0));
        let is_whole = loop {
            let logits: Vec<f32> = (0..self.vocab).map(|_| random.random_range(-4.0..4.0)).collect();
            let id = sampler.next_within(&logits, &mask);
            if self.eos.contains(&id) {
                break true;
            }
            ids.push(id);
            let began = Instant::now();
            guide.accept(id)?;
            let accepted = began.elapsed();
            if guide.is_whole() || ids.len() == LONGEST {
                break guide.is_whole();
            }
            thread::sleep(self.step);
            let began = Instant::now();
            mask = guide.masks()?.remove(0);
            took.push(accepted + began.elapsed());
        };
        Ok(HeldAnswer { text: self.tokenizer.decode(&ids)?, is_whole, took })
    }
}
