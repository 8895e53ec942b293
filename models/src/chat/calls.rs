//! Calls of tools in what a model writes, in the forms of Hermes and Qwen, Llama 3 and Mistral, and tools as a text for a model whose
//! template has no place for them. Calls nothing.
//!
//! A call stands behind a mark, wherever that is. Some models write none: JSON is a call, too, where it begins a line, stands in a fence
//! of its own, or follows a call, and each object of it names a tool that there is and has an object as its arguments. Whatever else is
//! text, to the byte. What comes of an answer does not depend on the pieces that it comes in.

mod json;

use serde_json::Value;

use json::ValueScan;

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
/// Most bytes of a name behind a mark.
const NAME_BYTES: usize = 256;
/// What begins and ends a fence, and what it is said to hold where it may be calls.
const FENCE: &str = "```";
const FENCED: [&str; 4] = ["", "json", "tool_call", "tool_calls"];
/// Keys that the object of a call begins with.
const CALL_KEYS: [&str; 6] = ["name", "arguments", "parameters", "function", "type", "id"];
/// Most bytes that are held back to see whether they are a call.
const HELD_BYTES: usize = 256 << 10;

/// Reads what a model writes, piece by piece, for calls of tools that there are.
pub struct CallReader {
    tools: Vec<String>,
    /// What is not decided on yet.
    held: String,
    /// What stands between calls, or before the first: dropped where a call follows.
    filler: String,
    /// Nothing but filler came since the beginning or the last call.
    is_gap: bool,
    /// Nothing but blanks stands before what is held on its line.
    begins_line: bool,
    /// Within a fence that is no call's: JSON in it is text.
    is_fenced: bool,
    place: ReaderPlace,
    has_called: bool,
}

/// What is held begins with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderPlace {
    Text,
    /// `<tool_call>`.
    Hermes,
    /// Another mark, of so many bytes.
    Marked(usize),
    /// JSON that may be a call.
    Json,
    /// A fence that may have calls in it.
    Fence,
    /// The rest of JSON that is no call.
    Value(ValueScan),
}

/// What a text may begin with.
enum Opening {
    Place(ReaderPlace),
    /// The end of a fence that is no call's.
    FenceEnd,
    /// The end of what held a call.
    CallEnd,
    /// That is not to be seen yet.
    Undecided,
    Nothing,
}

/// What a fence has in it.
enum Fenced {
    /// Calls, up to this byte.
    Calls(Vec<CallPiece>, usize),
    /// That is not to be seen yet.
    Undecided,
    Text,
}

impl CallReader {
    /// For tools of these names.
    pub fn new(tools: Vec<String>) -> Self {
        Self {
            tools,
            held: String::new(),
            filler: String::new(),
            is_gap: true,
            begins_line: true,
            is_fenced: false,
            place: ReaderPlace::Text,
            has_called: false,
        }
    }

    /// More that the model wrote.
    pub fn push(&mut self, text: &str) -> Vec<CallPiece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces, false) {}
        if self.held.len() > HELD_BYTES {
            self.no_call(self.held.len(), &mut pieces);
        }
        pieces
    }

    /// Nothing more comes.
    pub fn finish(&mut self) -> Vec<CallPiece> {
        let mut pieces = Vec::new();
        while self.step(&mut pieces, true) {}
        self.no_call(self.held.len(), &mut pieces);
        // What stands behind the last call says nothing.
        let filler = std::mem::take(&mut self.filler);
        if !self.has_called && !filler.is_empty() {
            pieces.push(CallPiece::Text(filler));
        }
        pieces
    }

    /// Whether there was a call.
    pub fn has_called(&self) -> bool {
        self.has_called
    }

    /// Gets on with what is held; says whether there may be more to get on with.
    fn step(&mut self, pieces: &mut Vec<CallPiece>, is_last: bool) -> bool {
        match self.place {
            ReaderPlace::Text => self.look(pieces),
            ReaderPlace::Hermes => self.hermes(pieces, is_last),
            ReaderPlace::Marked(mark) => self.marked(pieces, mark, is_last),
            ReaderPlace::Json => self.json(pieces, is_last),
            ReaderPlace::Fence => self.fence(pieces, is_last),
            ReaderPlace::Value(scan) => self.value(pieces, scan),
        }
    }

    /// Whether this may stand between calls: further ones follow a semicolon or a comma.
    fn is_filler(&self, letter: char) -> bool {
        letter.is_whitespace() || self.has_called && [';', ','].contains(&letter)
    }

    /// So much of what is held is text.
    fn say(&mut self, bytes: usize, pieces: &mut Vec<CallPiece>) {
        let rest = self.held.split_off(bytes);
        let mut text = std::mem::replace(&mut self.held, rest);
        let line = text.rfind('\n').map_or(&*text, |at| &text[at + 1..]);
        self.begins_line = line.trim_start().is_empty() && (self.begins_line || line.len() < text.len());
        if self.is_gap {
            let filler = text.len() - text.trim_start_matches(|letter| self.is_filler(letter)).len();
            self.filler.extend(text.drain(..filler));
            if text.is_empty() {
                return;
            }
            text.insert_str(0, &std::mem::take(&mut self.filler));
            self.is_gap = false;
        }
        match pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(CallPiece::Text(before)) => *before += &text,
            _ => pieces.push(CallPiece::Text(text)),
        }
    }

    /// So much of what is held is text, and no call.
    fn no_call(&mut self, bytes: usize, pieces: &mut Vec<CallPiece>) -> bool {
        self.say(bytes, pieces);
        self.place = ReaderPlace::Text;
        true
    }

    /// So much of what is held are these calls.
    fn called(&mut self, (calls, bytes): (Vec<CallPiece>, usize), pieces: &mut Vec<CallPiece>) -> bool {
        self.held.drain(..bytes);
        self.filler.clear();
        (self.has_called, self.is_gap, self.begins_line, self.place) = (true, true, false, ReaderPlace::Text);
        pieces.extend(calls);
        true
    }

    /// Looks in text for what may be a call.
    fn look(&mut self, pieces: &mut Vec<CallPiece>) -> bool {
        let (mut is_gap, mut opens) = (self.is_gap, self.is_gap || self.begins_line);
        let mut found = (self.held.len(), Opening::Nothing);
        for (at, letter) in self.held.char_indices() {
            match self.opening(&self.held[at..], is_gap, opens) {
                Opening::Nothing => {}
                opening => {
                    found = (at, opening);
                    break;
                }
            }
            is_gap &= self.is_filler(letter);
            opens = is_gap || letter == '\n' || opens && letter.is_whitespace();
        }
        let (at, opening) = found;
        self.say(at, pieces);
        match opening {
            Opening::Place(place) => self.place = place,
            Opening::FenceEnd => {
                self.is_fenced = false;
                self.say(FENCE.len(), pieces);
            }
            Opening::CallEnd => drop(self.held.drain(..HERMES_END.len())),
            Opening::Undecided | Opening::Nothing => return false,
        }
        true
    }

    /// What a text begins with. `is_gap`: between calls; `opens`: there, or where a line begins.
    fn opening(&self, text: &str, is_gap: bool, opens: bool) -> Opening {
        let begins = |whole: &str| text.len() < whole.len() && whole.starts_with(text);
        match text.as_bytes()[0] {
            b'<' if is_gap && self.has_called && text.starts_with(HERMES_END) => Opening::CallEnd,
            b'<' if is_gap && self.has_called && begins(HERMES_END) => Opening::Undecided,
            b'`' if !self.is_fenced && !opens => Opening::Nothing,
            b'`' if begins(FENCE) => Opening::Undecided,
            b'`' if !text.starts_with(FENCE) => Opening::Nothing,
            b'`' if self.is_fenced => Opening::FenceEnd,
            b'`' => Opening::Place(ReaderPlace::Fence),
            b'<' | b'{' | b'[' => match mark(text) {
                Opening::Nothing if opens && !self.is_fenced && text.starts_with(['{', '[']) => {
                    Opening::Place(ReaderPlace::Json)
                }
                opening => opening,
            },
            _ => Opening::Nothing,
        }
    }

    fn hermes(&mut self, pieces: &mut Vec<CallPiece>, is_last: bool) -> bool {
        let mark = MARKS[0].len();
        let inner = self.held[mark..].trim_start();
        let from = self.held.len() - inner.len();
        match inner.as_bytes().first() {
            None => is_last && self.no_call(self.held.len(), pieces),
            Some(b'{') => match (json::end(inner), json::find_outside(inner, HERMES_END)) {
                // Braces that are not closed are no call, and what follows may be one.
                (end, Some(tag)) if end.is_none_or(|end| tag < end) => {
                    self.no_call(from + tag + HERMES_END.len(), pieces)
                }
                (Some(end), _) => match serde_json::from_str(&inner[..end]).ok().and_then(|value| self.call(&value)) {
                    Some(call) => self.called((vec![call], from + end), pieces),
                    None => self.no_call(from + end, pieces),
                },
                (None, _) => is_last && self.no_call(self.held.len(), pieces),
            },
            Some(_) => self.no_call(mark, pieces),
        }
    }

    /// JSON of one call or of several, or names with arguments behind them.
    fn marked(&mut self, pieces: &mut Vec<CallPiece>, mark: usize, is_last: bool) -> bool {
        let inner = self.held[mark..].trim_start();
        let from = self.held.len() - inner.len();
        let (name, from) = match inner.as_bytes().first() {
            None => return is_last && self.no_call(self.held.len(), pieces),
            Some(b'{' | b'[') => (None, from),
            // `name[ARGS]{...}`, or `name{...}` where the mark is no text.
            Some(_) => match inner[..inner.floor_char_boundary(NAME_BYTES)].find('{') {
                Some(at) => {
                    let name = inner[..at].trim();
                    (Some(name.strip_suffix(ARGUMENTS).unwrap_or(name).trim().to_owned()), from + at)
                }
                None if is_last || inner.len() > NAME_BYTES => return self.no_call(mark, pieces),
                None => return false,
            },
        };
        let Some(end) = json::end(&self.held[from..]).map(|end| from + end) else {
            return is_last && self.no_call(mark, pieces);
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
        match calls {
            Some(calls) => self.called((calls, end), pieces),
            None => self.no_call(mark, pieces),
        }
    }

    fn json(&mut self, pieces: &mut Vec<CallPiece>, is_last: bool) -> bool {
        if self.may_be_calls(&self.held) {
            match json::end(&self.held) {
                Some(end) => {
                    if let Some(calls) = self.plain_calls(&self.held[..end]) {
                        return self.called((calls, end), pieces);
                    }
                }
                None if is_last => {}
                None => return false,
            }
        }
        self.place = ReaderPlace::Value(ValueScan::default());
        true
    }

    /// JSON that is no call is text to its end: what is within it is no call either, but for what stands behind a mark outside of its texts.
    fn value(&mut self, pieces: &mut Vec<CallPiece>, mut scan: ValueScan) -> bool {
        for (at, byte) in self.held.bytes().enumerate() {
            if !scan.is_in_text() && [b'<', b'['].contains(&byte) {
                match mark(&self.held[at..]) {
                    Opening::Place(place) => {
                        self.say(at, pieces);
                        self.place = place;
                        return true;
                    }
                    Opening::Undecided => {
                        self.say(at, pieces);
                        self.place = ReaderPlace::Value(scan);
                        return false;
                    }
                    _ => {}
                }
            }
            scan.go_over(byte);
            // A text of JSON has no end of a line in it: this was none.
            if scan.has_ended() || scan.is_in_text() && byte == b'\n' {
                return self.no_call(at + 1, pieces);
            }
        }
        self.say(self.held.len(), pieces);
        self.place = ReaderPlace::Value(scan);
        false
    }

    fn fence(&mut self, pieces: &mut Vec<CallPiece>, is_last: bool) -> bool {
        let inner = &self.held[FENCE.len()..];
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let word = inner.len() - inner.trim_start_matches(is_word).len();
        let from = FENCE.len() + word;
        let kind = inner[..word].to_ascii_lowercase();
        if word == inner.len() && !is_last && FENCED.iter().any(|known| known.starts_with(&*kind)) {
            return false;
        }
        let fenced = if FENCED.contains(&&*kind) { self.fenced(from, is_last) } else { Fenced::Text };
        match fenced {
            Fenced::Calls(calls, end) => self.called((calls, end), pieces),
            Fenced::Undecided if !is_last => false,
            Fenced::Undecided | Fenced::Text => {
                self.is_fenced = true;
                self.no_call(from, pieces)
            }
        }
    }

    /// What a fence has in it whose content begins at this byte: calls, and nothing else.
    fn fenced(&self, from: usize, is_last: bool) -> Fenced {
        let (mut calls, mut at) = (Vec::new(), from);
        loop {
            let rest = self.held[at..].trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
            at = self.held.len() - rest.len();
            match rest.as_bytes().first() {
                // The end of an answer ends its fence.
                None if is_last && !calls.is_empty() => return Fenced::Calls(calls, at),
                None => return Fenced::Undecided,
                Some(b'`') if calls.is_empty() => return Fenced::Text,
                Some(b'`') if rest.starts_with(FENCE) => return Fenced::Calls(calls, at + FENCE.len()),
                Some(b'`') if is_last && FENCE.starts_with(rest) => return Fenced::Calls(calls, self.held.len()),
                Some(b'`') if FENCE.starts_with(rest) => return Fenced::Undecided,
                Some(b'{' | b'[') if self.may_be_calls(rest) => match json::end(rest) {
                    Some(end) => match self.plain_calls(&rest[..end]) {
                        Some(more) => {
                            calls.extend(more);
                            at += end;
                        }
                        None => return Fenced::Text,
                    },
                    None => return Fenced::Undecided,
                },
                Some(_) => return Fenced::Text,
            }
        }
    }

    /// Whether JSON may be calls, as far as it has come: an object's first key says so, and its name.
    fn may_be_calls(&self, text: &str) -> bool {
        let inner = text.strip_prefix('[').unwrap_or(text).trim_start();
        let Some(inner) = inner.strip_prefix('{') else { return inner.is_empty() };
        let inner = inner.trim_start();
        let Some(inner) = inner.strip_prefix('"') else { return inner.is_empty() };
        match inner.split_once('"') {
            None => CALL_KEYS.iter().any(|key| key.starts_with(inner)),
            Some(("name", rest)) => self.may_be_name(rest),
            Some((key, _)) => CALL_KEYS.contains(&key),
        }
    }

    fn may_be_name(&self, text: &str) -> bool {
        let inner = text.trim_start();
        let Some(inner) = inner.strip_prefix(':') else { return inner.is_empty() };
        let inner = inner.trim_start();
        let Some(inner) = inner.strip_prefix('"') else { return inner.is_empty() };
        match inner.split_once('"') {
            None => self.tools.iter().any(|tool| tool.starts_with(inner)),
            Some((name, _)) => self.tools.iter().any(|tool| tool == name),
        }
    }

    /// The calls of JSON that stands behind no mark: each has an object as its arguments.
    fn plain_calls(&self, text: &str) -> Option<Vec<CallPiece>> {
        let plain_call = |value: &Value| {
            let function = value.get("function").filter(|inner| inner.is_object()).unwrap_or(value);
            let arguments = function.get("arguments").or_else(|| function.get("parameters"));
            arguments.filter(|arguments| arguments.is_object()).and_then(|_| self.call(value))
        };
        match serde_json::from_str(text).ok()? {
            Value::Array(values) if values.is_empty() => None,
            Value::Array(values) => values.iter().map(plain_call).collect(),
            value => plain_call(&value).map(|call| vec![call]),
        }
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

/// The mark that a text begins with.
fn mark(text: &str) -> Opening {
    for mark in MARKS {
        if text.starts_with(mark) {
            let is_hermes = mark == MARKS[0];
            return Opening::Place(if is_hermes { ReaderPlace::Hermes } else { ReaderPlace::Marked(mark.len()) });
        }
    }
    let begins = |mark: &&str| text.len() < mark.len() && mark.starts_with(text);
    if MARKS.iter().any(begins) { Opening::Undecided } else { Opening::Nothing }
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
mod tests;
