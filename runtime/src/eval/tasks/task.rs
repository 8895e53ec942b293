//! The tasks by name, and records of them at a given size.

use std::{fmt, str::FromStr};

use asterism_models::QuerySeparator;
use rand::{SeedableRng, rngs::StdRng};

use super::{
    babi::Story,
    common,
    fit::fit,
    frequency,
    natural::Natural,
    needle::{Hay, NeedleKind, Needles},
    retrieval::Retrieval,
    variable,
};
use crate::eval::{EvalError, EvalRecord, HaystackSource, tasks::draft::Draft};

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Task {
    /// A number in noise.
    NiahSingle1,
    /// A number in prose.
    NiahSingle2,
    /// A uuid in prose.
    NiahSingle3,
    /// One of four numbers in prose.
    NiahMultikey1,
    /// One of many numbers.
    NiahMultikey2,
    /// One of many uuids, for a uuid.
    NiahMultikey3,
    /// Four numbers for one key, in prose.
    NiahMultivalue,
    /// Four numbers for four keys, in prose.
    NiahMultiquery,
    /// Variables that hold a value, through a chain of assignments.
    Vt,
    /// The ten most common words of a list.
    Cwe,
    /// The three most frequent coded words.
    Fwe,
    /// Where a person is.
    Qa1,
    /// Where a carried object is.
    Qa2,
    /// Where a carried object was before a room.
    Qa3,
    /// What lies in a direction of a room.
    Qa4,
    /// Who received what.
    Qa5,
    /// Five digits in noise.
    Passkey,
    /// Ten digits, half of them doubled, in noise.
    Number,
    /// The value of one of many keys.
    Kv,
    /// A rank in a list of numbers.
    MathFind,
    /// A fact that shares words with its question.
    Lex,
    /// A fact that shares none.
    Para,
    /// Two facts, linked by a name.
    Hop2,
    /// Two facts that share no words with their question.
    Para2,
    /// Three values of one key.
    List3,
    /// The sentence behind a quoted one.
    Next,
    /// Which of two events is told first.
    First,
    /// A number in one of many functions.
    Code,
}

/// How a record of a task is drawn.
#[derive(Clone, Copy)]
enum Family {
    Needle(Needles),
    Variable,
    Common,
    Frequency,
    Babi(Story),
    Retrieval(Retrieval),
    Natural(Natural),
}

/// One number for one word in prose.
const ONE: Needles =
    Needles { hay: Hay::Prose, key: NeedleKind::Words, value: NeedleKind::Number, keys: 1, values: 1, queries: 1 };

/// Every task, in the order of the benchmarks, with the benchmark's name for it.
const TASK_TABLE: &[(Task, &str, Family)] = &[
    (Task::NiahSingle1, "niah_single_1", Family::Needle(Needles { hay: Hay::Noise, ..ONE })),
    (Task::NiahSingle2, "niah_single_2", Family::Needle(ONE)),
    (Task::NiahSingle3, "niah_single_3", Family::Needle(Needles { value: NeedleKind::Uuid, ..ONE })),
    (Task::NiahMultikey1, "niah_multikey_1", Family::Needle(Needles { keys: 4, ..ONE })),
    (Task::NiahMultikey2, "niah_multikey_2", Family::Needle(Needles { hay: Hay::Needles, ..ONE })),
    (
        Task::NiahMultikey3,
        "niah_multikey_3",
        Family::Needle(Needles { hay: Hay::Needles, key: NeedleKind::Uuid, value: NeedleKind::Uuid, ..ONE }),
    ),
    (Task::NiahMultivalue, "niah_multivalue", Family::Needle(Needles { values: 4, ..ONE })),
    (Task::NiahMultiquery, "niah_multiquery", Family::Needle(Needles { keys: 4, queries: 4, ..ONE })),
    (Task::Vt, "vt", Family::Variable),
    (Task::Cwe, "cwe", Family::Common),
    (Task::Fwe, "fwe", Family::Frequency),
    (Task::Qa1, "qa1", Family::Babi(Story::Person)),
    (Task::Qa2, "qa2", Family::Babi(Story::Object)),
    (Task::Qa3, "qa3", Family::Babi(Story::Before)),
    (Task::Qa4, "qa4", Family::Babi(Story::Direction)),
    (Task::Qa5, "qa5", Family::Babi(Story::Gift)),
    (Task::Passkey, "passkey", Family::Retrieval(Retrieval::Passkey)),
    (Task::Number, "number", Family::Retrieval(Retrieval::Number)),
    (Task::Kv, "kv", Family::Retrieval(Retrieval::KeyValue)),
    (Task::MathFind, "math_find", Family::Retrieval(Retrieval::Rank)),
    (Task::Lex, "lex", Family::Natural(Natural::Lexical)),
    (Task::Para, "para", Family::Natural(Natural::Paraphrase)),
    (Task::Hop2, "hop2", Family::Natural(Natural::TwoHops)),
    (Task::Para2, "para2", Family::Natural(Natural::TwoParaphrases)),
    (Task::List3, "list3", Family::Natural(Natural::Three)),
    (Task::Next, "next", Family::Natural(Natural::Next)),
    (Task::First, "first", Family::Natural(Natural::First)),
    (Task::Code, "code", Family::Natural(Natural::Code)),
];

impl Task {
    /// Every task, in the order of the benchmarks.
    pub fn all() -> impl Iterator<Item = Self> {
        TASK_TABLE.iter().map(|(task, ..)| *task)
    }

    /// The tasks of a suite: `ruler`, `babilong`, `infinitebench` or `real`.
    pub fn of_suite(suite: &str) -> Vec<Self> {
        Self::all().filter(|task| task.suite() == suite).collect()
    }

    fn suite(self) -> &'static str {
        match self.family() {
            Family::Needle(_) | Family::Variable | Family::Common | Family::Frequency => "ruler",
            Family::Babi(_) => "babilong",
            Family::Retrieval(_) => "infinitebench",
            Family::Natural(_) => "real",
        }
    }

    /// Most tokens of an answer. RULER's and BABILong's own; InfiniteBench's as MInference's harness has them. vt's are
    /// doubled: its names are random letters, of which small tokenizers make more tokens.
    pub fn answer_tokens(self) -> usize {
        match self.family() {
            Family::Needle(_) | Family::Babi(_) => 128,
            Family::Variable => 60,
            Family::Common => 120,
            Family::Frequency => 50,
            Family::Retrieval(Retrieval::Passkey) => 15,
            Family::Retrieval(Retrieval::Number) => 20,
            Family::Retrieval(Retrieval::KeyValue) => 80,
            Family::Retrieval(Retrieval::Rank) => 5,
            Family::Natural(_) => 64,
        }
    }

    /// The benchmark's name for it.
    pub fn name(self) -> &'static str {
        TASK_TABLE[self as usize].1
    }

    /// Whether its facts hide in prose, which the caller may give.
    pub fn needs_prose(self) -> bool {
        match self.family() {
            Family::Needle(needles) => needles.hay == Hay::Prose,
            Family::Babi(_) => true,
            Family::Natural(natural) => natural != Natural::Code,
            Family::Variable | Family::Common | Family::Frequency | Family::Retrieval(_) => false,
        }
    }

    fn family(self) -> Family {
        TASK_TABLE[self as usize].2
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Task {
    type Err = EvalError;

    fn from_str(name: &str) -> Result<Self, EvalError> {
        let names: Vec<&'static str> = Self::all().map(|task| task.name()).collect();
        let found = Self::all().find(|task| task.name() == name);
        found.ok_or_else(|| EvalError::unknown_task(name, &names))
    }
}

/// What a record is made from, besides its task.
#[derive(Clone, Copy, Debug)]
pub struct Recipe<'a> {
    /// Most tokens of the record.
    pub tokens: usize,
    /// Absent: `tokens` bounds the context alone. Else: the context, the query and so many tokens more.
    pub reserve: Option<usize>,
    /// The same seed makes the same record.
    pub seed: u64,
    /// The prose to hide facts in; without one it is generated, and the record says so.
    pub text: Option<&'a str>,
}

/// Whether a question has the words of a task's: what models trained on the tasks understand.
pub fn is_task_question(query: &str) -> bool {
    let query = query.trim();
    query.contains("special magic") || query.starts_with("Question:") && query.contains("Answer:")
}

/// A record of `task` whose context holds at most `tokens` by `count`, and as near to that as a whole line or sentence
/// allows. The query and the answer come on top. `text` is the prose to hide facts in; without one it is generated, and
/// the record says so. The same arguments make the same record.
///
/// # Errors
/// [`EvalError::TooFewTokens`] when the facts alone are longer; [`EvalError::EmptyHaystack`] for a text without sentences.
pub fn generate(
    task: Task,
    tokens: usize,
    seed: u64,
    count: &dyn Fn(&str) -> usize,
    text: Option<&str>,
) -> Result<EvalRecord, EvalError> {
    make(task, &Recipe { tokens, reserve: None, seed, text }, count)
}

/// [`generate`] by a recipe.
///
/// # Errors
/// As [`generate`].
pub fn make(task: Task, recipe: &Recipe<'_>, count: &dyn Fn(&str) -> usize) -> Result<EvalRecord, EvalError> {
    let mut rng = StdRng::seed_from_u64(recipe.seed ^ stream(task.name()));
    let draft = match task.family() {
        Family::Needle(needles) => needles.draft(&mut rng, recipe.text, None)?,
        Family::Babi(story) => story.draft(&mut rng, recipe.text)?,
        Family::Variable => variable::draft(&mut rng),
        Family::Common => common::draft(&mut rng, recipe.tokens),
        Family::Frequency => frequency::draft(&mut rng, recipe.tokens),
        Family::Retrieval(retrieval) => retrieval.draft(&mut rng),
        Family::Natural(natural) => natural.draft(&mut rng, recipe.text, recipe.tokens)?,
    };
    let record = sized(task.name(), draft, recipe, count)?;
    Ok(EvalRecord { haystack: task.needs_prose().then_some(recipe.source()), ..record })
}

/// RULER's needle in prose (`niah_single_2`) at `depth`, from 0 (first) to 1 (last).
///
/// # Errors
/// As [`generate`].
pub fn make_at_depth(depth: f64, recipe: &Recipe<'_>, count: &dyn Fn(&str) -> usize) -> Result<EvalRecord, EvalError> {
    let mut rng = StdRng::seed_from_u64(recipe.seed ^ stream("niah") ^ depth.to_bits());
    let Family::Needle(needles) = Task::NiahSingle2.family() else { unreachable!("niah_single_2 is a needle") };
    let draft = needles.draft(&mut rng, recipe.text, Some(depth))?;
    let record = sized("niah", draft, recipe, count)?;
    Ok(EvalRecord { haystack: Some(recipe.source()), ..record })
}

/// The largest record of a draft that the recipe allows.
pub(crate) fn sized(
    task: &str,
    mut draft: Draft,
    recipe: &Recipe<'_>,
    count: &dyn Fn(&str) -> usize,
) -> Result<EvalRecord, EvalError> {
    let beside = recipe.reserve.map_or(0, |reserve| reserve + count(&draft.query));
    let units = fit(recipe.tokens.saturating_sub(beside), |units| count(&(draft.context)(units)));
    let units = units.map_err(|least| EvalError::TooFewTokens {
        task: task.to_owned(),
        least: least + beside,
        tokens: recipe.tokens,
    })?;
    let input_context = (draft.context)(units);
    Ok(EvalRecord {
        task: task.to_owned(),
        context_tokens: count(&input_context),
        input_context,
        input_query: draft.query,
        query_separator: Some(QuerySeparator::NONE),
        chat_template: true,
        answer: (draft.answer)(units),
        haystack: None,
    })
}

impl Recipe<'_> {
    fn source(&self) -> HaystackSource {
        if self.text.is_some() { HaystackSource::File } else { HaystackSource::Generated }
    }
}

/// Tells tasks of one seed apart (FNV-1a).
pub(crate) fn stream(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_is_listed_at_its_place() {
        assert!(TASK_TABLE.iter().enumerate().all(|(at, (task, ..))| *task as usize == at));
        assert_eq!(TASK_TABLE.len(), Task::Code as usize + 1);
    }
}
