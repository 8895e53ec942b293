//! Conversations as transformers renders them by published kinds of templates: tests/conformance/render.py wrote what is expected.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use asterism_models::{ChatTurn, Ending, Render, RenderOptions, TemplateDate, TemplateRefusal, TemplateSource};
use serde::Deserialize;

#[derive(Deserialize)]
struct Stored {
    date: TemplateDate,
    tokens: BTreeMap<String, String>,
    conversations: BTreeMap<String, Vec<Message>>,
    rendered: BTreeMap<String, BTreeMap<String, BTreeMap<Ending, Expected>>>,
    prelude: String,
    spoken: Vec<Message>,
    /// Pieces of templates, and what they write; nothing where they fail.
    snippets: BTreeMap<String, Option<String>>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Text(String),
    /// In the template's words.
    Refuses(String),
    /// For whatever reason.
    Fails(bool),
}

fn turns(messages: &[Message]) -> Vec<ChatTurn> {
    let turn = |message: &Message| {
        let speaker = serde_json::from_value(message.role.clone().into()).expect("a role");
        ChatTurn::new(speaker, message.content.as_str())
    };
    messages.iter().map(turn).collect()
}

fn stored() -> (Stored, PathBuf) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance");
    let stored = fs::read(folder.join("rendered.json")).expect("what transformers renders");
    (serde_json::from_slice(&stored).expect("conversations and their renderings"), folder)
}

#[test]
fn pieces_of_templates_write_what_jinja2_writes() {
    let (stored, _) = stored();
    let (turns, options) = (turns(&stored.spoken), RenderOptions::on(stored.date));
    let mut differing = Vec::new();
    for (snippet, expected) in &stored.snippets {
        let prelude = if snippet.starts_with(char::is_whitespace) { "" } else { &stored.prelude };
        let source =
            TemplateSource::new("here".into(), format!("{prelude}{snippet}"), stored.tokens.clone(), Vec::new());
        let got = source.render(&turns, &options);
        if got.as_ref().ok().map(|rendered| rendered.written.text()) != expected.as_deref() {
            differing.push(format!("{snippet}\n{got:?}\n{expected:?}"));
        }
    }
    assert!(stored.snippets.len() > 400 && differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn conversations_are_rendered_as_transformers_renders_them() {
    let (stored, folder) = stored();
    let names: Vec<String> =
        ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "[/INST]"].map(String::from).into();
    let mut differing = Vec::new();
    for (template, conversations) in &stored.rendered {
        let text = fs::read_to_string(folder.join(format!("templates/{template}.jinja"))).expect("a template");
        // With marks and without: they change nothing.
        for names in [&names, &Vec::new()] {
            let source = TemplateSource::new(template.clone(), text.clone(), stored.tokens.clone(), names.clone());
            for (conversation, endings) in conversations {
                let turns = turns(&stored.conversations[conversation]);
                for (ending, expected) in endings {
                    let options = RenderOptions::on(stored.date).ending(*ending).with_question(turns.len() - 1, 0);
                    let got = match source.render(&turns, &options) {
                        Ok(rendered) => Expected::Text(rendered.written.text().to_owned()),
                        Err(TemplateRefusal::Raised(words)) => Expected::Refuses(words),
                        Err(TemplateRefusal::Unfit(_)) if *expected == Expected::Fails(true) => Expected::Fails(true),
                        Err(error) => panic!("{template} {conversation} {ending:?}: {error:?}"),
                    };
                    if got != *expected {
                        differing.push(format!("{template} {conversation} {ending:?}:\n{got:?}\n{expected:?}"));
                    }
                }
            }
        }
    }
    assert!(stored.rendered.len() >= 14 && differing.is_empty(), "{}", differing.join("\n"));
}
