//! Conversations as transformers renders them by published kinds of templates: tests/conformance/render.py wrote what is expected.

use std::{collections::BTreeMap, fs, path::Path};

use asterism_models::{Ending, Render, RenderOptions, TemplateDate, TemplateRefusal, TemplateSource, Turn};
use serde::Deserialize;

#[derive(Deserialize)]
struct Stored {
    date: TemplateDate,
    tokens: BTreeMap<String, String>,
    conversations: BTreeMap<String, Vec<Message>>,
    rendered: BTreeMap<String, BTreeMap<String, BTreeMap<Ending, Expected>>>,
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

fn turns(messages: &[Message]) -> Vec<Turn> {
    let turn = |message: &Message| Turn {
        speaker: serde_json::from_value(message.role.clone().into()).expect("a role"),
        text: message.content.clone(),
    };
    messages.iter().map(turn).collect()
}

#[test]
fn conversations_are_rendered_as_transformers_renders_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance");
    let stored = fs::read(folder.join("rendered.json")).expect("what transformers renders");
    let stored: Stored = serde_json::from_slice(&stored).expect("conversations and their renderings");
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
