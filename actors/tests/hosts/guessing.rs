//! Tokens that are guessed and verified several in a step: answers are those that they are without.

use asterism_actors::{
    messages::{AnswerToken, Generate, HostMessage, TokenChoice, TokenShaping},
    readings::Phase2Times,
};
use asterism_models::{Constraint, Sampling};

use crate::{
    bench::{Bench, Case, JOB},
    two_and_two,
};

/// Tokens with all that was said of them, and how the answer ended.
type Answer = (Vec<AnswerToken>, (bool, String));

/// What a host answers, and with what times.
async fn answer(bench: &mut Bench, host: &str, order: &Generate) -> (Answer, Box<Phase2Times>) {
    bench.generate(host, order.clone()).await;
    let mut tokens: Vec<AnswerToken> = Vec::new();
    loop {
        let heard = bench.line(host).receive(|message| match message {
            HostMessage::Token { job, index, id, text, logprobs } if job == order.job => {
                Some(Ok((index, (id, text, logprobs))))
            }
            HostMessage::Generated { job, stopped, text, times, .. } if job == order.job => {
                Some(Err((stopped, text, times)))
            }
            HostMessage::Failed { message, .. } => panic!("{message}"),
            _ => None,
        });
        match heard.await {
            Ok((index, token)) => {
                assert_eq!(index as usize, tokens.len());
                tokens.push(token);
            }
            Err((stopped, text, times)) => return ((tokens, (stopped, text)), times),
        }
    }
}

/// Ways to choose tokens, of which each has to be right with guesses.
fn choices(plain: &TokenChoice, stop: &str) -> Vec<TokenChoice> {
    let hot = TokenChoice { temperature: 0.9, ..plain.clone() };
    let penalties = TokenShaping::of(&Sampling {
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.3,
        logit_bias: [(7, 1.5)].into(),
        ..Sampling::default()
    });
    let constraint = Some(Constraint::Regex("[a-z ]{12,60}".to_owned()));
    let form = TokenShaping::of(&Sampling { constraint, ..Sampling::default() });
    vec![
        plain.clone(),
        hot.clone(),
        TokenChoice { logprobs: Some(3), ..hot.clone() },
        TokenChoice { logprobs: Some(0), max_tokens: 7, ..plain.clone() },
        TokenChoice { max_tokens: 1, ..plain.clone() },
        TokenChoice { shaping: penalties.clone(), ..plain.clone() },
        TokenChoice { shaping: penalties, logprobs: Some(1), ..hot.clone() },
        TokenChoice { stop: vec![stop.into()], ..plain.clone() },
        TokenChoice { shaping: form.clone(), ignore_eos: false, ..plain.clone() },
        TokenChoice { shaping: form, ignore_eos: false, ..hot.clone() },
        TokenChoice { scored: Some(vec![4, 9, 4, 9, 4, 9]), logprobs: Some(2), ..hot },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_change_no_answer() {
    let (mut bench, case, holders) = two_and_two().await;
    let plain = case.generate(&holders, 60, 0.0);
    let ((tokens, _), _) = answer(&mut bench, "q0", &plain).await;
    let stop: String = tokens[40..42].iter().map(|token| token.1.as_str()).collect();
    let (mut guesses, mut right) = (0, 0);
    for (at, choice) in choices(&plain.choice, &stop).into_iter().enumerate() {
        let order = Generate { job: JOB + 1 + at as u64, choice: Box::new(choice), ..plain.clone() };
        let (expected, _) = answer(&mut bench, "q0", &order).await;
        // The prompt has the answer, and behind that one that is wrong at each ninth token.
        let answer_ids: Vec<u32> = expected.0.iter().map(|token| token.0).collect();
        let wrong = answer_ids.iter().enumerate().map(|(at, id)| if at % 9 == 8 { id ^ 1 } else { *id }).collect();
        let lookup = Some([context(&case), answer_ids, wrong].concat());
        let (guessed, times) = answer(&mut bench, "q1", &Generate { lookup, ..order.clone() }).await;
        assert_eq!(guessed, expected, "{:?}", order.choice);
        // Tokens of a prompt that are scored take no steps of their own.
        let taken = expected.0.len() - order.choice.scored.as_ref().map_or(0, Vec::len);
        assert!(times.are_of(taken as u32), "{taken} tokens: {times:?}");
        (guesses, right) = (guesses + times.guesses, right + times.right_guesses);
    }
    assert!(0 < right && right < guesses, "{right} of {guesses} guesses were right");
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_another_host_are_gone_through_several_in_a_step() {
    let (mut bench, case, holders) = two_and_two().await;
    for (temperature, job) in [(0.0, JOB), (0.9, JOB + 1)] {
        let order = Generate { job, ..case.generate(&holders, 60, temperature) };
        let (expected, _) = answer(&mut bench, "q0", &order).await;
        let generated = expected.0[..50].iter().map(|token| token.0).collect();
        let order = Generate { generated, lookup: Some(context(&case)), ..order };
        bench.generate("q1", order).await;
        let heard = |message| match message {
            HostMessage::Token { index, id, .. } => Some(Ok((index as usize, id))),
            HostMessage::Generated { times, .. } => Some(Err(times)),
            HostMessage::Failed { message, .. } => panic!("{message}"),
            _ => None,
        };
        let mut rest = 50..60;
        let times = loop {
            match bench.line("q1").receive(heard).await {
                Ok((index, id)) => assert_eq!((Some(index), id), (rest.next(), expected.0[index].0)),
                Err(times) => break times,
            }
        };
        assert!(rest.is_empty() && times.step.count() < 40 && times.are_of(60), "{times:?}");
    }
    bench.shutdown().await;
}

/// The ids of a case's context.
pub fn context(case: &Case) -> Vec<u32> {
    case.ids[..case.plan.context_tokens].to_vec()
}
