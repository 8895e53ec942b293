//! Responses as OpenAI's clients read them. An event's number is the number of bytes said up to its end, so that a stream goes on from
//! any of them whatever was sent before. Decides nothing.

use std::sync::Arc;

use asterism_actors::{
    api::{FinishReason, HostProgress, JobPhase, JobState, JobStatus, RecoveryStatus, TokenLogprobs},
    supervisor::ModelFront,
};
use bytes::Bytes;
use serde_json::{Value, json};

use super::stream;
use crate::api::{
    http::error::Refusal,
    openai::{
        requests::logprobs::{self, TokenProbability, token_probabilities},
        store::{self, RESPONSE_PREFIX, record::ResponseSettings},
    },
};

/// Numbers of the events before the first text.
const RESPONSE_OPENING: u64 = 3;

/// The job of a response.
pub fn job_id(id: &str) -> Option<String> {
    store::digits(RESPONSE_PREFIX, id).map(|digits| format!("job-{digits}"))
}

/// The response of a job.
pub fn id_of(job: &str) -> String {
    format!("{RESPONSE_PREFIX}{}", job.strip_prefix("job-").unwrap_or(job))
}

/// Whether there is an answer that something can follow.
pub fn has_answered(status: &JobStatus) -> bool {
    ["completed", "incomplete"].contains(&state(status))
}

fn digits(status: &JobStatus) -> &str {
    status.id.strip_prefix("job-").unwrap_or(&status.id)
}

/// A response as it stands.
pub fn object((status, settings): (&JobStatus, &ResponseSettings), model: &ModelFront) -> Value {
    let state = state(status);
    let says_nothing = status.text.is_empty() && state != "completed";
    let output = if says_nothing { json!([]) } else { json!([item(status, all_logprobs((status, settings), model))]) };
    let error = status.error.as_ref().map(|error| json!({ "code": error.code, "message": error.message }));
    let incomplete = (state == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
    let prompt = status.context_tokens + status.query_tokens;
    let usage = status.finish_reason.map(|_| {
        json!({
            "input_tokens": prompt,
            "input_tokens_details": { "cached_tokens": status.cached_tokens },
            "output_tokens": status.generated_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": prompt + status.generated_tokens,
        })
    });
    let mut response = json!({
        "id": id_of(&status.id),
        "object": "response",
        "created_at": status.created_at,
        "status": state,
        "background": status.labels.get("response").is_some_and(|way| way == "background"),
        "error": error,
        "incomplete_details": incomplete,
        "model": status.model,
        "output": output,
        "usage": usage,
        "parallel_tool_calls": false,
        "tool_choice": "none",
        "tools": [],
    });
    settings.tell(&mut response);
    response
}

/// How likely the tokens of an answer were, where that is told.
fn all_logprobs((status, settings): (&JobStatus, &ResponseSettings), model: &ModelFront) -> Value {
    stated_logprobs(settings, &token_probabilities(status).1, model)
}

fn stated_logprobs(settings: &ResponseSettings, stated: &[TokenProbability<'_>], model: &ModelFront) -> Value {
    match settings.logprobs {
        Some(most) => logprobs::of_chat((stated, most), |id| model.token_bytes(id))["content"].take(),
        None => json!([]),
    }
}

fn state(status: &JobStatus) -> &'static str {
    match (status.state, status.phase, status.finish_reason) {
        (JobState::Pending, ..) | (JobState::Running, Some(JobPhase::Queued), _) => "queued",
        (JobState::Running, ..) => "in_progress",
        (JobState::Succeeded, _, Some(FinishReason::Length)) => "incomplete",
        (JobState::Succeeded, ..) => "completed",
        (JobState::Failed, ..) => "failed",
        (JobState::Cancelled, ..) => "cancelled",
    }
}

fn item(status: &JobStatus, logprobs: Value) -> Value {
    let done = match state(status) {
        "completed" => "completed",
        "queued" | "in_progress" => "in_progress",
        _ => "incomplete",
    };
    json!({
        "type": "message",
        "id": format!("msg_{}", digits(status)),
        "status": done,
        "role": "assistant",
        "content": [part(&status.text, logprobs)],
    })
}

fn part(text: &str, logprobs: Value) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

/// A response as a stream of events.
pub struct ResponseVoice {
    status: JobStatus,
    settings: ResponseSettings,
    model: Arc<ModelFront>,
    /// Bytes of text that went by, and tokens since some were sent.
    stated: u64,
    unsent: Vec<(u32, TokenLogprobs)>,
    /// What the client has received already.
    after: Option<u64>,
}

impl ResponseVoice {
    /// Of a job, behind the event of number `after`.
    pub fn new((status, settings): (JobStatus, ResponseSettings), model: Arc<ModelFront>, after: Option<u64>) -> Self {
        Self { status, settings, model, stated: 0, unsent: Vec::new(), after }
    }

    /// An event of this number, unless it has been received.
    fn event(&self, number: u64, kind: &str, mut body: Value) -> Option<Bytes> {
        if self.after.is_some_and(|after| number <= after) {
            return None;
        }
        body["type"] = kind.into();
        body["sequence_number"] = number.into();
        Some(Bytes::from(format!("event: {kind}\ndata: {body}\n\n")))
    }

    /// Where an event about the text belongs.
    fn about_text(&self, mut body: Value) -> Value {
        body["item_id"] = format!("msg_{}", digits(&self.status)).into();
        body["output_index"] = 0.into();
        body["content_index"] = 0.into();
        body
    }

    fn delta(&mut self, text: &str) -> Option<Bytes> {
        let before = RESPONSE_OPENING + self.stated;
        self.stated += text.len() as u64;
        let received = usize::try_from(self.after.unwrap_or(0).saturating_sub(before)).unwrap_or(usize::MAX);
        // Numbers are told where characters end; another one gets the whole character.
        let unreceived = (0..=received.min(text.len())).rev().find_map(|at| text.get(at..))?;
        if unreceived.is_empty() {
            return None;
        }
        let unsent = std::mem::take(&mut self.unsent);
        let told: Vec<TokenProbability<'_>> = unsent.iter().map(|(id, logprobs)| (*id, logprobs)).collect();
        let logprobs = stated_logprobs(&self.settings, &told, &self.model);
        let body = self.about_text(json!({ "delta": unreceived, "logprobs": logprobs }));
        self.event(RESPONSE_OPENING + self.stated, "response.output_text.delta", body)
    }
}

impl stream::StreamFormat for ResponseVoice {
    fn opening(&mut self) -> Vec<Bytes> {
        let mut begun = object((&self.status, &self.settings), &self.model);
        (begun["status"], begun["output"], begun["usage"]) = ("in_progress".into(), json!([]), Value::Null);
        let mut item = item(&self.status, json!([]));
        (item["status"], item["content"]) = ("in_progress".into(), json!([]));
        let added = self.about_text(json!({ "part": part("", json!([])) }));
        let events = [
            self.event(0, "response.created", json!({ "response": begun })),
            self.event(1, "response.in_progress", json!({ "response": begun })),
            self.event(2, "response.output_item.added", json!({ "output_index": 0, "item": item })),
            self.event(RESPONSE_OPENING, "response.content_part.added", added),
        ];
        events.into_iter().flatten().collect()
    }

    fn token(&mut self, id: u32, text: &str, logprobs: Option<&TokenLogprobs>) -> Option<Bytes> {
        // A token within a character is told with the text that it is part of.
        let told = logprobs.filter(|_| self.settings.logprobs.is_some());
        self.unsent.extend(told.map(|logprobs| (id, logprobs.clone())));
        self.delta(text)
    }

    fn progress(&mut self, hosts: &[HostProgress], time_ms: u64) -> Option<Bytes> {
        let progress = super::wire::progress(hosts, time_ms);
        self.event(RESPONSE_OPENING + self.stated, "response.prompt_progress", json!({ "prompt_progress": progress }))
    }

    fn recovery(&mut self, recovery: &RecoveryStatus) -> Option<Bytes> {
        self.event(RESPONSE_OPENING + self.stated, "response.recovery", json!({ "recovery": recovery }))
    }

    fn end(&mut self, status: JobStatus) -> Vec<Bytes> {
        self.status = status;
        // A job that had ended before anybody listened says all of it now.
        let unsaid = usize::try_from(self.stated)
            .ok()
            .and_then(|stated| self.status.text.get(stated..))
            .unwrap_or("")
            .to_owned();
        let rest = self.delta(&unsaid);
        let number = RESPONSE_OPENING + self.stated;
        let text = &self.status.text;
        let logprobs = all_logprobs((&self.status, &self.settings), &self.model);
        let last = format!("response.{}", state(&self.status));
        let events = [
            rest,
            self.event(
                number + 1,
                "response.output_text.done",
                self.about_text(json!({ "text": text, "logprobs": logprobs })),
            ),
            self.event(
                number + 2,
                "response.content_part.done",
                self.about_text(json!({ "part": part(text, logprobs.clone()) })),
            ),
            self.event(
                number + 3,
                "response.output_item.done",
                json!({ "output_index": 0, "item": item(&self.status, logprobs.clone()) }),
            ),
            self.event(number + 4, &last, json!({ "response": object((&self.status, &self.settings), &self.model) })),
        ];
        events.into_iter().flatten().collect()
    }

    fn broken(&mut self, refusal: &Refusal) -> Vec<Bytes> {
        let stated = json!({ "code": refusal.code(), "message": refusal.to_string(), "param": null });
        self.event(RESPONSE_OPENING + self.stated, "error", stated).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use asterism_models::{Checkpoint, TemplateSource};

    use super::{stream::StreamFormat as _, *};

    fn status(text: &str, state: &str) -> JobStatus {
        serde_json::from_value(json!({
            "id": format!("job-{}", "a".repeat(32)), "state": state, "method": "dense", "model": "m", "context_tokens": 3,
            "query_tokens": 2, "generated_tokens": 2, "text": text, "tokens": [], "finish_reason": "stop",
            "timings": {"queue_s": 0.0, "encode_s": 0.0, "query_s": 0.0, "decode_s": 0.0, "total_s": 0.0, "hosts": []},
        }))
        .unwrap()
    }

    fn read(events: &[Bytes]) -> Vec<(u64, String, String)> {
        let one = |event: &Bytes| {
            let text = std::str::from_utf8(event).unwrap();
            let body: Value = serde_json::from_str(text.split_once("data: ").unwrap().1).unwrap();
            let delta = body["delta"].as_str().unwrap_or_default();
            (body["sequence_number"].as_u64().unwrap(), body["type"].as_str().unwrap().to_owned(), delta.to_owned())
        };
        events.iter().map(one).collect()
    }

    /// What a client receives behind `after`, of a job that generates these tokens, or had generated them.
    fn received(tokens: &[&str], after: Option<u64>) -> Vec<(u64, String, String)> {
        let model = ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap();
        let settings = ResponseSettings::default();
        let mut voice = ResponseVoice::new((status("", "RUNNING"), settings), Arc::new(model), after);
        let mut events = voice.opening();
        events.extend(tokens.iter().filter_map(|token| voice.token(0, token, None)));
        events.extend(voice.end(status("aé€b", "SUCCEEDED")));
        read(&events)
    }

    #[test]
    fn a_stream_goes_on_from_any_event_whether_the_job_still_runs_or_not() {
        let all = received(&["a", "é€", "b"], None);
        assert_eq!(all.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 9, 10, 11, 12, 13, 14]);
        assert_eq!(all.last().unwrap().1, "response.completed");
        let text =
            |events: &[(u64, String, String)]| events.iter().map(|(.., delta)| delta.as_str()).collect::<String>();
        for (at, (number, ..)) in all.iter().enumerate() {
            let (live, late) = (received(&["a", "é€", "b"], Some(*number)), received(&[], Some(*number)));
            assert_eq!(live, all[at + 1..], "behind {number}");
            assert_eq!(text(&late), text(&live), "behind {number}");
            assert_eq!(late.last(), live.last());
        }
        assert_eq!(text(&received(&["a", "é€", "b"], Some(5))), "é€b", "inside of a character");
        assert!(received(&["a"], Some(u64::MAX)).is_empty());
    }

    #[test]
    fn only_ids_that_were_drawn_name_a_job() {
        let digits = "0123456789abcdef0123456789abcdef";
        assert_eq!(job_id(&format!("resp_{digits}")), Some(format!("job-{digits}")));
        for wrong in [
            "",
            "resp_",
            digits,
            "resp_../../etc/passwd",
            &format!("resp_{digits}0"),
            &format!("resp_{}", digits.to_uppercase()),
        ] {
            assert_eq!(job_id(wrong), None, "{wrong}");
        }
    }
}
