//! A request for a response: what goes on behind an earlier one, what is told beside the answer, and what is left out of a conversation
//! that is too long. Submits nothing.

use std::collections::BTreeMap;

use actix_web::web::block;
use asterism_actors::{
    JobError,
    api::{JobStatus, bounds},
    capacity::{CapacityShare, Holder},
    supervisor::ModelFront,
};
use asterism_models::{ChatTurn, Ending, Speaker, ToolCall, Tooling};
use serde::Deserialize;
use serde_json::Value;

use crate::api::{
    http::error::Refusal,
    openai::{
        ApiState, Checked,
        answers::{
            calls::{self, AnswerCall},
            response,
        },
        chat::{self, Conversation},
        refusal,
        requests::{
            ask::ParsedRequest,
            fields::{Fields, wrong},
            message::Messages,
            thinking,
            tools::{self, Tools},
        },
        store::record::{ResponseRecord, ResponseSettings},
    },
};

/// What `include` may name that answers here never have.
const NEVER_THERE: [&str; 8] = [
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "mcp_call.output",
];
const LOGPROBS: &str = "message.output_text.logprobs";
/// Most names in `include`.
const MOST_INCLUDED: usize = 32;
/// Copies of a record while it is read and asked about.
const READ_COPIES: usize = 3;
/// Bytes of a text that a token stands for at least, where what is too long is cut.
const LEAST_TOKEN_BYTES: usize = 2;

/// A request for a response.
pub struct ResponseRequest {
    /// Its conversation, without instructions.
    turns: Vec<ChatTurn>,
    ending: Ending,
    asked: ParsedRequest,
    settings: ResponseSettings,
    tools: Option<Tools>,
    variables: BTreeMap<String, Value>,
    /// What the conversation takes that it goes on with.
    _share: Option<CapacityShare>,
}

/// Who asks: the name of a key, and whose memory it is.
pub type RequestOwner<'a> = (Option<&'a String>, &'a Holder);

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Reasoning {
    effort: Option<String>,
    summary: Option<String>,
    generate_summary: Option<String>,
}

impl ResponseRequest {
    /// Reads a request, with the conversation that it goes on with.
    pub async fn read(state: &ApiState, owner: RequestOwner<'_>, mut fields: Fields) -> Checked<Self> {
        chat::refuse_texts(&fields)?;
        let mut settings = ResponseSettings {
            instructions: fields.take("instructions")?,
            metadata: fields.metadata.take().unwrap_or_default(),
            previous: fields.take("previous_response_id")?,
            truncates: truncates(&mut fields)?,
            text: fields.peek("text").cloned(),
            store: fields.take("store")?.unwrap_or(true),
            logprobs: included(&mut fields)?,
            parallel: tools::parallel(&fields)?,
            ..ResponseSettings::default()
        };
        let tools = tools::take(&mut fields)?;
        if let Some(tools) = &tools {
            (settings.tools, settings.tool_choice) = (tools.flat(), tools.flat_choice());
        }
        let model = state.model_named(fields.model()?.as_deref())?;
        let (variables, effort) = thinking(&model, &mut fields)?;
        settings.effort = effort;
        let (mut turns, share) = match &settings.previous {
            Some(previous) => before(state, owner, previous).await?,
            None => Default::default(),
        };
        match fields.input.take() {
            Some(Messages::Text(text)) => turns.push(ChatTurn::new(Speaker::User, text)),
            Some(items @ Messages::List(_)) => turns.extend(chat::read(items, "input")?),
            Some(Messages::Other) => return Err(wrong("input", &"expected a text or a list of messages")),
            None => return Err(Refusal::invalid("input", "there is no input")),
        }
        let ending = chat::ending(&mut fields, &turns)?;
        let mut asked = ParsedRequest::take(fields, &model)?;
        (settings.temperature, settings.top_p) = (asked.job.sampling.temperature, asked.job.sampling.top_p);
        settings.max_output_tokens = asked.is_limited.then_some(asked.job.max_tokens);
        asked.job.logprobs = settings.logprobs;
        if settings.previous.is_some() && asked.job.session.is_some() {
            let message = "a session has what was said before: give one of previous_response_id and session_id";
            return Err(Refusal::invalid("previous_response_id", message));
        }
        Ok(Self { turns, ending, asked, settings, tools, variables, _share: share })
    }

    /// How it is to be answered.
    pub fn way(&mut self) -> &mut ParsedRequest {
        &mut self.asked
    }

    /// What is kept of it.
    pub fn record(&self) -> ResponseRecord {
        let turns = self.settings.store.then(|| self.turns.clone());
        ResponseRecord { settings: self.settings.clone(), turns }
    }

    /// Its job.
    pub async fn job(&self, state: &ApiState) -> Checked<ParsedRequest> {
        let system = self.settings.instructions.iter().map(|text| ChatTurn::new(Speaker::System, text.clone()));
        let turns = system.chain(self.turns.iter().cloned()).collect();
        let (tools, variables) = (self.tools.clone(), self.variables.clone());
        let conversation = Conversation { turns, ending: self.ending, tools, variables };
        chat::about(state, conversation, (self.asked.clone(), "input")).await
    }

    /// Leaves out the oldest of a conversation that was too long, if it may be. Says whether it did.
    pub fn shorten(&mut self, error: &JobError) -> bool {
        let excess = match error {
            JobError::TooLong { context, query, generated, maximum, .. } if self.settings.truncates => {
                context.saturating_add(*query).saturating_add(*generated).saturating_sub(*maximum)
            }
            _ => return false,
        };
        match surplus(&self.turns, excess) {
            0 => false,
            left_out => {
                self.turns.drain(..left_out);
                true
            }
        }
    }
}

/// How many of the oldest messages are left out for so many tokens: up to a user's, so that what is left begins with one.
fn surplus(turns: &[ChatTurn], tokens: usize) -> usize {
    let mut bytes = 0;
    for (at, pair) in turns.windows(2).enumerate() {
        bytes += pair[0].bytes();
        if pair[1].speaker == Speaker::User && bytes / LEAST_TOKEN_BYTES >= tokens {
            return at + 1;
        }
    }
    // No more can go than all before the last question.
    turns.iter().rposition(|turn| turn.speaker == Speaker::User).unwrap_or(0)
}

fn truncates(fields: &mut Fields) -> Checked<bool> {
    match fields.take::<String>("truncation")?.as_deref() {
        None | Some("disabled") => Ok(false),
        Some("auto") => Ok(true),
        Some(_) => Err(refusal::unsupported("truncation", "expected auto or disabled")),
    }
}

/// `include` and `top_logprobs`: how many of the likeliest tokens are told, where probabilities are.
fn included(fields: &mut Fields) -> Checked<Option<u32>> {
    let names: Vec<String> = fields.take("include")?.unwrap_or_default();
    if names.len() > MOST_INCLUDED {
        return Err(Refusal::invalid(
            "include",
            format!("include has {} names, expected at most {MOST_INCLUDED}", names.len()),
        ));
    }
    if let Some(name) = names.iter().find(|name| *name != LOGPROBS && !NEVER_THERE.contains(&name.as_str())) {
        let message = format!("include names {}, expected {LOGPROBS} among others of OpenAI's", bounds::shown(name));
        return Err(Refusal::invalid("include", message));
    }
    let most: Option<u32> = fields.take("top_logprobs")?;
    match (names.iter().any(|name| name == LOGPROBS), most) {
        (_, Some(most)) if most > bounds::TOP_LOGPROBS => Err(Refusal::invalid(
            "top_logprobs",
            format!("top_logprobs is {most}, expected 0 to {}", bounds::TOP_LOGPROBS),
        )),
        (false, Some(1..)) => Err(Refusal::invalid(
            "top_logprobs",
            format!("top_logprobs is given, and include does not name {LOGPROBS}"),
        )),
        (wanted, most) => Ok(wanted.then_some(most.unwrap_or(0))),
    }
}

/// `reasoning`: what the template is told of how much the model is to think, where it asks for that.
fn thinking(model: &ModelFront, fields: &mut Fields) -> Checked<(BTreeMap<String, Value>, Option<String>)> {
    let asked: Reasoning = fields.take("reasoning")?.unwrap_or_default();
    if asked.summary.is_some_and(|summary| summary != "auto") || asked.generate_summary.is_some() {
        return Err(refusal::unsupported("reasoning.summary", "what the model thinks is part of its answer"));
    }
    let Some(effort) = asked.effort else { return Ok(Default::default()) };
    let variables = thinking::variables(model, ("reasoning.effort", &effort))?;
    Ok((variables, Some(effort)))
}

/// What was said up to the end of an earlier response.
async fn before(
    state: &ApiState,
    (owner, holder): RequestOwner<'_>,
    id: &str,
) -> Checked<(Vec<ChatTurn>, Option<CapacityShare>)> {
    let refused =
        |what: &str| Refusal::invalid("previous_response_id", format!("the response '{}' {what}", bounds::shown(id)));
    let gone = || {
        Refusal::of(
            actix_web::http::StatusCode::NOT_FOUND,
            "previous_response_not_found",
            refused("is not there").to_string(),
        )
    };
    let job = response::job_id(id).ok_or_else(gone)?;
    let status = match state.supervisor.status(&job).await {
        Ok(status) if is_of(&status, owner) => status,
        Ok(_) | Err(JobError::NotFound { .. }) => return Err(gone()),
        Err(error) => return Err(refusal::of_job(error, "input")),
    };
    if let Some(why) = response::unanswered(&status) {
        return Err(refused(why));
    }
    let share = state.intake.room(holder, READ_COPIES * state.responses.bytes(id)).await?;
    let (kept, id_read) = (state.responses.clone(), id.to_owned());
    let record = block(move || kept.read(&id_read)).await.map_err(|error| Refusal::failed("internal", error))?;
    let (settings, turns) = record.map(|record| (record.settings, record.turns)).unwrap_or_default();
    let mut turns = turns.ok_or_else(|| refused("has no conversation that was stored: send the whole conversation"))?;
    turns.push(said(&status, Tools::of_flat((&settings.tools, &settings.tool_choice, settings.parallel)).as_ref()));
    Ok((turns, Some(share)))
}

/// Whether a job is a response to this key.
pub fn is_of(status: &JobStatus, owner: Option<&String>) -> bool {
    status.labels.contains_key(bounds::RESPONSE) && status.labels.get(bounds::KEY) == owner
}

/// The answer as a message, with what it called.
fn said(status: &JobStatus, tools: Option<&Tools>) -> ChatTurn {
    let (text, calls) = calls::whole(tools, (&status.id, 0), &status.text);
    let call = |call: AnswerCall| ToolCall { arguments: call.value(), id: call.id, name: call.name };
    let calls: Vec<ToolCall> = calls.into_iter().map(call).collect();
    let is_mute = text.is_empty();
    let tooling = (!calls.is_empty()).then(|| Box::new(Tooling { is_mute, calls, ..Tooling::default() }));
    ChatTurn { speaker: Speaker::Assistant, text, tooling }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(body: Value) -> Fields {
        serde_json::from_value(body).expect("an object")
    }

    #[test]
    fn what_is_left_out_ends_before_a_question() {
        let turn = |speaker, bytes: usize| ChatTurn::new(speaker, "a".repeat(bytes));
        use Speaker::{Assistant, Tool, User};
        let turns = [
            turn(User, 100),
            turn(Assistant, 100),
            turn(Tool, 100),
            turn(User, 10),
            turn(Assistant, 10),
            turn(User, 5),
        ];
        for (tokens, expected) in [(1, 3), (150, 3), (151, 5), (10_000, 5)] {
            assert_eq!(surplus(&turns, tokens), expected, "{tokens}");
        }
        assert_eq!((surplus(&turns[..1], 10), surplus(&[], 1)), (0, 0));
    }

    #[test]
    fn what_is_included_is_known() {
        let included = |body| included(&mut fields(body));
        assert_eq!(included(json!({})).unwrap(), None);
        assert_eq!(included(json!({"include": ["reasoning.encrypted_content"]})).unwrap(), None);
        assert_eq!(included(json!({"include": [LOGPROBS], "top_logprobs": 2})).unwrap(), Some(2));
        for wrong in [
            json!({"include": ["everything"]}),
            json!({"top_logprobs": 1}),
            json!({"include": [LOGPROBS], "top_logprobs": 21}),
        ] {
            assert_eq!(included(wrong.clone()).unwrap_err().status(), 400, "{wrong}");
        }
        assert!(truncates(&mut fields(json!({"truncation": "auto"}))).unwrap());
        assert!(truncates(&mut fields(json!({"truncation": "middle"}))).is_err());
    }
}
