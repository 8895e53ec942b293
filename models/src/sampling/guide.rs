//! Answers that are held to a form: which tokens may come next, by llguidance's parser of the form and the bytes of the tokens.
//! Chooses no token but those that close an answer whose room ends.

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, StopReason, TopLevelGrammar},
    earley::SlicedBiasComputer,
    toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    closing::Closing,
    endless::endless,
    next_tokens::{AnswerParser, ClosesBehind, MaskThreads, NextTokens},
    schema::parts,
};
use crate::{ModelError, Tokenizer};

/// The form that an answer has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    /// Any object of JSON.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(Value),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// What ends behind the first call of one of these tools, wherever in the answer that stands.
    OneCall {
        /// Names of tools.
        tools: Vec<String>,
        /// The form that the answer has otherwise; absent: any text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        form: Option<Box<Constraint>>,
    },
}

/// Most bytes of a regular expression, and of a schema.
const REGEX_BYTES: usize = 16 << 10;
const SCHEMA_BYTES: usize = 256 << 10;
/// Most texts to choose from, and bytes of them together.
const CHOICES: (usize, usize) = (1024, 64 << 10);
/// Longest time to compile a form when it is taken, and on a host that was given one that could be compiled; and how many are
/// compiled at once.
const COMPILED_WITHIN: Duration = Duration::from_secs(2);
const COMPILED_AGAIN_WITHIN: Duration = Duration::from_secs(20);
const COMPILED_AT_ONCE: usize = 4;
/// Forms that a host keeps compiled.
const KEPT_COMPILED: usize = 8;
/// Threads that compute masks, at most: one for every two processors.
const MASK_THREADS: usize = 4;
/// Stack of a thread that compiles.
const COMPILER_STACK: usize = 16 << 20;
/// Room in tokens within which what is open is closed, and how much more than that takes makes every token looked at.
pub const CLOSES_WITHIN: usize = 64;
const LOOKED_AT: usize = 16;
/// Most parts of a refused schema that are tried, to say which is at fault.
const TRIED_PARTS: usize = 64;

/// Places of threads that compile.
static PLACES: CompilerPlaces = CompilerPlaces { taken: Mutex::new(0), freed: Condvar::new() };

struct CompilerPlaces {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A place, until it is dropped.
struct CompilerPlace;

impl CompilerPlaces {
    /// Waits so long for a place.
    fn take(&self, within: Duration) -> Option<CompilerPlace> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(taken, within, |taken| *taken >= COMPILED_AT_ONCE);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        *taken += 1;
        Some(CompilerPlace)
    }
}

impl Drop for CompilerPlace {
    fn drop(&mut self) {
        *PLACES.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        PLACES.freed.notify_one();
    }
}

/// Why nothing came of compiling a form.
enum Uncompiled {
    /// There was no time or no thread for it.
    Late,
    /// The compiler panicked.
    Broke,
}

/// Compiles on a thread of its own, which has the stack that deep forms want. It is waited for so long, and for a place before that.
fn apart<T: Send + 'static>(within: Duration, compile: impl FnOnce() -> T + Send + 'static) -> Result<T, Uncompiled> {
    let place = PLACES.take(within).ok_or(Uncompiled::Late)?;
    let (done, result) = mpsc::channel();
    let run = move || {
        let compiled = catch_unwind(AssertUnwindSafe(compile));
        drop(place);
        drop(done.send(compiled));
    };
    let thread = thread::Builder::new().name("form".to_owned()).stack_size(COMPILER_STACK).spawn(run);
    thread.map_err(|_| Uncompiled::Late)?;
    match result.recv_timeout(within) {
        Ok(compiled) => compiled.map_err(|_| Uncompiled::Broke),
        Err(_) => Err(Uncompiled::Late),
    }
}

impl Constraint {
    /// Compiles it, within bounds, so that no host has to refuse it.
    ///
    /// # Errors
    /// [`ModelError::Constraint`] with the part at fault; [`ModelError::ConstraintTime`] where it takes too long.
    pub fn check(&self) -> Result<(), ModelError> {
        self.check_size()?;
        let Some(constraint) = self.masking().cloned() else { return Ok(()) };
        self.in_time(COMPILED_WITHIN, move || constraint.compiled())?
    }

    /// The form of which tokens' masks are made, if there is one.
    pub fn masking(&self) -> Option<&Self> {
        match self {
            Self::OneCall { form, .. } => form.as_deref(),
            form => Some(form),
        }
    }

    /// The tools of which the first call ends the answer.
    pub fn ends_behind(&self) -> Option<&[String]> {
        match self {
            Self::OneCall { tools, .. } => Some(tools),
            _ => None,
        }
    }

    fn in_time<T: Send + 'static>(
        &self,
        within: Duration,
        compile: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ModelError> {
        apart(within, compile).map_err(|why| match why {
            Uncompiled::Late => ModelError::ConstraintTime { seconds: within.as_secs() },
            Uncompiled::Broke => self.refused(String::new(), "the compiler of forms cannot take it"),
        })
    }

    fn check_size(&self) -> Result<(), ModelError> {
        let most = |what: &str, got: usize, most: usize| match got > most {
            true => Err(self.refused(String::new(), &format!("it has {got} {what}, expected at most {most}"))),
            false => Ok(()),
        };
        match self {
            Self::JsonObject => Ok(()),
            Self::JsonSchema(schema) => most("bytes", schema.to_string().len(), SCHEMA_BYTES),
            Self::Regex(regex) => most("bytes", regex.len(), REGEX_BYTES),
            Self::Choice(texts) if texts.is_empty() => Err(self.refused(String::new(), "there is nothing to choose")),
            Self::Choice(texts) => {
                most("texts", texts.len(), CHOICES.0)?;
                most("bytes", texts.iter().map(String::len).sum(), CHOICES.1)
            }
            Self::OneCall { tools, form } => {
                most("tools", tools.len(), CHOICES.0)?;
                most("bytes", tools.iter().map(String::len).sum(), CHOICES.1)?;
                match form.as_deref() {
                    Some(Self::OneCall { .. }) => Err(self.refused(String::new(), "it has one call within one call")),
                    Some(form) => form.check_size(),
                    None => Ok(()),
                }
            }
        }
    }

    fn compiled(&self) -> Result<(), ModelError> {
        let factory = Guides::of(&ApproximateTokEnv::single_byte_env(), &[])?;
        let tried = factory.tried(self.grammar());
        let Self::JsonSchema(schema) = self else {
            return tried.map_err(|cause| self.refused(String::new(), &cause));
        };
        let Err(cause) = tried else {
            return endless(schema).map_or(Ok(()), |path| Err(self.refused(path, NO_END)));
        };
        let (mut path, mut cause, mut left) = (String::new(), cause, TRIED_PARTS);
        let mut part = schema;
        while let Some((name, inner, inner_cause)) = factory.at_fault((schema, part), &mut left) {
            path += &name;
            (part, cause) = (inner, inner_cause);
        }
        Err(self.refused(path, &cause))
    }

    fn refused(&self, path: String, cause: &str) -> ModelError {
        let what = match self {
            Self::JsonObject | Self::JsonSchema(_) => "schema",
            Self::Regex(_) => "regular expression",
            Self::Choice(_) => "choice",
            Self::OneCall { .. } => "one call",
        };
        // On one line: it goes into an error's message.
        let cause: String = cause.split_whitespace().collect::<Vec<_>>().join(" ");
        let cause = cause.chars().filter(|letter| !letter.is_control()).take(300).collect();
        ModelError::Constraint { what, path: if path.is_empty() { "/".to_owned() } else { path }, cause }
    }

    fn grammar(&self) -> TopLevelGrammar {
        match self {
            Self::JsonObject => schema_grammar(&json!({ "type": "object" })),
            Self::JsonSchema(schema) => schema_grammar(schema),
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
                TopLevelGrammar::from_regex(&format!("(?:{})", texts.join("|")))
            }
            Self::OneCall { form, .. } => {
                form.as_ref().map_or_else(|| TopLevelGrammar::from_regex("(?s:.*)"), |form| form.grammar())
            }
        }
    }
}

/// JSON of a schema, with little room for blanks: a model that likes them would write nothing else.
fn schema_grammar(schema: &Value) -> TopLevelGrammar {
    let mut schema = schema.clone();
    if let Some(schema) = schema.as_object_mut() {
        let options = json!({ "whitespace_flexible": true, "whitespace_pattern": r" |\n {0,8}" });
        schema.insert("x-guidance".to_owned(), options);
    }
    TopLevelGrammar::from_json_schema(schema)
}

/// What holds answers of one model to forms.
pub struct Guides {
    factory: ParserFactory,
    threads: MaskThreads,
    /// Forms of late as they are written, whose order counts, before the first token; the newest is the last.
    compiled: Mutex<VecDeque<(String, Matcher)>>,
    /// Tokens that end an answer.
    eos: Vec<u32>,
    closing: Arc<Closing>,
}

impl Guides {
    /// For the tokens of a model whose logits are `vocab` long, and whose answers end with `eos`.
    ///
    /// # Errors
    /// [`ModelError::Constraint`] when the tokenizer's tokens are not what the parser takes.
    pub fn new(tokenizer: &Tokenizer, vocab: usize, eos: &[u32]) -> Result<Self, ModelError> {
        let words: Vec<Vec<u8>> = (0..vocab as u32).map(|id| tokenizer.guided_bytes(id)).collect();
        let end = eos.first().copied().unwrap_or(0);
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut guides = Self::of(&env, eos)?;
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        guides.threads = MaskThreads::start((processors / 2).clamp(1, MASK_THREADS));
        let mut ids: BTreeMap<&[u8], u32> = BTreeMap::new();
        for (word, id) in words.iter().zip(0..) {
            ids.entry(word).or_insert(id);
        }
        guides.closing = Arc::new(Closing::new(|word| ids.get(word).copied()));
        Ok(guides)
    }

    fn of(env: &TokEnv, eos: &[u32]) -> Result<Self, ModelError> {
        let factory = factory(env, &SlicedBiasComputer::general_slices())?;
        let threads = MaskThreads::start(0);
        Ok(Self { factory, threads, compiled: Mutex::default(), eos: eos.to_vec(), closing: Arc::default() })
    }

    /// Holds one answer to a form, of which tokens so far are to be accepted next. Waits until it is compiled, on a thread of its own.
    ///
    /// # Errors
    /// [`ModelError::Constraint`] for one that [`Constraint::check`] refuses; [`ModelError::ConstraintTime`] where it takes too long.
    pub fn guide(self: &Arc<Self>, constraint: &Constraint) -> Result<Guide, ModelError> {
        let written = serde_json::to_string(constraint).unwrap_or_default();
        let matcher = match self.kept(&written) {
            Some(matcher) => matcher,
            None => {
                let (guides, compiled) = (self.clone(), constraint.clone());
                let matcher = constraint.in_time(COMPILED_AGAIN_WITHIN, move || guides.compile(&compiled))??;
                self.keep(written, &matcher);
                matcher
            }
        };
        let parser = self.threads.parser(matcher);
        Ok(Guide { parser, is_whole: false, eos: self.eos.clone(), closing: self.closing.clone(), closes_in: 0 })
    }

    fn compile(&self, constraint: &Constraint) -> Result<Matcher, ModelError> {
        let mut matcher = Matcher::new(self.factory.create_parser(constraint.grammar()));
        // It compiles what is compiled late.
        matcher
            .compute_mask_or_eos()
            .map_err(|error| constraint.refused(String::new(), &uncompiled(&error.to_string())))?;
        Ok(matcher)
    }

    fn kept(&self, written: &str) -> Option<Matcher> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let at = compiled.iter().position(|(kept, _)| kept == written)?;
        let newest = compiled.remove(at)?;
        let matcher = newest.1.deep_clone();
        compiled.push_back(newest);
        Some(matcher)
    }

    fn keep(&self, written: String, matcher: &Matcher) {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if compiled.len() == KEPT_COMPILED {
            compiled.pop_front();
        }
        compiled.push_back((written, matcher.deep_clone()));
    }

    fn tried(&self, grammar: TopLevelGrammar) -> Result<(), String> {
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        matcher.compute_mask_or_eos().map(drop).map_err(|error| uncompiled(&error.to_string()))
    }

    /// A part of a refused schema that is refused alone: its name, itself and why.
    fn at_fault<'s>(
        &self,
        (whole, part): (&Value, &'s Value),
        left: &mut usize,
    ) -> Option<(String, &'s Value, String)> {
        for (name, inner) in parts(part).into_iter().filter(|(_, inner)| !refers_outside(inner)) {
            *left = left.checked_sub(1)?;
            let mut alone = inner.clone();
            if let (Some(alone), Some(defined)) = (alone.as_object_mut(), whole.as_object()) {
                let definitions = DEFINITIONS.iter().filter_map(|key| Some((*key, defined.get(*key)?)));
                definitions.for_each(|(key, value)| drop(alone.insert(key.to_owned(), value.clone())));
            }
            if let Err(cause) = self.tried(schema_grammar(&alone)) {
                return Some((name, inner, cause));
            }
        }
        None
    }
}

/// What makes parsers of forms. Tokens that one of `slices` matches are looked at together.
fn factory(env: &TokEnv, slices: &[String]) -> Result<ParserFactory, ModelError> {
    let mut factory = ParserFactory::new(env, InferenceCapabilities::default(), slices).map_err(|error| {
        ModelError::Constraint { what: "tokenizer", path: "/".to_owned(), cause: error.to_string() }
    })?;
    factory.quiet();
    *factory.limits_mut() =
        ParserLimits { max_grammar_size: 200_000, verbose_errors: false, ..ParserLimits::default() };
    Ok(factory)
}

/// Keys of a schema whose parts others refer to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Whether a part of a schema refers to what it does not have where it stands alone with all definitions.
fn refers_outside(part: &Value) -> bool {
    let is_definition = |to: &str| {
        let to = to.strip_prefix("#/").and_then(|path| path.split_once('/'));
        to.is_some_and(|(key, _)| DEFINITIONS.contains(&key))
    };
    match part {
        Value::Object(fields) => fields.iter().any(|(name, value)| match value {
            Value::String(to) => name == "$ref" && !is_definition(to),
            value => refers_outside(value),
        }),
        Value::Array(parts) => parts.iter().any(refers_outside),
        _ => false,
    }
}

/// One answer that is held to a form.
pub struct Guide {
    parser: AnswerParser,
    is_whole: bool,
    eos: Vec<u32>,
    closing: Arc<Closing>,
    /// Tokens that closed what was open when that was looked at last.
    closes_in: usize,
}

impl Guide {
    /// Begins to compute which tokens may come next and behind each of these guesses, beside the caller.
    pub fn look_ahead(&mut self, guesses: &[u32]) {
        self.parser.look_ahead(guesses);
    }

    /// Which tokens may come next, and behind each guess that was looked ahead at: as far as those may come and the parser can tell.
    ///
    /// # Errors
    /// [`ModelError::Constraint`] when the parser gives up, or nothing may come next.
    pub fn masks(&mut self) -> Result<Vec<TokenMask>, ModelError> {
        let all = self.parser.next_tokens().map_err(|cause| lost(&cause))?;
        let masks: Vec<TokenMask> = all.into_iter().map_while(|next| self.mask(next)).collect();
        if masks.is_empty() { Err(lost("no token may come next")) } else { Ok(masks) }
    }

    /// None where nothing may come.
    fn mask(&self, NextTokens { mut mask, ends }: NextTokens) -> Option<TokenMask> {
        let vocab = mask.len();
        self.eos.iter().filter(|id| (**id as usize) < vocab).for_each(|id| mask.set(*id as usize, ends));
        Some(TokenMask(mask)).filter(|TokenMask(mask)| !mask.is_zero())
    }

    /// The token that the answer goes on with where this one was chosen, and there is room for so many, itself among them: this one,
    /// unless what is open could not be closed behind it, and can be now. Then the first that closes it, or the end where nothing is open.
    pub fn within_room(&mut self, chosen: u32, left: usize) -> u32 {
        // To look at every token would take as long as a step of many answers.
        let looks = left <= self.closes_in + LOOKED_AT || left.is_multiple_of(LOOKED_AT / 2);
        if left > CLOSES_WITHIN || !looks || self.eos.contains(&chosen) {
            return chosen;
        }
        match self.parser.closes_behind(chosen, left, &self.closing) {
            ClosesBehind::Chosen(tokens) => {
                self.closes_in = tokens;
                chosen
            }
            ClosesBehind::Other(first) => first.or(self.eos.first().copied()).unwrap_or(chosen),
            ClosesBehind::Neither => chosen,
        }
    }

    /// The answer goes on with this token.
    ///
    /// # Errors
    /// [`ModelError::Constraint`] when it may not.
    pub fn accept(&mut self, id: u32) -> Result<(), ModelError> {
        if self.eos.contains(&id) {
            return Ok(());
        }
        self.is_whole = self.parser.accept(id).map_err(|cause| lost(&cause))?;
        Ok(())
    }

    /// Nothing can follow: the answer is whole.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// Which tokens may come next.
pub struct TokenMask(SimpleVob);

impl TokenMask {
    /// Those of `logits (vocab)`, with their ids.
    pub fn of<'l>(&'l self, logits: &'l [f32]) -> impl Iterator<Item = (u32, f32)> + Clone + 'l {
        let words =
            logits.chunks(WORD_BITS.len()).zip(self.0.as_slice()).enumerate().filter(|(_, (_, word))| **word != 0);
        words.flat_map(|(at, (logits, word))| {
            let ids = (at * WORD_BITS.len()) as u32..;
            let allowed = ids.zip(logits).zip(WORD_BITS).filter(move |(_, bit)| word & bit != 0);
            allowed.map(|((id, logit), _)| (id, *logit))
        })
    }

    /// A bit of each token, as [`RowShape`](asterism_kernels::RowShape) has them.
    pub fn into_words(self) -> Vec<u32> {
        self.0.into()
    }

    /// Whether it has one of most runs of tokens.
    pub fn is_dense(&self) -> bool {
        let words = self.0.as_slice();
        4 * words.iter().filter(|word| **word != 0).count() > words.len()
    }

    /// Whether this one may come.
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.0.len() && self.0.is_allowed(id)
    }

    /// The likeliest of them: the lowest id on an exact tie, and never one that is not a number where another is one.
    pub fn likeliest(&self, logits: &[f32]) -> Option<u32> {
        let (chunks, rest) = logits.as_chunks::<{ WORD_BITS.len() }>();
        let words = self.0.as_slice();
        let mut lanes = [f32::NEG_INFINITY; WORD_BITS.len()];
        for (chunk, word) in chunks.iter().zip(words).filter(|(_, word)| **word != 0) {
            // Without a branch for each: where words stay by their letters, bits are mixed.
            for ((most, logit), bit) in lanes.iter_mut().zip(chunk).zip(WORD_BITS) {
                let logit = if word & bit == 0 { f32::NEG_INFINITY } else { *logit };
                *most = if logit > *most { logit } else { *most };
            }
        }
        let whole = (chunks.len() * WORD_BITS.len()) as u32;
        let behind = (whole..).zip(rest).filter(|(id, _)| self.allows(*id));
        let more = |most: f32, logit: f32| if logit > most { logit } else { most };
        let most = lanes.into_iter().chain(behind.map(|(_, logit)| *logit)).fold(f32::NEG_INFINITY, more);
        self.of(logits).find(|(_, logit)| *logit == most).or_else(|| self.of(logits).next()).map(|(id, _)| id)
    }
}

/// Each bit of a word of a mask.
const WORD_BITS: [u32; 32] = {
    let mut bits = [0; 32];
    let mut at = 0;
    while at < 32 {
        bits[at] = 1 << at;
        at += 1;
    }
    bits
};

/// What is said of a form in which nothing can be written.
const NO_TEXT: &str = "no text has this form: its parts contradict each other, or it leads back to itself before anything is written, \
                       as {\"$ref\": \"#\"} does alone";

/// What is said of a form that can be begun alone.
const NO_END: &str = "no text of this form ends, since it has to stand within itself; take it from \"required\", or let it be null instead";

/// Why a form is not compiled: the parser's words, but where it has none for what is wrong with the form.
fn uncompiled(cause: &str) -> String {
    if nothing_may_come(cause) { NO_TEXT.to_owned() } else { cause.to_owned() }
}

/// Whether the parser means that no token may come, which it tells by a name of its own.
fn nothing_may_come(cause: &str) -> bool {
    cause.contains(&StopReason::NoExtensionBias.to_string())
}

fn lost(cause: &str) -> ModelError {
    let cause = if nothing_may_come(cause) { "no token may come next" } else { cause };
    let cause = cause.chars().take(300).collect();
    ModelError::Constraint { what: "form of the answer", path: "/".to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{Checkpoint, Sampler, Sampling, Written};

    /// An answer of a model that likes every token as much, held to a form.
    fn answer(constraint: &Constraint, seed: u64, most: usize) -> (String, bool) {
        let checkpoint = Checkpoint::embedded().unwrap();
        let (tokenizer, config) = (Tokenizer::from_checkpoint(&checkpoint).unwrap(), checkpoint.config().clone());
        let guides = Arc::new(Guides::new(&tokenizer, config.vocab, &config.eos).unwrap());
        let mut guide = guides.guide(constraint).unwrap();
        let mut sampler = Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() });
        let (mut random, mut ids) = (StdRng::seed_from_u64(seed), Vec::new());
        while ids.len() < most {
            let logits: Vec<f32> = (0..config.vocab).map(|_| random.random_range(-4.0..4.0)).collect();
            let mask = guide.masks().unwrap().remove(0);
            let id = guide.within_room(sampler.next_within(&logits, &mask), most - ids.len());
            if config.eos.contains(&id) {
                return (tokenizer.decode(&ids).unwrap(), true);
            }
            guide.accept(id).unwrap();
            ids.push(id);
            if guide.is_whole() {
                return (tokenizer.decode(&ids).unwrap(), true);
            }
        }
        (tokenizer.decode(&ids).unwrap(), false)
    }

    #[test]
    fn answers_have_their_form_whatever_the_model_likes() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
                "inner": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": false},
            },
            "required": ["name", "age", "inner"], "additionalProperties": false,
        });
        let form = regex::Regex::new("^[a-c]{3}-[0-9]{2}$").unwrap();
        for seed in 0..8 {
            let (text, whole) = answer(&Constraint::JsonSchema(schema.clone()), seed, 200);
            assert!(whole, "{text}");
            let value: Value = serde_json::from_str(&text).expect(&text);
            assert!(value["name"].is_string() && value["age"].as_u64().is_some_and(|age| age <= 150), "{text}");
            assert!(value["inner"]["x"].is_number() && value.as_object().unwrap().len() <= 4, "{text}");
            let (text, whole) = answer(&Constraint::JsonObject, seed, 120);
            assert!(whole && serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
            let (text, _) = answer(&Constraint::Regex("[a-c]{3}-[0-9]{2}".to_owned()), seed, 40);
            assert!(form.is_match(&text), "{text}");
            let choice = Constraint::Choice(vec!["yes (a)".to_owned(), "no*".to_owned()]);
            assert!(["yes (a)", "no*"].contains(&answer(&choice, seed, 40).0.as_str()));
        }
    }

    /// What an answer becomes that a model wants to be this text, with room for so many tokens; how many it took, and whether it is whole.
    fn cut(
        guides: &Arc<Guides>,
        (tokenizer, eos): (&Tokenizer, &[u32]),
        form: &Constraint,
        wanted: &str,
        room: usize,
    ) -> (String, usize, bool) {
        let wanted = tokenizer.encode_most(&Written::from(wanted.to_owned()), 1000).unwrap();
        let wanted: Vec<u32> = wanted.into_iter().filter(|id| !tokenizer.decode(&[*id]).unwrap().is_empty()).collect();
        let mut guide = guides.guide(form).unwrap();
        let mut ids: Vec<u32> = Vec::new();
        while ids.len() < room && !guide.is_whole() {
            let mask = guide.masks().unwrap().remove(0);
            let likes = wanted.get(ids.len()).filter(|id| ids[..] == wanted[..ids.len()] && mask.allows(**id));
            // Beside what it wants a model opens what it can.
            let opens = || (0..4096).filter(|id| mask.allows(*id)).max_by_key(|id| u32::from(!eos.contains(id)));
            let id = guide.within_room(likes.copied().or_else(opens).unwrap(), room - ids.len());
            if eos.contains(&id) {
                return (tokenizer.decode(&ids).unwrap(), ids.len(), true);
            }
            guide.accept(id).unwrap();
            ids.push(id);
        }
        (tokenizer.decode(&ids).unwrap(), ids.len(), guide.is_whole())
    }

    #[test]
    fn an_answer_is_closed_only_where_it_has_no_room_otherwise() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let (tokenizer, config) = (Tokenizer::from_checkpoint(&checkpoint).unwrap(), checkpoint.config().clone());
        let guides = Arc::new(Guides::new(&tokenizer, config.vocab, &config.eos).unwrap());
        let cut = |form: &Constraint, wanted: &str, room| cut(&guides, (&tokenizer, &config.eos), form, wanted, room);
        let object = |properties: Value, required: Value| {
            Constraint::JsonSchema(
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false}),
            )
        };
        let number = object(json!({"answer": {"type": "integer"}}), json!(["answer"]));
        let tags = object(
            json!({"tags": {"type": "array", "items": {"type": "string"}}, "on": {"type": "boolean"}}),
            json!(["tags", "on"]),
        );
        let list = json!({"$ref": "#/$defs/n", "$defs": {"n": {
            "type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
            "required": ["v", "next"], "additionalProperties": false,
        }}});
        let list = Constraint::JsonSchema(list);
        for (form, wanted) in [
            (&number, r#"{"answer": 3600417}"#),
            (&tags, r#"{"tags": ["alpha", "beta", "gamma"], "on": true}"#),
            (&list, r#"{"v": 1, "next": {"v": 2, "next": {"v": 3, "next": null}}}"#),
        ] {
            let (text, needs, whole) = cut(form, wanted, 500);
            assert!(text == wanted && whole, "{text}");
            let (_, least, _) = cut(form, "", needs);
            for room in least.max(needs / 2)..needs {
                let (text, took, whole) = cut(form, wanted, room);
                assert!(whole && took <= room, "{text}: {took} of {room}");
                serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
            // Letters that a model writes otherwise may take some tokens more or less.
            assert_eq!(cut(form, wanted, needs + 3).0, wanted, "it has the room that it needs");
        }
        // What may end anywhere is never cut before its room ends, and what cannot be closed in its room says so.
        let digits = Constraint::Regex("[0-9]+".to_owned());
        assert_eq!(cut(&digits, "1234567890", 6).1, 6);
        assert!(!cut(&number, r#"{"answer": 3600417}"#, 2).2);
        let email = object(json!({"to": {"type": "string", "format": "email"}}), json!(["to"]));
        let (text, _, whole) = cut(&email, r#"{"to": "somebodywithaverylongnamethatneverends"#, 40);
        assert!(whole && serde_json::from_str::<Value>(&text).unwrap()["to"].as_str().unwrap().contains('@'), "{text}");
    }

    /// A regular expression that draws make, of at most so many levels.
    fn drawn_regex(draw: &mut StdRng, levels: usize) -> String {
        const SINGLE: [&str; 14] = [
            "a",
            "the",
            " ",
            "[a-z]",
            "[A-Za-z ]",
            "\\w",
            "\\d",
            "[0-9]",
            "\\p{L}",
            ".",
            "[^a-m]",
            "\\s",
            "é|ü|日",
            "\\.",
        ];
        const COUNTS: [&str; 7] = ["", "*", "+", "?", "{3}", "{2,9}", "{20,90}"];
        let count = COUNTS[draw.random_range(0..COUNTS.len())];
        if levels == 0 || draw.random_bool(0.4) {
            return format!("(?:{}){count}", SINGLE[draw.random_range(0..SINGLE.len())]);
        }
        let join = if draw.random_bool(0.3) { "|" } else { "" };
        let parts: Vec<String> = (0..draw.random_range(1..4)).map(|_| drawn_regex(draw, levels - 1)).collect();
        format!("(?:{}){count}", parts.join(join))
    }

    #[test]
    fn masks_are_those_of_a_parser_that_has_neither_slices_nor_threads() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let (tokenizer, config) = (Tokenizer::from_checkpoint(&checkpoint).unwrap(), checkpoint.config().clone());
        let guides = Arc::new(Guides::new(&tokenizer, config.vocab, &config.eos).unwrap());
        let plain = factory(guides.factory.tok_env(), &[]).unwrap();
        let (mut draw, mut tokens) = (StdRng::seed_from_u64(45), 0);
        for _ in 0..60 {
            let regex = drawn_regex(&mut draw, 2);
            let form = Constraint::Regex(regex.clone());
            let Ok(mut guide) = guides.guide(&form) else { continue };
            let mut matcher = Matcher::new(plain.create_parser(form.grammar()));
            for _ in 0..12 {
                if draw.random_bool(0.5) {
                    thread::yield_now();
                }
                // Without slices it may run into the bounds of a mask's work.
                let Ok(expected) = matcher.compute_mask_or_eos() else { break };
                let mask = guide.masks().unwrap().remove(0);
                let allowed: Vec<u32> =
                    (0..config.vocab as u32).filter(|id| !config.eos.contains(id) && mask.allows(*id)).collect();
                let wanted = (0..config.vocab as u32).filter(|id| !config.eos.contains(id) && expected.is_allowed(*id));
                assert_eq!(allowed, wanted.collect::<Vec<_>>(), "{regex}");
                let ends = matcher.is_accepting().unwrap() || matcher.is_stopped();
                assert_eq!(config.eos.iter().any(|id| mask.allows(*id)), ends, "{regex}");
                if allowed.is_empty() {
                    break;
                }
                let id = allowed[draw.random_range(0..allowed.len())];
                guide.accept(id).unwrap();
                matcher.consume_token(id).unwrap();
                assert_eq!(guide.is_whole(), matcher.is_stopped(), "{regex}");
                tokens += 1;
                if guide.is_whole() {
                    break;
                }
            }
        }
        assert!(tokens > 200, "{tokens}");
    }

    #[test]
    fn masks_behind_guesses_are_those_of_an_answer_that_goes_on_so() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let (tokenizer, config) = (Tokenizer::from_checkpoint(&checkpoint).unwrap(), checkpoint.config().clone());
        let guides = Arc::new(Guides::new(&tokenizer, config.vocab, &config.eos).unwrap());
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}});
        let words = |mask: TokenMask| mask.into_words();
        let (mut draw, mut foreseen) = (StdRng::seed_from_u64(46), 0);
        for form in [Constraint::JsonSchema(schema), Constraint::JsonObject, Constraint::Regex("[a-f ]{9,60}".into())] {
            let mut walked = guides.guide(&form).unwrap();
            let (mut ids, mut masks) = (Vec::new(), Vec::new());
            while ids.len() < 60 && !walked.is_whole() {
                let mask = walked.masks().unwrap().remove(0);
                let allowed: Vec<u32> = (0..config.vocab as u32).filter(|id| mask.allows(*id)).collect();
                masks.push(words(mask));
                let id = allowed[draw.random_range(0..allowed.len())];
                if config.eos.contains(&id) {
                    break;
                }
                walked.accept(id).unwrap();
                ids.push(id);
            }
            let mut guide = guides.guide(&form).unwrap();
            let mut at = 0;
            while at < masks.len() {
                let ahead = draw.random_range(0..9).min(masks.len() - 1 - at);
                let mut guesses = ids[at..at + ahead].to_vec();
                let wrong = draw.random_bool(0.5);
                if wrong {
                    // What no text of these forms has.
                    guesses.push(config.eos[0]);
                }
                guide.look_ahead(&guesses);
                if draw.random_bool(0.5) {
                    thread::yield_now();
                }
                let behind: Vec<_> = guide.masks().unwrap().into_iter().map(words).collect();
                assert_eq!(behind, masks[at..at + ahead + 1], "{form:?} at {at}");
                foreseen += ahead;
                for id in ids.iter().skip(at).take(ahead + 1) {
                    guide.accept(*id).unwrap();
                }
                at += ahead + 1;
            }
        }
        assert!(foreseen > 40, "{foreseen}");
    }

    #[test]
    fn a_token_is_chosen_of_those_that_may_come_as_if_there_were_no_others() {
        let mut random = StdRng::seed_from_u64(3);
        for (vocab, part) in [(70, 0.5), (64, 0.05), (33, 1.0), (1000, 0.01)] {
            let mut logits: Vec<f32> = (0..vocab).map(|_| random.random_range(-4..4) as f32).collect();
            logits[1] = f32::NAN;
            let mut mask = SimpleVob::alloc(vocab);
            (0..vocab).filter(|_| random.random_bool(part)).for_each(|id| mask.set(id, true));
            mask.set(vocab - 1, true);
            let masked: Vec<f32> =
                (0..vocab).map(|id| if mask.get(id) { logits[id] } else { f32::NEG_INFINITY }).collect();
            let mask = TokenMask(mask);
            for temperature in [0.0, 1.0] {
                let sampling = Sampling { temperature, seed: 5, top_p: 0.9, ..Sampling::default() };
                let (mut within, mut plain) = (Sampler::new(sampling.clone()), Sampler::new(sampling));
                for _ in 0..20 {
                    assert_eq!(within.next_within(&logits, &mask), plain.next(&masked), "{vocab} {part}");
                }
            }
        }
        // What is forbidden is not chosen, also where nothing that may come is likely.
        let (mut mask, mut sampler) = (SimpleVob::alloc(40), Sampler::new(Sampling::default()));
        mask.set(35, true);
        assert_eq!(sampler.next_within(&[f32::NEG_INFINITY; 40], &TokenMask(mask)), 35);
    }

    fn one_call(form: Option<Constraint>) -> Constraint {
        Constraint::OneCall { tools: vec!["weather".to_owned()], form: form.map(Box::new) }
    }

    #[test]
    fn what_cannot_be_compiled_is_refused_with_its_place() {
        let wrong = json!({
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "string", "pattern": "(?<=x)y"}}},
        });
        let refused = Constraint::JsonSchema(wrong).check().unwrap_err().to_string();
        assert!(refused.contains("/properties/a/items"), "{refused}");
        for wrong in [
            Constraint::JsonSchema(json!({"type": "nothing"})),
            Constraint::Regex("(".to_owned()),
            Constraint::Choice(Vec::new()),
            Constraint::Regex("a".repeat(REGEX_BYTES + 1)),
            Constraint::JsonSchema(json!({"type": "string", "minLength": 5, "maxLength": 2})),
            one_call(Some(Constraint::Regex("(".to_owned()))),
            one_call(Some(one_call(None))),
        ] {
            assert_eq!(wrong.check().unwrap_err().code(), "constraint", "{wrong:?}");
        }
        for (schema, path) in [
            (json!({"$ref": "#"}), "/"),
            (json!({"anyOf": [{"$ref": "#"}]}), "/"),
            (
                json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
                "/$defs/a",
            ),
        ] {
            let refused = Constraint::JsonSchema(schema.clone()).check().unwrap_err();
            assert_eq!(refused.to_string(), format!("the schema cannot be compiled at {path}: {NO_TEXT}"), "{schema}");
        }
        // Of a part that refers to the whole nothing is said but where the whole is at fault.
        let wrong = json!({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"type": "string", "pattern": "(?<=x)y"}}});
        let refused = Constraint::JsonSchema(wrong).check().unwrap_err().to_string();
        assert!(refused.contains("/properties/b") && !refused.contains(NO_TEXT), "{refused}");
        // What leads back to itself behind something may end, unless it has to.
        let mut list = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        Constraint::JsonSchema(list.clone()).check().unwrap();
        list["required"] = json!(["next"]);
        let refused = Constraint::JsonSchema(list).check().unwrap_err().to_string();
        assert_eq!(refused, format!("the schema cannot be compiled at /properties/next: {NO_END}"));
        Constraint::JsonObject.check().unwrap();
        one_call(None).check().unwrap();
        one_call(Some(Constraint::JsonObject)).check().unwrap();
    }
}
