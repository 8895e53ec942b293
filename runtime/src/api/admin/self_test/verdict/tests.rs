//! Answers of made-up hosts, and what they are worth.

use asterism_actors::api::{ErrorBody, JobRequest};
use asterism_plan::{MethodConfig, methods::DenseConfig};

use super::*;

const GOLD: &str = "7654321";
const RULES: CheckRules = CheckRules { finds: false, rounds: false };

fn run(kind: CheckKind, name: &str, numerics: &str, outcome: CheckOutcome) -> CanaryRun {
    let request = JobRequest {
        method: Some(MethodConfig::Dense(DenseConfig {})),
        ..JobRequest::new(Some("context".into()), "query".into())
    };
    let numerics = [numerics.to_owned()].into();
    let (gold, hosts) = (Some(GOLD.to_owned()), vec![name.to_owned()]);
    CanaryRun { check: Check { name: name.to_owned(), kind, numerics, hosts, gold, request }, outcome, seconds: 0.1 }
}

fn says(tokens: &[u32], text: &str) -> CheckOutcome {
    CheckOutcome::Answered { tokens: tokens.to_vec(), text: text.to_owned() }
}

fn alone(name: &str, outcome: CheckOutcome) -> CanaryRun {
    run(CheckKind::Alone, name, "a", outcome)
}

fn verdicts(runs: &[CanaryRun], rules: CheckRules) -> Vec<Verdict> {
    judge(runs, rules).into_iter().map(|check| check.verdict).collect()
}

#[test]
fn the_host_that_differs_is_named() {
    let runs = [
        alone("c0", says(&[1, 2], GOLD)),
        alone("c1", says(&[9, 9], "x")),
        alone("c2", says(&[1, 2], GOLD)),
        run(CheckKind::Split, "ring", "a", says(&[9, 9], "x")),
    ];
    assert_eq!(verdicts(&runs, RULES), [Verdict::Right, Verdict::Wrong, Verdict::Right, Verdict::Wrong]);
    let (state, cause, _) = sum_up(judge(&runs, RULES));
    assert_eq!(state, SelfTestState::Wrong);
    let cause = cause.unwrap();
    assert!(cause.starts_with("c1: ") && cause.contains("c0 alone answers"), "{cause}");
    assert!(cause.ends_with("(and 1 more)"), "{cause}");
}

#[test]
fn the_one_that_finds_the_fact_is_right_however_many_do_not() {
    let runs = [alone("c0", says(&[9], "x")), alone("c1", says(&[9], "x")), alone("c2", says(&[1], GOLD))];
    assert_eq!(verdicts(&runs, RULES), [Verdict::Wrong, Verdict::Wrong, Verdict::Right]);
}

#[test]
fn two_that_mean_nothing_and_differ_are_wrong_and_equal_ones_right() {
    let differ = [alone("c0", says(&[8], "y")), alone("c1", says(&[9], "x"))];
    assert!(verdicts(&differ, RULES).contains(&Verdict::Wrong));
    let equal = [alone("c0", says(&[9], "x")), alone("c1", says(&[9], "x"))];
    assert_eq!(verdicts(&equal, RULES), [Verdict::Right; 2]);
    // A model that is known to find the fact does.
    assert_eq!(verdicts(&equal, CheckRules { finds: true, ..RULES }), [Verdict::Wrong; 2]);
}

#[test]
fn approximate_methods_owe_the_fact_alone_and_only_where_dense_finds_it() {
    let of = |dense: CheckOutcome, split: CheckOutcome| {
        let runs = [
            run(CheckKind::LongAlone, "c0", "a", dense),
            run(CheckKind::Default { exact: false }, "pulsar", "a", split),
        ];
        verdicts(&runs, RULES)[1]
    };
    assert_eq!(of(says(&[1, 2], GOLD), says(&[1, 3], "7654321!")), Verdict::Right);
    assert_eq!(of(says(&[1, 2], GOLD), says(&[4], "no idea")), Verdict::Wrong);
    assert_eq!(of(says(&[1, 2], "what"), says(&[4], "no idea")), Verdict::Unjudged);
    assert_eq!(of(CheckOutcome::Undone("timeout".into()), says(&[4], "no idea")), Verdict::Unjudged);
}

#[test]
fn hosts_of_other_numerics_owe_the_fact_and_not_the_tokens() {
    let of = |first: &str, text: &str| {
        let runs = [alone("c0", says(&[1], first)), run(CheckKind::Alone, "c1", "b", says(&[2], text))];
        verdicts(&runs, RULES)[1]
    };
    assert_eq!(of(GOLD, "it is 7654321"), Verdict::Right);
    assert_eq!(of(GOLD, "it is 1"), Verdict::Wrong);
    assert_eq!(of("x", "y"), Verdict::Unjudged);
}

#[test]
fn few_bits_may_round_what_means_nothing_where_it_is_split() {
    let runs = [alone("c0", says(&[1], "x")), run(CheckKind::Split, "ring", "a", says(&[2], "y"))];
    assert_eq!(verdicts(&runs, RULES)[1], Verdict::Wrong);
    assert_eq!(verdicts(&runs, CheckRules { rounds: true, ..RULES })[1], Verdict::Unjudged);
}

#[test]
fn a_host_that_is_gone_is_nothing_wrong_and_one_that_fails_is() {
    let failed = |code: &str| {
        let mut status: JobStatus = serde_json::from_value(serde_json::json!({
            "id": "j", "state": "FAILED", "method": "dense", "model": "m", "context_tokens": 1, "query_tokens": 1,
            "generated_tokens": 0, "text": "", "tokens": [], "timings": {"queue_s": 0.0, "encode_s": 0.0, "query_s": 0.0,
            "decode_s": 0.0, "total_s": 0.0, "hosts": []},
        }))
        .unwrap();
        status.error = Some(ErrorBody { message: "why".into(), code: code.into(), param: None });
        outcome(&status)
    };
    let of = |code: &str| sum_up(judge(&[alone("c0", failed(code))], RULES)).0;
    assert_eq!([of("host_lost"), of("timeout")], [SelfTestState::Undone; 2]);
    assert_eq!(of("not_finite_logits"), SelfTestState::Wrong);
    assert_eq!(sum_up(judge(&[alone("c0", says(&[1], GOLD))], RULES)).0, SelfTestState::Passed);
}
