//! Lines in the shapes that the benchmarks publish, made up here.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::*;

/// The questions of a file of this name with these lines.
fn read(name: &str, lines: &[Value]) -> Result<Vec<PublishedQuestion>, EvalError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    read_questions(path)
}

fn one(name: &str, line: Value) -> PublishedQuestion {
    read(name, &[line]).unwrap().remove(0)
}

/// Context, separator and query of a record.
fn parts(given: &PublishedQuestion) -> (&str, Option<String>, &str) {
    let EvalRecord { input_context, input_query, query_separator, .. } = &given.record;
    (input_context, query_separator.as_ref().map(ToString::to_string), input_query)
}

#[test]
fn records_of_this_programs_form_take_the_clusters_separator_unless_they_name_one() {
    let line = json!({"task": "lex@4k", "input_context": "The code is 7.", "input_query": "Which code?", "answer": "7",
        "gold": ["ignored"], "length": 4096});
    let given = one("q.jsonl", line.clone());
    assert_eq!(parts(&given), ("The code is 7.", None, "Which code?"));
    assert_eq!((given.suite, given.record.task.as_str(), given.metric.clone()), ("file", "lex@4k", Metric::All));
    for separator in ["", "\n", "\n\n"] {
        let mut named = line.clone();
        named["query_separator"] = json!(separator);
        assert_eq!(parts(&one("q.jsonl", named)).1.as_deref(), Some(separator));
    }
    let list = json!({"input_context": "a", "input_query": "b", "answer": ["7, 8", "nine"], "chat_template": false});
    let list = one("q.jsonl", list);
    assert_eq!(
        (list.gold, list.record.task.as_str(), list.record.chat_template),
        (vec!["7, 8".into(), "nine".into()], "unnamed", false)
    );
    assert_eq!(one("q.jsonl", json!({"input_context": "a", "input_query": "b", "answer": "7, 8"})).gold, ["7", "8"]);
}

#[test]
fn a_record_that_is_written_is_read_as_it_was() {
    let count = |text: &str| text.split_whitespace().count();
    let record = crate::eval::generate(crate::eval::Task::NiahSingle2, 300, 1, &count, None).unwrap();
    let given = one("q.jsonl", serde_json::to_value(&record).unwrap());
    assert_eq!(given.record, record);
    assert_eq!(given.record.query_separator, Some(QuerySeparator::NONE), "it brings its own joint");
}

#[test]
fn rulers_one_text_is_cut_where_the_question_begins() {
    let documents =
        "Answer the question based on the given documents. Only give me the answer and do not output any other words.";
    let cases = [
        (
            "niah_single_1",
            "Some special magic numbers are hidden.\nNoise.\nWhat is the special magic number for a-b mentioned in the provided text?",
            " The special magic number for a-b mentioned in the provided text is",
            "What is",
            Metric::All,
            128,
        ),
        (
            "niah_multivalue",
            "Memorize.\nWhat are all the special magic x?\nWhat are all the special magic numbers for a mentioned?",
            "",
            "What are all the special magic numbers",
            Metric::All,
            128,
        ),
        (
            "vt",
            "Track.\n\nVAR A = 1\nQuestion: Find all variables that are assigned the value 1 in the text above. Answer: A\n\nVAR B = 2\nQuestion: Find all variables that are assigned the value 2 in the text above.",
            " Answer: they are: ",
            "Question: Find all variables that are assigned the value 2",
            Metric::All,
            60,
        ),
        (
            "cwe",
            "Below is a numbered list.\n1. a 2. b\nQuestion: What are the 10 most common words in the above list?",
            " Answer:",
            "Question: What",
            Metric::All,
            120,
        ),
        (
            "fwe",
            "Read the coded text. ... a ...\nQuestion: Do not provide any explanation. Please ignore the dots '....'.",
            "",
            "Question: Do not",
            Metric::All,
            50,
        ),
        (
            "qa_1",
            &format!(
                "{documents}\n\nThe following are given documents.\n\nDocument 1:\nRome.\n\n{documents}\n\nQuestion: Where?"
            ),
            " Answer:",
            &format!("{documents}\n\nQuestion: Where?"),
            Metric::Any,
            32,
        ),
        ("mine", "A long text.\n\nMore of it.\n\nSo, where is it?\n", "", "So, where is it?", Metric::All, 128),
        ("mine", "A text.\nQuestion: Who?\n\nAnswer:", "", "Question: Who?\n\nAnswer:", Metric::All, 128),
    ];
    for (task, input, prefix, begins, metric, tokens) in cases {
        let line = json!({"index": 0, "input": input, "outputs": ["7", "8"], "length": 4000, "length_w_model_temp": 4030,
            "answer_prefix": prefix, "token_position_answer": 12});
        let given = one(&format!("{task}/validation.jsonl"), line);
        let (context, separator, query) = parts(&given);
        assert_eq!(format!("{context}{}{query}", separator.unwrap()), format!("{input}{prefix}"), "the same text");
        assert!(query.starts_with(begins), "{task}: {query}");
        assert_eq!((given.suite, given.record.task.as_str()), ("ruler", task));
        assert_eq!((given.gold, given.metric, given.max_tokens), (vec!["7".into(), "8".into()], metric, tokens));
    }
    let uncut = read("vt/validation.jsonl", &[json!({"input": "One line.", "outputs": ["7"]})]).unwrap_err();
    assert!(uncut.to_string().contains("input is one line"), "{uncut}");
}

fn longbench(dataset: &str, input: &str, answers: &[&str]) -> Value {
    json!({"input": input, "context": "Passage 1:\nRome.", "answers": answers, "length": 3, "dataset": dataset,
        "language": "en", "all_classes": if dataset == "trec" { json!(["Food", "Animal"]) } else { Value::Null }, "_id": "0f"})
}

#[test]
fn longbenchs_data_sets_are_asked_and_scored_as_it_does() {
    let given = one("2wikimqa.jsonl", longbench("2wikimqa", "Which city?", &["Rome", "Roma"]));
    let (context, separator, query) = parts(&given);
    assert!(
        context.starts_with("Answer the question based on the given passages.")
            && context.ends_with("passages.\nPassage 1:\nRome.")
    );
    assert_eq!(separator.as_deref(), Some("\n\n"));
    assert!(query.ends_with("\n\nQuestion: Which city?\nAnswer:"), "{query}");
    assert_eq!((given.suite, given.max_tokens, given.record.chat_template), ("longbench", 32, true));
    assert_eq!(given.metric.score("in Rome", "", &given.gold), 2.0 / 3.0);
    let trec = one("data.jsonl", longbench("trec", "Question: What eats grass?\nType:", &["Animal"]));
    assert_eq!(parts(&trec).1.as_deref(), Some("\n"));
    assert!(!trec.record.chat_template, "it goes on after examples");
    assert_eq!(trec.metric.score("Animal\nQuestion: Food", "", &trec.gold), 1.0);
    for (set, stated, gold, score) in [
        ("passage_count", "7", "7", 1.0),
        ("passage_retrieval_en_e", "Paragraph 3 or 4", "Paragraph 3", 0.5),
        ("gov_report", "The same.", "The same.", 1.0),
        ("lcc", "return a", "return a", 1.0),
        ("multifieldqa_zh", "罗马", "罗马。", 1.0),
        ("somebodys", "Rome", "rome", 1.0),
    ] {
        let given = one("x.jsonl", longbench(set, "?", &[gold]));
        assert!((given.metric.score(stated, "", &given.gold) - score).abs() < 1e-6, "{set}");
        assert!(given.record.input_context.contains("Passage 1:\nRome."), "{set}");
    }
}

#[test]
fn infinitebenchs_files_are_asked_by_their_names() {
    let line = |input: &str, answer: Value, options: Value| json!({"id": 0, "context": "A book.", "input": input, "answer": answer, "options": options});
    let passkey = one("passkey.jsonl", line("What is the pass key?", json!(["71432"]), json!([])));
    assert!(parts(&passkey).2.ends_with("\n\nThe pass key is") && parts(&passkey).0.ends_with("\n\nA book."));
    assert_eq!((passkey.suite, passkey.metric.score(" 71432.", "", &passkey.gold)), ("infinitebench", 1.0));
    let choice = line("Who?", json!(["Cleo"]), json!(["Ann", "Bob", "Cleo", "Dan"]));
    let choice = one("longbook_choice_eng.jsonl", choice);
    assert!(
        parts(&choice).2.contains("C. Cleo\nD. Dan\n\nThe letter of the correct answer is"),
        "{:?}",
        parts(&choice)
    );
    assert_eq!(choice.gold, ["C"]);
    let found = one("math_find.jsonl", line("The second largest number of the list is", json!(71), json!([])));
    assert!(
        parts(&found).0.starts_with("What is the second largest number in the following list?"),
        "{:?}",
        parts(&found)
    );
    assert_eq!(found.metric.score(" 71", "", &found.gold), 1.0);
    let run = one("code_run.jsonl", line("Please give me the return value of func_12(-3).", json!(-4), json!([])));
    assert!(
        parts(&run).0.starts_with("There is a function called func_12 in")
            && parts(&run).2.ends_with("of func_12(-3) is")
    );
    let debug = line("Which one?", json!(["beta", "B"]), json!(["alpha", "beta", "gamma", "delta"]));
    assert_eq!(one("code_debug.jsonl", debug).gold, ["B"]);
    let calc = one("math_calc.jsonl", line("", json!([1, 4, 8]), json!([])));
    assert_eq!((parts(&calc).2, calc.metric.score("[1, 4, 7]", "", &calc.gold)), ("Values:", 2.0 / 3.0));
    let other = one("my_questions.jsonl", line("Who?", json!("Ann"), json!(null)));
    assert_eq!((parts(&other).2, &other.metric), ("Who?", &Metric::Any));
    let refused = read("longbook_choice_eng.jsonl", &[line("Who?", json!(["Eve"]), json!(["A", "B", "C", "D"]))]);
    assert!(refused.unwrap_err().to_string().contains("no answer among its options"));
}

#[test]
fn a_line_that_is_no_question_is_named_with_what_was_found() {
    let good = json!({"task": "qa1", "input_context": "a", "input_query": "b", "answer": "c", "more": 1});
    for (bad, reason) in [
        (json!({"input_context": "a"}), "missing field `input_query`"),
        (json!({"input_context": "a", "input_query": " ", "answer": "c"}), "input_query is empty"),
        (
            json!({"input_context": "a", "input_query": "b", "answer": 7}),
            "answer is 7; expected a string or a list of strings",
        ),
        (json!({"input_context": "a", "input_query": "b", "answer": [7]}), "answer has 7; expected a list of strings"),
        (json!({"input_context": "a", "input_query": "b", "answer": []}), "its answer is empty"),
        (json!({"question": "a", "passage": "b"}), "its keys are question, passage;"),
        (json!({}), "its keys are none"),
        (json!([1]), "invalid type: sequence, expected a map"),
        (json!({"input": "a\n\nb", "outputs": "7"}), "invalid type: string \"7\", expected a sequence"),
        (json!({"context": "", "input": "b", "answers": ["7"]}), "context is empty"),
    ] {
        match read("q.jsonl", &[good.clone(), bad]).unwrap_err() {
            EvalError::Line { line: 2, reason: got, path } => {
                let stated = EvalError::Line { line: 2, reason: got, path }.to_string();
                assert!(stated.contains(reason) && stated.contains("RULER (input, outputs)"), "{stated}");
            }
            other => panic!("{other}"),
        }
    }
    assert!(matches!(read("q.jsonl", &[]), Err(EvalError::NoRecords { .. })));
    assert!(matches!(read_questions(Path::new("no/such/file")), Err(EvalError::Read { .. })));
}
