//! Records of every task: size, seed, facts at legal places, and answers worked out again from the text alone.

use std::collections::BTreeMap;

use super::*;

/// Words and punctuation-free: near enough to a tokenizer, and fast.
fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

fn made(task: Task, tokens: usize, seed: u64) -> EvalRecord {
    generate(task, tokens, seed, &words, None).unwrap()
}

#[test]
fn the_budget_is_used_and_kept() {
    for task in Task::all() {
        for tokens in [200, 1000, 5000] {
            for seed in 0..4 {
                let record = made(task, tokens, seed);
                assert_eq!(record.context_tokens, words(&record.input_context));
                let used = record.context_tokens;
                // The longest unit is a sentence of some 35 words.
                assert!(used <= tokens && used + 40 > tokens, "{task} at {tokens}, seed {seed}: {used}");
            }
        }
    }
}

#[test]
fn query_and_answer_fit_beside_the_context() {
    for task in Task::all() {
        let recipe = Recipe { tokens: 1000, reserve: Some(100), seed: 2, text: None };
        let record = make(task, &recipe, &words).unwrap();
        let used = record.context_tokens + words(&record.input_query) + 100;
        assert!(used <= 1000 && used + 40 > 1000, "{task}: {used}");
    }
}

#[test]
fn a_needle_stands_at_its_depth() {
    for quarter in 0..=4 {
        let depth = f64::from(quarter) / 4.0;
        let recipe = Recipe { tokens: 2000, reserve: None, seed: 9, text: None };
        let record = make_at_depth(depth, &recipe, &words).unwrap();
        let (before, _) = record.input_context.split_once("One of the special magic").unwrap();
        let share = words(before) as f64 / record.context_tokens as f64;
        assert!((share - depth).abs() < 0.03, "{share}, asked for {depth}");
        assert_eq!(record.input_context.matches(record.gold()[0]).count(), 1);
    }
}

#[test]
fn a_seed_is_a_record() {
    for task in Task::all() {
        assert_eq!(made(task, 500, 7), made(task, 500, 7));
        assert_ne!(made(task, 500, 7), made(task, 500, 8));
    }
    assert_ne!(made(Task::NiahSingle1, 500, 7).answer, made(Task::NiahSingle2, 500, 7).answer);
}

#[test]
fn too_few_tokens_are_refused() {
    for task in Task::all() {
        match generate(task, 12, 0, &words, None).unwrap_err() {
            EvalError::TooFewTokens { least, tokens: 12, .. } => {
                assert!(generate(task, least, 0, &words, None).is_ok(), "{task} says that {least} tokens are enough");
            }
            other => panic!("{task}: {other}"),
        }
    }
}

#[test]
fn names_are_read_back() {
    for task in Task::all() {
        assert_eq!(task.name().parse::<Task>().unwrap(), task);
    }
    let error = "niah_multikye_1".parse::<Task>().unwrap_err().to_string();
    assert!(
        error.starts_with(r#"no task is called "niah_multikye_1" (did you mean "niah_multikey_1"?); known are niah"#),
        "{error}"
    );
}

/// Shape only: the first line, a line or sentence with a fact, the query and the answer.
#[test]
fn records_are_shaped_as_the_benchmarks_are() {
    let shape = |task, facts: &str| {
        let record = made(task, 400, 1);
        let (instruction, body) = record.input_context.split_once('\n').unwrap();
        let at = body.find(facts).unwrap();
        let fact = &body[at..at + body[at..].find(". ").or(body[at..].find(".\n")).unwrap() + 1];
        format!("{instruction}\n... {fact}\n{}\n=> {}", record.input_query, record.answer)
    };
    insta::assert_snapshot!(shape(Task::NiahSingle2, "One of the special"), @"
    Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about the numbers afterwards.
    ... One of the special magic numbers for sandy-fence is: 6717669.
    What is the special magic number for sandy-fence mentioned in the provided text? The special magic number for sandy-fence mentioned in the provided text is
    => 6717669
    ");
    insta::assert_snapshot!(shape(Task::NiahMultikey3, "One of the special"), @"
    Some special magic uuids are hidden within the following text. Make sure to memorize it. I will quiz you about the uuids afterwards.
    ... One of the special magic uuids for f502aab9-f197-4c1b-bf64-537a50df0d43 is: 2b9f6012-953f-4d4c-97c8-fe649b36a6a1.
    What is the special magic uuid for e1dbd7c1-661d-4b50-a7cc-5eb3d357be7f mentioned in the provided text? The special magic uuid for e1dbd7c1-661d-4b50-a7cc-5eb3d357be7f mentioned in the provided text is
    => fad411d5-1c8f-4a48-baab-0b1fc7067f52
    ");
    insta::assert_snapshot!(shape(Task::NiahMultiquery, "One of the special"), @"
    Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about the numbers afterwards.
    ... One of the special magic numbers for tired-chain is: 7138260.
    What are all the special magic numbers for steep-island, humble-chain, tired-chain, and honest-castle mentioned in the provided text? The special magic numbers for steep-island, humble-chain, tired-chain, and honest-castle mentioned in the provided text are
    => 9479723, 7938867, 7138260, 6005064
    ");
    insta::assert_snapshot!(shape(Task::Vt, "VAR "), @"
    Memorize and track the chain(s) of variable assignment hidden in the following text.
    ... VAR JSFAE = 13079.
    The grass is green.
    Question: Find all variables that are assigned the value 13079 in the text above. Answer: According to the chain(s) of variable assignment in the text above, 5 variables are assigned the value 13079, they are:
    => JSFAE PCYHO URWTI DQPCD LTFTX
    ");
}

/// Key and value of every needle, in order.
fn needles(record: &EvalRecord) -> Vec<(String, String)> {
    let start = "One of the special magic ";
    let body = record.input_context.split_once('\n').unwrap().1;
    body.match_indices(start)
        .map(|(at, _)| {
            assert!(at == 0 || body[..at].ends_with(['\n', ' ']), "a needle is a line or a sentence of its own");
            let (_, rest) = body[at + start.len()..].split_once(" for ").unwrap();
            let (key, rest) = rest.split_once(" is: ").unwrap();
            (key.to_owned(), rest[..rest.find(['.', '\n']).unwrap()].to_owned())
        })
        .collect()
}

#[test]
fn needles_stand_once_and_answer_the_query() {
    for task in Task::all().filter(|task| task.name().starts_with("niah")) {
        for seed in 0..20 {
            let record = made(task, 600, seed);
            let needles = needles(&record);
            for gold in record.gold() {
                assert_eq!(record.input_context.matches(gold).count(), 1, "{task}, seed {seed}: {gold}");
            }
            let asked: Vec<&str> = needles
                .iter()
                .filter(|(key, _)| record.input_query.contains(key.as_str()))
                .map(|(_, value)| value.as_str())
                .collect();
            let mut gold = record.gold();
            if task == Task::NiahMultivalue {
                assert_eq!(gold, asked, "values in the order of the text");
            }
            gold.sort_unstable();
            let mut sorted = asked.clone();
            sorted.sort_unstable();
            assert_eq!(gold, sorted, "{task}, seed {seed}");
            assert_eq!(score(&record, &asked.join(" and ")), 1.0);
            assert_eq!(score(&record, &asked[1..].join(" and ")), 0.0);
            let hidden = match task {
                Task::NiahSingle1 | Task::NiahSingle2 | Task::NiahSingle3 => 1,
                Task::NiahMultikey2 | Task::NiahMultikey3 => needles.len(),
                _ => 4,
            };
            assert_eq!(needles.len(), hidden, "{task}");
        }
    }
}

#[test]
fn needles_reach_every_depth() {
    let depths: Vec<f64> = (0..60)
        .map(|seed| {
            let record = made(Task::NiahSingle1, 1000, seed);
            record.input_context.find("One of").unwrap() as f64 / record.input_context.len() as f64
        })
        .collect();
    for tenth in 0..10 {
        let range = f64::from(tenth) / 10.0..f64::from(tenth + 1) / 10.0;
        assert!(depths.iter().any(|depth| range.contains(depth)), "no needle in {range:?}");
    }
}

#[test]
fn a_chain_of_variables_holds_the_value() {
    for seed in 0..20 {
        let record = made(Task::Vt, 600, seed);
        let mut values: BTreeMap<&str, &str> = BTreeMap::new();
        let mut named = Vec::new();
        for line in record.input_context.lines().filter(|line| line.starts_with("VAR ")) {
            let (name, source) = line[4..].trim_end_matches('.').split_once(" = ").unwrap();
            let value = source.strip_prefix("VAR ").map_or(source, |other| values[other]);
            assert!(record.input_query.contains(&format!("assigned the value {value} in")));
            values.insert(name, value);
            named.push(name);
        }
        assert_eq!(named, record.gold());
    }
}

#[test]
fn coded_words_are_counted() {
    for seed in 0..20 {
        let record = made(Task::Fwe, 600, seed);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for word in record.input_context.lines().nth(1).unwrap().split(' ').filter(|word| *word != "...") {
            *counts.entry(word).or_default() += 1;
        }
        let mut ranked: Vec<_> = counts.into_iter().collect();
        ranked.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        assert_eq!(ranked[..3].iter().map(|(word, _)| *word).collect::<Vec<_>>(), record.gold());
        assert!(ranked[2].1 > ranked[3].1);
    }
}

/// The people and things of a story, worked out from its sentences.
#[derive(Default)]
struct World<'a> {
    place: BTreeMap<&'a str, Vec<&'a str>>,
    carrier: BTreeMap<&'a str, &'a str>,
    path: BTreeMap<&'a str, Vec<&'a str>>,
    beside: Vec<[&'a str; 3]>,
    gifts: Vec<[&'a str; 3]>,
}

impl<'a> World<'a> {
    fn hears(&mut self, sentence: &'a str) {
        let words: Vec<&str> = sentence.split(' ').collect();
        match words[..] {
            ["The", a, "is", direction, "of", "the", b] => self.beside.push([a, direction, b]),
            [who, "moved" | "went" | "journeyed" | "travelled", "to", "the", room] => {
                self.place.entry(who).or_default().push(room);
                for (object, _) in self.carrier.iter().filter(|(_, carrier)| **carrier == who) {
                    self.path.entry(object).or_default().push(room);
                }
            }
            [who, "grabbed" | "got" | "took", "the", object] | [who, "picked", "up", "the", object] => {
                self.carrier.insert(object, who);
                self.path.insert(object, vec![self.place[who].last().unwrap()]);
            }
            [from, "gave" | "handed" | "passed", "the", what, "to", to] => self.gifts.push([from, what, to]),
            _ => {}
        }
    }

    fn answers(&self, question: &str) -> &'a str {
        let words: Vec<&str> = question.split(' ').collect();
        let gift = |fits: &dyn Fn(&[&str; 3]) -> bool| *self.gifts.iter().rev().find(|gift| fits(gift)).unwrap();
        match words[..] {
            ["Where", "is", "the", object] => self.path[object].last().unwrap(),
            ["Where", "is", who] => self.place[who].last().unwrap(),
            ["Where", "was", "the", object, "before", "the", room] => {
                let path = &self.path[object];
                let last = path.iter().rposition(|at| *at == room).unwrap();
                path[last - 1]
            }
            ["What", "is", "the", a, direction, "of"] => {
                self.beside.iter().find(|[x, d, _]| *x == a && *d == direction).unwrap()[2]
            }
            ["What", "is", direction, "of", "the", b] => {
                self.beside.iter().find(|[_, d, x]| *x == b && *d == direction).unwrap()[0]
            }
            ["What", "did", from, "give", "to", to] => gift(&|[a, _, b]| *a == from && *b == to)[1],
            ["Who", "received", "the", what] => gift(&|[_, x, _]| *x == what)[2],
            _ => panic!("{question}"),
        }
    }
}

#[test]
fn stories_hold_their_answers() {
    for task in Task::all().filter(|task| task.name().starts_with("qa")) {
        for seed in 0..200 {
            let record = made(task, 400, seed);
            let mut world = World::default();
            record
                .input_context
                .split_inclusive(['.', '\n'])
                .for_each(|sentence| world.hears(sentence.trim().trim_end_matches('.')));
            let question = record.input_query.strip_prefix("Question: ").unwrap().strip_suffix("? Answer:").unwrap();
            assert_eq!(world.answers(question), record.answer, "{task}, seed {seed}: {}", record.input_context);
            assert_eq!(score(&record, &format!(" The {}.", record.answer)), 1.0);
        }
    }
}

#[test]
fn prose_of_the_caller_is_used_in_order() {
    let text: String = (0..50).map(|index| format!("Sentence number {index} says little. ")).collect();
    for task in Task::all() {
        let record = generate(task, 300, 5, &words, Some(&text)).unwrap();
        assert_eq!(record.haystack, task.needs_prose().then_some(HaystackSource::File));
        assert_eq!(record.label(), task.name());
        let numbers: Vec<usize> = record
            .input_context
            .match_indices("Sentence number ")
            .map(|(at, start)| record.input_context[at + start.len()..].split(' ').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(!numbers.is_empty(), task.needs_prose(), "{task}");
        assert!(numbers.windows(2).all(|pair| (pair[0] + 1) % 50 == pair[1]), "{task}: {numbers:?}");
    }
    assert_eq!(made(Task::Qa1, 300, 5).label(), "qa1 (generated prose)");
}

#[test]
fn a_record_survives_its_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let records: Vec<_> = Task::all().map(|task| made(task, 300, 3)).collect();
    let lines: Vec<_> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    let read = read_questions(file.path()).unwrap().into_iter().map(|given| given.record);
    assert_eq!(read.collect::<Vec<_>>(), records);
}

#[test]
fn questions_of_tasks_are_told_from_free_ones() {
    for task in [Task::of_suite("ruler"), Task::of_suite("babilong")].concat() {
        let query = made(task, 300, 5).input_query;
        assert!(is_task_question(&query), "{task}: {query}");
    }
    for free in ["Who told the story?", "What is this about?", "Question: who?", ""] {
        assert!(!is_task_question(free), "{free}");
    }
}
