//! Prose that means nothing: sentences from a small grammar, to hide facts in when no text is at hand.
//!
//! No person, room or object of the bAbI world occurs in it, so it can neither answer nor confuse a question.

use rand::{Rng, seq::IndexedRandom};

/// Adjectives of the prose and of the needles' keys.
pub(crate) const ADJECTIVES: &[&str] = &[
    "ancient", "amber", "bitter", "bold", "brass", "brittle", "broad", "calm", "careful", "clever", "coarse",
    "crooked", "curious", "damp", "deep", "distant", "dusty", "eager", "early", "faded", "faint", "famous", "fierce",
    "foreign", "frozen", "gentle", "golden", "grave", "hollow", "honest", "humble", "idle", "iron", "jagged", "lonely",
    "loud", "mild", "modest", "narrow", "noble", "northern", "odd", "painted", "pale", "patient", "plain", "polished",
    "proud", "quiet", "rare", "restless", "rough", "rusty", "sandy", "secret", "sharp", "silent", "silver", "slender",
    "slow", "solemn", "splendid", "steady", "steep", "stubborn", "sudden", "sunny", "tall", "tender", "tired", "vast",
    "velvet", "weary", "wide", "wild", "winding", "wise", "wooden", "worn",
];

/// Nouns of the prose and of the needles' keys.
pub(crate) const NOUNS: &[&str] = &[
    "anchor", "anvil", "arrow", "banner", "barrel", "basket", "beacon", "bell", "blanket", "boat", "bottle", "branch",
    "bridge", "bucket", "candle", "canvas", "carpet", "cart", "castle", "cellar", "chain", "chapel", "chest",
    "chimney", "clock", "cloud", "coat", "compass", "copper", "cottage", "curtain", "desert", "drum", "engine",
    "feather", "fence", "ferry", "flute", "forest", "fountain", "gate", "glacier", "glove", "hammer", "harbour",
    "harvest", "hedge", "helmet", "horn", "inkwell", "island", "journal", "kettle", "ladder", "lantern", "ledger",
    "letter", "locket", "loom", "map", "marble", "meadow", "mill", "mirror", "mountain", "needle", "notebook", "oar",
    "orchard", "organ", "parcel", "pebble", "pillar", "plough", "quarry", "quilt", "rafter", "ribbon", "ring", "river",
    "rope", "saddle", "sail", "scarf", "shelter", "shovel", "signal", "spindle", "statue", "stove", "stream", "sword",
    "thimble", "tower", "trumpet", "tunnel", "valley", "vessel", "violin", "wagon", "wheel", "whistle", "window",
];

const PROSE_PEOPLE: &[&str] = &[
    "baker", "bargeman", "captain", "clerk", "drummer", "ferryman", "grocer", "glazier", "judge", "mason", "merchant",
    "miller", "nurse", "painter", "pilot", "porter", "printer", "sailor", "scribe", "shepherd", "surgeon", "tailor",
    "watchman", "widow",
];

const DEEDS: &[&str] = &[
    "admired", "bought", "buried", "carved", "copied", "counted", "covered", "examined", "followed", "forgot",
    "guarded", "hid", "lifted", "measured", "mended", "missed", "noticed", "painted", "praised", "repaired",
    "sketched", "sold", "studied", "watched", "weighed",
];

const PLACES: &[&str] = &[
    "along the shore",
    "at the edge of the village",
    "behind the stables",
    "below the cliffs",
    "beside the canal",
    "beyond the hills",
    "by the old road",
    "close to the border",
    "from the hilltop",
    "in a corner of the market",
    "in the next valley",
    "near the lighthouse",
    "on the far bank",
    "outside the city walls",
    "over the rooftops",
    "through the fields",
    "under the arches",
    "under the trees",
];

const TIMES: &[&str] = &[
    "After a long silence",
    "All that winter",
    "As the tide turned",
    "At noon",
    "Before the rain came",
    "By the end of the week",
    "Early in the spring",
    "Every evening",
    "In those days",
    "Just after midnight",
    "Late in the autumn",
    "Long ago",
    "Once a year",
    "On the third day",
    "Some hours later",
    "The next morning",
    "Towards sunset",
    "When the wind dropped",
];

const MANNERS: &[&str] = &[
    "almost by accident",
    "as if nothing had happened",
    "for no reason at all",
    "more slowly than before",
    "not without pride",
    "out of habit",
    "to everyone's surprise",
    "with a certain care",
    "with great patience",
    "without a word",
];

const REMARKS: &[&str] = &[
    "I never believed a word of it",
    "It will be colder before long",
    "Nobody keeps such things any more",
    "One ought to begin at the beginning",
    "Perhaps we were all mistaken",
    "That is a question of money",
    "There is still time to turn back",
    "We had better wait and see",
    "You may ask, but I cannot tell you",
    "You would have done the same",
];

/// `a` before an adjective stands for the right article. A name appears in the list that fills it.
const TEMPLATES: &[&str] = &[
    "{time}, the {person} {deed} the {adjective} {noun} {place}.",
    "The {person} {deed} the {noun}, and the {person} {deed} the {noun}, {manner}.",
    "It was {a adjective} {noun}, {adjective} and {adjective}, such as one sees {place}.",
    "Nobody could say why the {person} had kept the {adjective} {noun} so long.",
    "\"{remark},\" said the {person}, and looked at the {noun}.",
    "\"{remark},\" the {person} answered {manner}.",
    "{time}, {a adjective} {noun} stood {place}, and beside it {a adjective} {noun}.",
    "There was {a adjective} {noun} {place} that the {person} {deed} {manner}.",
    "Of all that the {person} owned, only the {noun} and the {adjective} {noun} were worth a journey.",
    "The {noun} was {adjective}, the {noun} was {adjective}, and the {person} {deed} both.",
    "{time}, {place}, somebody {deed} the {noun} of {a adjective} {person}.",
    "What the {person} {deed} {place} was no more than {a adjective} {noun}.",
    "Had the {person} been less {adjective}, the {noun} would have been found {manner}.",
    "{time}, the {person} spoke of {a adjective} {noun}, but the {person} only laughed.",
    "If the {noun} seemed {adjective}, the {noun} seemed more so, and the {person} said nothing.",
    "They {deed} the {noun}, {manner}, and the {adjective} {person} {deed} what was left.",
];

/// One sentence.
pub(crate) fn sentence(rng: &mut impl Rng) -> String {
    let mut rest = pick(rng, TEMPLATES);
    let mut sentence = String::new();
    while let Some((before, after)) = rest.split_once('{') {
        let (slot, after) = after.split_once('}').expect("every brace of a template is closed");
        sentence.push_str(before);
        fill(rng, &mut sentence, slot);
        rest = after;
    }
    sentence + rest
}

fn fill(rng: &mut impl Rng, sentence: &mut String, slot: &str) {
    let word = match slot {
        "adjective" | "a adjective" => pick(rng, ADJECTIVES),
        "noun" => pick(rng, NOUNS),
        "person" => pick(rng, PROSE_PEOPLE),
        "deed" => pick(rng, DEEDS),
        "place" => pick(rng, PLACES),
        "time" => pick(rng, TIMES),
        "manner" => pick(rng, MANNERS),
        "remark" => pick(rng, REMARKS),
        other => panic!("a template asks for {other:?}, which no list fills"),
    };
    if slot.starts_with("a ") {
        sentence.push_str(if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an " } else { "a " });
    }
    sentence.push_str(word);
}

fn pick(rng: &mut impl Rng, list: &[&'static str]) -> &'static str {
    list.choose(rng).expect("no list of the grammar is empty")
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::eval::tasks::babi;

    #[test]
    fn sentences_are_whole_and_varied() {
        let mut rng = StdRng::seed_from_u64(3);
        let sentences: Vec<_> = (0..500).map(|_| sentence(&mut rng)).collect();
        for sentence in &sentences {
            assert!(
                sentence.ends_with('.') && !sentence.contains(['{', '}']) && !sentence.contains("  "),
                "{sentence}"
            );
            assert!(sentence.starts_with(|first: char| first.is_uppercase() || first == '"'), "{sentence}");
        }
        let world = [&babi::ACTORS[..], &babi::ROOMS, &babi::OBJECTS].concat();
        assert!(!sentences.iter().any(|sentence| world.iter().any(|word| sentence.contains(word))));
        let distinct: std::collections::HashSet<_> = sentences.iter().collect();
        assert!(distinct.len() > 495, "{} of 500 differ", distinct.len());
    }
}
