//! The tasks by name, and records of them at a given size.

use std::{fmt, str::FromStr};

use rand::{SeedableRng, rngs::StdRng};

use super::{
    EvalError, HaystackSource, Record,
    babi::Story,
    fit::fit,
    frequency,
    needle::{Hay, Kind, Needles},
    variable,
};

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
}

/// How a record of a task is drawn.
enum Family {
    Needle(Needles),
    Variable,
    Frequency,
    Babi(Story),
}

/// A record but for its size.
pub(super) struct Draft {
    pub(super) query: String,
    pub(super) answer: String,
    /// The context with so many units of haystack.
    pub(super) context: Box<dyn FnMut(usize) -> String>,
}

impl Task {
    /// Every task, in the order of the benchmarks.
    pub fn all() -> &'static [Self] {
        use Task::*;
        &[
            NiahSingle1,
            NiahSingle2,
            NiahSingle3,
            NiahMultikey1,
            NiahMultikey2,
            NiahMultikey3,
            NiahMultivalue,
            NiahMultiquery,
            Vt,
            Fwe,
            Qa1,
            Qa2,
            Qa3,
            Qa4,
            Qa5,
        ]
    }

    /// The benchmark's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NiahSingle1 => "niah_single_1",
            Self::NiahSingle2 => "niah_single_2",
            Self::NiahSingle3 => "niah_single_3",
            Self::NiahMultikey1 => "niah_multikey_1",
            Self::NiahMultikey2 => "niah_multikey_2",
            Self::NiahMultikey3 => "niah_multikey_3",
            Self::NiahMultivalue => "niah_multivalue",
            Self::NiahMultiquery => "niah_multiquery",
            Self::Vt => "vt",
            Self::Fwe => "fwe",
            Self::Qa1 => "qa1",
            Self::Qa2 => "qa2",
            Self::Qa3 => "qa3",
            Self::Qa4 => "qa4",
            Self::Qa5 => "qa5",
        }
    }

    /// Whether its facts hide in prose, which the caller may give.
    pub fn needs_prose(self) -> bool {
        match self.family() {
            Family::Needle(needles) => needles.hay == Hay::Prose,
            Family::Babi(_) => true,
            Family::Variable | Family::Frequency => false,
        }
    }

    fn family(self) -> Family {
        let one = Needles { hay: Hay::Prose, key: Kind::Words, value: Kind::Number, keys: 1, values: 1, queries: 1 };
        match self {
            Self::NiahSingle1 => Family::Needle(Needles { hay: Hay::Noise, ..one }),
            Self::NiahSingle2 => Family::Needle(one),
            Self::NiahSingle3 => Family::Needle(Needles { value: Kind::Uuid, ..one }),
            Self::NiahMultikey1 => Family::Needle(Needles { keys: 4, ..one }),
            Self::NiahMultikey2 => Family::Needle(Needles { hay: Hay::Needles, ..one }),
            Self::NiahMultikey3 => {
                Family::Needle(Needles { hay: Hay::Needles, key: Kind::Uuid, value: Kind::Uuid, ..one })
            }
            Self::NiahMultivalue => Family::Needle(Needles { values: 4, ..one }),
            Self::NiahMultiquery => Family::Needle(Needles { keys: 4, queries: 4, ..one }),
            Self::Vt => Family::Variable,
            Self::Fwe => Family::Frequency,
            Self::Qa1 => Family::Babi(Story::Person),
            Self::Qa2 => Family::Babi(Story::Object),
            Self::Qa3 => Family::Babi(Story::Before),
            Self::Qa4 => Family::Babi(Story::Direction),
            Self::Qa5 => Family::Babi(Story::Gift),
        }
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
        let names = || Self::all().iter().map(|task| task.name());
        Self::all().iter().copied().find(|task| task.name() == name).ok_or_else(|| EvalError::UnknownTask {
            name: name.to_owned(),
            near: names()
                .filter(|near| strsim::jaro_winkler(near, name) > 0.8)
                .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name))),
            known: names().collect::<Vec<_>>().join(", "),
        })
    }
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
) -> Result<Record, EvalError> {
    let mut rng = StdRng::seed_from_u64(seed ^ stream(task.name()));
    let mut draft = match task.family() {
        Family::Needle(needles) => needles.draft(&mut rng, text)?,
        Family::Babi(story) => story.draft(&mut rng, text)?,
        Family::Variable => variable::draft(&mut rng),
        Family::Frequency => frequency::draft(&mut rng, tokens),
    };
    let units = fit(tokens, |units| count(&(draft.context)(units))).map_err(|least| EvalError::TooFewTokens {
        task: task.name(),
        least,
        tokens,
    })?;
    let input_context = (draft.context)(units);
    let source = if text.is_some() { HaystackSource::File } else { HaystackSource::Generated };
    Ok(Record {
        task: task.name().to_owned(),
        context_tokens: count(&input_context),
        input_context,
        input_query: draft.query,
        answer: draft.answer,
        haystack: task.needs_prose().then_some(source),
    })
}

/// Tells tasks of one seed apart (FNV-1a).
fn stream(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
