//! Questions about whole books (InfiniteBench's En.QA and En.MC), from the user's copy of its JSONL files.
//!
//! A book that is too long loses its middle, as the benchmark does it. Summaries and dialogue are not asked for.

use std::path::{Path, PathBuf};

use asterism_models::QuerySeparator;
use serde::Deserialize;

use super::{
    EvalError, EvalRecord, Metric, read_haystack,
    record::of_line,
    tasks::{
        draft::Draft,
        task::{Recipe, sized},
    },
};

/// Characters by which a book grows and shrinks.
const UNIT_CHARS: usize = 32;

/// Which file of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Book {
    /// `longbook_qa_eng.jsonl`: a question, and answers that will do.
    QaEng,
    /// `longbook_choice_eng.jsonl`: a question and four options.
    ChoiceEng,
}

/// The questions of one file.
#[derive(Debug)]
pub struct Library {
    book: Book,
    questions: Vec<BookLine>,
}

#[derive(Debug, Deserialize)]
struct BookLine {
    context: String,
    input: String,
    answer: BookAnswers,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum BookAnswers {
    One(String),
    Many(Vec<String>),
}

impl Book {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::QaEng, Self::ChoiceEng];

    /// The task's name.
    pub fn task(self) -> &'static str {
        match self {
            Self::QaEng => "qa_eng",
            Self::ChoiceEng => "choice_eng",
        }
    }

    /// Its file in a folder of the benchmark's data.
    pub fn file(self, folder: &Path) -> PathBuf {
        folder.join(format!("longbook_{}.jsonl", self.task()))
    }

    /// What to say on the command line to give it.
    pub fn option(self) -> &'static str {
        match self {
            Self::QaEng => "--data DIR with longbook_qa_eng.jsonl",
            Self::ChoiceEng => "--data DIR with longbook_choice_eng.jsonl",
        }
    }

    /// How an answer is scored.
    pub fn metric(self) -> Metric {
        match self {
            Self::QaEng => Metric::F1,
            Self::ChoiceEng => Metric::Letter,
        }
    }

    /// Most tokens of an answer.
    pub const ANSWER_TOKENS: usize = 40;
}

impl Library {
    /// Reads the file of `book` in `folder`.
    ///
    /// # Errors
    /// [`EvalError::Read`], [`EvalError::Data`] with the first line that is no question.
    pub fn read(book: Book, folder: &Path) -> Result<Self, EvalError> {
        let path = book.file(folder);
        let refused = |reason: String| EvalError::Data { path: path.clone(), format: "InfiniteBench's JSONL", reason };
        let text = read_haystack(&path)?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let questions = lines
            .map(|(index, line)| {
                let line: BookLine =
                    of_line(line).map_err(|reason| refused(format!("line {}: {reason}", index + 1)))?;
                if gold(book, &line).is_empty() {
                    return Err(refused(format!("line {}: no answer among its options", index + 1)));
                }
                Ok(line)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if questions.is_empty() { Err(refused("no questions".into())) } else { Ok(Self { book, questions }) }
    }

    /// Which file it is.
    pub fn book(&self) -> Book {
        self.book
    }

    /// How many questions it has.
    pub fn len(&self) -> usize {
        self.questions.len()
    }

    /// Whether it has none; a library that was read has some.
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    /// Question `index`, its book cut to the recipe's size, and the answers that will do.
    ///
    /// # Errors
    /// [`EvalError::TooFewTokens`].
    pub fn make(
        &self,
        index: usize,
        recipe: &Recipe<'_>,
        count: &dyn Fn(&str) -> usize,
    ) -> Result<(EvalRecord, Vec<String>), EvalError> {
        let line = &self.questions[index];
        let gold = gold(self.book, line);
        let query = match self.book {
            Book::QaEng => format!("Answer the question as concisely as you can.\n\nQuestion: {}\nAnswer:", line.input),
            Book::ChoiceEng => {
                let options: Vec<String> =
                    line.options.iter().zip('A'..='D').map(|(text, letter)| format!("{letter}. {text}")).collect();
                format!(
                    "Only one of the following options is correct; answer with its letter.\n\nQuestion: {}\n{}\n\nThe \
                     letter of the correct answer is",
                    line.input,
                    options.join("\n")
                )
            }
        };
        let answer = gold[0].clone();
        let book = line.context.clone();
        let units = book.chars().count().div_ceil(UNIT_CHARS);
        let context = move |asked: usize| {
            let book = if asked >= units { book.clone() } else { without_middle(&book, asked * UNIT_CHARS) };
            format!("Read the book and answer the question.\n\n{book}\n\n")
        };
        let draft = Draft { query, answer: Box::new(move |_| answer.clone()), context: Box::new(context) };
        let whole = self.sized_whole(draft, units, recipe, count)?;
        Ok((whole, gold))
    }

    fn sized_whole(
        &self,
        mut draft: Draft,
        units: usize,
        recipe: &Recipe<'_>,
        count: &dyn Fn(&str) -> usize,
    ) -> Result<EvalRecord, EvalError> {
        let beside = recipe.reserve.map_or(0, |reserve| reserve + count(&draft.query));
        let whole = (draft.context)(units);
        let context_tokens = count(&whole);
        // A book that does not fit whole has a largest part that does.
        if context_tokens + beside > recipe.tokens {
            return sized(self.book.task(), draft, recipe, count);
        }
        Ok(EvalRecord {
            task: self.book.task().to_owned(),
            input_context: whole,
            input_query: draft.query,
            query_separator: Some(QuerySeparator::NONE),
            chat_template: true,
            answer: (draft.answer)(units),
            context_tokens,
            haystack: None,
        })
    }
}

/// The answers that will do: texts, or the letter of the option that is one of them.
fn gold(book: Book, line: &BookLine) -> Vec<String> {
    let texts = match &line.answer {
        BookAnswers::One(text) => vec![text.clone()],
        BookAnswers::Many(texts) => texts.clone(),
    };
    match book {
        Book::QaEng => texts,
        Book::ChoiceEng => {
            let letters = line.options.iter().zip('A'..='D').filter(|(option, _)| texts.contains(option));
            letters.map(|(_, letter)| letter.to_string()).collect()
        }
    }
}

/// The first and the last half of `chars` characters.
fn without_middle(text: &str, chars: usize) -> String {
    let total = text.chars().count();
    let at = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (at(chars / 2), at(total - (chars - chars / 2)));
    format!("{}{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn library(book: Book, line: &str) -> Result<Library, EvalError> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(book.file(folder.path()), line).unwrap();
        Library::read(book, folder.path())
    }

    fn line(answer: &str) -> String {
        let story: Vec<String> = (0..2000).map(|index| format!("word{index}")).collect();
        format!(
            r#"{{"id": 0, "context": "{}", "input": "Who?", "answer": {answer}, "options": ["Ann", "Bob", "Cleo", "Dan"]}}"#,
            story.join(" ")
        )
    }

    #[test]
    fn a_book_loses_its_middle() {
        let library = library(Book::QaEng, &line(r#"["Ann", "Anna"]"#)).unwrap();
        let recipe = Recipe { tokens: 300, reserve: Some(40), seed: 0, text: None };
        let (record, gold) = library.make(0, &recipe, &words).unwrap();
        assert_eq!(gold, ["Ann", "Anna"]);
        let used = record.context_tokens + words(&record.input_query) + 40;
        assert!(used <= 300 && used > 290, "{used}");
        assert!(record.input_context.contains("word5 ") && record.input_context.contains("word1999"));
        assert!(!record.input_context.contains("word1000"));
        let (whole, _) = library.make(0, &Recipe { tokens: 3000, ..recipe }, &words).unwrap();
        assert!(whole.input_context.contains("word1000 "));
    }

    #[test]
    fn a_choice_is_a_letter() {
        let library = library(Book::ChoiceEng, &line(r#"["Cleo"]"#)).unwrap();
        let recipe = Recipe { tokens: 3000, reserve: None, seed: 0, text: None };
        let (record, gold) = library.make(0, &recipe, &words).unwrap();
        assert_eq!(gold, ["C"]);
        assert!(record.input_query.contains("C. Cleo\nD. Dan"), "{}", record.input_query);
    }

    #[test]
    fn lines_without_an_answer_are_named() {
        let error = library(Book::ChoiceEng, &line(r#""Eve""#)).unwrap_err().to_string();
        assert!(error.contains("line 1: no answer among its options"), "{error}");
        assert!(library(Book::QaEng, "{}").unwrap_err().to_string().contains("line 1: missing field `context`"));
    }
}
