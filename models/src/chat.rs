//! The checkpoint's chat template as the two strings of a long-context prompt. Tokenises nothing.

mod around;
mod frame;
mod source;
mod written;

use serde::{Deserialize, Serialize};

use crate::config::parse;
use crate::{Checkpoint, ModelError, Tokenizer};
pub use frame::{Conversation, Frame, Speaker, Turn};
pub use source::TemplateSource;
pub use written::Written;

/// Puts a context and a query into the form the model was trained on.
pub struct ChatTemplate {
    bos: String,
    /// What its template does; nothing without one.
    frame: Option<Result<Frame, TemplateRefusal>>,
}

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateRefusal {
    /// It does not render, or does not keep context and query apart.
    Unfit(String),
    /// It takes more instructions, bytes or memory than a template may.
    Limit(String),
}

impl From<TemplateRefusal> for ModelError {
    fn from(refusal: TemplateRefusal) -> Self {
        match refusal {
            TemplateRefusal::Unfit(cause) => Self::Template { cause },
            TemplateRefusal::Limit(cause) => Self::TemplateLimit { cause },
        }
    }
}

impl ChatTemplate {
    /// Reads chat_template.jinja or tokenizer_config.json, and asks the template what it does through `ask`, such as
    /// [`TemplateSource::frame`]. A base model has no template; one that cannot be used refuses each question.
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
        ask: impl FnOnce(&TemplateSource) -> Result<Frame, TemplateRefusal>,
    ) -> Result<Self, ModelError> {
        let (template, bos, eos) = texts(checkpoint, tokenizer)?;
        let frame = template.map(|text| ask(&TemplateSource { text, bos: bos.clone(), eos }));
        Ok(Self { bos, frame })
    }

    /// The checkpoint has a template of its own.
    pub fn is_chat(&self) -> bool {
        self.frame.is_some()
    }

    /// The context string, which begins with BOS, header and task text and ends where the context does, and the query
    /// string, which ends where the answer begins (Star Attention's split). They are tokenised apart. Without a template:
    /// BOS and the context, the query. Nothing is put between the two: a separator comes with the query.
    pub fn split(&self, context: &str, query: &str) -> Result<(Written, Written), ModelError> {
        match &self.frame {
            Some(Ok(frame)) => Ok(frame.split(context, query)?),
            Some(Err(refusal)) => Err(refusal.clone().into()),
            None => Ok((self.document(context), Written::message(query))),
        }
    }

    /// A conversation as the template renders it: system, if at all, then user and assistant in turns, user last. Without a
    /// template: BOS, and the messages with `separator` between them, which also stands where a template writes nothing.
    pub fn conversation(&self, turns: &[Turn], separator: &str) -> Result<Conversation, ModelError> {
        match &self.frame {
            Some(Ok(frame)) => Ok(frame.conversation(turns, separator)?),
            Some(Err(refusal)) => Err(refusal.clone().into()),
            None => {
                let (last, earlier) = turns.split_last().ok_or(TemplateRefusal::order())?;
                let mut head = Written::from(self.bos.clone());
                for turn in earlier {
                    head.push_message(&turn.text);
                    head.push(separator);
                }
                Ok(Conversation { head, last: last.text.clone(), tail: String::new() })
            }
        }
    }

    /// What stands between an answer and the next message of the user; nothing without a template.
    pub fn next_turn(&self) -> Result<&str, ModelError> {
        match &self.frame {
            Some(Ok(frame)) => Ok(frame.next_turn()?),
            Some(Err(refusal)) => Err(refusal.clone().into()),
            None => Ok(""),
        }
    }

    /// What stands before every text.
    pub fn bos(&self) -> &str {
        &self.bos
    }

    /// A context behind what stands before every text.
    pub fn document(&self, context: &str) -> Written {
        let mut document = Written::from(self.bos.clone());
        document.push_message(context);
        document
    }
}

impl TemplateRefusal {
    fn order() -> Self {
        let expected = "expected one system message at most, then user and assistant in turns, and user last";
        Self::Unfit(format!("the conversation has another order: {expected}"))
    }
}

/// The template, BOS and EOS.
fn texts(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<(Option<String>, String, String), ModelError> {
    let typed: Option<TokenizerConfig> =
        checkpoint.tokenizer_config_json().map(|json| parse("tokenizer_config.json", json)).transpose()?;
    let template = checkpoint.chat_template_file().map(str::to_owned);
    let Some(typed) = typed else {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).unwrap_or_default();
        let config = checkpoint.config();
        return Ok((template, text(config.bos), text(config.eos.first().copied())));
    };
    let text = |token: Option<Token>| token.map(Token::into_text).unwrap_or_default();
    let template = template.or(typed.chat_template.and_then(Templates::default_template));
    Ok((template, text(typed.bos_token), text(typed.eos_token)))
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
    use crate::QuerySeparator;

    fn embedded() -> ChatTemplate {
        let checkpoint = Checkpoint::embedded().unwrap();
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
        ChatTemplate::from_checkpoint(&checkpoint, &tokenizer, TemplateSource::frame).unwrap()
    }

    fn chat(template: &str) -> ChatTemplate {
        let (bos, eos) = ("<|begin_of_text|>".to_owned(), "<|eot_id|>".to_owned());
        ChatTemplate { frame: Some(TemplateSource { text: template.to_owned(), bos: bos.clone(), eos }.frame()), bos }
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
        let (context, query) = split(&chat(HEADERS), "  Read this.\n\nA <b>, & 'c'.\n", "What is b? \n");
        assert_eq!(
            context,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant.<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nRead this.\n\nA <b>, & 'c'.\n"
        );
        assert_eq!(query, "What is b?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    }

    fn split(chat: &ChatTemplate, context: &str, query: &str) -> (String, String) {
        let (context, query) = chat.split(context, query).unwrap();
        (context.text().to_owned(), query.text().to_owned())
    }

    #[test]
    fn the_embedded_model_puts_bos_before_the_context_and_nothing_else() {
        assert_eq!(
            split(&embedded(), " a context\n", "a query "),
            ("<|begin_of_text|> a context\n".to_owned(), "a query ".to_owned())
        );
    }

    #[test]
    fn a_base_model_gets_bos_and_both_strings() {
        let base = ChatTemplate { bos: "<s>".into(), frame: None };
        let turns = [turn(Speaker::System, "a"), turn(Speaker::User, "b"), turn(Speaker::User, "c")];
        assert_eq!(joined(&base.conversation(&turns, "\n").unwrap()), "<s>a\nb\nc");
        assert_eq!(split(&base, "context", " query"), ("<s>context".to_owned(), " query".to_owned()));
    }

    fn turn(speaker: Speaker, text: &str) -> Turn {
        Turn { speaker, text: text.to_owned() }
    }

    fn joined(conversation: &Conversation) -> String {
        [conversation.head.text(), &conversation.last, &conversation.tail].concat()
    }

    /// As ChatML has it, with a default system message.
    const TURNS: &str = "{% if messages[0].role != 'system' %}<|s|>Help.<|e|>\n{% endif %}{% for m in messages %}\
                         <|{{ m.role }}|>{{ m.content | trim }}<|e|>\n{% endfor %}<|assistant|>";

    #[test]
    fn a_conversation_is_what_the_template_renders_of_it() {
        let chat = chat(TURNS);
        let render = |turns: &[Turn]| joined(&chat.conversation(turns, "--").unwrap());
        let (user, assistant) = (|text| turn(Speaker::User, text), |text| turn(Speaker::Assistant, text));
        assert_eq!(render(&[user(" a ")]), "<|s|>Help.<|e|>\n<|user|>a<|e|>\n<|assistant|>");
        assert_eq!(
            render(&[
                turn(Speaker::System, "Be brief.\n"),
                user("a"),
                assistant(" b\n"),
                user("c"),
                assistant("d"),
                user("e")
            ]),
            "<|system|>Be brief.<|e|>\n<|user|>a<|e|>\n<|assistant|>b<|e|>\n<|user|>c<|e|>\n<|assistant|>d<|e|>\n\
             <|user|>e<|e|>\n<|assistant|>"
        );
        assert_eq!(chat.next_turn().unwrap(), "<|e|>\n<|user|>", "what stands between b and c");
        let split = chat.conversation(&[user("a"), assistant("b"), user("c ")], "--").unwrap();
        assert_eq!((split.last.as_str(), split.tail.as_str()), ("c", "<|e|>\n<|assistant|>"));
        for wrong in [vec![], vec![assistant("a")], vec![user("a"), assistant("b")], vec![user("a"), user("b")]] {
            let error = chat.conversation(&wrong, "--").unwrap_err();
            assert!(error.code() == "chat_template" && error.to_string().contains("order"), "{error}");
        }
    }

    /// As Llama 3.1 and 3.2 have it: a system header with a date in each conversation, which a system message joins.
    const DATED: &str = "{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set lead = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set lead = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + 'Today: ' + (day | default('1 May', true)) + '\\n\\n' + lead + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}";

    /// As Qwen 2.5 has it: tools that there are none of, a system message of its own, and every text as it is.
    const TOOLS: &str = "{%- if tools %}
    {{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}";

    /// As Mistral's third has it: a system message goes with the last of the user, wherever that is.
    const LATE: &str = "{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{% set lead = messages[0]['content'] %}{% set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and lead is defined %}{{- '[INST] ' + lead + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{% endif %}
    {%- else %}{{- ' ' + message['content'] + eos_token }}{% endif %}
{%- endfor %}";

    #[test]
    fn conversations_compose_as_published_templates_write_them() {
        let turns = [
            turn(Speaker::System, " Be brief.\n"),
            turn(Speaker::User, " a "),
            turn(Speaker::Assistant, " b "),
            turn(Speaker::User, " c "),
        ];
        let render = |template: &str, turns: &[Turn]| joined(&chat(template).conversation(turns, "--").unwrap());
        let header = |role: &str, text: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n{text}");
        let dated = |lead: &str| {
            let said = [
                ("system", format!("Today: 1 May\n\n{lead}")),
                ("user", "a".into()),
                ("assistant", "b".into()),
                ("user", "c".into()),
            ];
            let said: String = said.iter().map(|(role, text)| header(role, text) + "<|eot_id|>").collect();
            format!("<|begin_of_text|>{said}{}", header("assistant", ""))
        };
        assert_eq!(render(DATED, &turns), dated("Be brief."));
        assert_eq!(render(DATED, &turns[1..]), dated(""));
        let plain = |lead: &str| {
            let said = [("system", lead), ("user", " a "), ("assistant", " b "), ("user", " c ")];
            let said: String =
                said.iter().map(|(role, text)| format!("<|im_start|>{role}\n{text}<|im_end|>\n")).collect();
            said + "<|im_start|>assistant\n"
        };
        assert_eq!(render(TOOLS, &turns), plain(" Be brief.\n"));
        assert_eq!(render(TOOLS, &turns[1..]), plain("You help."));
        // What cannot be put together is refused, and what can be is not.
        let late = chat(LATE);
        assert_eq!(joined(&late.conversation(&turns[1..2], "--").unwrap()), "<|begin_of_text|>[INST]  a [/INST]");
        assert_eq!(
            joined(&late.conversation(&turns[..2], "--").unwrap()),
            "<|begin_of_text|>[INST]  Be brief.\n\n\n a [/INST]"
        );
        let error = late.conversation(&turns, "--").unwrap_err();
        assert!(error.code() == "chat_template" && error.to_string().contains("longer conversation"), "{error}");
    }

    #[test]
    fn a_template_that_takes_no_such_conversation_refuses_it_alone() {
        let (user, system) = (turn(Speaker::User, "a"), turn(Speaker::System, "b"));
        let chat = chat(HEADERS);
        assert!(chat.conversation(std::slice::from_ref(&user), "").is_ok());
        let error = chat.conversation(&[system, user], "").unwrap_err();
        assert!(error.to_string().contains("users only"), "{error}");
        // The answer before the last is left out.
        let short = "{% for m in messages %}{% if m.role == 'user' or loop.index0 > messages | length - 3 %}\
                     <|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}";
        let (user, assistant) = (turn(Speaker::User, "a"), turn(Speaker::Assistant, "b"));
        let error = self::chat(short).conversation(&[user.clone(), assistant, user], "").unwrap_err();
        assert!(error.to_string().contains("longer conversation"), "{error}");
    }

    #[test]
    fn messages_that_a_template_would_glue_are_separated() {
        let turns = [turn(Speaker::System, "A fact."), turn(Speaker::User, "Which?")];
        assert_eq!(joined(&embedded().conversation(&turns, "\n\n").unwrap()), "<|begin_of_text|>A fact.\n\nWhich?");
    }

    #[test]
    fn a_separator_goes_with_the_query() {
        let base = ChatTemplate { bos: "<s>".into(), frame: None };
        for (template, head, tail) in [
            (chat(HEADERS), "<|begin_of_text|>", "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
            (embedded(), "<|begin_of_text|>", ""),
            (base, "<s>", ""),
        ] {
            let asked = QuerySeparator::PARAGRAPH.before("What is b?");
            let (context, query) = split(&template, "A b.", &asked);
            assert_eq!(query, format!("\n\nWhat is b?{tail}"));
            assert!(context.starts_with(head) && context.ends_with("A b."), "{context}");
            assert_eq!(split(&template, "A b.", "What is b?").0, context);
        }
    }

    #[test]
    fn a_boundary_in_the_text_is_no_boundary() {
        let (context, query) = split(&embedded(), "a\u{f8ff}\u{e000}b", "\u{f8ff}?");
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
    fn a_template_that_looks_into_a_message_is_asked_by_no_message_that_it_would_change() {
        let thinks = "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}\
                      {% set c = c.split('</think>')[-1] %}{% endif %}<|user|>{{ c.strip('\\n') }}<|end|>{% endfor %}";
        let chat = chat(thinks);
        let split = split(&chat, "\n\n a context\n", "\na query \n");
        assert_eq!(split, ("<|user|> a context\n".to_owned(), "\na query <|end|>".to_owned()));
        let error = chat.split("thought</think> a context", "a query").unwrap_err();
        assert!(error.code() == "chat_template" && error.to_string().contains("</think>"), "{error}");
    }

    #[test]
    fn a_template_that_takes_too_much_is_refused() {
        let content = "{{ messages[0].content }}";
        for (template, cause) in [
            ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "instructions"),
            ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
            ("{{ 'x' * 9999999 }}", "adds more than"),
            ("{% for a in range(3000) %}{{ 'x' * 9999 }}{% endfor %}", "adds more than"),
        ] {
            let error = chat(&format!("{template}{content}")).split("a context", "a query").unwrap_err();
            assert!(error.to_string().contains(cause), "{error}");
        }
        let error = chat(&"x".repeat(source::MOST_TEXT + 1)).split("a context", "a query").unwrap_err();
        assert_eq!(error.code(), "template_limit");
    }

    #[test]
    fn blocks_that_mark_training_text_render_as_they_are() {
        let template = "{{ bos_token }}{% generation %}{{ messages[0].content }} {%- endgeneration -%} {{ '.' }}{% if";
        let (context, query) = split(&chat(&template[..template.len() - 5]), "a", "b");
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
