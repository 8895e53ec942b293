//! A template's text as the interpreter reads it. Renders nothing.

/// A template's text: line ends as Jinja2 reads them, and `generation` blocks, a tag of transformers that marks what to train on,
/// written as blocks with names of their own, which they are.
pub fn text(template: &str) -> String {
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut pieces = template.split("{%");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain.push_str("{%");
        let (tag, rest) = piece.split_once("%}").unwrap_or((piece, ""));
        let end = &piece[tag.len()..piece.len() - rest.len()];
        plain.push_str(&match tag.trim_matches(['-', '+', ' ', '\n', '\t']) {
            "generation" => tag.replace("generation", "with"),
            "endgeneration" => tag.replace("endgeneration", "endwith"),
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
        assert_eq!(text(template), template.replace("endgeneration", "endwith").replace("generation", "with"));
    }
}
