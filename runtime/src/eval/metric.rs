//! How the benchmarks score an answer, from 0 to 1. What is asked is the questions' business.

use super::{
    babi::{OBJECTS, PEOPLE, ROOMS},
    task::Task,
};

/// A benchmark's score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// The share of gold strings that the answer holds, whatever the case (RULER's `match_all`).
    All,
    /// Whether it holds any of them (RULER's `match_part`).
    Any,
    /// Whether the labels of its first sentence, less the question's, are the gold one (BABILong).
    Labels(&'static [&'static [&'static str]]),
    /// Whether its first integer is the gold one (InfiniteBench's passkey, number and math_find).
    Integer,
    /// Whether the gold string is a word of it (InfiniteBench's kv).
    Word,
    /// The best F1 of its tokens with those of a gold string (InfiniteBench's qa_eng, normalised as SQuAD does).
    F1,
    /// Whether it chooses the gold letter (InfiniteBench's choice_eng).
    Letter,
}

impl Metric {
    /// The metric of a generated task.
    pub fn of(task: Task) -> Self {
        match task {
            Task::Qa1 | Task::Qa2 | Task::Qa3 | Task::Qa4 => Self::Labels(&[&ROOMS]),
            Task::Qa5 => Self::Labels(&[&PEOPLE, &OBJECTS]),
            Task::Passkey | Task::Number | Task::MathFind => Self::Integer,
            Task::Kv => Self::Word,
            _ => Self::All,
        }
    }

    /// The score of `answer` to `query`.
    pub fn score(self, answer: &str, query: &str, gold: &[String]) -> f64 {
        let one = |right: bool| f64::from(u8::from(right));
        match self {
            Self::All => share(answer, gold),
            Self::Any => one(share(answer, gold) > 0.0),
            Self::Labels(labels) => one(labelled(answer, query, gold, labels)),
            Self::Integer => one(gold.first().is_some_and(|gold| first_integer(answer) == Some(gold))),
            Self::Word => one(gold.iter().any(|gold| words(answer).any(|word| word == gold))),
            Self::F1 => gold.iter().map(|gold| f1(answer, gold)).fold(0.0, f64::max),
            Self::Letter => one(gold.first().is_some_and(|gold| letter(answer) == gold.chars().next())),
        }
    }

    /// Whether the answer holds what it must, whatever stands around it: all gold strings, or any of alternatives.
    pub fn exact(self, answer: &str, gold: &[String]) -> bool {
        match self {
            Self::Any | Self::F1 => share(answer, gold) > 0.0,
            Self::Letter => self.score(answer, "", gold) == 1.0,
            Self::All | Self::Labels(_) | Self::Integer | Self::Word => share(answer, gold) == 1.0,
        }
    }
}

fn share(answer: &str, gold: &[String]) -> f64 {
    let answer = answer.to_lowercase();
    let found = gold.iter().filter(|gold| answer.contains(&gold.to_lowercase())).count();
    found as f64 / gold.len().max(1) as f64
}

fn labelled(answer: &str, query: &str, gold: &[String], labels: &[&[&str]]) -> bool {
    let (answer, query) = (answer.to_lowercase(), query.to_lowercase());
    let end = [".", "<context>", "<example>"].iter().filter_map(|cut| answer.find(cut)).min().unwrap_or(answer.len());
    let mut said = labels.iter().copied().flatten().map(|label| label.to_lowercase());
    let gold: Vec<String> = gold.iter().map(|gold| gold.to_lowercase()).collect();
    let mut found = Vec::new();
    said.by_ref().filter(|label| answer[..end].contains(label) && !query.contains(label)).for_each(|l| found.push(l));
    found == gold
}

fn first_integer(answer: &str) -> Option<&str> {
    answer.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty())
}

/// InfiniteBench splits at these and at white space.
fn words(answer: &str) -> impl Iterator<Item = &str> {
    answer.split(|c: char| c.is_whitespace() || ":\"'.,?!{}".contains(c)).filter(|word| !word.is_empty())
}

/// Lower case, no punctuation, no articles.
fn normalised(text: &str) -> Vec<String> {
    let plain: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    plain.split_whitespace().filter(|word| !["a", "an", "the"].contains(word)).map(str::to_owned).collect()
}

fn f1(answer: &str, gold: &str) -> f64 {
    let (answer, gold) = (normalised(answer), normalised(gold));
    let mut rest = gold.clone();
    let common =
        answer.iter().filter(|word| rest.iter().position(|other| other == *word).map(|at| rest.remove(at)).is_some());
    let common = common.count() as f64;
    if common == 0.0 { 0.0 } else { 2.0 * common / (answer.len() + gold.len()) as f64 }
}

/// The first character, else what follows "answer is", else the first letter that stands alone.
fn letter(answer: &str) -> Option<char> {
    let choice = |text: &str| text.chars().next().filter(|c| ('A'..='D').contains(c));
    let answer = answer.trim();
    if let Some(first) = choice(answer) {
        return Some(first);
    }
    let prefixes = ["answer is:", "answer:", "answer is", "option is"];
    let stated = prefixes.iter().find_map(|prefix| choice(answer.split_once(prefix)?.1.trim_start()));
    let alone = || answer.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() == 1).find_map(choice);
    stated.or_else(alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(metric: Metric, answer: &str, query: &str, gold: &[&str]) -> f64 {
        metric.score(answer, query, &gold.iter().map(|gold| (*gold).to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn ruler() {
        assert_eq!(score(Metric::All, "abcde, and 7", "", &["ABCDE", "7", "8", "9"]), 0.5);
        assert_eq!(score(Metric::Any, "in paris.", "", &["Paris", "Lutetia"]), 1.0);
        assert_eq!(score(Metric::Any, "in Rome.", "", &["Paris", "Lutetia"]), 0.0);
        assert!(
            Metric::All.exact("7 8", &["7".into(), "8".into()]) && !Metric::All.exact("7", &["7".into(), "8".into()])
        );
    }

    #[test]
    fn babilong_takes_labels_of_the_first_sentence() {
        let place = Metric::of(Task::Qa3);
        let query = "Where was the apple before the garden?";
        assert_eq!(score(place, " The Kitchen. Or the office.", query, &["kitchen"]), 1.0);
        assert_eq!(score(place, "Before the garden it was in the kitchen", query, &["kitchen"]), 1.0);
        assert_eq!(score(place, "The kitchen or the office.", query, &["kitchen"]), 0.0);
        assert_eq!(score(place, "Hm. The kitchen.", query, &["kitchen"]), 0.0);
        assert_eq!(score(Metric::of(Task::Qa5), "Fred gave it to Bill", "What did Fred give?", &["apple"]), 0.0);
    }

    #[test]
    fn infinitebench() {
        assert_eq!(score(Metric::Integer, "The pass key is 71432.", "", &["71432"]), 1.0);
        assert_eq!(score(Metric::Integer, "1, then 71432", "", &["71432"]), 0.0);
        assert_eq!(score(Metric::Word, "{\"ab-cd\"}", "", &["ab-cd"]), 1.0);
        assert_eq!(score(Metric::Word, "xab-cd", "", &["ab-cd"]), 0.0);
        // Two of three tokens said, two of two meant: precision 2/3, recall 1.
        assert!((score(Metric::F1, "The old green house", "", &["a green house!", "x"]) - 0.8).abs() < 1e-12);
        assert_eq!(score(Metric::F1, "no", "", &["yes"]), 0.0);
        for (answer, chosen) in [("B. Rome", 'B'), ("the answer is: C", 'C'), ("I think D fits", 'D')] {
            assert_eq!(letter(answer), Some(chosen), "{answer}");
        }
        assert_eq!(letter("Rome"), None);
    }
}
