//! Contexts and queries from files and standard input, refused before anything is sent. Opens no connection.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use asterism_models::QuerySeparator;
use serde::Deserialize;

use crate::error::{CliError, wording::reworded};

/// One question about one document.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct JobQuestion {
    /// The document.
    #[serde(rename = "input_context")]
    pub context: String,
    /// The question.
    #[serde(rename = "input_query")]
    pub query: String,
    /// What stands between the two; none: what the cluster has.
    #[serde(default)]
    pub query_separator: Option<QuerySeparator>,
}

/// How `job submit` is given its question.
pub const QUERY_OPTION: &str = "--query TEXT";

/// The question that `--context` and `--query` make.
pub fn of_arguments(contexts: &[String], query: Option<&str>) -> Result<JobQuestion, CliError> {
    let stdin_readers = contexts.iter().filter(|path| *path == "-").count() + usize::from(query == Some("-"));
    if stdin_readers > 1 {
        return Err(CliError::usage("standard input ('-') is named more than once; it can be read once")
            .hint("put one of the texts into a file"));
    }
    let Some(query) = query.filter(|_| !contexts.is_empty()) else {
        return Err(CliError::usage("a job needs a document and a question")
            .hint("asterism job submit --context FILE --query TEXT, or --input FILE.jsonl"));
    };
    let context = read_contexts(contexts)?;
    Ok(JobQuestion { context, query: read_query(query, QUERY_OPTION)?, query_separator: None })
}

/// The documents of these files, joined.
pub fn read_contexts(paths: &[String]) -> Result<String, CliError> {
    let mut context = String::new();
    for path in paths {
        context += &text_of(path)?;
    }
    if context.trim().is_empty() {
        let message = format!("the context is empty: there is no text in {}", paths.join(", "));
        return Err(CliError::usage(message).hint("give a document with --context FILE"));
    }
    Ok(context)
}

/// The question as typed, or from standard input for `-`. `argument`: how it is given.
pub fn read_query(query: &str, argument: &str) -> Result<String, CliError> {
    let (from, query) = match query {
        "-" => (": there is no text in standard input", text_of("-")?),
        typed => ("", typed.to_owned()),
    };
    if query.trim().is_empty() {
        return Err(CliError::usage(format!("the query is empty{from}")).hint(format!("ask something with {argument}")));
    }
    Ok(query)
}

/// The questions of a JSONL file, with the cluster's `query_separator` unless they name their own; other fields of its lines are
/// ignored.
pub fn of_lines(path: &Path) -> Result<Vec<JobQuestion>, CliError> {
    let text = text_of(&path.to_string_lossy())?;
    let mut questions = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let refused = |cause: String| {
            CliError::usage(format!("{}, line {}: {cause}", path.display(), index + 1))
                .hint("every line is an object with the strings input_context and input_query")
        };
        let question: JobQuestion =
            serde_json::from_str(line).map_err(|error| refused(reworded(&error.to_string())))?;
        if question.context.trim().is_empty() {
            return Err(refused("input_context is empty".into()));
        }
        if question.query.trim().is_empty() {
            return Err(refused("input_query is empty".into()));
        }
        questions.push(question);
    }
    if questions.is_empty() {
        return Err(
            CliError::usage(format!("{} holds no line", path.display())).hint("`asterism eval make` makes some")
        );
    }
    Ok(questions)
}

/// The text of a file, or of standard input for `-`.
fn text_of(path: &str) -> Result<String, CliError> {
    let (name, bytes) = match path {
        "-" => {
            let mut bytes = Vec::new();
            ("standard input", io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes))
        }
        path => (path, fs::read(path)),
    };
    let bytes = bytes.map_err(|error| {
        let message = match error.kind() {
            io::ErrorKind::NotFound => format!("there is no file {name}"),
            io::ErrorKind::IsADirectory => format!("{name} is a folder, not a text file"),
            _ => format!("cannot read {name}: {error}"),
        };
        CliError::usage(message).hint("name a UTF-8 text file, or - for standard input")
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[offset];
        CliError::usage(format!("{name} is not UTF-8 text: byte 0x{byte:02x} at offset {offset}"))
            .hint(format!("convert it first, such as `iconv -f latin1 -t utf8 {name}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_is_refused_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let latin = write("latin.txt", b"caf\xe9");
        let empty = write("empty.txt", b" \n");
        let good = write("good.txt", b"text");
        let refused = |contexts: &[&String], query: Option<&str>| {
            let contexts: Vec<String> = contexts.iter().map(|path| path.to_string()).collect();
            of_arguments(&contexts, query).unwrap_err().message
        };
        assert!(refused(&[&latin], Some("q")).ends_with("latin.txt is not UTF-8 text: byte 0xe9 at offset 3"));
        assert!(refused(&[&empty], Some("q")).starts_with("the context is empty"));
        assert_eq!(refused(&[&good], Some(" ")), "the query is empty");
        assert_eq!(refused(&[&good], None), "a job needs a document and a question");
        assert!(refused(&[&"/no/such".to_owned()], Some("q")).starts_with("there is no file"));
        assert!(refused(&[&"-".to_owned(), &"-".to_owned()], Some("q")).starts_with("standard input"));
        assert_eq!(
            of_arguments(std::slice::from_ref(&good), Some("why?")).unwrap().query_separator,
            None,
            "the cluster's"
        );
        let twice = of_arguments(&[good.clone(), good], Some("why?")).unwrap();
        assert_eq!(twice.context, "texttext");
    }

    #[test]
    fn lines_are_checked_one_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("q.jsonl");
        fs::write(&path, "{\"task\": \"t\", \"input_context\": \"c\", \"input_query\": \"q\"}\n\n").unwrap();
        let [plain] = &of_lines(&path).unwrap()[..] else { panic!("one line") };
        assert_eq!(plain.query_separator, None, "the cluster's");
        let separated = r#"{"input_context": "c", "input_query": "q", "query_separator": "\n\n"}"#;
        fs::write(&path, separated).unwrap();
        assert_eq!(of_lines(&path).unwrap()[0].query_separator, Some(QuerySeparator::PARAGRAPH));
        fs::write(&path, "{\"input_context\": \"c\", \"input_query\": \"q\"}\n{\"input_context\": \"c\"}\n").unwrap();
        let message = of_lines(&path).unwrap_err().message;
        assert!(message.contains("line 2: missing field `input_query`"), "{message}");
    }
}
