//! How texts are split before they are tokenised, by what `tokenizer.ggml.pre` calls it: after llama.cpp's `llm_tokenizer_bpe`, in the
//! words of tokenizer.json. Tokenises nothing.

use serde_json::{Value, json};

/// What lies between pieces in the tokenizer of Qwen2.
pub(crate) const QWEN2_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same in GPT-2's.
pub(crate) const GPT2_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The same in Llama 3's.
pub(crate) const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same in Qwen3.5's.
pub(crate) const QWEN35_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same in Mistral Nemo's.
pub(crate) const NEMO_PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same in GPT-4o's.
pub(crate) const GPT4O_PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A way to split texts.
pub(super) struct Splitting {
    /// Its names.
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Texts are composed first.
    composes: bool,
    /// A piece that is a token is one, whatever its merges say.
    pub ignores_merges: bool,
    /// A text begins with the token of beginnings where the file does not say.
    pub adds_beginning: bool,
}

enum Step {
    /// Digits stand alone.
    Digits,
    /// What a pattern finds stands apart from what it does not.
    Pattern(&'static str),
}

const fn by(names: &'static [&'static str], steps: &'static [Step]) -> Splitting {
    Splitting { names, steps, composes: false, ignores_merges: false, adds_beginning: false }
}

static SPLITTINGS: [Splitting; 9] = [
    Splitting { composes: true, ..by(&["qwen2", "megrez", "hunyuan-dense"], &[Step::Pattern(QWEN2_PATTERN)]) },
    by(&["deepseek-r1-qwen", "stablelm2"], &[Step::Pattern(QWEN2_PATTERN)]),
    Splitting { composes: true, ..by(&["qwen35"], &[Step::Pattern(QWEN35_PATTERN)]) },
    Splitting {
        ignores_merges: true,
        adds_beginning: true,
        ..by(&["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"], &[Step::Pattern(LLAMA3_PATTERN)])
    },
    by(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[Step::Pattern(LLAMA3_PATTERN)]),
    by(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        &[Step::Digits, Step::Pattern(GPT2_PATTERN)],
    ),
    by(&["gpt-2", "phi-2", "olmo", "mpt", "jina-es", "roberta-bpe", "gigachat"], &[Step::Pattern(GPT2_PATTERN)]),
    Splitting { ignores_merges: true, ..by(&["tekken"], &[Step::Pattern(NEMO_PATTERN)]) },
    by(&["gpt-4o", "llama4"], &[Step::Pattern(GPT4O_PATTERN)]),
];

/// What stands for one that is not said, or is said to be usual.
static DEFAULT: Splitting = by(
    &["default"],
    &[
        Step::Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
        Step::Pattern(GPT2_PATTERN),
        Step::Pattern(r"\p{N}+"),
        Step::Pattern("[0-9][0-9][0-9]"),
    ],
);

impl Splitting {
    /// The one of a name; the error says which there are.
    pub fn named(name: Option<&str>) -> Result<&'static Self, String> {
        let Some(name) = name.filter(|name| *name != "default") else { return Ok(&DEFAULT) };
        let known = || SPLITTINGS.iter().flat_map(|splitting| splitting.names).copied().collect::<Vec<_>>().join(", ");
        SPLITTINGS
            .iter()
            .find(|splitting| splitting.names.contains(&name))
            .ok_or_else(|| format!("default, {}", known()))
    }

    /// The normaliser of tokenizer.json.
    pub fn normalizer(&self) -> Value {
        if self.composes { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// The pre-tokenizer of tokenizer.json: pieces as bytes.
    pub fn pre_tokenizer(&self) -> Value {
        let step = |step: &Step| match step {
            Step::Digits => json!({"type": "Digits", "individual_digits": true}),
            Step::Pattern(pattern) => {
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
            }
        };
        let mut steps: Vec<Value> = self.steps.iter().map(step).collect();
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
