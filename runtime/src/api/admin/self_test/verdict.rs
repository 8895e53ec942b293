//! What the answers of a self-test are worth. Pure.
//!
//! Dense attention gives the same tokens on every host, whoever asks, and however exact methods split it. The answer that most
//! hosts give alone, or the one that holds the fact, is what others are compared with. An approximate method is asked for the
//! fact alone, and only where dense finds it.

use std::collections::BTreeMap;

use asterism_actors::api::{JobState, JobStatus, SelfTestCheck, SelfTestState, Verdict};

use super::checks::{Check, CheckKind};

/// Codes of jobs that failed for want of a host, room or time: nothing is wrong with what is computed.
const MAY_PASS: &[&str] =
    &["timeout", "host_lost", "placement_impossible", "capacity_exhausted", "overloaded", "parcel_missing"];

/// What may be asked of the cluster's model.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckRules {
    /// It is known to find the fact.
    pub finds: bool,
    /// It computes in so few bits that tokens which mean nothing may differ by rounding.
    pub rounds: bool,
}

/// How a canary ended.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckOutcome {
    /// With these tokens.
    Answered {
        /// Their ids.
        tokens: Vec<u32>,
        /// Their text.
        text: String,
    },
    /// With a failure that healthy hosts do not have.
    Failed(String),
    /// With nothing, for a cause that may pass.
    Undone(String),
}

/// A canary and its end.
#[derive(Clone, Debug)]
pub struct CanaryRun {
    /// What was asked.
    pub check: Check,
    /// How it ended.
    pub outcome: CheckOutcome,
    /// Seconds it took.
    pub seconds: f64,
}

/// How a job ended, as an outcome.
pub fn outcome(status: &JobStatus) -> CheckOutcome {
    match (status.state, &status.error) {
        (JobState::Succeeded, _) => CheckOutcome::Answered { tokens: status.tokens.clone(), text: status.text.clone() },
        (JobState::Failed, Some(error)) if !MAY_PASS.contains(&error.code.as_str()) => {
            CheckOutcome::Failed(format!("{}: {}", error.code, error.message))
        }
        (_, Some(error)) => CheckOutcome::Undone(format!("{}: {}", error.code, error.message)),
        (_, None) => CheckOutcome::Undone("it was cancelled".into()),
    }
}

/// What answers are compared with.
struct ReferenceAnswers<'a> {
    tokens: &'a [u32],
    text: &'a str,
    run: &'a CanaryRun,
    finds: bool,
}

impl CanaryRun {
    fn answer(&self) -> Option<(&[u32], &str)> {
        match &self.outcome {
            CheckOutcome::Answered { tokens, text } => Some((tokens, text)),
            _ => None,
        }
    }

    fn finds(&self) -> bool {
        let gold = self.check.gold.as_deref();
        self.answer().zip(gold).is_some_and(|((_, text), gold)| text.contains(gold))
    }
}

/// Judges every canary.
pub fn judge(runs: &[CanaryRun], rules: CheckRules) -> Vec<SelfTestCheck> {
    let references = [reference(runs, CheckKind::Alone), reference(runs, CheckKind::LongAlone)];
    let judged = |run: &CanaryRun| {
        let reference = references[usize::from(run.check.kind.is_long())].as_ref();
        let (verdict, note) = judge_one(run, reference, rules);
        let Check { name, request, hosts, .. } = &run.check;
        SelfTestCheck {
            name: name.clone(),
            method: request.method.as_ref().map_or("default", asterism_plan::MethodConfig::name).to_owned(),
            hosts: hosts.clone(),
            context_tokens: match &request.context {
                Some(asterism_actors::api::Prompt::Tokens(ids)) => ids.len(),
                _ => 0,
            },
            text: run.answer().map_or(String::new(), |(_, text)| text.to_owned()),
            verdict,
            note,
            seconds: run.seconds,
        }
    };
    runs.iter().map(judged).collect()
}

/// The answer of most hosts alone; one that holds the fact counts more than any number that do not.
fn reference(runs: &[CanaryRun], kind: CheckKind) -> Option<ReferenceAnswers<'_>> {
    let mut votes: BTreeMap<&[u32], (bool, usize, usize)> = BTreeMap::new();
    for (at, run) in runs.iter().enumerate().filter(|(_, run)| run.check.kind == kind) {
        if let Some((tokens, _)) = run.answer() {
            let vote = votes.entry(tokens).or_insert((run.finds(), 0, at));
            vote.1 += 1;
        }
    }
    let best =
        votes.into_iter().max_by_key(|(_, (finds, count, first))| (*finds, *count, std::cmp::Reverse(*first)))?;
    let (tokens, (finds, _, first)) = best;
    Some(ReferenceAnswers { tokens, text: runs[first].answer()?.1, run: &runs[first], finds })
}

fn judge_one(
    run: &CanaryRun,
    reference: Option<&ReferenceAnswers<'_>>,
    rules: CheckRules,
) -> (Verdict, Option<String>) {
    let (tokens, text) = match &run.outcome {
        CheckOutcome::Answered { tokens, text } => (tokens, text),
        CheckOutcome::Failed(cause) => return (Verdict::Wrong, Some(cause.clone())),
        CheckOutcome::Undone(cause) => return (Verdict::Undone, Some(cause.clone())),
    };
    let Some(reference) = reference else {
        return (Verdict::Unjudged, Some("no host answered alone, to compare with".into()));
    };
    if rules.finds && run.check.gold.is_some() && !reference.finds {
        let gold = run.check.gold.as_deref().unwrap_or_default();
        return (Verdict::Wrong, Some(format!("it answers {text:?}, and the text says {gold}")));
    }
    let differs = || {
        let other = reference.run.check.hosts.first().map_or("", String::as_str);
        Some(format!("it answers {text:?}, and {other} alone answers {:?}", reference.text))
    };
    let approximate = matches!(run.check.kind, CheckKind::Default { exact: false });
    let unequal = run.check.numerics.union(&reference.run.check.numerics).count() > 1;
    let split = matches!(run.check.kind, CheckKind::Split | CheckKind::Whole | CheckKind::Default { .. });
    match () {
        () if tokens == reference.tokens => (Verdict::Right, None),
        () if (approximate || unequal) && reference.finds && run.finds() => (Verdict::Right, None),
        () if reference.finds => (Verdict::Wrong, differs()),
        () if approximate => (Verdict::Unjudged, Some("dense attention does not find the fact either".into())),
        () if unequal => (Verdict::Unjudged, Some("its hosts do not all compute the same bits".into())),
        () if split && rules.rounds => {
            (Verdict::Unjudged, Some("tokens that mean nothing may differ by rounding".into()))
        }
        () => (Verdict::Wrong, differs()),
    }
}

/// The whole test: wrong if anything is, undone if anything is.
pub fn sum_up(checks: Vec<SelfTestCheck>) -> (SelfTestState, Option<String>, Vec<SelfTestCheck>) {
    let first = |wanted: Verdict| {
        let mut of = checks.iter().filter(|check| check.verdict == wanted);
        let found = of.next()?;
        let more = match of.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!("{}: {}{more}", found.name, found.note.as_deref().unwrap_or_default()))
    };
    if let Some(cause) = first(Verdict::Wrong) {
        return (SelfTestState::Wrong, Some(cause), checks);
    }
    match first(Verdict::Undone) {
        Some(cause) => (SelfTestState::Undone, Some(cause), checks),
        None => (SelfTestState::Passed, None, checks),
    }
}

#[cfg(test)]
mod tests;
