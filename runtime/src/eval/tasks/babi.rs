//! Small stories of people, rooms and objects, and one question about each (bAbI's tasks 1 to 5), simulated.
//!
//! A story is told in facts and hidden in prose, as in BABILong. Carried objects go where their carrier goes.

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

/// Who acts.
pub(crate) const ACTORS: [&str; 8] = ["Mary", "John", "Daniel", "Sandra", "Bill", "Fred", "Jeff", "Julie"];
/// Where.
pub(crate) const ROOMS: [&str; 9] =
    ["bathroom", "bedroom", "garden", "hallway", "kitchen", "office", "school", "cinema", "park"];
/// With what.
pub(crate) const OBJECTS: [&str; 3] = ["apple", "football", "milk"];
const DIRECTIONS: [&str; 4] = ["north", "south", "east", "west"];
const GO: [&str; 4] = ["moved to", "went to", "journeyed to", "travelled to"];
const TAKE: [&str; 4] = ["grabbed", "got", "took", "picked up"];
const GIVE: [&str; 3] = ["gave", "handed", "passed"];

/// Which of bAbI's tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Story {
    /// qa1: where a person is.
    Person,
    /// qa2: where a carried object is.
    Object,
    /// qa3: where a carried object was before a room.
    Before,
    /// qa4: what lies in a direction of a room, or what a room lies in that direction of.
    Direction,
    /// qa5: who received what, or what was given.
    Gift,
}

struct CallPiece {
    facts: Vec<String>,
    question: String,
    answer: &'static str,
}

impl Story {
    /// Tells a story; its facts stay in order, at random places of the prose.
    pub(crate) fn draft(self, rng: &mut StdRng, text: Option<&str>) -> Result<Draft, EvalError> {
        let reported = match self {
            Self::Person => person(rng),
            Self::Object => object(rng),
            Self::Before => before(rng),
            Self::Direction => direction(rng),
            Self::Gift => gift(rng),
        };
        let facts: Vec<_> = depths(rng, reported.facts.len()).into_iter().zip(reported.facts).collect();
        let mut prose = Haystack::prose(rng, text)?;
        let context = move |units| {
            format!(
                "I will give you context with the facts about positions of different persons hidden in some random text \
                 and a question. You need to answer the question based only on the information from the facts.\n{}\n",
                prose.hide(units, &facts)
            )
        };
        let query = format!("Question: {} Answer:", reported.question);
        Ok(Draft { query, answer: Box::new(move |_| reported.answer.to_owned()), context: Box::new(context) })
    }
}

fn person(rng: &mut StdRng) -> CallPiece {
    let cast = some(rng, &ACTORS, 2..=4);
    let mut places: Vec<Option<&str>> = vec![None; cast.len()];
    let mut facts = Vec::new();
    for _ in 0..rng.random_range(2..=8) {
        let who = rng.random_range(0..cast.len());
        places[who] = Some(go(rng, &mut facts, cast[who], places[who]));
    }
    let seen: Vec<_> = cast.iter().zip(places).filter_map(|(who, place)| Some((who, place?))).collect();
    let (who, answer) = one(rng, &seen);
    CallPiece { facts, question: format!("Where is {who}?"), answer }
}

fn object(rng: &mut StdRng) -> CallPiece {
    let steps = rng.random_range(1..=3);
    let (facts, object, path) = carried(rng, steps);
    CallPiece { facts, question: format!("Where is the {object}?"), answer: path[path.len() - 1] }
}

fn before(rng: &mut StdRng) -> CallPiece {
    let steps = rng.random_range(1..=4);
    let (facts, object, path) = carried(rng, steps);
    let [.., answer, last] = path[..] else { unreachable!("the carrier made a step") };
    CallPiece { facts, question: format!("Where was the {object} before the {last}?"), answer }
}

/// Somebody takes an object and carries it through `steps` rooms while others come and go. The facts, the object and
/// its path.
fn carried(rng: &mut StdRng, steps: usize) -> (Vec<String>, &'static str, Vec<&'static str>) {
    let cast = some(rng, &ACTORS, 2..=3);
    let object = one(rng, &OBJECTS);
    let mut facts = Vec::new();
    let mut path = vec![go(rng, &mut facts, cast[0], None)];
    facts.push(format!("{} {} the {object}.", cast[0], one(rng, &TAKE)));
    // Who moves next: the carrier `steps` times, each of the others at most once.
    let mut movers = vec![cast[0]; steps];
    movers.extend(cast[1..].iter().filter(|_| rng.random_bool(0.8)));
    movers.shuffle(rng);
    for who in movers {
        let carrier = who == cast[0];
        let room = go(rng, &mut facts, who, path.last().copied().filter(|_| carrier));
        if carrier {
            path.push(room);
        }
    }
    (facts, object, path)
}

fn direction(rng: &mut StdRng) -> CallPiece {
    let rooms = some(rng, &ROOMS, 3..=3);
    let to = one(rng, &DIRECTIONS);
    let pairs = [(rooms[0], rooms[1]), (rooms[2], rooms[0])];
    let facts = pairs.map(|(a, b)| format!("The {a} is {to} of the {b}.")).to_vec();
    let (a, b) = one(rng, &pairs);
    match rng.random_bool(0.5) {
        true => CallPiece { facts, question: format!("What is {to} of the {b}?"), answer: a },
        false => CallPiece { facts, question: format!("What is the {a} {to} of?"), answer: b },
    }
}

/// Giver, object, receiver. The last gift is asked for, as in bAbI.
type Gift = (&'static str, &'static str, &'static str);

fn gift(rng: &mut StdRng) -> CallPiece {
    let cast = some(rng, &ACTORS, 3..=5);
    let mut gifts: Vec<Gift> = Vec::new();
    for _ in 0..rng.random_range(1..=4) {
        let object = one(rng, &OBJECTS);
        let holder = gifts.iter().rev().find(|(_, what, _)| *what == object).map(|(_, _, to)| *to);
        let from = holder.unwrap_or_else(|| one(rng, &cast));
        let others: Vec<_> = cast.iter().copied().filter(|who| *who != from).collect();
        gifts.push((from, object, one(rng, &others)));
    }
    let facts =
        gifts.iter().map(|(from, what, to)| format!("{from} {} the {what} to {to}.", one(rng, &GIVE))).collect();
    let (from, object, to) = gifts[gifts.len() - 1];
    match rng.random_bool(0.5) {
        true => CallPiece { facts, question: format!("What did {from} give to {to}?"), answer: object },
        false => CallPiece { facts, question: format!("Who received the {object}?"), answer: to },
    }
}

/// `who` goes to another room than `place`; which.
fn go(rng: &mut StdRng, facts: &mut Vec<String>, who: &str, place: Option<&str>) -> &'static str {
    let others: Vec<_> = ROOMS.into_iter().filter(|room| Some(*room) != place).collect();
    let room = one(rng, &others);
    facts.push(format!("{who} {} the {room}.", one(rng, &GO)));
    room
}

fn one<T: Copy>(rng: &mut StdRng, list: &[T]) -> T {
    *list.choose(rng).expect("stories choose from lists that are not empty")
}

fn some(rng: &mut StdRng, list: &[&'static str], count: std::ops::RangeInclusive<usize>) -> Vec<&'static str> {
    let count = rng.random_range(count);
    let mut chosen: Vec<_> = list.choose_multiple(rng, count).copied().collect();
    chosen.shuffle(rng);
    chosen
}
