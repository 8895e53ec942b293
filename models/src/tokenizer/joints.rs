//! Where a text can be cut so that its parts tokenise, one after another, to what the whole does. Tokenises nothing.
//!
//! Such a place is a joint, and known in one of three ways, each of which looks at the two characters around it alone:
//!
//! | tokenizers | a joint is |
//! |---|---|
//! | byte-level, with a pattern known here | behind what is no space and before a space or tab, and behind a letter and before punctuation: every known pattern ends a piece there, whatever stands before and after. No pattern looks back, and one that looks ahead finds at a joint the same as at the end of a text |
//! | `Metaspace` that splits, and those that split at white space | before the first of several spaces: a piece ends there |
//! | BPE whose spaces become `▁`, or stay | between two characters that no entry of the vocabulary has next to each other, and of which one at least is an entry: no token spans it, so no merge does |
//!
//! Where texts are normalised by more than NFC, the character before a joint must be ASCII, so that it is what it was: what
//! begins a part composes with nothing before it. Added tokens that are searched for in normalised texts count as entries of
//! the vocabulary; the others are found before a text is cut.

use std::collections::HashSet;
use std::ops::Range;

use serde_json::Value;
use tokenizers::ModelWrapper;

use super::steps::Steps;
use crate::checkpoint::gguf::patterns::{
    GPT2_PATTERN, GPT4O_PATTERN, LLAMA3_PATTERN, NEMO_PATTERN, QWEN2_PATTERN, QWEN35_PATTERN,
};

/// Bytes that are tokenised at a time where the text allows.
const SLICE: usize = 64 << 10;
/// Most bytes that are tokenised at a time where it has no joint.
const STRETCH: usize = 256 << 10;
/// The same, where pieces are no words: a text that can only be tokenised whole.
pub const WHOLE: usize = 2 << 20;

/// What stands for a space in many vocabularies.
const SPACE_MARK: char = '\u{2581}';

/// How many bytes NFC makes one of at most: three Hangul jamo of three bytes become a syllable of three.
const NFC_SHRINKS: usize = 3;

/// The patterns that are known, in the words of their files, and whether an apostrophe goes with the letters before it.
const PATTERNS: [(&str, bool); 6] = [
    (GPT2_PATTERN, false),
    (LLAMA3_PATTERN, false),
    (QWEN2_PATTERN, false),
    (QWEN35_PATTERN, false),
    (NEMO_PATTERN, false),
    (GPT4O_PATTERN, true),
];

/// The joints of texts for one tokenizer.
pub struct Joints {
    rule: Rule,
    /// The character before a joint must be one that no normaliser changes but by its case.
    ascii: bool,
    /// Whether texts are normalised, and so may become shorter.
    normalizes: bool,
    names: JointEntries,
    slice: usize,
    stretch: usize,
}

/// How joints are known.
enum Rule {
    /// Pieces are what a known pattern says. `apostrophe`: one goes with the letters before it. `spaces`: joints are before
    /// spaces alone, since what else begins a part would get one.
    Pattern { apostrophe: bool, spaces: bool },
    /// Pieces end before spaces, and before `mark` if that stands for one.
    Words { mark: Option<char> },
    /// No entry has both characters. `mark`: what a space becomes; `keeps_unknown`: what is no entry is some token.
    Vocabulary { entries: JointEntries, mark: Option<char>, keeps_unknown: bool },
}

/// What texts tokens stand for, as far as joints depend on it.
#[derive(Default)]
struct JointEntries {
    /// Characters that stand next to each other in some entry, in order.
    pairs: Vec<(char, char)>,
    /// Characters that are entries.
    known: HashSet<char>,
    /// Characters that begin and end entries which their surroundings decide over.
    begins: HashSet<char>,
    ends: HashSet<char>,
    /// Whether some take the white space around them.
    strips: bool,
}

impl Joints {
    /// The joints for a tokenizer; none where no place is known to be safe.
    pub fn of(steps: &Steps) -> Option<Self> {
        let inner = steps.inner();
        let normalizers = parts(&serde_json::to_value(inner.get_normalizer()).ok()?, "normalizers");
        let pre_tokenizers = parts(&serde_json::to_value(inner.get_pre_tokenizer()).ok()?, "pretokenizers");
        let plain = |model: &ModelWrapper| match model {
            ModelWrapper::BPE(bpe) => bpe.dropout.is_none(),
            ModelWrapper::Unigram(_) | ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => true,
        };
        let composes = normalizers.iter().any(|part| part["type"] == "NFC") && normalizers.len() == 1;
        let spelled = normalizers
            .iter()
            .all(|part| matches!(part["type"].as_str(), Some("NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase")));
        let rule = if spelled { pattern(&pre_tokenizers, inner.get_model()) } else { None };
        let rule = rule
            .or_else(|| words(&normalizers, &pre_tokenizers))
            .or_else(|| vocabulary(steps, &normalizers, &pre_tokenizers));
        let rule = rule.filter(|_| plain(inner.get_model()))?;
        let mut names = JointEntries::default();
        steps.normalized.iter().for_each(|(name, token)| {
            names.add(name);
            names.strips |= token.lstrip || token.rstrip;
            if token.single_word || token.rstrip {
                names.ends.extend(name.chars().next_back());
            }
            if token.single_word || token.lstrip {
                names.begins.extend(name.chars().next());
            }
        });
        names.sort();
        let replaces = |part: &Value| matches!(part["type"].as_str(), Some("Prepend" | "Replace"));
        let unchanged = normalizers.iter().all(replaces) || composes && steps.normalized.iter().next().is_none();
        let stretch = if matches!(rule, Rule::Vocabulary { .. }) { WHOLE } else { STRETCH };
        Some(Self { rule, ascii: !unchanged, normalizes: !normalizers.is_empty(), names, slice: SLICE, stretch })
    }

    /// With other sizes, so that a short text has many parts.
    #[cfg(test)]
    pub fn with_sizes(self, slice: usize, stretch: usize) -> Self {
        Self { slice, stretch, ..self }
    }

    /// Whether a part within a section needs the character before it to be tokenised as there.
    pub fn needs_anchor(&self) -> bool {
        !matches!(self.rule, Rule::Pattern { .. })
    }

    /// Most bytes that can come to `tokens` tokens, where the longest entry has `longest` characters.
    pub fn most_bytes(&self, tokens: usize, longest: usize) -> usize {
        let most = self.bytes_of_token(longest).saturating_mul(tokens);
        if matches!(self.rule, Rule::Pattern { .. }) { most } else { most.max(WHOLE) }
    }

    /// Fewest tokens that so many bytes can come to.
    pub fn least_tokens(&self, bytes: usize, longest: usize) -> usize {
        bytes.div_ceil(self.bytes_of_token(longest).max(1))
    }

    fn bytes_of_token(&self, longest: usize) -> usize {
        let shrinks = if self.normalizes { NFC_SHRINKS } else { 1 };
        match self.rule {
            // A character of a byte-level vocabulary is a byte.
            Rule::Pattern { .. } => longest.saturating_mul(shrinks),
            _ => longest.saturating_mul(4),
        }
    }

    /// Where the first part of a text ends that goes on from byte `from` to `to`: at the last joint of a slice, or else at the
    /// next one, or at the end. None where that is too much to tokenise at a time; then it is so many bytes.
    pub fn part(&self, text: &str, Range { start, end }: Range<usize>) -> Result<usize, usize> {
        if end - start <= self.slice {
            return Ok(end);
        }
        let ends = |from: usize, to: usize| (from..=to.min(end - 1)).filter(|&at| text.is_char_boundary(at));
        let found = ends(start + 1, start + self.slice).rev().find(|&at| self.is_joint(text, at));
        let further = || ends(start + self.slice, start + self.stretch).find(|&at| self.is_joint(text, at));
        match found.or_else(further) {
            Some(at) => Ok(at),
            None if end - start <= self.stretch => Ok(end),
            None => Err(self.stretch),
        }
    }

    /// The last joint within a range of `text`, at whose end another text may begin.
    pub fn last(&self, text: &str, Range { start, end }: Range<usize>) -> Option<usize> {
        (start + 1..end).rev().filter(|&at| text.is_char_boundary(at)).find(|&at| self.is_joint(text, at))
    }

    /// Whether a part ends before byte `at`, where one character begins and another ends.
    fn is_joint(&self, text: &str, at: usize) -> bool {
        let (Some(before), Some(next)) = (text[..at].chars().next_back(), text[at..].chars().next()) else {
            return false;
        };
        if self.ascii && !(before.is_ascii_graphic() && (next == ' ' || next.is_ascii_punctuation())) {
            return false;
        }
        let lower = before.to_ascii_lowercase();
        if [before, lower].iter().any(|before| self.names.parts(*before, next)) {
            return false;
        }
        match &self.rule {
            Rule::Pattern { spaces: true, .. } => !before.is_whitespace() && next == ' ',
            Rule::Pattern { apostrophe, .. } => is_joint(before, next) && !(*apostrophe && next == '\''),
            Rule::Words { mark } => {
                let is_mark = |c| Some(c) == *mark || c == ' ';
                is_mark(next) && !is_mark(before) && !before.is_whitespace()
            }
            Rule::Vocabulary { entries, mark, keeps_unknown } => {
                let marked = |c| if c == ' ' { mark.unwrap_or(c) } else { c };
                let (next, needed) = (marked(next), if *keeps_unknown { 1 } else { 2 });
                [before, lower].into_iter().map(marked).all(|before| {
                    let known = [before, next].iter().filter(|c| entries.known.contains(c)).count();
                    known >= needed && !entries.has(before, next)
                })
            }
        }
    }
}

impl JointEntries {
    fn add(&mut self, entry: &str) {
        let mut chars = entry.chars();
        let Some(mut last) = chars.next() else { return };
        if chars.as_str().is_empty() {
            self.known.insert(last);
        }
        for next in chars {
            self.pairs.push((last, next));
            last = next;
        }
    }

    fn sort(&mut self) {
        self.pairs.sort_unstable();
        self.pairs.dedup();
        self.pairs.shrink_to_fit();
    }

    /// Whether the two stand next to each other in some entry.
    fn has(&self, before: char, next: char) -> bool {
        self.pairs.binary_search(&(before, next)).is_ok()
    }

    /// Whether an entry could be parted between the two, or found otherwise apart.
    fn parts(&self, before: char, next: char) -> bool {
        let spelled = |c| [c, if c == ' ' { SPACE_MARK } else { c }];
        let parted =
            |before, next| self.has(before, next) || self.ends.contains(&before) || self.begins.contains(&next);
        self.strips && before.is_whitespace()
            || spelled(before).into_iter().any(|before| spelled(next).into_iter().any(|next| parted(before, next)))
    }
}

/// The parts of a normaliser or pre-tokenizer: none, itself, or those of a sequence, as deep as it goes.
fn parts(form: &Value, of: &str) -> Vec<Value> {
    match form {
        Value::Null => Vec::new(),
        form if form["type"] == "Sequence" => {
            form[of].as_array().into_iter().flatten().flat_map(|part| parts(part, of)).collect()
        }
        form => vec![form.clone()],
    }
}

/// Pre-tokenizers that split texts by a known pattern into bytes of their own.
fn pattern(pre_tokenizers: &[Value], model: &ModelWrapper) -> Option<Rule> {
    if !matches!(model, ModelWrapper::BPE(_)) {
        return None;
    }
    let (mut found, mut apostrophes, mut spaces, mut by_bytes) = (false, false, false, false);
    for part in pre_tokenizers {
        match part["type"].as_str()? {
            "ByteLevel" => {
                let by_pattern = part["use_regex"].as_bool().unwrap_or(true);
                // Each piece gets its space then, or else each section.
                spaces |= part["add_prefix_space"] != false && !found;
                found |= by_pattern;
                by_bytes = true;
            }
            "Split" => {
                let text = part["pattern"]["Regex"].as_str()?;
                let (_, apostrophe) = PATTERNS.iter().find(|(pattern, _)| *pattern == text)?;
                if part["behavior"] != "Isolated" || part["invert"] != false || by_bytes {
                    return None;
                }
                (found, apostrophes) = (true, apostrophes || *apostrophe);
            }
            "Digits" | "Punctuation" if !by_bytes => {}
            _ => return None,
        }
    }
    (found && by_bytes).then_some(Rule::Pattern { apostrophe: apostrophes, spaces })
}

/// Pre-tokenizers by which pieces end before spaces.
fn words(normalizers: &[Value], pre_tokenizers: &[Value]) -> Option<Rule> {
    let [part] = pre_tokenizers else { return None };
    let keeps_spaces = |part: &Value| match part["type"].as_str() {
        // What comes to be of a character that begins a run of spaces depends on nothing before it.
        Some("Precompiled" | "BertNormalizer" | "StripAccents" | "Nmt" | "Strip") => true,
        Some("Replace") => {
            part["pattern"]["Regex"] == " {2,}"
                || part["pattern"]["String"].as_str().is_some_and(|text| !text.contains(' '))
        }
        _ => is_spelling(part),
    };
    if !normalizers.iter().all(keeps_spaces) {
        return None;
    }
    match part["type"].as_str()? {
        "Metaspace" if part["split"] != false => {
            Some(Rule::Words { mark: part["replacement"].as_str()?.chars().next() })
        }
        "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer" => Some(Rule::Words { mark: None }),
        _ => None,
    }
}

/// Normalisers that change a text character by character, but for what composes.
fn is_spelling(part: &Value) -> bool {
    matches!(part["type"].as_str(), Some("NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase"))
}

/// A BPE whose spaces stay or become `▁`, and that splits at no pattern.
fn vocabulary(steps: &Steps, normalizers: &[Value], pre_tokenizers: &[Value]) -> Option<Rule> {
    let ModelWrapper::BPE(bpe) = steps.inner().get_model() else { return None };
    let is_none = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    if !is_none(&bpe.continuing_subword_prefix) || !is_none(&bpe.end_of_word_suffix) {
        return None;
    }
    let mut mark = None;
    for part in normalizers {
        match part["type"].as_str()? {
            "Prepend" => {}
            "Replace" if part["pattern"]["String"] == " " => mark = Some(single(&part["content"])?),
            _ if is_spelling(part) => {}
            _ => return None,
        }
    }
    match pre_tokenizers {
        [] => {}
        [part] if part["type"] == "Metaspace" => mark = Some(single(&part["replacement"])?),
        [part] if part["type"] == "Split" && single(&part["pattern"]["String"]).is_some() => {}
        _ => return None,
    }
    let mut entries = JointEntries::default();
    let vocabulary = steps.inner().get_vocab(false);
    // Entries of bytes and of what is unknown go by other names than their texts: they must be no part of any other.
    let holds = |entry: &str, other: &str| entry.len() > other.len() && entry.contains(other);
    let unknown = bpe.unk_token.as_deref();
    if vocabulary
        .keys()
        .any(|entry| entry.len() > 6 && entry.contains("<0x") || unknown.is_some_and(|other| holds(entry, other)))
    {
        return None;
    }
    vocabulary.keys().for_each(|entry| entries.add(entry));
    entries.sort();
    let by_bytes = bpe.byte_fallback && (0..=255).all(|byte| vocabulary.contains_key(&format!("<0x{byte:02X}>")));
    // Otherwise what is unknown is left out, and its neighbours meet.
    let keeps_unknown = by_bytes || !bpe.byte_fallback && unknown.is_some();
    Some(Rule::Vocabulary { entries, mark, keeps_unknown })
}

/// A text of one character.
fn single(text: &Value) -> Option<char> {
    let mut chars = text.as_str()?.chars();
    chars.next().filter(|_| chars.as_str().is_empty())
}

/// Whether every known pattern ends a piece between two characters.
fn is_joint(before: char, next: char) -> bool {
    !before.is_whitespace() && matches!(next, ' ' | '\t') || is_letter(before) && is_punctuation(next)
}

/// Letters of the scripts that write without spaces, and the plainest of the others. All are letters to the patterns.
fn is_letter(c: char) -> bool {
    matches!(c, 'a'..='z' | 'A'..='Z' | '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{4e00}'..='\u{9fd5}' | '\u{ac00}'..='\u{d7a3}')
}

/// Characters that no pattern takes for a letter or digit, and that nothing composes with.
fn is_punctuation(c: char) -> bool {
    c.is_ascii() && !c.is_ascii_alphanumeric()
        || matches!(c, '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{ff01}' | '\u{ff0c}' | '\u{ff1a}' | '\u{ff1b}' | '\u{ff1f}')
}

/// The text of a known pattern.
#[cfg(test)]
pub fn pattern_text(at: usize) -> &'static str {
    PATTERNS[at].0
}
