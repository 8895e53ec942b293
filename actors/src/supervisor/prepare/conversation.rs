//! A conversation, or a text to be gone on with, as the context and the query of a job. Plans nothing.

use asterism_models::{ChatTurn, RenderOptions, Speaker, Written};

use super::{ModelFront, invalid, prompt::WholePrompt};
use crate::error::JobError;

impl ModelFront {
    /// The context and the query that join to what the chat template renders of `turns`: the last message of the user, or of a tool,
    /// and all behind it are the query, everything before it the context. One that is longer than all before it is a document with its
    /// question, and cut at its last separator; of one that goes on with a conversation and is long, the end alone is the query, since
    /// what is context is encoded once. For a base model the separator stands between messages.
    ///
    /// # Errors
    /// When they are too long, or the template takes no such conversation.
    pub fn conversation(&self, turns: Vec<ChatTurn>, options: RenderOptions) -> Result<(Written, Written), JobError> {
        let bytes = turns.iter().map(ChatTurn::bytes).sum();
        self.check_text("messages", bytes)?;
        let separator = self.query_separator.to_string();
        let asked = turns.iter().rposition(|turn| turn.speaker.is_answered()).unwrap_or(turns.len().saturating_sub(1));
        let earlier: usize = turns.iter().take(asked).map(|turn| turn.text.len()).sum();
        let text = turns.get(asked).map_or("", |turn| &turn.text);
        let at = match text.len() > earlier {
            true => cut(text, &separator).unwrap_or(0),
            false if is_continued(&turns) => long_before(text),
            false => 0,
        };
        let whole = match self.template.is_chat() {
            true => self.rendered(&turns, options.with_question(asked, at))?,
            false => joined(&turns, &separator, (asked, at)),
        };
        both(whole, "messages")
    }

    /// The context and the query that join to `text`, which is raw.
    ///
    /// # Errors
    /// When it is too long, or there is nothing in it.
    pub fn completion(&self, text: String) -> Result<(Written, Written), JobError> {
        self.check_text("prompt", text.len())?;
        let at = cut(&text, &self.query_separator.to_string()).unwrap_or(0);
        both(WholePrompt { written: Written::from(text), at, around: true }, "prompt")
    }

    fn check_text(&self, param: &'static str, bytes: usize) -> Result<(), JobError> {
        match bytes > self.most_text_bytes() {
            true => Err(self.too_large(param, self.tokenizer.too_many_bytes(bytes, self.max_tokens))),
            false => Ok(()),
        }
    }
}

/// Whether a conversation that `turns` go on with is likely to go on: something was answered before its last question. Not where
/// that is longer than all before it: it is a document of its own, and what stands before it are examples.
pub fn is_continued(turns: &[ChatTurn]) -> bool {
    let asked = turns.iter().rposition(|turn| turn.speaker.is_answered()).unwrap_or(0);
    let earlier: usize = turns[..asked].iter().map(|turn| turn.text.len()).sum();
    turns[..asked].iter().any(|turn| turn.speaker == Speaker::Assistant) && turns[asked].text.len() <= earlier
}

/// Bytes of a message that goes on with a conversation, up to which all of it is the question, and of its end where it is longer.
const QUESTION_BYTES: (usize, usize) = (512, 256);

/// Bytes of a message that are context rather than question: up to a border between words.
fn long_before(text: &str) -> usize {
    let (most, end) = QUESTION_BYTES;
    if text.len() <= most {
        return 0;
    }
    let before = &text[..text.floor_char_boundary(text.len() - end)];
    before.rfind(char::is_whitespace).unwrap_or(0)
}

/// Messages of a base model, of which one begins a question at a byte.
fn joined(turns: &[ChatTurn], separator: &str, (asked, byte): (usize, usize)) -> WholePrompt {
    let (mut written, mut at) = (Written::default(), 0);
    for (number, turn) in turns.iter().enumerate() {
        if number == asked {
            at = written.text().len() + if number > 0 && byte > 0 { separator.len() + byte } else { byte };
        }
        if number > 0 {
            written.push_message(separator);
        }
        written.push_message(&turn.text);
    }
    WholePrompt { written, at, around: true }
}

/// What stands before the question, and the question, which may not be empty.
fn both(WholePrompt { mut written, at, .. }: WholePrompt, param: &'static str) -> Result<(Written, Written), JobError> {
    let query = written.split_off(at);
    if query.text().trim().is_empty() {
        return Err(invalid(param, "there is nothing to answer: the last message or the prompt is empty"));
    }
    Ok((written, query))
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
    use asterism_models::{Checkpoint, TemplateDate, TemplateSource};

    use super::*;

    fn front() -> ModelFront {
        ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap()
    }

    fn texts((context, query): (Written, Written)) -> (String, String) {
        (context.text().to_owned(), query.text().to_owned())
    }

    fn split(turns: &[(Speaker, &str)]) -> (String, String) {
        let turn = |(speaker, text): &(Speaker, &str)| ChatTurn::new(*speaker, *text);
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
            (&[(System, document), (User, "Which?")][..], both(&format!("{document}\n\n"), "Which?")),
            (&[(User, document), (User, "Which?")], both(&format!("{document}\n\n"), "Which?")),
            (
                &[(User, document), (Assistant, "Read."), (User, "A?\n\nB?")],
                both(&format!("{document}\n\nRead.\n\n"), "A?\n\nB?"),
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
    fn a_conversation_goes_on_once_something_was_answered() {
        use Speaker::{Assistant, System, User};
        let of = |turns: &[(Speaker, &str)]| {
            let turn = |(speaker, text): &(Speaker, &str)| ChatTurn::new(*speaker, *text);
            is_continued(&turns.iter().map(turn).collect::<Vec<_>>())
        };
        let (first, answer) = ((User, "A document. Which?"), (Assistant, "This."));
        assert!(of(&[first, answer, (User, "And?")]));
        assert!(of(&[(System, "Be brief."), first, answer, (User, "And?"), (Assistant, "It is the")]));
        assert!(!of(&[]) && !of(&[first]) && !of(&[first, answer]), "nothing is asked behind an answer");
        assert!(!of(&[(User, "1+1?"), (Assistant, "2"), (User, "A document that is longer. Which?")]), "an example");
    }

    #[test]
    fn of_a_long_message_that_goes_on_the_end_alone_is_asked() {
        use Speaker::{Assistant, User};
        let (document, found) = ("word ".repeat(2000), "found it ".repeat(400));
        let turns = [(User, document.as_str()), (Assistant, "Yes."), (User, found.as_str())];
        let (context, query) = split(&turns);
        assert!(query.len() > 256 && query.len() < 272 && query.starts_with(" "), "{}", query.len());
        assert_eq!(context + &query, format!("<|begin_of_text|>{document}\n\nYes.\n\n{found}"));
        let unbroken = "x".repeat(3000);
        assert_eq!(split(&[turns[0], turns[1], (User, &unbroken)]).1, unbroken);
        assert_eq!(split(&[turns[0], (User, &found)]).1, found, "nothing was answered before");
    }

    #[test]
    fn a_prompt_is_cut_at_its_last_separator() {
        let front = front();
        assert_eq!(
            texts(front.completion("a\n\nb\n\nc\n\n".to_owned()).unwrap()),
            ("a\n\nb".to_owned(), "\n\nc\n\n".to_owned())
        );
        assert_eq!(texts(front.completion("one line".to_owned()).unwrap()), (String::new(), "one line".to_owned()));
        for empty in ["", " \n\n "] {
            assert_eq!(front.completion(empty.to_owned()).unwrap_err().code(), "invalid_request");
        }
        let long = front.completion("word ".repeat(1 << 20)).unwrap_err();
        assert_eq!(long.code(), "context_too_long");
    }

    #[test]
    fn messages_of_a_base_model_have_the_separator_between_them() {
        use Speaker::{Assistant, User};
        let turn = |speaker, text: &str| ChatTurn::new(speaker, text);
        let turns = [turn(User, "a"), turn(Assistant, "b"), turn(User, "c--d")];
        for (place, before) in [((2, 0), "a--b"), ((2, 1), "a--b--c"), ((0, 1), "a")] {
            let WholePrompt { written, at, .. } = joined(&turns, "--", place);
            assert_eq!((written.text(), &written.text()[..at]), ("a--b--c--d", before));
        }
    }
}
