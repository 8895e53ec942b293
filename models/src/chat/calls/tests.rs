//! What is a call in what a model writes, and what is text.

use super::*;

fn call(name: &str, arguments: &str) -> CallPiece {
    CallPiece::Call { name: name.to_owned(), arguments: arguments.to_owned() }
}

fn said(text: &str) -> CallPiece {
    CallPiece::Text(text.to_owned())
}

/// What comes of a text that comes in pieces of so many characters.
fn read(text: &str, size: usize) -> Vec<CallPiece> {
    let characters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = characters.chunks(size).map(String::from_iter).collect();
    read_pieces(&pieces)
}

fn read_pieces(pieces: &[impl AsRef<str>]) -> Vec<CallPiece> {
    let mut reader = CallReader::new(vec!["weather".to_owned(), "time".to_owned()]);
    let mut all_read: Vec<CallPiece> = Vec::new();
    let mut all: Vec<CallPiece> = pieces.iter().flat_map(|piece| reader.push(piece.as_ref())).collect();
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

/// The same however it is cut in two, in three, or into characters.
#[track_caller]
fn assert_read(text: &str, expected: &[CallPiece]) {
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for (number, first) in cuts.iter().enumerate() {
        assert_eq!(read_pieces(&[&text[..*first], &text[*first..]]), expected, "{text:?} cut at {first}");
        let second = cuts.get(number + 7).copied().unwrap_or(text.len());
        let pieces = [&text[..*first], &text[*first..second], &text[second..]];
        assert_eq!(read_pieces(&pieces), expected, "{text:?} cut at {first} and {second}");
    }
    assert_eq!(read(text, 1), expected, "{text:?} by characters");
}

const OSLO: &str = r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#;

#[test]
fn calls_without_a_mark_are_found_where_nothing_else_is_meant() {
    let oslo = || call("weather", r#"{"city":"Oslo"}"#);
    let time = || call("time", "{}");
    let now = r#"{"name": "time", "arguments": {}}"#;
    for (text, expected) in [
        (format!("```json\n{OSLO}\n```"), vec![oslo()]),
        (format!("```json {OSLO} ```"), vec![oslo()]),
        (format!("```\n{OSLO}\n```\n"), vec![oslo()]),
        (format!("```JSON\n[{OSLO},\n {now}]\n```"), vec![oslo(), time()]),
        (format!("```json\n{OSLO}\n{now}\n```"), vec![oslo(), time()]),
        (format!("I look.\n\n```json\n{OSLO}\n```\nDone."), vec![said("I look.\n\n"), oslo(), said("\nDone.")]),
        (format!("```json\n{OSLO}\n```\n\n```json\n{now}\n```"), vec![oslo(), time()]),
        (format!("I look:\n{OSLO}"), vec![said("I look:\n"), oslo()]),
        (format!("I look:\n  {OSLO}\nWait."), vec![said("I look:\n  "), oslo(), said("\nWait.")]),
        (format!("{OSLO}\n{now}"), vec![oslo(), time()]),
        // The answer ends before its fence.
        (format!("```json\n{OSLO}"), vec![oslo()]),
        (format!("```json\n{OSLO}\n``"), vec![oslo()]),
        // What is fenced and no call ends before a call begins.
        (format!("```python\nx = 1\n```\n{OSLO}"), vec![said("```python\nx = 1\n```\n"), oslo()]),
        (format!("```json\n{{\"a\": 1}}\n```\n```json\n{OSLO}\n```"), vec![said("```json\n{\"a\": 1}\n```\n"), oslo()]),
        (format!("{{\"a\": [1]}} then\n{OSLO}"), vec![said("{\"a\": [1]} then\n"), oslo()]),
        // JSON within a call's text is its own.
        (
            r#"{"name": "weather", "arguments": {"city": "a\n```json {\"}\" </tool_call>"}}"#.to_owned(),
            vec![call("weather", r#"{"city":"a\n```json {\"}\" </tool_call>"}"#)],
        ),
        (
            format!("<tool_call>{OSLO}\n{now}</tool_call>, and <tool_call>{now}"),
            vec![oslo(), time(), said(", and "), time()],
        ),
        (
            r#"<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>"#.to_owned(),
            vec![call("weather", r#"{"city":"</tool_call>"}"#)],
        ),
        (
            format!("<tool_call>{{\"name\": \"weather\", \"arguments\": {{}}</tool_call>\n{OSLO}"),
            vec![said("<tool_call>{\"name\": \"weather\", \"arguments\": {}</tool_call>\n"), oslo()],
        ),
    ] {
        assert_read(&text, &expected);
    }
}

#[test]
fn json_without_a_mark_that_is_no_call_is_text_to_the_byte() {
    for text in [
        // A tool that there is not, or no object as its arguments.
        "```json\n{\"name\": \"somebody\", \"arguments\": {}}\n```".to_owned(),
        "```json\n{\"name\": \"weather\"}\n```".to_owned(),
        "{\"name\": \"weather\", \"arguments\": \"{}\"}".to_owned(),
        "{\"name\": \"weather\", \"arguments\": [1]}".to_owned(),
        "{\"name\": \"weathe".to_owned(),
        "[{\"name\": \"weather\", \"arguments\": {}}, {\"name\": \"somebody\", \"arguments\": {}}]".to_owned(),
        // Cut off.
        format!("```json\n{}", &OSLO[..OSLO.len() - 1]),
        format!("I look.\n{}", &OSLO[..20]),
        "```js".to_owned(),
        "``".to_owned(),
        "```json\n".to_owned(),
        format!("<tool_call>{}", &OSLO[..30]),
        // In prose, in other JSON, in code, beside something else.
        format!("Write {OSLO} to call it."),
        format!("Write ```json {OSLO}``` to call it."),
        format!("{{\"calls\": [\n{OSLO}\n]}}"),
        format!("[1,\n{OSLO}\n]"),
        format!("```python\n{OSLO}\n```"),
        format!("```json\n{OSLO}\nis a call\n```"),
        format!("```json\n// a call\n{OSLO}\n```"),
        format!("```\n\n```\n\u{e9} {OSLO}"),
        "  \n {\"a\": \"b\n".to_owned(),
        " \n".to_owned(),
    ] {
        assert_read(&text, &[said(&text)]);
    }
}

#[test]
fn nothing_of_a_call_is_told_before_all_of_it_came_and_text_is_not_held_back() {
    for (before, form) in
        [("", OSLO.to_owned()), ("I look.\n", format!("```json\n{OSLO}\n```")), ("", format!("<tool_call>{OSLO}"))]
    {
        let mut reader = CallReader::new(vec!["weather".to_owned()]);
        let told: Vec<CallPiece> = reader.push(before);
        assert_eq!(told, if before.is_empty() { vec![] } else { vec![said(before)] });
        let mut pieces: Vec<CallPiece> = form.chars().flat_map(|letter| reader.push(&letter.to_string())).collect();
        pieces.extend(reader.finish());
        assert_eq!(pieces, [call("weather", r#"{"city":"Oslo"}"#)], "{form}");
    }
    // An object whose first key is no call's, or that names no tool, goes on as it comes.
    for text in ["{\"colour\"", "{\"name\": \"Ada\"", "```json\n{\"a\"", "[1", "```rust\nlet"] {
        let mut reader = CallReader::new(vec!["weather".to_owned()]);
        assert_eq!(reader.push(text), [said(text)]);
    }
}

/// Whatever a model writes, pieces do not matter, nothing is lost but what stands between calls, and nothing is called that is not there.
#[test]
fn what_comes_of_an_answer_does_not_depend_on_its_pieces() {
    let now = r#"{"name": "time", "arguments": {}}"#;
    let parts = [
        OSLO,
        now,
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        "\n",
        " ",
        ";",
        ",",
        "a",
        "\u{e9}",
        "`",
        "```",
        "```json\n",
        "```\n",
        "```python\n",
        "<tool_call>",
        "</tool_call>",
        "<tool_",
        "[TOOL_CALLS]",
        "[TOOL",
        "weather[ARGS]",
        "<|python_tag|>",
        "{\"name\": \"wea",
        "\"name\"",
        "{\"a\": 1}",
        "[1, ",
        "{}",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % most as u64) as usize
    };
    let mut calls = 0;
    for _ in 0..5_000 {
        let text: String = (0..1 + below(9)).map(|_| parts[below(parts.len())]).collect();
        let whole = read(&text, usize::MAX);
        for size in [1, 2, 5, 11] {
            assert_eq!(read(&text, size), whole, "{text:?} in pieces of {size}");
        }
        calls += whole.iter().filter(|piece| matches!(piece, CallPiece::Call { .. })).count();
        // The end of what held a call is dropped with it.
        let plain = text.replace(HERMES_END, "");
        let mut rest = &*plain;
        for piece in &whole {
            let CallPiece::Text(said) = piece else { continue };
            let said = said.replace(HERMES_END, "");
            let at = rest.find(&said).unwrap_or_else(|| panic!("{said:?} is not in {text:?}"));
            rest = &rest[at + said.len()..];
        }
    }
    assert!(calls > 500, "{calls}");
}
