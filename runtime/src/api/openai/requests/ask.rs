//! What requests of this API have in common, whatever they ask about: how to answer. Reads no text.

use asterism_actors::{
    JobError,
    api::{JobRequest, Reuse, bounds},
    supervisor::ModelFront,
};
use asterism_plan::MethodConfig;
use serde::Deserialize;

use super::{
    fields::{self, Fields},
    form, sampling,
    shape::AnswerShape,
};
use crate::api::{
    http::error::Refusal,
    openai::{Checked, refusal},
};

/// Most tokens of an answer where a request does not say, and never more than this part of what the model takes.
const MOST_ANSWER_TOKENS: (usize, usize) = (1024, 4);

/// How to answer.
#[derive(Clone, Debug)]
pub struct ParsedRequest {
    /// What the job has beside its texts.
    pub job: JobRequest,
    /// What is told of its answer.
    pub shape: AnswerShape,
    /// Further prompts that are answered with it.
    pub more: Vec<(JobRequest, AnswerShape)>,
    /// Answers to each prompt.
    pub choices: usize,
    /// The field that asks for the form of the answer, where that has one.
    pub form_field: &'static str,
    /// Whether the request says how long the answer may be.
    pub is_limited: bool,
    /// What is streamed, if anything.
    pub stream: Option<Streamed>,
}

/// What a stream says beside the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streamed {
    /// Tokens, at the end.
    pub usage: bool,
    /// Tokens, with each piece.
    pub usage_so_far: bool,
    /// How far the context is encoded, and hosts that were lost.
    pub progress: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StreamOptions {
    include_usage: bool,
    continuous_usage_stats: bool,
    /// Changes nothing that a client reads.
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum Stops {
    One(String),
    Many(Vec<String>),
}

impl ParsedRequest {
    /// Takes what is about the answer out of `fields`, which ask `model`; those that are about the texts are out already.
    pub fn take(mut fields: Fields, model: &ModelFront) -> Checked<Self> {
        let named: Option<String> = fields.take("model")?;
        if let Some(asked) = named.as_ref().filter(|asked| **asked != model.name) {
            let known = vec![format!("'{}'", model.name)];
            return Err(JobError::NoModel { asked: bounds::shown(asked), known }.into());
        }
        let mut job = JobRequest { model: named, ..JobRequest::new(None, String::new().into()) };
        job.labels.insert(bounds::ATTACHED.into(), "yes".into());
        let most = most_tokens(&mut fields)?;
        let (default, part) = MOST_ANSWER_TOKENS;
        job.max_tokens = most.unwrap_or(default.min(model.max_tokens / part).max(1));
        job.sampling = sampling::take(&mut fields)?;
        let form = form::take(&mut fields)?;
        let form_field = form.as_ref().map_or("response_format", |(field, _)| *field);
        job.sampling.constraint = form.map(|(_, form)| form);
        job.stop = match fields.take("stop")? {
            Some(Stops::One(stop)) => vec![stop],
            Some(Stops::Many(stops)) => stops,
            None => Vec::new(),
        };
        job.session = fields.take("session_id")?;
        job.method = fields.value("attention").map(attention).transpose()?;
        // Whoever names what is cached together asks about it again.
        let named = fields.take::<String>("prompt_cache_key")?;
        job.reuse = if named.is_some() { Reuse::Likely } else { Reuse::Exact };
        job.cache_salt = fields.take("cache_salt")?;
        job.ignore_eos = fields.take("ignore_eos")?.unwrap_or(false);
        job.timeout_s = fields.take("timeout_s")?;
        job.template_date = fields.take("template_date")?;
        let (streams, options) = (fields.take("stream")?.unwrap_or(false), fields.take("stream_options")?);
        let progress = fields.take("return_progress")?.unwrap_or(false);
        let StreamOptions { include_usage: usage, continuous_usage_stats: usage_so_far, .. } =
            options.unwrap_or_default();
        let stream = streams.then_some(Streamed { usage, usage_so_far, progress });
        fields.finish()?;
        let (shape, more) = Default::default();
        Ok(Self { job, shape, more, choices: 1, form_field, is_limited: most.is_some(), stream })
    }
}

/// Most answers to one prompt, and of one request.
const MOST_CHOICES: usize = 16;
const MOST_ANSWERS: usize = 128;

/// How many answers are wanted to each of so many prompts.
pub fn choices(fields: &mut Fields, prompts: usize) -> Checked<usize> {
    let choices = fields.take("n")?.unwrap_or(1);
    let best: Option<usize> = fields.take("best_of")?;
    if !(1..=MOST_CHOICES).contains(&choices) {
        return Err(Refusal::invalid("n", format!("n is {choices}, expected 1 to {MOST_CHOICES}")));
    }
    if choices * prompts > MOST_ANSWERS {
        let message = format!("n is {choices} for {prompts} prompts, expected {MOST_ANSWERS} answers in all at most");
        return Err(Refusal::invalid("n", message));
    }
    match best {
        Some(best) if best != choices => Err(refusal::unsupported("best_of", "expected as many as n")),
        _ => Ok(choices),
    }
}

/// How long the answer may be, under whichever name.
fn most_tokens(fields: &mut Fields) -> Checked<Option<usize>> {
    let mut stated: Option<(&str, usize)> = None;
    for name in ["max_completion_tokens", "max_output_tokens", "max_tokens"] {
        let Some(most) = fields.take(name)? else { continue };
        if most == 0 {
            return Err(Refusal::invalid(name, format!("{name} is 0; ask for at least 1 token")));
        }
        if let Some((other, differs)) = stated.filter(|(_, stated)| *stated != most) {
            let message = format!("{name} is {most} and {other} is {differs}: they say the same, give one of them");
            return Err(Refusal::invalid(name, message));
        }
        stated = Some((name, most));
    }
    Ok(stated.map(|(_, most)| most))
}

fn attention(value: serde_json::Value) -> Checked<MethodConfig> {
    let method = fields::method(value)?;
    serde_json::from_value(method).map_err(|error| fields::wrong("attention", &error))
}

#[cfg(test)]
mod tests {
    use asterism_models::{Checkpoint, TemplateSource};
    use serde_json::json;

    use super::{super::known, *};

    fn fields(body: serde_json::Value) -> Fields {
        serde_json::from_value(body).expect("an object")
    }

    #[test]
    fn one_length_under_several_names_is_one_and_two_are_refused() {
        let most = |body| most_tokens(&mut fields(body));
        assert_eq!(most(json!({"max_tokens": 5, "max_completion_tokens": 5})).unwrap(), Some(5));
        assert_eq!(most(json!({"max_tokens": null, "max_output_tokens": 7})).unwrap(), Some(7));
        assert_eq!(most(json!({})).unwrap(), None);
        let refused = most(json!({"max_output_tokens": 0})).unwrap_err().to_string();
        assert_eq!(refused, "max_output_tokens is 0; ask for at least 1 token");
        let refused = most(json!({"max_tokens": 5, "max_completion_tokens": 6})).unwrap_err().to_string();
        assert_eq!(refused, "max_tokens is 5 and max_completion_tokens is 6: they say the same, give one of them");
    }

    #[test]
    fn as_many_answers_are_taken_as_there_may_be() {
        let wanted = |body, prompts| choices(&mut fields(body), prompts).map_err(|refused| refused.to_string());
        assert_eq!((wanted(json!({}), 128), wanted(json!({"n": 16, "best_of": 16}), 8)), (Ok(1), Ok(16)));
        for (body, prompts) in
            [(json!({"n": 0}), 1), (json!({"n": 17}), 1), (json!({"n": 2}), 65), (json!({"best_of": 2}), 1)]
        {
            assert!(wanted(body.clone(), prompts).is_err(), "{body} {prompts}");
        }
    }

    #[test]
    fn each_field_that_is_said_to_be_honoured_is_read() {
        let front = ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap();
        for (name, ..) in known::HONOURED.iter().filter(|(_, place, _)| *place == "all") {
            let wrong = json!({ *name: [{"no": "such value"}] });
            let refused = ParsedRequest::take(fields(wrong), &front).expect_err(name);
            assert!(!["unknown_parameter", "unsupported_parameter"].contains(&refused.code()), "{name}: {refused}");
        }
    }

    #[test]
    fn stops_of_another_kind_are_told_what_is_wanted() {
        let refused = fields(json!({"stop": [null]})).take::<Stops>("stop").err().expect("no text").to_string();
        assert_eq!(refused, "stop is not what is wanted here: expected a text or a list of texts");
    }
}
