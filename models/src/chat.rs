//! The checkpoint's chat template, rendered into the two strings of a long-context prompt. Tokenises nothing.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use serde::Deserialize;

use crate::config::parse;
use crate::{Checkpoint, ModelError, Tokenizer};

/// Puts a context and a query into the form the model was trained on.
pub struct ChatTemplate {
    template: Option<String>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Reads chat_template.jinja or tokenizer_config.json. A base model has no template.
    pub fn from_checkpoint(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Self, ModelError> {
        let typed: Option<TokenizerConfig> =
            checkpoint.tokenizer_config_json().map(|json| parse("tokenizer_config.json", json)).transpose()?;
        let Some(typed) = typed else {
            let text = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).unwrap_or_default();
            let config = checkpoint.config();
            let template = checkpoint.chat_template_file().map(str::to_owned);
            return Ok(Self { template, bos: text(config.bos), eos: text(config.eos.first().copied()) });
        };
        let template = checkpoint.chat_template_file().map(str::to_owned);
        Ok(Self {
            template: template.or(typed.chat_template.and_then(Templates::default_template)),
            bos: typed.bos_token.map(Token::into_text).unwrap_or_default(),
            eos: typed.eos_token.map(Token::into_text).unwrap_or_default(),
        })
    }

    /// The checkpoint has a template of its own.
    pub fn is_chat(&self) -> bool {
        self.template.is_some()
    }

    /// The context string, which begins with BOS, header and task text and ends where the context does, and the query
    /// string, which ends where the answer begins (Star Attention's split). They are tokenised apart. Without a template:
    /// BOS and the context, the query.
    pub fn split(&self, context: &str, query: &str) -> Result<(String, String), ModelError> {
        let Some(template) = &self.template else {
            return Ok((format!("{}{context}", self.bos), query.to_owned()));
        };
        let boundary = boundary(context, query);
        let rendered = self.render(template, &format!("{context}{boundary}{query}"))?;
        let parts: Vec<&str> = rendered.split(boundary.as_str()).collect();
        match parts[..] {
            // Templates trim a message; nothing else may happen to it.
            [head, tail] if head.ends_with(context.trim_start()) && tail.starts_with(query.trim_end()) => {
                Ok((head.to_owned(), tail.to_owned()))
            }
            [_, _] => Err(ModelError::Template { cause: "it changes the text of the user's message".to_owned() }),
            _ => Err(ModelError::Template {
                cause: format!("it writes the user's message {} times instead of once", parts.len() - 1),
            }),
        }
    }

    /// One user message, then the header of the answer.
    fn render(&self, template: &str, content: &str) -> Result<String, ModelError> {
        let refused = |error: minijinja::Error| ModelError::Template { cause: error.to_string() };
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(refused)?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .render_str(
                &plain_tags(template),
                context! {
                    messages => [context! { role => "user", content => content }],
                    bos_token => self.bos.as_str(),
                    eos_token => self.eos.as_str(),
                    add_generation_prompt => true,
                    tools => (),
                    documents => (),
                },
            )
            .map_err(refused)
    }
}

/// The template with `generation` blocks, a tag of transformers that marks what to train on, written as blocks that always
/// render.
fn plain_tags(template: &str) -> String {
    let mut pieces = template.split("{%");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain.push_str("{%");
        let (tag, rest) = piece.split_once("%}").unwrap_or((piece, ""));
        let end = &piece[tag.len()..piece.len() - rest.len()];
        plain.push_str(&match tag.trim_matches(['-', '+', ' ', '\n', '\t']) {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        });
        plain.push_str(end);
        plain.push_str(rest);
    }
    plain
}

/// Text that occurs in neither string, from the private-use area so that no template treats it as space.
fn boundary(context: &str, query: &str) -> String {
    let mut boundary = String::from('\u{f8ff}');
    while context.contains(&boundary) || query.contains(&boundary) {
        boundary.push('\u{e000}');
        boundary.push('\u{f8ff}');
    }
    boundary
}

/// tokenizer_config.json as typed.
#[derive(Deserialize)]
struct TokenizerConfig {
    bos_token: Option<Token>,
    eos_token: Option<Token>,
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
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

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Templates {
    fn default_template(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(templates) => templates.into_iter().find(|t| t.name == "default").map(|t| t.template),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embedded() -> ChatTemplate {
        let checkpoint = Checkpoint::embedded().unwrap();
        ChatTemplate::from_checkpoint(&checkpoint, &Tokenizer::from_checkpoint(&checkpoint).unwrap()).unwrap()
    }

    fn chat(template: &str) -> ChatTemplate {
        ChatTemplate { template: Some(template.to_owned()), bos: "<|begin_of_text|>".into(), eos: "<|eot_id|>".into() }
    }

    /// Headers as Llama 3 has them, a default system message, and Python string methods as templates use them.
    const HEADERS: &str = "{% if messages[0]['role'] != 'system' %}
    {{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\n' -}}
    {{- 'You are a helpful assistant. '.strip() + '<|eot_id|>' }}
{%- endif %}
{% for message in messages %}
    {% if not message.role.startswith('user') %}{{ raise_exception('users only') }}{% endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt and tools is none %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
";

    #[test]
    fn a_template_with_headers_is_cut_where_the_context_ends() {
        let (context, query) = chat(HEADERS).split("  Read this.\n\nA <b>, & 'c'.\n", "What is b? \n").unwrap();
        assert_eq!(
            context,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant.<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nRead this.\n\nA <b>, & 'c'.\n"
        );
        assert_eq!(query, "What is b?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    }

    #[test]
    fn the_embedded_model_puts_bos_before_the_context_and_nothing_else() {
        let split = embedded().split(" a context\n", "a query ").unwrap();
        assert_eq!(split, ("<|begin_of_text|> a context\n".to_owned(), "a query ".to_owned()));
    }

    #[test]
    fn a_base_model_gets_bos_and_both_strings() {
        let base = ChatTemplate { template: None, bos: "<s>".into(), eos: String::new() };
        assert_eq!(base.split("context", " query").unwrap(), ("<s>context".to_owned(), " query".to_owned()));
    }

    #[test]
    fn a_boundary_in_the_text_is_no_boundary() {
        let (context, query) = embedded().split("a\u{f8ff}\u{e000}b", "\u{f8ff}?").unwrap();
        assert_eq!((context.as_str(), query.as_str()), ("<|begin_of_text|>a\u{f8ff}\u{e000}b", "\u{f8ff}?"));
    }

    #[test]
    fn a_template_that_loses_or_changes_the_message_is_refused() {
        for (template, cause) in [
            ("{{ bos_token }}", "0 times"),
            ("{{ messages[0].content }}{{ messages[0].content }}", "2 times"),
            ("{{ messages[0].content | upper }}", "changes the text"),
            ("{{ raise_exception('not today') }}", "not today"),
            ("{% for %}", "syntax error"),
        ] {
            let error = chat(template).split("a context", "a query").unwrap_err();
            assert!(error.to_string().contains(cause), "{error}");
        }
    }

    #[test]
    fn blocks_that_mark_training_text_render_as_they_are() {
        let template = "{{ bos_token }}{% generation %}{{ messages[0].content }} {%- endgeneration -%} {{ '.' }}{% if";
        assert_eq!(plain_tags(template), template.replace("endgeneration", "endif").replace("generation", "if true"));
        let (context, query) = chat(&template[..template.len() - 5]).split("a", "b").unwrap();
        assert_eq!((context.as_str(), query.as_str()), ("<|begin_of_text|>a", "b."));
    }

    #[test]
    fn both_ways_to_write_a_tokenizer_config_are_read() {
        let typed: TokenizerConfig = serde_json::from_str(
            r#"{"bos_token": {"content": "<s>", "special": true}, "eos_token": null,
                "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#,
        )
        .unwrap();
        assert_eq!(typed.bos_token.unwrap().into_text(), "<s>");
        assert_eq!(typed.chat_template.unwrap().default_template().unwrap(), "d");
    }
}
