//! What parsers refuse, in words of whoever wrote the text: numbers by their bounds and not by types of this program, and names by the
//! nearest that is known. Parses nothing.

/// Longest name that others are compared with.
const LONGEST_COMPARED: usize = 64;

/// A parser's message in such words.
pub fn reworded(message: &str) -> String {
    if HALVES.iter().any(|half| message.contains(half)) {
        let place = message.find(" at line ").map_or("", |at| &message[at..]);
        return format!(
            "a text has half of a surrogate pair, which is no character: write both halves, or the character itself{place}"
        );
    }
    let unknown = ["unknown field `", "unknown variant `"].into_iter().find_map(|begin| message.find(begin));
    match unknown {
        Some(at) => unknown_name(message, at),
        None => whole_numbers(message),
    }
}

/// How serde_json says that an escape is half of a character.
const HALVES: [&str; 2] = ["lone leading surrogate in hex escape", "unexpected end of hex escape"];

/// The known name that another was perhaps to be.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > LONGEST_COMPARED {
        return None;
    }
    let others = known.into_iter().filter(|candidate| *candidate != name);
    let distances = others.map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate));
    let near = distances.min().filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 2);
    near.map(|(_, candidate)| candidate)
}

/// A message that names what is unknown and then what is known; what kind of thing it is stays as it was said.
fn unknown_name(message: &str, at: usize) -> String {
    let (before, stated) = message.split_at(at);
    let mut quoted = stated.split('`').skip(1).step_by(2);
    let Some(name) = quoted.next() else { return message.to_owned() };
    let known: Vec<&str> = quoted.collect();
    let what = &stated[..stated.find('`').unwrap_or_default()];
    let shown: String = name.chars().take(LONGEST_COMPARED).collect();
    match nearest(name, known.iter().copied()) {
        Some(candidate) => format!("{before}{what}`{shown}`; did you mean `{candidate}`?"),
        None if known.is_empty() => format!("{before}{what}`{shown}`; none is known here"),
        None => format!("{before}{what}`{shown}`; known here: {}", known.join(", ")),
    }
}

/// serde names types of Rust; people count.
fn whole_numbers(message: &str) -> String {
    let Some((got, rest)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let (expected, place) = rest.find(" at line ").map_or((rest, ""), |at| rest.split_at(at));
    let expected = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" | "u128" => "a whole number from 0 on",
        "i8" => "a whole number from -128 to 127",
        "i16" => "a whole number from -32768 to 32767",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "i64" | "isize" | "i128" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "a text",
        "a sequence" => "a list",
        structure if structure.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{got}expected {expected}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_no_types_of_rust() {
        for (message, words) in [
            (
                "invalid type: string \"many\", expected usize at line 1 column 36",
                "invalid type: string \"many\", expected a whole number from 0 on at line 1 column 36",
            ),
            (
                "invalid value: integer `300`, expected u8",
                "invalid value: integer `300`, expected a whole number from 0 to 255",
            ),
            ("invalid type: null, expected i64", "invalid type: null, expected a whole number"),
            ("invalid type: map, expected f32", "invalid type: map, expected a number"),
            (
                "invalid type: string \"expected u8\", expected a boolean",
                "invalid type: string \"expected u8\", expected true or false",
            ),
            ("invalid type: integer `1`, expected struct JobRequest", "invalid type: integer `1`, expected an object"),
            ("missing field `query`", "missing field `query`"),
            (
                "unknown field `max_token`, expected one of `id`, `max_tokens`, `stop` at line 1 column 14",
                "unknown field `max_token`; did you mean `max_tokens`?",
            ),
            (
                "Query deserialize error: unknown field `limitt`, expected `limit`",
                "Query deserialize error: unknown field `limitt`; did you mean `limit`?",
            ),
            ("unknown field `colour`, expected `id` or `stop`", "unknown field `colour`; known here: id, stop"),
            ("unknown field `x`, there are no fields", "unknown field `x`; none is known here"),
            ("unknown variant `stra`, expected one of `star`, `dense`", "unknown variant `stra`; did you mean `star`?"),
            (
                "lone leading surrogate in hex escape at line 1 column 9",
                "a text has half of a surrogate pair, which is no character: write both halves, or the character itself at line 1 column 9",
            ),
        ] {
            assert_eq!(reworded(message), words);
        }
    }

    /// By what the parser says, whatever its version's words are.
    #[test]
    fn half_a_character_is_called_that() {
        for text in [r#""\ud800""#, r#""\udc00""#, r#""\ud800a""#, r#""\ud800\n""#, r#""\ud800\u0041""#] {
            let error = serde_json::from_str::<String>(text).expect_err(text).to_string();
            assert!(reworded(&error).starts_with("a text has half of a surrogate pair"), "{text}: {error}");
        }
    }

    #[test]
    fn no_name_is_near_to_itself_or_to_what_is_long() {
        assert_eq!(nearest("max_token", ["max_tokens", "min_tokens"]), Some("max_tokens"));
        assert_eq!(nearest("stop", ["stop"]), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), ["x"]), None);
    }
}
