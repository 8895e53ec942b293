//! Prompts of benchmarks: what stands before a context, between it and the question, and around the question.

use asterism_models::QuerySeparator;

use crate::eval::EvalRecord;

/// A benchmark's prompt with `{context}` and other places to fill.
#[derive(Clone, Copy, Debug)]
pub struct Template(pub &'static str);

impl Template {
    /// A record of the prompt: the context is what stands before and at `{context}`, the white space behind it the separator.
    pub fn record(self, task: &str, context: &str, fields: &[(&str, &str)]) -> EvalRecord {
        let (before, after) = self.0.split_once("{context}").expect("every prompt has its context");
        let (separator, query) = parted(after);
        EvalRecord {
            task: task.to_owned(),
            input_context: filled(before, fields) + context,
            input_query: filled(query, fields),
            query_separator: Some(separator),
            chat_template: true,
            answer: String::new(),
            context_tokens: 0,
            haystack: None,
        }
    }
}

/// The white space that a text begins with, and the rest.
pub fn parted(text: &str) -> (QuerySeparator, &str) {
    let query = text.trim_start();
    match text[..text.len() - query.len()].parse() {
        Ok(separator) => (separator, query),
        // Longer than separators are.
        Err(_) => (QuerySeparator::NONE, text),
    }
}

/// `template` with its places filled. What is put there is left as it is, whatever it looks like.
fn filled(template: &str, fields: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, place)) = rest.split_once('{') {
        text.push_str(before);
        let named = place.split_once('}').and_then(|(name, after)| {
            fields.iter().find(|(field, _)| *field == name).map(|(_, value)| (*value, after))
        });
        match named {
            Some((value, after)) => {
                text.push_str(value);
                rest = after;
            }
            None => {
                text.push('{');
                rest = place;
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_once_and_white_space_is_the_separator() {
        let record = Template("Read {a}.\n\n{context}\n\n Question: {a} {b} {c}").record(
            "t",
            "{b}!",
            &[("a", "{b}"), ("b", "{")],
        );
        assert_eq!(record.input_context, "Read {b}.\n\n{b}!");
        assert_eq!(record.query_separator.unwrap().to_string(), "\n\n ");
        assert_eq!(record.input_query, "Question: {b} { {c}");
        let glued = Template("{context}Next line of code:\n").record("lcc", "x = 1\n", &[]);
        assert!(glued.query_separator.unwrap().is_none() && glued.input_query == "Next line of code:\n");
    }
}
