//! Questions in natural language about prose, for instruction-tuned models: facts that share words with their question and facts
//! that share none, two facts that belong together, a sentence behind a quoted one, the order of events, a function in a module.

use rand::{
    Rng,
    rngs::StdRng,
    seq::{IndexedRandom, SliceRandom},
};

use super::{
    draft::Draft,
    haystack::{Haystack, depths},
};
use crate::eval::EvalError;

const PEOPLE: [&str; 12] = [
    "Marit Solheim",
    "Tobias Krall",
    "Ifeoma Adeyemi",
    "Rafael Montoya",
    "Yuki Tanabe",
    "Clara Whitfield",
    "Anders Holm",
    "Leila Haddad",
    "Bruno Castellan",
    "Sigrid Aaltonen",
    "Samuel Oyelaran",
    "Petra Novak",
];
const CITIES: [&str; 12] = [
    "Porto",
    "Bergen",
    "Cusco",
    "Accra",
    "Kyoto",
    "Hobart",
    "Parma",
    "Bogota",
    "Amman",
    "Vilnius",
    "Linz",
    "Reykjavik",
];
const COLOURS: [&str; 8] = ["scarlet", "olive", "amber", "indigo", "silver", "maroon", "teal", "beige"];

/// A fact with `{}` for its answer, a question that shares no content word with it, and answers.
const PARAPHRASES: [(&str, &str, [&str; 4]); 6] = [
    (
        "The cobbler at the north gate feeds a tame {} every morning.",
        "Which animal does the man who repairs shoes look after?",
        ["badger", "heron", "ferret", "raven"],
    ),
    (
        "Whenever it rains, the notary's widow bakes {} for her neighbours.",
        "What does the woman whose late husband certified documents prepare in wet weather?",
        ["gingerbread", "rye rolls", "almond tarts", "plum dumplings"],
    ),
    (
        "The captain of the ferry collects {} from every country.",
        "What does the person in charge of the boat across the river gather as a hobby?",
        ["thimbles", "banknotes", "matchboxes", "chess sets"],
    ),
    (
        "Behind the chapel, the organist's twin planted a row of {}.",
        "Which trees did the sibling of the church musician set in the ground?",
        ["walnuts", "lindens", "quinces", "mulberries"],
    ),
    (
        "The watchmaker broke his ankle during a holiday in {}.",
        "Where was the craftsman who mends clocks injured?",
        ["Galway", "Nimes", "Riga", "Toledo"],
    ),
    (
        "No one in the valley but the miller's aunt speaks {}.",
        "Which language is known only to a relative of the man who grinds grain?",
        ["Basque", "Frisian", "Ladin", "Breton"],
    ),
];

/// Two facts, linked by a person, and a question that shares no content word with either.
const LINKED_FACTS: [(&str, &str, &str, [&str; 4]); 2] = [
    (
        "The portrait that vanished from the town hall was painted by {person}.",
        "{person} was born in {answer}, on a farm.",
        "What is the birthplace of the artist whose picture was taken from the municipal building?",
        ["Galway", "Nimes", "Riga", "Toledo"],
    ),
    (
        "The surgeon of the island hospital is engaged to {person}.",
        "For a living, {person} restores {answer}.",
        "What kind of thing does the future spouse of the doctor repair?",
        ["globes", "carriages", "harps", "mosaics"],
    ),
];

/// Which of the questions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Natural {
    /// Fact and question share words.
    Lexical,
    /// They share none.
    Paraphrase,
    /// Two facts of four, linked by a name.
    TwoHops,
    /// Two facts, paraphrased.
    TwoParaphrases,
    /// Three values of one key.
    Three,
    /// The sentence behind a quoted one.
    Next,
    /// Which of two events is told first.
    First,
    /// A number in one of many functions.
    Code,
}

const INTRODUCTION: &str = "Here is a long text. Read it carefully; a question about it follows.\n\n";
const BRIEFLY: &str = "Answer with the fact only, in a few words.";

fn question(asked: &str, how: &str) -> String {
    format!("Question about the text above: {asked} {how}")
}

impl Natural {
    /// Draws what is hidden and asked for.
    pub(crate) fn draft(self, rng: &mut StdRng, text: Option<&str>, tokens: usize) -> Result<Draft, EvalError> {
        match self {
            Self::Next => return next_sentence(rng, text, tokens),
            Self::Code => return Ok(code(rng, tokens)),
            _ => {}
        }
        let (mut facts, query, answer) = self.facts(rng);
        if !matches!(self, Self::First) {
            facts.shuffle(rng);
        }
        let at = match self {
            // Told far apart, so that one block has not both.
            Self::First => vec![rng.random_range(0.05..0.4), rng.random_range(0.6..0.95)],
            _ => depths(rng, facts.len()),
        };
        let facts: Vec<(f64, String)> = at.into_iter().zip(facts).collect();
        let mut prose = Haystack::prose(rng, text)?;
        let context = move |units| format!("{INTRODUCTION}{}\n\n", prose.hide(units, &facts));
        Ok(Draft { query, answer: Box::new(move |_| answer.clone()), context: Box::new(context) })
    }

    /// Facts, the question and its answer.
    fn facts(self, rng: &mut StdRng) -> (Vec<String>, String, String) {
        let pick = |rng: &mut StdRng, of: &[&'static str]| *of.choose(rng).expect("there are some");
        match self {
            Self::Lexical => {
                let (city, code) = (pick(rng, &CITIES), rng.random_range(100_000..1_000_000).to_string());
                let fact = format!("The secret code for the {city} vault is {code}.");
                (vec![fact], question(&format!("What is the secret code for the {city} vault?"), BRIEFLY), code)
            }
            Self::Paraphrase => {
                let (fact, asked, answers) = PARAPHRASES.choose(rng).expect("there are some");
                let answer = pick(rng, answers);
                (vec![fact.replace("{}", answer)], question(asked, BRIEFLY), answer.to_owned())
            }
            Self::TwoHops => {
                let [people, cities, colours] = [some(rng, &PEOPLE), some(rng, &CITIES), some(rng, &COLOURS)];
                let office = |at: usize| format!("The {} office is led by {}.", cities[at], people[at]);
                let car = |at: usize| format!("{} drives a car that is {}.", people[at], colours[at]);
                let asked = format!("What colour is the car of the person who leads the {} office?", cities[0]);
                (vec![office(0), car(0), office(1), car(1)], question(&asked, BRIEFLY), colours[0].to_owned())
            }
            Self::TwoParaphrases => {
                let (first, second, asked, answers) = LINKED_FACTS.choose(rng).expect("there are some");
                let (person, answer) = (pick(rng, &PEOPLE), pick(rng, answers));
                let fact = |fact: &str| fact.replace("{person}", person).replace("{answer}", answer);
                (vec![fact(first), fact(second)], question(asked, BRIEFLY), answer.to_owned())
            }
            Self::Three => {
                let city = pick(rng, &CITIES);
                let numbers: Vec<String> = (0..3).map(|_| rng.random_range(1000..10_000).to_string()).collect();
                let fact = |number: &String| format!("One of the locker numbers at {city} station is {number}.");
                let asked = format!("Which three locker numbers at {city} station does the text give?");
                let query = question(&asked, "Answer with the three numbers.");
                (numbers.iter().map(fact).collect(), query, numbers.join(", "))
            }
            Self::First | Self::Next | Self::Code => {
                let people = some(rng, &PEOPLE);
                let fact = |person: &&str| format!("That same evening {person} arrived by train.");
                // Named in either order.
                let (one, other) = if rng.random() { (people[0], people[1]) } else { (people[1], people[0]) };
                let asked = format!("Who arrived by train earlier in the text, {one} or {other}?");
                let query = question(&asked, "Answer with the name only.");
                (people.iter().map(fact).collect(), query, people[0].to_owned())
            }
        }
    }
}

/// Two of them.
fn some(rng: &mut StdRng, of: &[&'static str]) -> [&'static str; 2] {
    let mut two = of.choose_multiple(rng, 2).copied();
    [two.next().expect("there are two"), two.next().expect("there are two")]
}

/// A place among what so many tokens hold of units of `size` tokens, with room behind it.
fn place(rng: &mut StdRng, tokens: usize, size: usize) -> usize {
    rng.random_range(0..(tokens / size).max(2))
}

fn next_sentence(rng: &mut StdRng, text: Option<&str>, tokens: usize) -> Result<Draft, EvalError> {
    const LEAST_WORDS: usize = 6;
    const MOST_WORDS: usize = 30;
    /// Sentences that are looked at for a pair that can be asked for.
    const TRIED: usize = 500;
    let first = place(rng, tokens, 50);
    let mut prose = Haystack::prose(rng, text)?;
    let suits = |sentence: &str| {
        (LEAST_WORDS..=MOST_WORDS).contains(&sentence.split(' ').count()) && !sentence.contains(['"', '“', '”'])
    };
    let found = (first..first + TRIED).find(|at| suits(prose.unit(*at)) && suits(prose.unit(at + 1))).unwrap_or(first);
    let (quoted, next) = (prose.unit(found).to_owned(), prose.unit(found + 1).to_owned());
    let query = question(
        &format!("Which sentence comes directly after this one: \"{quoted}\""),
        "Quote the next sentence word for word.",
    );
    // Its first words, up to what would part them in two.
    let words: Vec<&str> = next.split(' ').take(5).collect();
    let answer = words.join(" ").split(", ").next().unwrap_or_default().to_owned();
    let context = move |units: usize| format!("{INTRODUCTION}{}\n\n", prose.hide(units.max(found + 2), &[]));
    Ok(Draft { query, answer: Box::new(move |_| answer.clone()), context: Box::new(context) })
}

fn code(rng: &mut StdRng, tokens: usize) -> Draft {
    const VERBS: [&str; 8] = ["load", "merge", "scan", "fold", "rank", "trim", "split", "probe"];
    const THINGS: [&str; 8] = ["ledger", "harbour", "meadow", "signal", "quartz", "ribbon", "canyon", "copper"];
    let function = |name: &str, [moved, scaled]: [u32; 2]| {
        format!(
            "def {name}(x):\n    \"\"\"Return x scaled by {scaled} and moved by {moved}.\"\"\"\n    step = {scaled}\n    \
             return x * step + {moved}\n\n"
        )
    };
    let asked = place(rng, tokens, 80);
    let mut drawn = rng.clone();
    let mut made: Vec<(String, [u32; 2])> = Vec::new();
    let mut grow = move |made: &mut Vec<(String, [u32; 2])>, count: usize| {
        while made.len() < count {
            let (verb, thing) = (VERBS.choose(&mut drawn), THINGS.choose(&mut drawn));
            // Numbered, so that no name comes twice.
            let name = format!("{}_{}_{}", verb.expect("some"), thing.expect("some"), made.len());
            made.push((name, [drawn.random_range(100..1000), drawn.random_range(2..90)]));
        }
    };
    grow(&mut made, asked + 1);
    let (name, [moved, _]) = made[asked].clone();
    let asked_for = format!("In the module above, which number does the function {name} add in its return statement?");
    let context = move |units: usize| {
        let count = units.max(asked + 1);
        grow(&mut made, count);
        let module: String = made[..count].iter().map(|(name, numbers)| function(name, *numbers)).collect();
        format!("{INTRODUCTION}import math\n\n{module}\n\n")
    };
    Draft {
        query: question(&asked_for, "Answer with the number only."),
        answer: Box::new(move |_| moved.to_string()),
        context: Box::new(context),
    }
}
