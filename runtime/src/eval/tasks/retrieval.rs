//! InfiniteBench's tasks that need no data set: a pass key, a string of digits, a pair of many, a rank in a list.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{draft::Draft, haystack::Haystack};

/// Places at which a key may stand.
const DEPTHS: u32 = 59;
/// Numbers in the smallest list, so that it has three distinct ones.
const LEAST_NUMBERS: usize = 31;
/// What a list's numbers are asked for.
const RANKS: [(&str, Rank); 7] = [
    ("largest", Rank::Largest(0)),
    ("second largest", Rank::Largest(1)),
    ("third largest", Rank::Largest(2)),
    ("smallest", Rank::Smallest(0)),
    ("second smallest", Rank::Smallest(1)),
    ("third smallest", Rank::Smallest(2)),
    ("median", Rank::Median),
];

/// Which of the tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retrieval {
    Passkey,
    Number,
    KeyValue,
    /// Math.Find.
    Rank,
}

#[derive(Clone, Copy)]
enum Rank {
    Largest(usize),
    Smallest(usize),
    Median,
}

impl Retrieval {
    /// Draws what is asked for and where it stands.
    pub(crate) fn draft(self, rng: &mut StdRng) -> Draft {
        match self {
            Self::Passkey => {
                let key = rng.random_range(10_000..100_000).to_string();
                hidden(rng, "pass key", key)
            }
            Self::Number => {
                let key = doubled(rng);
                hidden(rng, "sequence of digits", key)
            }
            Self::KeyValue => key_value(rng),
            Self::Rank => rank(rng),
        }
    }
}

fn hidden(rng: &mut StdRng, what: &'static str, key: String) -> Draft {
    let depth = f64::from(rng.random_range(0..DEPTHS)) / f64::from(DEPTHS - 1);
    let fact = [(depth, format!("The {what} is {key}. Remember it. {key} is the {what}."))];
    let mut noise = Haystack::noise();
    let context = move |units| {
        format!(
            "There is an important info hidden inside a lot of irrelevant text. Find it. I will quiz you about the \
             important information there.\n{}\n",
            noise.hide(units, &fact)
        )
    };
    Draft {
        query: format!("What is the {what}? The {what} is"),
        answer: Box::new(move |_| key.clone()),
        context: Box::new(context),
    }
}

/// Five digits, then five times one of them doubled in place. The first is no zero.
fn doubled(rng: &mut StdRng) -> String {
    let mut digits: Vec<char> = rng.random_range(10_000..100_000).to_string().chars().collect();
    for _ in 0..5 {
        let at = rng.random_range(0..digits.len());
        digits.insert(at, digits[at]);
    }
    digits.into_iter().collect()
}

fn key_value(rng: &mut StdRng) -> Draft {
    fn uuid(rng: &mut StdRng) -> String {
        uuid::Builder::from_random_bytes(rng.random()).into_uuid().to_string()
    }
    let (key, value, depth) = (uuid(rng), uuid(rng), rng.random());
    let fact = [(depth, format!("\"{key}\": \"{value}\","))];
    let mut rng = rng.clone();
    let mut pairs = Haystack::lines(move || format!("\"{}\": \"{}\",", uuid(&mut rng), uuid(&mut rng)));
    let context = move |units| {
        let pairs = pairs.hide(units, &fact).replace('\n', " ");
        format!(
            "Extract the value corresponding to the specified key in the JSON object below.\n{{{}}}\n",
            pairs.trim_end_matches(',')
        )
    };
    Draft {
        query: format!("Key: \"{key}\"\nThe value associated with the specified key is:"),
        answer: Box::new(move |_| value.clone()),
        context: Box::new(context),
    }
}

fn rank(rng: &mut StdRng) -> Draft {
    let (name, rank) = *RANKS.choose(rng).expect("there are seven ranks");
    // A bound that is drawn keeps the answer from being the same every time.
    let upper = rng.random_range(79..=99);
    let lower = rng.random_range(0..20);
    let bounds = match rank {
        Rank::Largest(_) => 0..=upper,
        Rank::Smallest(_) => lower..=99,
        Rank::Median if rng.random() => 0..=upper,
        Rank::Median => lower..=99,
    };
    let seed: u64 = rng.random();
    // An odd count, so that the median is one of them.
    let numbers = move |units: usize| -> Vec<u32> {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..LEAST_NUMBERS + 2 * units).map(|_| rng.random_range(bounds.clone())).collect()
    };
    let listed = numbers.clone();
    let context = move |units| {
        let list: Vec<String> = listed(units).iter().map(u32::to_string).collect();
        format!("Here is a list of numbers. You will be asked for one of them.\n[{}]\n", list.join(", "))
    };
    Draft {
        query: format!("What is the {name} number of the list? Answer with the number only. The {name} number is"),
        answer: Box::new(move |units| rank.of(numbers(units)).to_string()),
        context: Box::new(context),
    }
}

impl Rank {
    fn of(self, mut numbers: Vec<u32>) -> u32 {
        numbers.sort_unstable();
        if let Self::Median = self {
            return numbers[numbers.len() / 2];
        }
        numbers.dedup();
        match self {
            Self::Largest(rank) => numbers[numbers.len() - 1 - rank],
            Self::Smallest(rank) => numbers[rank],
            Self::Median => unreachable!("returned above"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_count_distinct_numbers() {
        let numbers = vec![5, 9, 9, 7, 1, 1, 3];
        let ranks: Vec<_> = RANKS.iter().map(|(_, rank)| rank.of(numbers.clone())).collect();
        assert_eq!(ranks, [9, 7, 5, 1, 3, 5, 5]);
    }

    #[test]
    fn half_of_the_digits_are_doubles() {
        for seed in 0..200 {
            let digits = doubled(&mut StdRng::seed_from_u64(seed));
            let doubles = digits.as_bytes().windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert!(digits.len() == 10 && doubles >= 5 && !digits.starts_with('0'), "{digits}");
        }
    }

    #[test]
    fn a_pair_stands_in_an_object_that_parses() {
        let mut draft = Retrieval::KeyValue.draft(&mut StdRng::seed_from_u64(4));
        let text = (draft.context)(30);
        let object: serde_json::Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
        let key = draft.query.split('"').nth(1).unwrap();
        assert_eq!(object[key], (draft.answer)(30));
        assert_eq!(object.as_object().unwrap().len(), 31);
    }

    #[test]
    fn a_rank_is_of_the_list_shown() {
        for seed in 0..50 {
            let mut draft = Retrieval::Rank.draft(&mut StdRng::seed_from_u64(seed));
            let text = (draft.context)(100);
            let list: Vec<u32> = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
            let name = draft.query.strip_prefix("What is the ").unwrap().split_once(" number").unwrap().0;
            let rank = RANKS.iter().find(|(named, _)| *named == name).unwrap().1;
            assert_eq!(rank.of(list).to_string(), (draft.answer)(100), "{name}");
        }
    }
}
