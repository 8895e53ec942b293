//! A conversation, or a text to be gone on with, as the context and the query of a job. Plans nothing.

use asterism_models::{Conversation, ModelError, RenderOptions, Turn, Written};

use super::{ModelFront, invalid};
use crate::error::JobError;

impl ModelFront {
    /// The context and the query that join to what the chat template renders of `turns`: the last message is the query,
    /// everything before it the context. A last message that is longer than all before it is a document with its question,
    /// and cut at its last separator. For a base model the separator stands between messages.
    ///
    /// # Errors
    /// When they are too long, or the template takes no such conversation.
    pub fn conversation(&self, turns: Vec<Turn>, options: RenderOptions) -> Result<(Written, Written), JobError> {
        let bytes = turns.iter().map(|turn| turn.text.len()).sum();
        self.check_text("messages", bytes)?;
        let separator = self.query_separator.to_string();
        let given = turns.last().map_or(0, |last| last.text.len());
        let Conversation { mut head, last, tail } = self.template.conversation(&turns, &separator, options)?;
        let at = match last.len() > bytes - given {
            true => cut(&last, &separator).unwrap_or(0),
            false => 0,
        };
        let mut query = Written::message(&last[at..]);
        query.push(&tail);
        head.push_message(&last[..at]);
        // What separates goes with the question, as it does in jobs.
        if let Some(length) = head.text().strip_suffix(&separator).map(str::len).filter(|_| !separator.is_empty()) {
            let mut separated = head.split_off(length);
            separated.append(query);
            query = separated;
        }
        self.both(head, query, "messages")
    }

    /// The context and the query that join to `text`, which is raw, behind what the model wants before every text.
    ///
    /// # Errors
    /// When it is too long or too short to be both.
    pub fn completion(&self, text: &str) -> Result<(Written, Written), JobError> {
        self.check_text("prompt", text.len())?;
        let separator = self.query_separator.to_string();
        let (context, query) = text.split_at(cut(text, &separator).unwrap_or(0));
        let context = Written::from(self.template.bos().to_owned() + context);
        self.both(context, Written::from(query.to_owned()), "prompt")
    }

    /// A context behind what the model wants before every text.
    pub fn document(&self, context: &str) -> Written {
        self.template.document(context)
    }

    fn check_text(&self, param: &'static str, bytes: usize) -> Result<(), JobError> {
        let most = self.most_text_bytes();
        if bytes > most { Err(self.too_large(param, ModelError::TooManyBytes { bytes, most })) } else { Ok(()) }
    }

    /// Neither may be empty, so that of a text without a joint the last word is the query.
    fn both(
        &self,
        mut context: Written,
        mut query: Written,
        param: &'static str,
    ) -> Result<(Written, Written), JobError> {
        if query.text().trim().is_empty() {
            return Err(invalid(param, "there is nothing to answer: the last message or the prompt is empty"));
        }
        if !context.text().trim().is_empty() {
            return Ok((context, query));
        }
        let words = query.text().trim_end();
        match words.rfind(char::is_whitespace).filter(|at| !words[..*at].trim().is_empty()) {
            Some(at) => {
                let last = query.split_off(at);
                context.append(query);
                Ok((context, last))
            }
            None => Err(invalid(param, "one word is no context and question; this model puts nothing before it")),
        }
    }
}

/// Where the last separator of a text begins that has something on both sides.
fn cut(text: &str, separator: &str) -> Option<usize> {
    if separator.is_empty() {
        return None;
    }
    text.trim_end().rfind(separator).filter(|at| !text[..*at].trim().is_empty())
}

#[cfg(test)]
mod tests {
    use asterism_models::{Checkpoint, Speaker, TemplateDate, TemplateSource};

    use super::*;

    fn front() -> ModelFront {
        ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap()
    }

    fn texts((context, query): (Written, Written)) -> (String, String) {
        (context.text().to_owned(), query.text().to_owned())
    }

    fn split(turns: &[(Speaker, &str)]) -> (String, String) {
        let turn = |(speaker, text): &(Speaker, &str)| Turn { speaker: *speaker, text: (*text).to_owned() };
        texts(
            front().conversation(turns.iter().map(turn).collect(), RenderOptions::on(TemplateDate::default())).unwrap(),
        )
    }

    fn both(context: &str, query: &str) -> (String, String) {
        (format!("<|begin_of_text|>{context}"), query.to_owned())
    }

    #[test]
    fn the_last_message_is_the_query() {
        use Speaker::{Assistant, System, User};
        let document = "A long document.\n\nOf two paragraphs.";
        for (turns, expected) in [
            (&[(System, document), (User, "Which?")][..], both(document, "\n\nWhich?")),
            (&[(User, document), (User, "Which?")], both(document, "\n\nWhich?")),
            (
                &[(User, document), (Assistant, "Read."), (User, "A?\n\nB?")],
                both(&format!("{document}\n\nRead."), "\n\nA?\n\nB?"),
            ),
            (&[(User, &format!("{document}\n\nWhich?"))], both(document, "\n\nWhich?")),
            (
                &[(System, "Be brief."), (User, &format!("{document}\n\nWhich?\n"))],
                both(&format!("Be brief.\n\n{document}"), "\n\nWhich?\n"),
            ),
            (&[(User, "Which?")], both("", "Which?")),
        ] {
            assert_eq!(split(turns), expected, "{turns:?}");
        }
    }

    #[test]
    fn a_prompt_is_cut_at_its_last_separator() {
        let front = front();
        assert_eq!(texts(front.completion("a\n\nb\n\nc\n\n").unwrap()), both("a\n\nb", "\n\nc\n\n"));
        assert_eq!(texts(front.completion("one line").unwrap()), both("", "one line"));
        for empty in ["", " \n\n "] {
            assert_eq!(front.completion(empty).unwrap_err().code(), "invalid_request");
        }
        let long = front.completion(&"word ".repeat(1 << 20)).unwrap_err();
        assert_eq!(long.code(), "context_too_long");
    }

    #[test]
    fn where_nothing_stands_before_a_text_its_last_word_is_the_query() {
        let front = front();
        let both = |query: &str| front.both(Written::default(), Written::message(query), "prompt");
        assert_eq!(both("two words ").unwrap(), (Written::message("two"), Written::message(" words ")));
        assert_eq!(both(" word").unwrap_err().code(), "invalid_request");
    }
}
