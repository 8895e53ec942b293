//! A tokenizer as transformers 5 loads it: some of its classes take the vocabulary of tokenizer.json alone, and the rest from
//! themselves. Tokenises nothing.
//!
//! | class | normaliser | pre-tokenizer | byte fallback, unknown fused |
//! |---|---|---|---|
//! | `LlamaTokenizer`, `CodeLlamaTokenizer` | none | `Metaspace`, not split; `add_prefix_space: false`: never, `legacy: true`: always, else first | yes |
//! | `GemmaTokenizer` | spaces to `▁` | split at spaces | yes |
//! | `Qwen2Tokenizer` | NFC | Qwen2's pattern, bytes | no |
//! | `GPT2Tokenizer` | none | GPT-2's pattern, bytes | no |
//! | `GPTNeoXTokenizer` | NFC | GPT-2's pattern, bytes | no |
//! | `CohereTokenizer` | NFC | digits, GPT-2's pattern, bytes | no |
//! | any other | as the file has them | as the file has it | as the file has it |
//!
//! What stands around every text is what the file's post-processor says (with `GPTNeoXTokenizer` nothing): `add_bos_token`,
//! `add_eos_token`, `bos_token` and `eos_token` of tokenizer_config.json put nothing there, since transformers passes them over
//! where there is a tokenizer.json. Special tokens that tokenizer_config.json names and that are no added tokens become some.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::{AddedToken, ModelWrapper};

use crate::checkpoint::gguf::patterns::QWEN2_PATTERN;

/// Model families that have a class of their own, whatever tokenizer_config.json says.
const OWN: [(&str, &str); 1] = [("qwen2", "Qwen2Tokenizer")];
/// Model families that have a class where tokenizer_config.json names none.
const REGISTERED: [(&str, &str); 3] =
    [("qwen2", "Qwen2Tokenizer"), ("qwen3", "Qwen2Tokenizer"), ("mistral", "TokenizersBackend")];

/// The token of tokenizer.json with the largest id.
pub type Largest = (String, u32);

/// tokenizer_config.json, as far as it decides over ids.
#[derive(Default, Deserialize)]
pub struct Config {
    tokenizer_class: Option<String>,
    auto_map: Option<serde::de::IgnoredAny>,
    legacy: Option<bool>,
    add_prefix_space: Option<bool>,
    added_tokens_decoder: Option<BTreeMap<u32, Listed>>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// An added token as tokenizer_config.json lists it.
#[derive(Deserialize)]
struct Listed {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl Listed {
    fn added(self) -> AddedToken {
        let Self { content, single_word, lstrip, rstrip, normalized, special } = self;
        AddedToken { content, single_word, lstrip, rstrip, normalized: normalized.unwrap_or(!special), special }
    }
}

/// The classes that build a tokenizer anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Llama,
    CodeLlama,
    Gemma,
    Qwen2,
    Gpt2,
    GptNeoX,
    Cohere,
}

impl Class {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "LlamaTokenizer" => Self::Llama,
            "CodeLlamaTokenizer" => Self::CodeLlama,
            "GemmaTokenizer" => Self::Gemma,
            "Qwen2Tokenizer" => Self::Qwen2,
            "GPT2Tokenizer" => Self::Gpt2,
            "GPTNeoXTokenizer" => Self::GptNeoX,
            "CohereTokenizer" => Self::Cohere,
            _ => return None,
        })
    }

    /// The special tokens of the class where tokenizer_config.json says nothing about them.
    fn usual_tokens(self) -> &'static [(&'static str, &'static str)] {
        const END: &str = "<|endoftext|>";
        match self {
            Self::Llama | Self::CodeLlama => &[("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")],
            Self::Gemma => &[
                ("unk_token", "<unk>"),
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            Self::Qwen2 => &[("unk_token", END), ("eos_token", END), ("pad_token", END)],
            Self::Gpt2 => &[("unk_token", END), ("bos_token", END), ("eos_token", END)],
            Self::GptNeoX => {
                &[("unk_token", END), ("bos_token", END), ("eos_token", END), ("pad_token", "<|padding|>")]
            }
            Self::Cohere => &[
                ("unk_token", "<UNK>"),
                ("bos_token", "<BOS_TOKEN>"),
                ("eos_token", "<|END_OF_TURN_TOKEN|>"),
                ("pad_token", "<PAD>"),
                ("cls_token", "<CLS>"),
                ("sep_token", "<SEP>"),
                ("mask_token", "<MASK_TOKEN>"),
            ],
        }
    }

    /// The class that `AutoTokenizer` takes for a model of this family; none where the file is taken as it is.
    fn of(config: &Config, family: &str, by_bytes: bool) -> Option<Self> {
        let registered = REGISTERED.iter().find(|(name, _)| *name == family).map(|(_, class)| *class);
        let own = OWN.iter().find(|(name, _)| *name == family).map(|(_, class)| *class);
        let Some(named) = config.tokenizer_class.as_deref() else { return registered.and_then(Self::named) };
        let named = named.strip_suffix("Fast").unwrap_or(named);
        let is_local = config.auto_map.is_none();
        if is_local && named == "LlamaTokenizer" && by_bytes && own.is_none() {
            return None;
        }
        match registered {
            Some("TokenizersBackend") if is_local && named != "TokenizersBackend" => None,
            Some(registered) if is_local && registered != named => Self::named(own.unwrap_or(named)),
            _ => Self::named(named),
        }
    }
}

/// Whether a tokenizer.json says how texts are cut at all.
pub fn has_model(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Form {
        model: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_slice::<Form>(json).is_ok_and(|form| form.model.is_some())
}

/// The tokenizer of these files, for a model of this family.
pub fn load(
    json: &[u8],
    config: Config,
    family: &str,
) -> Result<(tokenizers::Tokenizer, Option<Largest>), tokenizers::Error> {
    let by_bytes = json.windows(11).any(|text| text == b"\"ByteLevel\"");
    let class = Class::of(&config, family, by_bytes);
    let mut inner = match class {
        None => tokenizers::Tokenizer::from_bytes(json)?,
        Some(class) => {
            let mut form: Value = serde_json::from_slice(json)?;
            // Another model's vocabulary cannot be taken over.
            if form["model"]["type"] == "BPE" {
                rebuild(&mut form, class, &config);
            }
            tokenizers::Tokenizer::from_bytes(serde_json::to_vec(&form)?)?
        }
    };
    // Merges are left out at random while a model is trained; a text has one way to be cut.
    if let ModelWrapper::BPE(bpe) = inner.get_model()
        && bpe.dropout.is_some()
    {
        let mut whole = bpe.clone();
        whole.dropout = None;
        inner.with_model(whole);
    }
    // What a class names beside the file, texts may never have.
    let largest = inner.get_vocab(true).into_iter().max_by_key(|(_, id)| *id);
    add_tokens(&mut inner, class, config)?;
    Ok((inner, largest))
}

/// Puts what a class has of its own in place of what the file has.
fn rebuild(form: &mut Value, class: Class, config: &Config) {
    let prefix = config.add_prefix_space;
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix.unwrap_or(false), "trim_offsets": true, "use_regex": regex});
    let sequence = |first: Value, last: Value| json!({"type": "Sequence", "pretokenizers": [first, last]});
    let nfc = json!({"type": "NFC"});
    let marked = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let unmark = |strip: bool| {
        let mut steps = vec![marked.clone(), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        steps.extend(strip.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
        json!({"type": "Sequence", "decoders": steps})
    };
    let by_marks = matches!(class, Class::Llama | Class::CodeLlama | Class::Gemma);
    let (normalizer, pre_tokenizer, decoder) = match class {
        Class::Llama | Class::CodeLlama => {
            let scheme = match (prefix.unwrap_or(true), config.legacy.unwrap_or(false) && class == Class::Llama) {
                (false, _) => "never",
                (true, true) => "always",
                (true, false) => "first",
            };
            let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
            (Value::Null, metaspace, unmark(prefix.unwrap_or(true) || class == Class::CodeLlama))
        }
        Class::Gemma => (
            json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}),
            unmark(false),
        ),
        Class::Qwen2 => {
            let pattern = json!({"Regex": QWEN2_PATTERN});
            let split = json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
            (nfc, sequence(split, bytes(false)), bytes(true))
        }
        Class::Gpt2 => (Value::Null, bytes(true), bytes(true)),
        Class::GptNeoX => (nfc, bytes(true), bytes(true)),
        Class::Cohere => {
            (nfc, sequence(json!({"type": "Digits", "individual_digits": true}), bytes(true)), bytes(true))
        }
    };
    (form["normalizer"], form["pre_tokenizer"], form["decoder"]) = (normalizer, pre_tokenizer, decoder);
    if config.added_tokens_decoder.is_some() {
        form["added_tokens"] = json!([]);
    }
    if class == Class::GptNeoX {
        form["post_processor"] = Value::Null;
    }
    let unknown = match class {
        Class::CodeLlama | Class::Gemma => {
            let name = config.others.get("unk_token").and_then(token_name).unwrap_or("<unk>");
            json!(name)
        }
        _ => Value::Null,
    };
    let model = &mut form["model"];
    for (key, value) in [
        ("dropout", Value::Null),
        ("unk_token", unknown),
        ("continuing_subword_prefix", Value::Null),
        ("end_of_word_suffix", Value::Null),
        ("fuse_unk", json!(by_marks)),
        ("byte_fallback", json!(by_marks)),
        ("ignore_merges", json!(false)),
    ] {
        model[key] = value;
    }
}

/// Adds the tokens that tokenizer_config.json has, and those that it names.
fn add_tokens(
    inner: &mut tokenizers::Tokenizer,
    class: Option<Class>,
    config: Config,
) -> Result<(), tokenizers::Error> {
    let known = inner.get_added_tokens_decoder();
    let listed = config.added_tokens_decoder.unwrap_or_default().into_iter().map(|(id, token)| (id, token.added()));
    let mut more: Vec<AddedToken> =
        listed.filter(|(id, token)| known.get(id) != Some(token)).map(|(_, token)| token).collect();
    let usual: &[(&str, &str)] = class.map_or(&[], Class::usual_tokens);
    let usual = |key: &str| usual.iter().find(|(usual, _)| *usual == key).map(|(_, name)| *name);
    let names = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    for name in names.iter().filter_map(|key| config.others.get(*key).map_or(usual(key), token_name)) {
        let has = |token: &AddedToken| token.content == name;
        if !name.is_empty() && !known.values().any(has) && !more.iter().any(has) {
            more.push(AddedToken::from(name, true));
        }
    }
    if !more.is_empty() {
        inner.add_tokens(more)?;
    }
    Ok(())
}

/// What a special token is called, in both ways to write it.
fn token_name(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}
