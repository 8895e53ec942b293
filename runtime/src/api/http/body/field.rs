//! Which field of a JSON body is at fault, for refusals that name it. Reads no value.

use serde_json::Error;

/// The outermost field that a parser's error is about, where it says or its place shows.
pub fn at_fault(bytes: &[u8], error: &Error) -> Option<String> {
    let message = error.to_string();
    named(&message).map(str::to_owned).or_else(|| at(bytes, offset(bytes, error.line(), error.column())))
}

/// Of ``unknown field `x` `` and ``missing field `x` ``.
fn named(message: &str) -> Option<&str> {
    let rest = message.strip_prefix("unknown field `").or_else(|| message.strip_prefix("missing field `"))?;
    rest.split('`').next().filter(|name| !name.is_empty() && name.len() <= 64)
}

fn offset(bytes: &[u8], line: usize, column: usize) -> usize {
    let start: usize = bytes.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (start + column).min(bytes.len())
}

/// The last key of the outermost object that begins before `end`.
fn at(bytes: &[u8], end: usize) -> Option<String> {
    let (mut depth, mut at, mut text, mut key) = (0_u32, 0, None, None);
    while at < end {
        match bytes[at] {
            b'"' => {
                let from = at + 1;
                at = from;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                text = Some(from..at.min(bytes.len()));
            }
            b':' if depth == 1 => key = text.take(),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    let key = std::str::from_utf8(&bytes[key?]).ok()?;
    (key.len() <= 64).then(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use asterism_actors::api::JobRequest;

    use super::*;

    #[test]
    fn a_refusal_names_the_outermost_field() {
        let faults = [
            (r#"{"query": "q", "max_tokens": "many"}"#, Some("max_tokens")),
            (r#"{"context": "a \" : b", "query": "q", "maxtokens": 1}"#, Some("maxtokens")),
            (r#"{"context": "c"}"#, Some("query")),
            ("{\n \"query\": \"q\",\n \"sampling\": {\"seed\": [1]},\n \"stop\": []}", Some("sampling")),
            (r#"{"query": 5.5, "stop": []}"#, Some("query")),
            ("[1]", None),
            ("", None),
            ("{\"", None),
        ];
        for (body, field) in faults {
            let error = serde_json::from_str::<JobRequest>(body).expect_err(body);
            assert_eq!(at_fault(body.as_bytes(), &error).as_deref(), field, "{body}: {error}");
        }
    }
}
