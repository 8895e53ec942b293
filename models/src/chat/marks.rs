//! Marks within messages, by which what a template writes tells whose the names of special tokens in it are, and where the
//! question begins. Renders nothing.
//!
//! A name in a message stands between two marks, and one that a message begins or ends has a mark where the message ends: a
//! template that looks for a name still finds it, and one that takes it apart leaves marks without the name.

use std::{collections::BTreeSet, io, ops::Range};

use aho_corasick::{AhoCorasick, Input, MatchKind};

/// The names of special tokens.
#[derive(Debug)]
pub struct TemplateNames {
    find: Option<AhoCorasick>,
    names: Vec<String>,
    /// Parts that names begin and end with, without the whole ones.
    begins: BTreeSet<String>,
    ends: BTreeSet<String>,
    /// Most bytes of a name.
    longest: usize,
}

impl TemplateNames {
    /// These names; none is empty.
    pub fn new(names: &[String]) -> Result<Self, aho_corasick::BuildError> {
        let find = || AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(names);
        let (mut begins, mut ends) = (BTreeSet::new(), BTreeSet::new());
        for name in names {
            for (at, _) in name.char_indices().skip(1) {
                begins.insert(name[..at].to_owned());
                ends.insert(name[at..].to_owned());
            }
        }
        let find = if names.is_empty() { None } else { Some(find()?) };
        let longest = names.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { find, names: names.to_vec(), begins, ends, longest })
    }

    fn find(&self, text: &str, from: usize) -> Option<Range<usize>> {
        Some(self.find.as_ref()?.find(Input::new(text).range(from..))?.range())
    }

    /// The names in a message, in order and apart, and where what a template writes next to it could complete one.
    pub fn within(&self, text: &str) -> Places {
        let mut places = Places::default();
        while let Some(name) = self.find(text, places.names.last().map_or(0, |name| name.end)) {
            places.names.push(name);
        }
        // A template may trim, and does so before it writes on.
        let (start, end) = (text.len() - text.trim_start().len(), text.trim_end().len());
        let inner = text.trim();
        let whole =
            !inner.is_empty() && inner.len() < self.longest && self.names.iter().any(|name| name.contains(inner));
        for at in BTreeSet::from([0, start]) {
            let reach = (at + 1..text.len().min(at + self.longest) + 1).filter(|&to| text.is_char_boundary(to));
            let part = whole || reach.map(|to| &text[at..to]).any(|part| self.ends.contains(part));
            places.points.extend(part.then_some(at));
        }
        for at in BTreeSet::from([end, text.len()]) {
            let reach = (at.saturating_sub(self.longest)..at).filter(|&from| text.is_char_boundary(from));
            let part = whole || reach.map(|from| &text[from..at]).any(|part| self.begins.contains(part));
            places.points.extend(part.then_some(at));
        }
        places
    }

    /// The name that has characters on both sides of a byte.
    fn over(&self, text: &str, at: usize) -> Option<Range<usize>> {
        let mut from = at.saturating_sub(self.longest);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        loop {
            let name = self.find(text, from).filter(|name| name.start < at)?;
            if name.end > at {
                return Some(name);
            }
            from = name.end;
        }
    }
}

/// Where marks go in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    pub names: Vec<Range<usize>>,
    pub points: Vec<usize>,
}

impl Places {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.points.is_empty()
    }
}

/// Characters that neither a template nor messages have.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    begin: char,
    end: char,
    question: char,
}

/// What is in use for nothing by itself, so that templates take it for letters.
const PRIVATE: [(u32, u32); 2] = [(0xE000, 0xF8FF), (0xF_0000, 0x10_FFFD)];

impl Marks {
    /// Three that none of `texts` has; nothing where they have them all.
    pub fn apart_from<'t>(texts: impl Iterator<Item = &'t str>) -> Option<Self> {
        let mut used = BTreeSet::new();
        let private = |c: &u32| PRIVATE.iter().any(|(first, last)| (*first..=*last).contains(c));
        texts.for_each(|text| used.extend(text.chars().map(u32::from).filter(private)));
        let mut free = PRIVATE.into_iter().flat_map(|(first, last)| first..=last);
        let mut next = || free.by_ref().filter(|c| !used.contains(c)).find_map(char::from_u32);
        Some(Self { begin: next()?, end: next()?, question: next()? })
    }

    /// A message with its marks.
    pub fn put(&self, text: &str, places: &Places, question: Option<usize>) -> String {
        let mut marks: Vec<(usize, u8, char)> = Vec::new();
        // Of marks at one byte, the end of a name stands first and its beginning last.
        for name in &places.names {
            marks.extend([(name.start, 3, self.begin), (name.end, 0, self.end)]);
        }
        marks.extend(places.points.iter().map(|at| (*at, 1, self.end)));
        marks.extend(question.map(|at| (at, 2, self.question)));
        marks.sort_unstable();
        let (mut marked, mut from) = (String::with_capacity(text.len() + 3 * marks.len()), 0);
        for (at, _, mark) in marks {
            marked.push_str(&text[from..at]);
            marked.push(mark);
            from = at;
        }
        marked.push_str(&text[from..]);
        marked
    }

    /// A question without a word of its own.
    pub fn stand_in(&self) -> String {
        self.question.to_string()
    }
}

/// Takes what a template writes of marked messages, as long as it is what it writes of the messages as they are.
pub struct Compared<'p> {
    plain: &'p str,
    marks: Marks,
    /// Bytes of `plain` that came again.
    at: usize,
    differs: bool,
    found: Vec<(usize, char)>,
}

impl<'p> Compared<'p> {
    pub fn with(plain: &'p str, marks: Marks) -> Self {
        Self { plain, marks, at: 0, differs: false, found: Vec::new() }
    }

    /// The marks changed what the template writes.
    pub fn differs(&self) -> bool {
        self.differs
    }

    /// The literals and the question's beginning; nothing where the marks changed what the template writes.
    pub fn places(self, names: &TemplateNames) -> Option<(Vec<Range<usize>>, Option<usize>)> {
        if self.differs || self.at != self.plain.len() {
            return None;
        }
        let (mut literals, mut question, mut open) = (BTreeSet::new(), None, None);
        let mut torn = Vec::new();
        for (at, mark) in self.found {
            if mark == self.marks.question {
                question = question.or(Some(at));
                continue;
            }
            let (began, ends) = (open.take(), mark == self.marks.end);
            open = (!ends).then_some(at);
            match began.filter(|from| ends && names.find(&self.plain[*from..at], 0) == Some(0..at - from)) {
                Some(from) => drop(literals.insert((from, at))),
                None => torn.extend(began.into_iter().chain(ends.then_some(at))),
            }
        }
        torn.extend(open);
        let over = torn.into_iter().filter_map(|at| names.over(self.plain, at));
        literals.extend(over.map(|name| (name.start, name.end)));
        Some((apart(literals), question))
    }
}

impl io::Write for Compared<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Marks { begin, end, question } = self.marks;
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        for piece in text.split_inclusive([begin, end, question]) {
            let mark = piece.chars().next_back().filter(|c| [begin, end, question].contains(c));
            let plain = &piece[..piece.len() - mark.map_or(0, char::len_utf8)];
            if !self.plain.as_bytes()[self.at..].starts_with(plain.as_bytes()) {
                self.differs = true;
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.at += plain.len();
            self.found.extend(mark.map(|mark| (self.at, mark)));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ranges that have nothing in common, of ranges in order.
fn apart(ranges: BTreeSet<(usize, usize)>) -> Vec<Range<usize>> {
    let mut apart: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match apart.last_mut().filter(|last| start < last.end) {
            Some(last) => last.end = last.end.max(end),
            None => apart.push(start..end),
        }
    }
    apart
}
