//! Calls of tools in what a model writes, in the forms of Hermes and Qwen, Llama 3 and Mistral, and tools as a text for a model whose
//! template has no place for them. Calls nothing.

use serde_json::Value;

/// A piece of what a model writes.
#[derive(Clone, Debug, PartialEq)]
pub enum CallPiece {
    /// Text.
    Text(String),
    /// A call: the tool's name and its arguments, as JSON.
    Call {
        /// Name.
        name: String,
        /// Arguments.
        arguments: String,
    },
}

/// What begins a call wherever it stands.
const MARKS: [&str; 3] = ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"];
const HERMES_END: &str = "</tool_call>";
/// Stands between a name and its arguments.
const ARGUMENTS: &str = "[ARGS]";
/// Most bytes that are held back to see whether they are a call.
const HELD_BYTES: usize = 256 << 10;

/// Reads what a model writes, piece by piece, for calls of tools that there are.
pub struct CallReader {
    tools: Vec<String>,
    held: String,
    place: ReaderPlace,
    has_called: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderPlace {
    /// Nothing but blanks came yet: a call may stand there without a mark.
    Start,
    Text,
    /// Behind `<tool_call>`.
    Hermes,
    /// Behind another mark, or where JSON stands alone.
    Bare {
        /// Bytes of a mark in what is held.
        mark: usize,
    },
}

impl CallReader {
    /// For tools of these names.
    pub fn new(tools: Vec<String>) -> Self {
        Self { tools, held: String::new(), place: ReaderPlace::Start, has_called: false }
    }

    /// More that the model wrote.
    pub fn push(&mut self, text: &str) -> Vec<CallPiece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces, false) {}
        if self.held.len() > HELD_BYTES {
            self.emit_all(&mut pieces);
        }
        pieces
    }

    /// Nothing more comes.
    pub fn finish(&mut self) -> Vec<CallPiece> {
        let mut pieces = Vec::new();
        while self.step(&mut pieces, true) {}
        self.emit_all(&mut pieces);
        pieces
    }

    /// Whether there was a call.
    pub fn has_called(&self) -> bool {
        self.has_called
    }

    fn emit_all(&mut self, pieces: &mut Vec<CallPiece>) {
        let rest = std::mem::take(&mut self.held);
        // Blanks behind a call say nothing.
        if !(self.has_called && rest.trim().is_empty()) {
            emit(rest, pieces);
        }
        self.place = ReaderPlace::Text;
    }

    /// Gets on with what is held; says whether there may be more to get on with.
    fn step(&mut self, pieces: &mut Vec<CallPiece>, is_last: bool) -> bool {
        match self.place {
            ReaderPlace::Start => self.begin(),
            ReaderPlace::Text => self.look(pieces),
            ReaderPlace::Hermes => self.hermes(pieces, is_last),
            ReaderPlace::Bare { mark } => self.bare(pieces, mark, is_last),
        }
    }

    fn begin(&mut self) -> bool {
        // Further calls stand behind a semicolon or a comma.
        let rest = match self.has_called {
            true => self.held.trim_start_matches([' ', '\n', ';', ',']),
            false => self.held.trim_start(),
        };
        let blank = self.held.len() - rest.len();
        match self.held[blank..].chars().next() {
            None => return false,
            Some('{' | '[') if !MARKS.iter().any(|mark| self.held[blank..].starts_with(mark)) => {
                // `[` may begin a mark that is not there yet.
                if MARKS.iter().any(|mark| mark.starts_with(&self.held[blank..])) {
                    return false;
                }
                self.place = ReaderPlace::Bare { mark: blank };
            }
            Some(_) => self.place = ReaderPlace::Text,
        }
        true
    }

    /// Looks for a mark in text.
    fn look(&mut self, pieces: &mut Vec<CallPiece>) -> bool {
        let found = MARKS.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark))).min();
        let Some((at, mark)) = found else {
            // The end of what is held may begin a mark.
            let begins = |from: &usize| MARKS.iter().any(|mark| mark.starts_with(&self.held[*from..]));
            let kept = (0..self.held.len()).filter(|at| self.held.is_char_boundary(*at)).rev().take(16);
            let keep = kept.filter(begins).last().unwrap_or(self.held.len());
            let blank = self.has_called && self.held[..keep].trim().is_empty();
            if keep > 0 && !blank {
                let rest = self.held.split_off(keep);
                let text = std::mem::replace(&mut self.held, rest);
                emit(text, pieces);
            }
            return false;
        };
        let rest = self.held.split_off(at);
        let before = std::mem::replace(&mut self.held, rest);
        if !before.trim().is_empty() {
            emit(before, pieces);
        }
        self.place = if mark == MARKS[0] { ReaderPlace::Hermes } else { ReaderPlace::Bare { mark: mark.len() } };
        true
    }

    fn hermes(&mut self, pieces: &mut Vec<CallPiece>, is_last: bool) -> bool {
        let mark = MARKS[0].len();
        let end = self.held[mark..].find(HERMES_END).map(|at| at + mark);
        let (inner, whole) = match end {
            Some(end) => (&self.held[mark..end], end + HERMES_END.len()),
            None if is_last => (&self.held[mark..], self.held.len()),
            None => return false,
        };
        let call = serde_json::from_str(inner.trim()).ok().and_then(|value| self.call(&value));
        let rest = self.held.split_off(whole);
        let text = std::mem::replace(&mut self.held, rest);
        match call {
            Some(call) => self.called(vec![call], pieces),
            None => emit(text, pieces),
        }
        self.place = ReaderPlace::Text;
        true
    }

    /// JSON of one call or of several, or names with arguments behind them.
    fn bare(&mut self, pieces: &mut Vec<CallPiece>, mark: usize, is_last: bool) -> bool {
        let inner = &self.held[mark..];
        let blank = inner.len() - inner.trim_start().len();
        let (name, from) = match inner[blank..].chars().next() {
            None if !is_last => return false,
            Some('{' | '[') => (None, mark + blank),
            // `name[ARGS]{...}`, or `name{...}` where the mark is no text.
            _ => match inner.find('{') {
                Some(at) => {
                    let name = inner[..at].trim();
                    (Some(name.strip_suffix(ARGUMENTS).unwrap_or(name).trim().to_owned()), mark + at)
                }
                None if is_last || inner.len() > 256 => return self.no_call(pieces, self.held.len()),
                None => return false,
            },
        };
        let Some(end) = json_end(&self.held[from..]).map(|end| from + end) else {
            return if is_last { self.no_call(pieces, self.held.len()) } else { false };
        };
        let value = serde_json::from_str::<Value>(&self.held[from..end]).ok();
        let calls: Option<Vec<CallPiece>> = match (value, name) {
            (Some(arguments), Some(name)) => self.named(name, &arguments).map(|call| vec![call]),
            (Some(Value::Array(values)), None) if !values.is_empty() => {
                values.iter().map(|value| self.call(value)).collect()
            }
            (Some(value), None) => self.call(&value).map(|call| vec![call]),
            (None, _) => None,
        };
        let Some(calls) = calls else { return self.no_call(pieces, end) };
        self.called(calls, pieces);
        self.held.drain(..end);
        // Further ones stand behind a semicolon, a comma or a mark.
        let rest = self.held.trim_start_matches([' ', '\n', ';', ',']).len();
        self.held.drain(..self.held.len() - rest);
        self.place = ReaderPlace::Start;
        true
    }

    /// What is held up to here is text.
    fn no_call(&mut self, pieces: &mut Vec<CallPiece>, end: usize) -> bool {
        let rest = self.held.split_off(end);
        let text = std::mem::replace(&mut self.held, rest);
        emit(text, pieces);
        self.place = ReaderPlace::Text;
        true
    }

    fn called(&mut self, calls: Vec<CallPiece>, pieces: &mut Vec<CallPiece>) {
        self.has_called = true;
        pieces.extend(calls);
    }

    /// A call that an object says, by a tool that there is.
    fn call(&self, value: &Value) -> Option<CallPiece> {
        let value = value.get("function").filter(|inner| inner.is_object()).unwrap_or(value);
        let name = value.get("name")?.as_str()?;
        let empty = Value::Object(Default::default());
        let arguments = value.get("arguments").or_else(|| value.get("parameters")).unwrap_or(&empty);
        self.named(name.to_owned(), arguments)
    }

    fn named(&self, name: String, arguments: &Value) -> Option<CallPiece> {
        // Some models write arguments as a text of JSON.
        let inner = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let arguments = inner.as_ref().unwrap_or(arguments);
        let known = self.tools.contains(&name) && arguments.is_object();
        known.then(|| CallPiece::Call { name, arguments: arguments.to_string() })
    }
}

fn emit(text: String, pieces: &mut Vec<CallPiece>) {
    if !text.is_empty() {
        pieces.push(CallPiece::Text(text));
    }
}

/// Where the list or object ends that a text begins with, if it does.
fn json_end(text: &str) -> Option<usize> {
    let (mut depth, mut within, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if within => escaped = true,
            b'"' => within = !within,
            _ if within => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Tools for a model whose template has no place for them, as a message tells it of them.
pub fn tools_as_text(tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
    format!(
        "You may call functions. They are described here, each as JSON:\n<tools>\n{}\n</tools>\n\
         For each call write a JSON object with name and arguments like this:\n\
         <tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{}}}}\n</tool_call>",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> CallPiece {
        CallPiece::Call { name: name.to_owned(), arguments: arguments.to_owned() }
    }

    fn said(text: &str) -> CallPiece {
        CallPiece::Text(text.to_owned())
    }

    /// What comes of a text that comes in pieces of so many characters.
    fn read(text: &str, size: usize) -> Vec<CallPiece> {
        let mut reader = CallReader::new(vec!["weather".to_owned(), "time".to_owned()]);
        let characters: Vec<char> = text.chars().collect();
        let mut all_read: Vec<CallPiece> = Vec::new();
        let pieces = characters.chunks(size).map(String::from_iter);
        let mut all: Vec<CallPiece> = pieces.flat_map(|piece: String| reader.push(&piece)).collect();
        all.extend(reader.finish());
        for piece in all {
            match (all_read.last_mut(), piece) {
                (Some(CallPiece::Text(before)), CallPiece::Text(more)) => *before += &more,
                (_, piece) => all_read.push(piece),
            }
        }
        all_read
    }

    #[test]
    fn calls_are_found_in_every_form_however_they_come() {
        let oslo = r#"{"city":"Oslo"}"#;
        for (text, expected) in [
            (
                "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
                vec![said("Let me see.\n"), call("weather", oslo)],
            ),
            (
                "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>\n<tool_call>\n{\"name\": \"time\", \
                 \"arguments\": {}}</tool_call>\n",
                vec![call("weather", oslo), call("time", "{}")],
            ),
            ("{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}", vec![call("weather", oslo)]),
            (
                "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}; {\"name\": \"time\", \"parameters\": {}}",
                vec![call("weather", oslo), call("time", "{}")],
            ),
            ("<|python_tag|>{\"name\": \"time\", \"parameters\": {}}", vec![call("time", "{}")]),
            (
                "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"time\", \"arguments\": {}}]",
                vec![call("weather", oslo), call("time", "{}")],
            ),
            (" [{\"name\": \"time\", \"arguments\": {}}]", vec![call("time", "{}")]),
            (
                "[TOOL_CALLS]weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]time[ARGS]{}",
                vec![call("weather", oslo), call("time", "{}")],
            ),
            (
                "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Oslo\\\"}\"}",
                vec![call("weather", oslo)],
            ),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                assert_eq!(read(text, size), expected, "{text} in pieces of {size}");
            }
        }
    }

    #[test]
    fn what_is_no_call_is_text() {
        for text in [
            "The sea is blue.",
            "a < b and <tool_calls are not",
            "{\"name\": \"somebody\", \"arguments\": {}}",
            "{\"colour\": \"blue\"}",
            "[1, 2, 3] are numbers",
            "[TOOL_CALLS] and nothing",
            "<tool_call>nothing</tool_call> there",
            "{\"name\": \"weather",
            "{ not JSON",
            "  leading blanks",
            "",
        ] {
            for size in [1, 3, 1000] {
                let expected = if text.is_empty() { vec![] } else { vec![said(text)] };
                assert_eq!(read(text, size), expected, "{text} in pieces of {size}");
            }
        }
    }
}
