//! What Python and Jinja2 do otherwise than the interpreter does by itself, as far as chat templates ask for it. Bounds nothing.

use minijinja::Environment;

/// Teaches the interpreter methods and filters of Python.
pub fn teach(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
}

/// `str.strip`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.rstrip`.
pub fn rstrip(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// `str.isspace` of a character: beside what Unicode calls white space, the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// A template's text: line ends as Jinja2 reads them, and `generation` blocks, a tag of transformers that marks what to train on,
/// written as blocks that always render.
pub fn text(template: &str) -> String {
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
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
        assert_eq!(text(template), template.replace("endgeneration", "endif").replace("generation", "if true"));
    }
}
