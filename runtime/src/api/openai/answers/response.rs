//! Responses as OpenAI's clients read them. An event's number is the number of bytes said up to its end, so that a stream goes on from
//! any of them whatever was sent before. Decides nothing.
//!
//! With tools it is the number of bytes and of events that the items have up to there, which is the same however an answer comes.

mod output;

use std::sync::Arc;

use asterism_actors::{
    api::{FinishReason, HostProgress, JobPhase, JobState, JobStatus, RecoveryStatus, TokenLogprobs},
    supervisor::ModelFront,
};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    calls::AnswerReader,
    stream::{self, StreamFormat as _},
};
use crate::api::{
    http::error::Refusal,
    openai::{
        requests::{
            logprobs::{self, TokenProbability, token_probabilities},
            tools::Tools,
        },
        store::{self, RESPONSE_PREFIX, record::ResponseSettings},
    },
};

use output::{OutputChange, ResponseOutput, part};

/// The job of a response.
pub fn job_id(id: &str) -> Option<String> {
    store::digits(RESPONSE_PREFIX, id).map(|digits| format!("job-{digits}"))
}

/// The response of a job.
pub fn id_of(job: &str) -> String {
    format!("{RESPONSE_PREFIX}{}", job.strip_prefix("job-").unwrap_or(job))
}

/// Why there is no answer that something can follow, and what to do; none where there is one.
pub fn unanswered(status: &JobStatus) -> Option<&'static str> {
    match status.state {
        JobState::Succeeded => None,
        JobState::Pending | JobState::Running => {
            Some("has not been answered; wait for it, or go on behind an earlier one")
        }
        JobState::Failed => Some("failed and has no answer; ask it again, or go on behind an earlier one"),
        JobState::Cancelled => {
            Some("was cancelled and has no whole answer; ask it again, or go on behind an earlier one")
        }
    }
}

fn digits(status: &JobStatus) -> &str {
    status.id.strip_prefix("job-").unwrap_or(&status.id)
}

/// A response as it stands.
pub fn object((status, settings): (&JobStatus, &ResponseSettings), model: &ModelFront) -> Value {
    let state = state(status);
    let mut reader = reader(status, settings);
    let mut pieces = if status.text.is_empty() { Vec::new() } else { reader.push(&status.text) };
    if !["queued", "in_progress"].contains(&state) {
        pieces.extend(reader.finish());
    }
    let mut output = ResponseOutput::new(digits(status));
    pieces.into_iter().for_each(|piece| drop(output.push(piece)));
    if output.is_empty() && state == "completed" {
        output.begin_message();
    }
    whole((status, settings), &output, model)
}

/// What finds calls in an answer.
fn reader(status: &JobStatus, settings: &ResponseSettings) -> AnswerReader {
    let tools = Tools::of_flat((&settings.tools, &settings.tool_choice, settings.parallel));
    AnswerReader::new(tools.as_ref(), (&status.id, 0))
}

/// A response with what it has said.
fn whole((status, settings): (&JobStatus, &ResponseSettings), output: &ResponseOutput, model: &ModelFront) -> Value {
    let state = state(status);
    let output = output.items(item_state(state), &all_logprobs((status, settings), output, model));
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
    });
    settings.tell(&mut response);
    response
}

/// How likely the tokens of an answer were, where that is told: not of calls.
fn all_logprobs(
    (status, settings): (&JobStatus, &ResponseSettings),
    output: &ResponseOutput,
    model: &ModelFront,
) -> Value {
    match output.has_called() {
        true => json!([]),
        false => stated_logprobs(settings, &token_probabilities(status).1, model),
    }
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

/// How the last item of a response in this state is.
fn item_state(state: &str) -> &'static str {
    match state {
        "completed" => "completed",
        "queued" | "in_progress" => "in_progress",
        _ => "incomplete",
    }
}

/// A response as a stream of events.
pub struct ResponseVoice {
    status: JobStatus,
    settings: ResponseSettings,
    model: Arc<ModelFront>,
    reader: AnswerReader,
    output: ResponseOutput,
    /// Bytes of the answer that went by, and tokens since some were sent.
    heard: usize,
    unsent: Vec<(u32, TokenLogprobs)>,
    /// Number of the next event, where that says nothing.
    next: u64,
    /// What the client has received already.
    after: Option<u64>,
}

impl ResponseVoice {
    /// Of a job, behind the event of number `after`.
    pub fn new((status, settings): (JobStatus, ResponseSettings), model: Arc<ModelFront>, after: Option<u64>) -> Self {
        let (reader, output) = (reader(&status, &settings), ResponseOutput::new(digits(&status)));
        Self { status, settings, model, reader, output, heard: 0, unsent: Vec::new(), next: 0, after }
    }

    /// The next event, which has this number, unless it has been received.
    fn event(&self, number: u64, kind: &str, mut body: Value) -> Option<Bytes> {
        if self.after.is_some_and(|after| number <= after) {
            return None;
        }
        body["type"] = kind.into();
        body["sequence_number"] = number.into();
        Some(Bytes::from(format!("event: {kind}\ndata: {body}\n\n")))
    }

    /// The next event, which says nothing.
    fn next_event(&mut self, kind: &str, body: Value, to: &mut Vec<Bytes>) {
        self.next += 1;
        to.extend(self.event(self.next - 1, kind, body));
    }

    /// An event beside the answer.
    fn event_beside(&self, kind: &str, body: Value) -> Option<Bytes> {
        self.event(self.next.saturating_sub(1), kind, body)
    }

    /// What an event says of the last item.
    fn about_item(&self, mut body: Value) -> Value {
        let at = self.output.last();
        body["item_id"] = self.output.id(at).into();
        body["output_index"] = at.into();
        if self.output.is_at_message() {
            body["content_index"] = 0.into();
        }
        body
    }

    fn begin(&mut self, to: &mut Vec<Bytes>) {
        let at = self.output.last();
        let added = json!({ "output_index": at, "item": self.output.begun(at) });
        self.next_event("response.output_item.added", added, to);
        if self.output.is_at_message() {
            let added = self.about_item(json!({ "part": part("", &json!([])) }));
            self.next_event("response.content_part.added", added, to);
        } else {
            // Those of a call are told nowhere.
            self.unsent.clear();
        }
    }

    /// The last item ends, so that it is in this state.
    fn close(&mut self, state: &str, to: &mut Vec<Bytes>) {
        if self.output.is_empty() {
            return;
        }
        let at = self.output.last();
        let text = self.output.text(at).to_owned();
        let logprobs = all_logprobs((&self.status, &self.settings), &self.output, &self.model);
        let item = self.output.item(at, state, &logprobs);
        if self.output.is_at_message() {
            let done = self.about_item(json!({ "text": text, "logprobs": logprobs }));
            self.next_event("response.output_text.done", done, to);
            let done = self.about_item(json!({ "part": part(&text, &logprobs) }));
            self.next_event("response.content_part.done", done, to);
        } else {
            let done = self.about_item(json!({ "arguments": text, "name": item["name"] }));
            self.next_event("response.function_call_arguments.done", done, to);
        }
        self.next_event("response.output_item.done", json!({ "output_index": at, "item": item }), to);
    }

    /// More of the last item.
    fn delta(&mut self, text: &str) -> Option<Bytes> {
        let before = self.next.saturating_sub(1);
        self.next += text.len() as u64;
        let received = usize::try_from(self.after.unwrap_or(0).saturating_sub(before)).unwrap_or(usize::MAX);
        // Numbers are told where characters end; another one gets the whole character.
        let unreceived = (0..=received.min(text.len())).rev().find_map(|at| text.get(at..))?;
        if unreceived.is_empty() {
            return None;
        }
        if !self.output.is_at_message() {
            let body = self.about_item(json!({ "delta": unreceived }));
            return self.event_beside("response.function_call_arguments.delta", body);
        }
        let unsent = std::mem::take(&mut self.unsent);
        let told: Vec<TokenProbability<'_>> = unsent.iter().map(|(id, logprobs)| (*id, logprobs)).collect();
        let logprobs = stated_logprobs(&self.settings, &told, &self.model);
        let body = self.about_item(json!({ "delta": unreceived, "logprobs": logprobs }));
        self.event_beside("response.output_text.delta", body)
    }

    /// More of the answer, or its end.
    fn hear(&mut self, text: &str, ends: bool, to: &mut Vec<Bytes>) {
        self.heard += text.len();
        let mut pieces = if text.is_empty() { Vec::new() } else { self.reader.push(text) };
        if ends {
            pieces.extend(self.reader.finish());
        }
        for piece in pieces {
            let begins = self.output.begins_with(&piece);
            if begins {
                self.close("completed", to);
            }
            match self.output.push(piece) {
                OutputChange::Begun(text) => {
                    self.begin(to);
                    to.extend(self.delta(&text));
                }
                OutputChange::Grown(text) => to.extend(self.delta(&text)),
            }
        }
    }
}

/// The number of the last event of a response that has ended.
pub fn last_number((status, settings): (JobStatus, ResponseSettings), model: Arc<ModelFront>) -> u64 {
    // It says nothing, and counts.
    let mut voice = ResponseVoice::new((status.clone(), settings), model, Some(u64::MAX));
    voice.opening();
    voice.end(status);
    voice.next.saturating_sub(1)
}

impl stream::StreamFormat for ResponseVoice {
    fn opening(&mut self) -> Vec<Bytes> {
        let mut events = Vec::new();
        let mut begun = whole((&self.status, &self.settings), &self.output, &self.model);
        (begun["status"], begun["usage"]) = ("in_progress".into(), Value::Null);
        self.next_event("response.created", json!({ "response": begun }), &mut events);
        self.next_event("response.in_progress", json!({ "response": begun }), &mut events);
        // What calls nothing is a message.
        if self.settings.tools.is_empty() {
            self.output.begin_message();
            self.begin(&mut events);
        }
        events
    }

    fn token(&mut self, id: u32, text: &str, logprobs: Option<&TokenLogprobs>) -> Option<Bytes> {
        // A token within a character is told with the text that it is part of.
        let told = logprobs.filter(|_| self.settings.logprobs.is_some());
        self.unsent.extend(told.map(|logprobs| (id, logprobs.clone())));
        let mut events = Vec::new();
        self.hear(text, false, &mut events);
        (!events.is_empty()).then(|| events.concat().into())
    }

    fn progress(&mut self, hosts: &[HostProgress], time_ms: u64) -> Option<Bytes> {
        let progress = super::wire::progress(hosts, time_ms);
        self.event_beside("response.prompt_progress", json!({ "prompt_progress": progress }))
    }

    fn recovery(&mut self, recovery: &RecoveryStatus) -> Option<Bytes> {
        self.event_beside("response.recovery", json!({ "recovery": recovery }))
    }

    fn end(&mut self, status: JobStatus) -> Vec<Bytes> {
        self.status = status;
        // A job that had ended before anybody listened says all of it now.
        let unsaid = self.status.text.get(self.heard..).unwrap_or_default().to_owned();
        let mut events = Vec::new();
        self.hear(&unsaid, true, &mut events);
        let state = state(&self.status);
        if self.output.is_empty() && state == "completed" {
            self.output.begin_message();
            self.begin(&mut events);
        }
        self.close(item_state(state), &mut events);
        let response = whole((&self.status, &self.settings), &self.output, &self.model);
        self.next_event(&format!("response.{state}"), json!({ "response": response }), &mut events);
        events
    }

    fn broken(&mut self, refusal: &Refusal) -> Vec<Bytes> {
        let stated = json!({ "code": refusal.code(), "message": refusal.to_string(), "param": null });
        self.event_beside("error", stated).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use asterism_models::{Checkpoint, TemplateSource};

    use super::*;

    fn status(text: &str, state: &str) -> JobStatus {
        serde_json::from_value(json!({
            "id": format!("job-{}", "a".repeat(32)), "state": state, "method": "dense", "model": "m", "context_tokens": 3,
            "query_tokens": 2, "generated_tokens": 2, "text": text, "tokens": [], "finish_reason": "stop",
            "timings": {"queue_s": 0.0, "encode_s": 0.0, "query_s": 0.0, "decode_s": 0.0, "total_s": 0.0, "hosts": []},
        }))
        .unwrap()
    }

    fn read(events: &[Bytes]) -> Vec<(u64, String, String)> {
        let one = |event: &str| {
            let body: Value = serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap();
            let delta = body["delta"].as_str().unwrap_or_default();
            (body["sequence_number"].as_u64().unwrap(), body["type"].as_str().unwrap().to_owned(), delta.to_owned())
        };
        let all = String::from_utf8(events.concat()).unwrap();
        all.split_terminator("\n\n").map(one).collect()
    }

    /// What a client receives behind `after`, of a job that generates these tokens, or had generated them.
    fn received(tokens: &[&str], after: Option<u64>) -> Vec<(u64, String, String)> {
        received_of(("aé€b", ResponseSettings::default()), tokens, after)
    }

    fn received_of(
        (text, settings): (&str, ResponseSettings),
        tokens: &[impl AsRef<str>],
        after: Option<u64>,
    ) -> Vec<(u64, String, String)> {
        let model = ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap();
        let mut voice = ResponseVoice::new((status("", "RUNNING"), settings), Arc::new(model), after);
        let mut events = voice.opening();
        events.extend(tokens.iter().filter_map(|token| voice.token(0, token.as_ref(), None)));
        events.extend(voice.end(status(text, "SUCCEEDED")));
        read(&events)
    }

    /// What a client makes of events: kinds of items with what they say, and whether their ends say the same.
    fn items(events: &[(u64, String, String)]) -> Vec<(String, String)> {
        let mut items: Vec<(String, String)> = Vec::new();
        for (_, kind, delta) in events {
            match kind.as_str() {
                "response.content_part.added" => items.push(("message".to_owned(), String::new())),
                "response.output_item.added" => {}
                "response.output_text.delta" => items.last_mut().unwrap().1 += delta,
                "response.function_call_arguments.delta" => items.push(("call".to_owned(), delta.clone())),
                _ => {}
            }
        }
        items
    }

    #[test]
    fn what_will_never_be_answered_is_not_to_be_waited_for() {
        for (state, begin, is_awaited) in [
            ("PENDING", "has not been answered", true),
            ("RUNNING", "has not been answered", true),
            ("FAILED", "failed", false),
            ("CANCELLED", "was cancelled", false),
        ] {
            let said = unanswered(&status("a", state)).expect(state);
            assert!(said.starts_with(begin) && said.contains("wait for it") == is_awaited, "{state}: {said}");
        }
        assert_eq!(unanswered(&status("a", "SUCCEEDED")), None);
    }

    #[test]
    fn calls_are_items_of_their_own_and_a_stream_goes_on_from_any_event() {
        let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
        let settings = || ResponseSettings {
            tools: vec![tool.clone()],
            tool_choice: "auto".into(),
            ..ResponseSettings::default()
        };
        let text = "Aé:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n\
                    ```json\n{\"name\": \"weather\", \"arguments\": {}}\n```\nDone.";
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let all = received_of((text, settings()), &letters, None);
        let kinds: Vec<&str> = all.iter().map(|(_, kind, _)| kind.strip_prefix("response.").unwrap()).collect();
        let kinds: Vec<&str> = kinds
            .iter()
            .enumerate()
            .filter(|(at, kind)| *at == 0 || kinds[at - 1] != **kind)
            .map(|(_, kind)| *kind)
            .collect();
        let message = [
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
        ];
        let call =
            ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"];
        let expected = [&["created", "in_progress"][..], &message, &call, &call, &message, &["completed"]].concat();
        assert_eq!(kinds, expected);
        let said = [("message", "Aé:\n"), ("call", r#"{"city":"Oslo"}"#), ("call", "{}"), ("message", "\nDone.")];
        assert_eq!(items(&all), said.map(|(kind, text)| (kind.to_owned(), text.to_owned())));
        for (at, (number, ..)) in all.iter().enumerate() {
            assert!(at == 0 || all[at - 1].0 < *number, "{number}");
            assert_eq!(received_of((text, settings()), &letters, Some(*number)), all[at + 1..], "behind {number}");
            let late = received_of((text, settings()), &[] as &[&str], Some(*number));
            assert_eq!(late.last(), all[at + 1..].last());
            let text_of =
                |events: &[(u64, String, String)]| events.iter().map(|(.., delta)| delta.as_str()).collect::<String>();
            assert_eq!(text_of(&late), text_of(&all[at + 1..]), "behind {number}");
        }
        let model = ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap();
        let whole = object((&status(text, "SUCCEEDED"), &settings()), &model);
        assert_eq!(whole["output"].as_array().unwrap().len(), 4);
        let call = &whole["output"][1];
        assert_eq!(
            (&call["name"], &call["arguments"], &call["status"]),
            (&json!("weather"), &json!(r#"{"city":"Oslo"}"#), &json!("completed"))
        );
        assert_eq!((&call["call_id"], &whole["tools"][0]["name"]), (&json!("aaaaaaa00"), &json!("weather")));
        // One that still runs tells no half of a call.
        let half = object((&status(&text[..40], "RUNNING"), &settings()), &model);
        assert_eq!(half["output"][0]["content"][0]["text"], json!("Aé:\n"));
        assert_eq!(half["output"].as_array().unwrap().len(), 1);
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
        let model = ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap();
        let ended = (status("aé€b", "SUCCEEDED"), ResponseSettings::default());
        assert_eq!(last_number(ended, Arc::new(model)), all.last().unwrap().0);
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
