//! How the benchmarks score an answer, from 0 to 1. What is asked is the questions' business.

pub(crate) mod overlap;

use std::sync::Arc;

use super::tasks::{
    babi::{ACTORS, OBJECTS, ROOMS},
    task::Task,
};

/// A benchmark's score.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// The share of gold strings that the answer holds, whatever the case (RULER's `match_all`).
    All,
    /// Whether it holds any of them (RULER's `match_part`).
    Any,
    /// Whether the labels of its first sentence, less the question's, are the gold one (BABILong).
    Labels(&'static [&'static [&'static str]]),
    /// Whether its first integer is the gold one (InfiniteBench's passkey, number and math_find).
    Integer,
    /// Whether its last word is the gold integer (InfiniteBench's code_run).
    LastInteger,
    /// Whether its first number is the gold one, however it is written (InfiniteBench's math_find of a file).
    Number,
    /// The share of gold integers that it begins with (InfiniteBench's math_calc).
    Numbers,
    /// Whether the gold string is a word of it (InfiniteBench's kv).
    Word,
    /// The same of the first gold string, in capitals (InfiniteBench's longdialogue_qa).
    Speaker,
    /// The best F1 of its tokens with those of a gold string (LongBench's and InfiniteBench's qa, normalised as SQuAD does).
    F1,
    /// The same of characters, for Chinese.
    F1OfCharacters,
    /// The best ROUGE-L with a gold string (LongBench's summaries).
    Rouge,
    /// The same of characters, for Chinese.
    RougeOfCharacters,
    /// The share of its numbers that are the gold string's (LongBench's passage_count and passage_retrieval).
    Count,
    /// Whether the gold string is among these classes that it names, by how many it names (LongBench's trec and lsht).
    Classes(Arc<[String]>),
    /// Likeness of its first line of code to the gold one (LongBench's lcc and repobench-p).
    Code,
    /// Whether it chooses the gold letter (InfiniteBench's choice_eng).
    Letter,
    /// Another metric, of its first line (LongBench's tasks by example).
    FirstLine(Box<Metric>),
}

impl Metric {
    /// The metric of a generated task.
    pub fn of(task: Task) -> Self {
        match task {
            Task::Qa1 | Task::Qa2 | Task::Qa3 | Task::Qa4 => Self::Labels(&[&ROOMS]),
            Task::Qa5 => Self::Labels(&[&ACTORS, &OBJECTS]),
            Task::Passkey | Task::Number | Task::MathFind => Self::Integer,
            Task::Kv => Self::Word,
            _ => Self::All,
        }
    }

    /// The score of `answer` to `query`.
    pub fn score(&self, answer: &str, query: &str, gold: &[String]) -> f64 {
        let one = |right: bool| f64::from(u8::from(right));
        let first = gold.first().map(String::as_str).unwrap_or_default();
        let best = |score: &dyn Fn(&str) -> f64| gold.iter().map(|gold| score(gold)).fold(0.0, f64::max);
        match self {
            Self::All => share(answer, gold),
            Self::Any => one(share(answer, gold) > 0.0),
            Self::Labels(labels) => one(labelled(answer, query, gold, labels)),
            Self::Integer => one(first_integer(answer) == Some(first)),
            Self::LastInteger => one(last_integer(answer).is_some_and(|stated| first.parse() == Ok(stated))),
            Self::Number => one(first_number(answer).is_some_and(|stated| first.parse() == Ok(stated))),
            Self::Numbers => numbers(answer, gold),
            Self::Word => one(gold.iter().any(|gold| words(answer).any(|word| word == gold))),
            Self::Speaker => one(words(answer).any(|word| word.to_uppercase() == first)),
            Self::F1 => best(&|gold| overlap::f1(&overlap::words(answer), &overlap::words(gold))),
            Self::F1OfCharacters => best(&|gold| overlap::f1(&overlap::characters(answer), &overlap::characters(gold))),
            Self::Rouge => best(&|gold| overlap::rouge(answer, gold)),
            Self::RougeOfCharacters => best(&|gold| overlap::rouge(&spaced(answer), &spaced(gold))),
            Self::Count => best(&|gold| counted(answer, gold)),
            Self::Classes(classes) => best(&|gold| classified(answer, gold, classes)),
            Self::Code => best(&|gold| overlap::code(answer, gold)),
            Self::Letter => one(gold.first().is_some_and(|gold| letter(answer) == gold.chars().next())),
            Self::FirstLine(metric) => metric.score(first_line(answer), query, gold),
        }
    }

    /// Whether the answer holds what it must, whatever stands around it: all gold strings, or any of alternatives.
    pub fn exact(&self, answer: &str, gold: &[String]) -> bool {
        match self {
            Self::All | Self::Labels(_) | Self::Integer | Self::Word => share(answer, gold) == 1.0,
            Self::Any | Self::F1 | Self::F1OfCharacters | Self::Rouge | Self::RougeOfCharacters | Self::Code => {
                share(answer, gold) > 0.0
            }
            Self::LastInteger | Self::Number | Self::Numbers | Self::Speaker | Self::Count | Self::Classes(_) => {
                self.score(answer, "", gold) == 1.0
            }
            Self::Letter => self.score(answer, "", gold) == 1.0,
            Self::FirstLine(metric) => metric.exact(first_line(answer), gold),
        }
    }
}

fn first_line(answer: &str) -> &str {
    answer.trim_start_matches('\n').split('\n').next().unwrap_or_default()
}

fn share(answer: &str, gold: &[String]) -> f64 {
    let answer = answer.to_lowercase();
    let found = gold.iter().filter(|gold| answer.contains(&gold.to_lowercase())).count();
    found as f64 / gold.len().max(1) as f64
}

fn labelled(answer: &str, query: &str, gold: &[String], labels: &[&[&str]]) -> bool {
    let (answer, query) = (answer.to_lowercase(), query.to_lowercase());
    let end = [".", "<context>", "<example>"].iter().filter_map(|cut| answer.find(cut)).min().unwrap_or(answer.len());
    let mut stated = labels.iter().copied().flatten().map(|label| label.to_lowercase());
    let gold: Vec<String> = gold.iter().map(|gold| gold.to_lowercase()).collect();
    let mut found = Vec::new();
    stated.by_ref().filter(|label| answer[..end].contains(label) && !query.contains(label)).for_each(|l| found.push(l));
    found == gold
}

fn first_integer(answer: &str) -> Option<&str> {
    integers(answer).next()
}

/// InfiniteBench splits at these and at white space.
fn words(answer: &str) -> impl Iterator<Item = &str> {
    answer.split(|c: char| c.is_whitespace() || ":\"'.,?!{}".contains(c)).filter(|word| !word.is_empty())
}

fn last_integer(answer: &str) -> Option<i64> {
    answer.split(|c: char| c.is_whitespace() || ".`'\":".contains(c)).rfind(|word| !word.is_empty())?.parse().ok()
}

/// Digits, and digits behind a point.
fn first_number(answer: &str) -> Option<f64> {
    let from = &answer[answer.find(|c: char| c.is_ascii_digit())?..];
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let whole = digits(from);
    let behind = from[whole..].strip_prefix('.').map_or(0, digits);
    from[..whole + if behind == 0 { 0 } else { 1 + behind }].parse().ok()
}

fn integers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty())
}

fn numbers(answer: &str, gold: &[String]) -> f64 {
    let right = integers(answer).zip(gold).take_while(|(stated, gold)| stated == gold).count();
    right as f64 / gold.len().max(1) as f64
}

fn counted(answer: &str, gold: &str) -> f64 {
    let wanted = integers(gold).next().unwrap_or(gold);
    let right = integers(answer).filter(|stated| *stated == wanted).count();
    right as f64 / integers(answer).count().max(1) as f64
}

/// A class that is part of the gold one's name is not counted beside it.
fn classified(answer: &str, gold: &str, classes: &[String]) -> f64 {
    let named = classes.iter().filter(|class| answer.contains(class.as_str()));
    let named: Vec<&String> = named.filter(|class| *class == gold || !gold.contains(class.as_str())).collect();
    if named.iter().any(|class| *class == gold) { 1.0 / named.len() as f64 } else { 0.0 }
}

/// Each character a word.
fn spaced(text: &str) -> String {
    text.chars().flat_map(|c| [c, ' ']).collect()
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
        let place = || Metric::of(Task::Qa3);
        let query = "Where was the apple before the garden?";
        assert_eq!(score(place(), " The Kitchen. Or the office.", query, &["kitchen"]), 1.0);
        assert_eq!(score(place(), "Before the garden it was in the kitchen", query, &["kitchen"]), 1.0);
        assert_eq!(score(place(), "The kitchen or the office.", query, &["kitchen"]), 0.0);
        assert_eq!(score(place(), "Hm. The kitchen.", query, &["kitchen"]), 0.0);
        assert_eq!(score(Metric::of(Task::Qa5), "Fred gave it to Bill", "What did Fred give?", &["apple"]), 0.0);
    }

    #[test]
    fn longbench() {
        let classes = || Metric::Classes(["Food", "Animal", "Food plant"].map(str::to_owned).into());
        assert_eq!(score(classes(), "Food plant", "", &["Food plant"]), 1.0);
        assert_eq!(score(classes(), "Food or Animal", "", &["Food"]), 0.5);
        assert_eq!(score(classes(), "Animal", "", &["Food"]), 0.0);
        assert_eq!(score(Metric::FirstLine(Box::new(classes())), "\nFood\nType: Animal", "", &["Food"]), 1.0);
        assert_eq!(score(Metric::Count, "Paragraph 7, or 8", "", &["Paragraph 7"]), 0.5);
        assert_eq!(score(Metric::Count, "17", "", &["7"]), 0.0);
        assert_eq!(score(Metric::Count, "none", "", &["7"]), 0.0);
        assert_eq!(score(Metric::Rouge, "the same words", "", &["other", "the same words"]).round(), 1.0);
        assert!(!Metric::Count.exact("7 or 8", &["7".into()]) && Metric::Rouge.exact("it is so", &["so".into()]));
    }

    #[test]
    fn infinitebench_of_files() {
        assert_eq!(score(Metric::LastInteger, "The value is `-12`.", "", &["-12"]), 1.0);
        assert_eq!(score(Metric::LastInteger, "-12 or so", "", &["-12"]), 0.0);
        for (stated, gold, right) in
            [("2.50 is", "2.5", 1.0), ("It is 7.", "7", 1.0), ("7.1", "7", 0.0), ("?", "7", 0.0)]
        {
            assert_eq!(score(Metric::Number, stated, "", &[gold]), right, "{stated}");
        }
        assert_eq!(score(Metric::Numbers, "[1, 4, 9]", "", &["1", "4", "8", "9"]), 0.5);
        assert_eq!(score(Metric::Speaker, "Rick, I think", "", &["RICK", "R"]), 1.0);
        assert_eq!(score(Metric::Speaker, "Ricky", "", &["RICK"]), 0.0);
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
