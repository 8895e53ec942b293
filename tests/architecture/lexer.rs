//! Rust source as words and signs, without comments and without what only tests compile. Knows no grammar beyond that.

/// A word, a sign (`::`, `->` and `=>` are one) or a literal, with its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

impl Token {
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
    }
}

/// What of a file ships.
pub fn shipped(text: &str) -> Vec<Token> {
    let tokens = tokens(text);
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if is(&tokens[at..], &["#", "[", "cfg", "(", "test", ")", "]"]) {
            at = end_of_item(&tokens, at + 7);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Whether these tokens come next.
pub fn is(tokens: &[Token], wanted: &[&str]) -> bool {
    tokens.len() >= wanted.len() && tokens.iter().zip(wanted).all(|(token, wanted)| token.text == *wanted)
}

/// Where the bracket that opens at `at` has closed.
pub fn closed(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return place + 1;
        }
    }
    tokens.len()
}

/// Where the item, statement or field that begins at `at` has ended.
fn end_of_item(tokens: &[Token], mut at: usize) -> usize {
    while is(&tokens[at..], &["#", "["]) {
        at = closed(tokens, at + 1);
    }
    let mut first = at;
    if is(&tokens[first..], &["pub"]) {
        first += 1;
        if is(&tokens[first..], &["("]) {
            first = closed(tokens, first);
        }
    }
    let first = tokens.get(first).map_or("", |token| &token.text);
    let to_semicolon = ["use", "const", "static", "let", "type"].contains(&first);
    let has_body = ["fn", "mod", "struct", "enum", "impl", "trait", "async", "unsafe", "macro_rules"].contains(&first);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            ";" => return at + 1,
            "," if !to_semicolon && !has_body => return at + 1,
            "}" => return at,
            "{" if !to_semicolon => return closed(tokens, at),
            "(" | "[" | "{" => at = closed(tokens, at),
            _ => at += 1,
        }
    }
    at
}

fn tokens(text: &str) -> Vec<Token> {
    let letters: Vec<char> = text.chars().collect();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < letters.len() {
        let end = end_of_token(&letters, at);
        let begins = letters[at];
        let next = letters.get(at + 1).copied();
        let is_comment = begins == '/' && matches!(next, Some('/' | '*'));
        let is_lifetime = begins == '\'' && letters[end - 1] != '\'';
        if !begins.is_whitespace() && !is_comment && !is_lifetime {
            let text: String = letters[at..end].iter().collect();
            found.push(Token {
                text: text
                    .strip_prefix("r#")
                    .filter(|rest| !rest.starts_with(['"', '#']))
                    .map_or(text.clone(), String::from),
                line,
            });
        }
        line += letters[at..end].iter().filter(|letter| **letter == '\n').count();
        at = end;
    }
    found
}

fn end_of_token(letters: &[char], at: usize) -> usize {
    let rest = &letters[at..];
    let starts = |with: &str| with.chars().enumerate().all(|(place, letter)| rest.get(place) == Some(&letter));
    let until = |from: usize, end: &str| {
        let end: Vec<char> = end.chars().collect();
        let found = rest[from..].windows(end.len()).position(|window| window == end);
        at + found.map_or(rest.len(), |found| from + found + end.len())
    };
    let word = rest.iter().take_while(|letter| letter.is_alphanumeric() || **letter == '_').count();
    if starts("//") {
        return at + rest.iter().position(|letter| *letter == '\n').unwrap_or(rest.len());
    }
    if starts("/*") {
        return until(2, "*/");
    }
    for prefix in ["", "b", "c"] {
        if starts(&format!("{prefix}\"")) {
            return at + quoted(rest, prefix.len(), '"');
        }
        let raw = rest.iter().skip(prefix.len() + 1).take_while(|letter| **letter == '#').count();
        if starts(&format!("{prefix}r{}\"", "#".repeat(raw))) {
            return until(prefix.len() + raw + 2, &format!("\"{}", "#".repeat(raw)));
        }
    }
    match rest[0] {
        '\'' if rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'') => at + quoted(rest, 0, '\''),
        '\'' => {
            at + 1 + rest[1..].iter().take_while(|letter| letter.is_alphanumeric() || **letter == '_').count().max(1)
        }
        'b' if rest.get(1) == Some(&'\'') => at + quoted(rest, 1, '\''),
        'r' if rest.get(1) == Some(&'#') && word == 1 => {
            at + 2 + rest[2..].iter().take_while(|letter| letter.is_alphanumeric() || **letter == '_').count()
        }
        _ if word > 0 => at + word,
        _ if starts("::") || starts("->") || starts("=>") => at + 2,
        _ => at + 1,
    }
}

/// Where the literal ends whose opening quote stands at `from`.
fn quoted(rest: &[char], from: usize, quote: char) -> usize {
    let mut at = from + 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

#[test]
fn comments_literals_lifetimes_and_tests_are_no_code() {
    let text = "//! a::b\nfn f<'a>(x: &'a str) { /* c */ let q = '\"'; g(\"d::e \\\" {\", r#\"h\"i\"#, b'x', '\\''); }\n\
        #[cfg(test)]\n#[path = \"x\"]\npub(crate) mod tests;\n#[cfg(test)]\nmod more { use super::*; }\nuse a::{b, c};";
    let texts: Vec<String> = shipped(text).into_iter().map(|token| token.text).collect();
    assert_eq!(
        texts.join(" "),
        "fn f < > ( x : & str ) { let q = '\"' ; g ( \"d::e \\\" {\" , r#\"h\"i\"# , b'x' , '\\'' ) ; } use a :: { b , c } ;"
    );
}
