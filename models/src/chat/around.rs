//! What a chat template puts around one message, found by asking it with stand-ins. Renders nothing itself.
//!
//! A message may be megabytes, and a template is a program that others wrote: it never sees a message. It is asked once about
//! short texts, and whatever else it would do to a message than trim it is found by what its own text names.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{TemplateRefusal, Written};

/// Most bytes of a text in quotes that is tried; longer ones are prompts, not things to look for.
const LONGEST_LITERAL: usize = 256;
/// Most texts in quotes that a template may have.
const MOST_LITERALS: usize = 1024;
/// Characters of a message that is long for a template and short for us.
const LONG: usize = 20_000;

/// What stands around a message, and what is trimmed off it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Around {
    pub(super) before: String,
    pub(super) after: String,
    /// Characters trimmed off the beginning of a message.
    left: BTreeSet<char>,
    /// Characters trimmed off its end.
    right: BTreeSet<char>,
    /// Texts that make the template do something else with the message.
    special: BTreeSet<String>,
}

impl Around {
    /// Asks `render` what becomes of messages; `template` is the text it renders by.
    pub(super) fn derive(
        template: &str,
        render: impl Fn(&str) -> Result<String, TemplateRefusal>,
    ) -> Result<Self, TemplateRefusal> {
        let mark = mark(template);
        let rendered = render(&mark)?;
        let parts: Vec<&str> = rendered.split(mark.as_str()).collect();
        let [before, after] = parts[..] else {
            let times = parts.len() - 1;
            return Err(TemplateRefusal::Unfit(format!("it writes a message {times} times instead of once")));
        };
        let empty = BTreeSet::new;
        let [before, after] = [before, after].map(str::to_owned);
        let mut frame = Self { before, after, left: empty(), right: empty(), special: BTreeSet::new() };
        let literals = literals(template)?;
        frame.find_edges(&mark, &literals, &render)?;
        let long = format!("{mark}{}{mark}", "x ".repeat(LONG / 2));
        if render(&long)? != frame.around(&long) {
            return Err(TemplateRefusal::Unfit("it changes the text of a long message".to_owned()));
        }
        for literal in literals {
            let message = format!("{literal}{mark}{literal}{mark}{literal}");
            if render(&message)? != frame.around(&message) {
                frame.special.insert(literal);
            }
        }
        Ok(frame)
    }

    /// Finds which characters are trimmed: white space, or what a literal names.
    fn find_edges(
        &mut self,
        mark: &str,
        literals: &BTreeSet<String>,
        render: impl Fn(&str) -> Result<String, TemplateRefusal>,
    ) -> Result<(), TemplateRefusal> {
        let named: BTreeSet<char> = literals.iter().flat_map(|literal| literal.chars()).collect();
        let spaces = (0..=0x3000u32).filter_map(char::from_u32).filter(|c| c.is_whitespace());
        let tried: BTreeSet<char> = spaces.chain(named).collect();
        for &c in &tried {
            let rendered = render(&format!("{c}{mark}{c}"))?;
            let inner = rendered.strip_prefix(&self.before).and_then(|rest| rest.strip_suffix(&self.after));
            let Some((left, right)) = inner.and_then(|inner| inner.split_once(mark)) else { continue };
            self.left.extend(left.is_empty().then_some(c));
            self.right.extend(right.is_empty().then_some(c));
        }
        let spaces: String = tried.iter().filter(|c| c.is_whitespace()).collect();
        for edge in [spaces.clone(), format!("{spaces}{spaces}x{spaces}")] {
            let message = format!("{edge}{mark}{edge}");
            if render(&message)? != self.around(&message) {
                return Err(TemplateRefusal::Unfit("it changes the text of a message".to_owned()));
            }
        }
        Ok(())
    }

    /// The context with what stands before it, and the query with what stands behind it.
    pub(super) fn split(&self, context: &str, query: &str) -> Result<(Written, Written), TemplateRefusal> {
        self.check(context)?;
        self.check(query)?;
        let context = context.trim_start_matches(|c| self.left.contains(&c));
        let query = query.trim_end_matches(|c| self.right.contains(&c));
        let (mut asked, mut answered) = (Written::from(self.before.clone()), Written::message(query));
        asked.push_message(context);
        answered.push(&self.after);
        Ok((asked, answered))
    }

    /// What the template keeps of a message.
    pub(super) fn kept<'a>(&self, message: &'a str) -> Result<&'a str, TemplateRefusal> {
        self.check(message)?;
        Ok(self.trimmed(message))
    }

    fn check(&self, message: &str) -> Result<(), TemplateRefusal> {
        match self.special.iter().find(|text| message.contains(*text)) {
            Some(special) => Err(TemplateRefusal::Unfit(format!(
                "it changes the text of a message with {special:?} in it; take that out, or ask without the template"
            ))),
            None => Ok(()),
        }
    }

    fn trimmed<'a>(&self, message: &'a str) -> &'a str {
        let message = message.trim_start_matches(|c| self.left.contains(&c));
        message.trim_end_matches(|c| self.right.contains(&c))
    }

    /// What the template makes of `message`, as far as this knows.
    fn around(&self, message: &str) -> String {
        [&self.before, self.trimmed(message), &self.after].concat()
    }
}

/// Text that the template does not name, from the private-use area so that none treats it as space.
fn mark(template: &str) -> String {
    let mut mark = String::from('\u{f8ff}');
    while template.contains(&mark) {
        mark.push('\u{e000}');
        mark.push('\u{f8ff}');
    }
    mark
}

/// Texts in quotes inside the template's tags: what it can look for in a message.
fn literals(template: &str) -> Result<BTreeSet<String>, TemplateRefusal> {
    let mut found = BTreeSet::new();
    let mut rest = template;
    while let Some((at, end)) = ["{%", "{{"].iter().filter_map(|tag| rest.find(tag).map(|at| (at, *tag))).min() {
        let closing = if end == "{%" { "%}" } else { "}}" };
        let tag = &rest[at + 2..];
        let length = tag.find(closing).unwrap_or(tag.len());
        quoted(&tag[..length], &mut found);
        if found.len() > MOST_LITERALS {
            return Err(TemplateRefusal::Limit(format!("it has more than {MOST_LITERALS} texts in quotes")));
        }
        rest = &tag[length..];
    }
    Ok(found)
}

fn quoted(tag: &str, found: &mut BTreeSet<String>) {
    let mut chars = tag.chars();
    while let Some(quote) = chars.find(|c| matches!(c, '\'' | '"')) {
        let mut literal = String::new();
        while let Some(c) = chars.next().filter(|c| *c != quote) {
            literal.push(match c {
                '\\' => match chars.next() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some(other) => other,
                    None => break,
                },
                other => other,
            });
        }
        if (1..=LONGEST_LITERAL).contains(&literal.len()) {
            found.insert(literal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_in_quotes_are_found_inside_tags_only() {
        let template = "don't {% if 'a\\n' in x %}{{ \"b'c\" + '' }} isn't {{ 'open";
        let expected = ["a\n", "b'c", "open"].map(str::to_owned);
        assert_eq!(literals(template).unwrap(), BTreeSet::from(expected));
        let many: String = (0..=MOST_LITERALS).map(|n| format!("{{{{ '{n}' }}}}")).collect();
        assert!(matches!(literals(&many), Err(TemplateRefusal::Limit(_))));
    }
}
