//! A checkpoint's chat template and the special tokens that it may name, as transformers finds them. Renders nothing.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::source::TemplateSource;
use crate::checkpoint::chat_files::{FILE, FOLDER, LEGACY, SPECIALS};
use crate::config::parse;
use crate::{Checkpoint, ModelError, Tokenizer};

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The template of a conversation without tools, and what it may name; nothing for a base model. A file of its own goes before
/// tokenizer_config.json.
pub(super) fn source(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Option<TemplateSource>, ModelError> {
    let files = checkpoint.chat_files();
    let config: Option<TokenizerConfig> =
        checkpoint.tokenizer_config_json().map(|json| parse(TOKENIZER_CONFIG, json)).transpose()?;
    let legacy: Option<Legacy> = files.legacy.as_deref().map(|json| parse(LEGACY, json)).transpose()?;
    let of_files = || {
        let mut named = files.named.clone();
        named.extend(files.default.clone().map(|text| ("default".to_owned(), text)));
        (!named.is_empty()).then_some((if files.default.is_some() { FILE } else { FOLDER }, Templates::Several(named)))
    };
    let of_config = || Some((TOKENIZER_CONFIG, config.as_ref()?.chat_template.clone()?));
    let of_legacy = || Some((LEGACY, legacy?.chat_template));
    let Some((origin, templates)) = of_files().or_else(of_config).or_else(of_legacy) else { return Ok(None) };
    let text = templates.default().map_err(|names| ModelError::ChatTemplate {
        origin: origin.to_owned(),
        cause: format!("there are several ({names}), and none is called \"default\""),
    })?;
    let variables = variables(checkpoint, tokenizer, config.as_ref())?;
    Ok(Some(TemplateSource::new(
        origin.to_owned(),
        text,
        variables,
        tokenizer.special_names().map(str::to_owned).collect(),
    )))
}

/// `bos_token` and its like: those of tokenizer_config.json, which an older checkpoint has in special_tokens_map.json.
fn variables(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    config: Option<&TokenizerConfig>,
) -> Result<BTreeMap<String, String>, ModelError> {
    let files = checkpoint.chat_files();
    let mut named = config.map(|config| config.tokens.clone()).unwrap_or_default();
    let decoded = config.is_some_and(|config| config.added_tokens_decoder.is_some());
    let older = files.specials.as_deref().filter(|_| !decoded);
    if let Some(older) = older.map(|json| parse::<NamedTokens>(SPECIALS, json)).transpose()? {
        named.take(older);
    }
    if config.is_none() {
        // Nobody names any: those that the model ends and begins with.
        let name = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).map(Token::Text);
        let model = checkpoint.config();
        named.bos_token = named.bos_token.or_else(|| name(model.bos));
        named.eos_token = named.eos_token.or_else(|| name(model.eos.first().copied()));
    }
    Ok(named.into_variables())
}

/// tokenizer_config.json as typed.
#[derive(Deserialize)]
struct TokenizerConfig {
    #[serde(flatten)]
    tokens: NamedTokens,
    chat_template: Option<Templates>,
    added_tokens_decoder: Option<serde::de::IgnoredAny>,
}

/// chat_template.json as typed.
#[derive(Deserialize)]
struct Legacy {
    chat_template: Templates,
}

/// The special tokens that transformers gives a template.
#[derive(Clone, Default, Deserialize)]
struct NamedTokens {
    bos_token: Option<Token>,
    eos_token: Option<Token>,
    unk_token: Option<Token>,
    sep_token: Option<Token>,
    pad_token: Option<Token>,
    cls_token: Option<Token>,
    mask_token: Option<Token>,
}

impl NamedTokens {
    fn all(&mut self) -> [(&'static str, &mut Option<Token>); 7] {
        [
            ("bos_token", &mut self.bos_token),
            ("eos_token", &mut self.eos_token),
            ("unk_token", &mut self.unk_token),
            ("sep_token", &mut self.sep_token),
            ("pad_token", &mut self.pad_token),
            ("cls_token", &mut self.cls_token),
            ("mask_token", &mut self.mask_token),
        ]
    }

    /// What `other` has goes before what this has.
    fn take(&mut self, mut other: Self) {
        for ((_, own), (_, other)) in self.all().into_iter().zip(other.all()) {
            *own = other.take().or_else(|| own.take());
        }
    }

    fn into_variables(mut self) -> BTreeMap<String, String> {
        self.all().into_iter().filter_map(|(name, token)| Some((name.to_owned(), token.take()?.into_text()))).collect()
    }
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Added { content: String },
}

impl Token {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Listed(Vec<NamedTemplate>),
    Several(BTreeMap<String, String>),
}

#[derive(Clone, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Templates {
    /// The one of conversations without tools, or the names of those that there are.
    fn default(self) -> Result<String, String> {
        let mut named = match self {
            Self::One(template) => return Ok(template),
            Self::Listed(list) => list.into_iter().map(|named| (named.name, named.template)).collect(),
            Self::Several(named) => named,
        };
        named.remove("default").ok_or_else(|| named.into_keys().collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_write_templates_are_read() {
        for (typed, expected) in [
            (r#""d""#, Ok("d")),
            (r#"[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]"#, Ok("d")),
            (r#"{"tool_use": "t", "default": "d"}"#, Ok("d")),
            (r#"[{"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}]"#, Err("rag, tool_use")),
        ] {
            let templates: Templates = serde_json::from_str(typed).unwrap();
            assert_eq!(templates.default().as_deref().map_err(String::as_str), expected, "{typed}");
        }
    }

    #[test]
    fn tokens_are_named_in_both_ways_and_an_older_file_goes_first() {
        let typed =
            r#"{"bos_token": {"content": "<s>", "special": true}, "eos_token": null, "pad_token": "<pad>", "x": 1}"#;
        let mut config: TokenizerConfig = serde_json::from_str(typed).unwrap();
        assert!(config.chat_template.is_none() && config.added_tokens_decoder.is_none());
        config.tokens.take(serde_json::from_str(r#"{"eos_token": "</s>", "pad_token": {"content": "<p>"}}"#).unwrap());
        let expected = [("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<p>")];
        let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(config.tokens.into_variables(), BTreeMap::from(expected));
    }
}
