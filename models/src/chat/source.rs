//! A chat template's own text, and its rendering within limits. Knows no tokens.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use serde::{Deserialize, Serialize};

use super::{Frame, Speaker, TemplateRefusal};

/// Longest text of a template.
pub(super) const MOST_TEXT: usize = 1 << 20;
/// Instructions of one rendering; templates of published models take fewer than 2,000.
const FUEL: u64 = 50_000;
/// Bytes that a rendering may add to the message.
const MOST_ADDED: usize = 1 << 20;
/// Calls within calls.
const MOST_DEPTH: usize = 64;

/// A chat template as the checkpoint has it, with what it may name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TemplateSource {
    pub(super) text: String,
    pub(super) bos: String,
    pub(super) eos: String,
}

impl TemplateSource {
    /// What it puts around messages and between them. Its instructions and output are bounded here; the memory of what it makes on the way is
    /// not, which whoever does not trust it bounds for the process that asks.
    pub fn frame(&self) -> Result<Frame, TemplateRefusal> {
        if self.text.len() > MOST_TEXT {
            let got = self.text.len();
            return Err(TemplateRefusal::Limit(format!("it is {got} bytes long, expected at most {MOST_TEXT}")));
        }
        let environment = environment().map_err(refusal)?;
        let text = plain_tags(&self.text);
        let template = environment.template_from_str(&text).map_err(refusal)?;
        Frame::derive(&self.text, |turns| {
            let length: usize = turns.iter().map(|(_, text)| text.len()).sum();
            let mut output = Bounded { text: Vec::new(), left: MOST_ADDED + length };
            let message = |(speaker, text): &(Speaker, &str)| context! { role => speaker.role(), content => *text };
            let context = context! {
                messages => turns.iter().map(message).collect::<Vec<_>>(),
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
                add_generation_prompt => true,
                tools => (),
                documents => (),
            };
            template.render_captured_to(context, &mut output).map_err(refusal)?;
            String::from_utf8(output.text).map_err(|_| TemplateRefusal::Unfit("it writes no UTF-8".to_owned()))
        })
    }
}

fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MOST_DEPTH);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    Ok(environment)
}

fn refusal(error: minijinja::Error) -> TemplateRefusal {
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateRefusal::Limit(format!("it takes more than {FUEL} instructions")),
        ErrorKind::WriteFailure => TemplateRefusal::Limit(format!("it adds more than {MOST_ADDED} bytes")),
        _ => TemplateRefusal::Unfit(error.to_string()),
    }
}

/// Takes so many bytes and no more.
struct Bounded {
    text: Vec<u8>,
    left: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_mark_training_text_are_plain_blocks() {
        let template = "{{ bos_token }}{% generation %}{{ messages[0].content }} {%- endgeneration -%} {{ '.' }}{% if";
        assert_eq!(plain_tags(template), template.replace("endgeneration", "endif").replace("generation", "if true"));
    }
}
