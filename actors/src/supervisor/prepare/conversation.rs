//! A conversation, or a text to be gone on with, as the context and the query of a job. Plans nothing.

use asterism_models::{ChatTurn, RenderOptions, Speaker, Written};

use super::{ModelFront, invalid, prompt::WholePrompt};
use crate::error::JobError;

impl ModelFront {
    /// The context and the query that join to what the chat template renders of `turns`: the last message of the user, or of a tool,
    /// and all behind it are the query, everything before it the context. One that is longer than all before it is a document with its
    /// question, and cut at its last separator; of one that is long without, or goes on with a conversation, the end alone is the query,
    /// since what is context is encoded once. For a base model the separator stands between messages.
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
        let at = match is_continued(&turns) {
            true => end(text, GOING_ON_BYTES),
            false if text.len() > earlier.min(QUESTION_BYTES) => document(text, &separator),
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
        let at = document(&text, &self.query_separator.to_string());
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

/// Bytes up to which all of a text is a question; of one that goes on with a conversation, whose answers come sooner the less of it
/// is asked; and of a longer one's end.
const QUESTION_BYTES: usize = 4096;
const GOING_ON_BYTES: usize = 512;
const END_BYTES: usize = 256;

/// Bytes of a document before its question: up to the last separator that has something on both sides, or to the end of what
/// is too long for a question.
fn document(text: &str, separator: &str) -> usize {
    let found = if separator.is_empty() { None } else { text.trim_end().rfind(separator) };
    let at = found.filter(|at| !text[..*at].trim().is_empty()).unwrap_or(0);
    at + end(&text[at..], QUESTION_BYTES)
}

/// Bytes before the end of a text that is longer than `most`: up to a border between words where one is near.
fn end(text: &str, most: usize) -> usize {
    if text.len() <= most {
        return 0;
    }
    let at = text.floor_char_boundary(text.len() - END_BYTES);
    let near = text.floor_char_boundary(at.saturating_sub(END_BYTES));
    text[near..at].rfind(char::is_whitespace).map_or(at, |word| near + word)
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
        for (letters, end) in [
            ("x".repeat(3000), 256),
            ("語".repeat(1000), 258),
            (format!("a {}", "x".repeat(3000)), 256),
            (format!("ab{}abc", "🦀".repeat(127)), 259),
        ] {
            assert_eq!(split(&[turns[0], turns[1], (User, &letters)]).1, letters[letters.len() - end..]);
        }
        assert_eq!(split(&[turns[0], (User, &found)]).1, found, "nothing was answered before");
    }

    #[test]
    fn a_document_without_a_separator_is_asked_by_its_end() {
        use Speaker::{System, User};
        let lines = "a line of a log, and one more\n".repeat(300);
        let question = lines[lines.len() - 259..].to_owned();
        let (long, paragraphs) = ("word ".repeat(4000), format!("{lines}\n\nWhich of the lines is the longest?"));
        for (turns, expected) in [
            (&[(User, lines.as_str())][..], question.as_str()),
            (&[(System, "Be brief."), (User, &lines)], &question),
            (&[(System, &long), (User, &lines)], &question),
            (&[(System, &long), (User, &paragraphs)], "\n\nWhich of the lines is the longest?"),
            (&[(User, &format!("Read this.\n\n{lines}"))], &question),
            (&[(User, &lines[..4080])], &lines[..4080]),
        ] {
            let (context, query) = split(turns);
            assert_eq!(query, expected);
            assert!((context + &query).ends_with(turns.last().unwrap().1));
        }
        let (context, query) = texts(front().completion(lines.clone()).unwrap());
        assert_eq!((context + &query, query), (lines, question));
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
