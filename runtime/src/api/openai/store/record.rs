//! What is kept of a response beside its job: how it was asked for, and the conversation that it answers. Keeps nothing itself.

use asterism_models::ChatTurn;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::metadata::Metadata;

/// How a response was asked for, and what it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseRecord {
    /// As the response tells it.
    pub settings: ResponseSettings,
    /// The conversation without instructions; none where nothing was to be stored.
    pub turns: Option<Vec<ChatTurn>>,
}

/// What of a request its response tells again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseSettings {
    /// `instructions`
    pub instructions: Option<String>,
    /// `metadata`
    pub metadata: Metadata,
    /// `temperature`
    pub temperature: f32,
    /// `top_p`
    pub top_p: f32,
    /// `max_output_tokens`, where it was said.
    pub max_output_tokens: Option<usize>,
    /// `previous_response_id`
    pub previous: Option<String>,
    /// `text`
    pub text: Option<Value>,
    /// `truncation: auto`
    pub truncates: bool,
    /// `reasoning.effort`
    pub effort: Option<String>,
    /// `store`
    pub store: bool,
    /// `top_logprobs`, where `include` asks for probabilities.
    pub logprobs: Option<u32>,
    /// `tools`, where the answer may call some.
    pub tools: Vec<Value>,
    /// `tool_choice`
    pub tool_choice: Value,
    /// `parallel_tool_calls`
    pub parallel: bool,
}

impl Default for ResponseSettings {
    fn default() -> Self {
        Self {
            instructions: None,
            metadata: Metadata::default(),
            temperature: 0.0,
            top_p: 1.0,
            max_output_tokens: None,
            previous: None,
            text: None,
            truncates: false,
            effort: None,
            store: true,
            logprobs: None,
            tools: Vec::new(),
            tool_choice: "none".into(),
            parallel: true,
        }
    }
}

impl ResponseSettings {
    /// Bytes that they take where they are told, about.
    pub fn bytes(&self) -> usize {
        let values = self.text.iter().chain(&self.tools).map(|value| value.to_string().len());
        self.instructions.as_ref().map_or(0, String::len) + values.sum::<usize>()
    }

    /// Puts them into a response.
    pub fn tell(&self, response: &mut Value) {
        let text = match &self.text {
            Some(text) => {
                let mut text = text.clone();
                if text.get("format").is_none_or(Value::is_null) {
                    text["format"] = json!({ "type": "text" });
                }
                text
            }
            None => json!({ "format": { "type": "text" } }),
        };
        for (name, value) in [
            ("instructions", json!(self.instructions)),
            ("metadata", json!(self.metadata)),
            ("temperature", rounded(self.temperature)),
            ("top_p", rounded(self.top_p)),
            ("max_output_tokens", json!(self.max_output_tokens)),
            ("previous_response_id", json!(self.previous)),
            ("text", text),
            ("truncation", if self.truncates { "auto".into() } else { "disabled".into() }),
            ("reasoning", json!({ "effort": self.effort, "summary": null })),
            ("store", json!(self.store)),
            ("top_logprobs", json!(self.logprobs.unwrap_or(0))),
            ("tools", json!(self.tools)),
            ("tool_choice", self.tool_choice.clone()),
            ("parallel_tool_calls", self.parallel.into()),
        ] {
            response[name] = value;
        }
    }
}

/// A number as it was written: the nearest of 64 bits to 0.7 is another than that of 32.
fn rounded(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_tells_how_it_was_asked_for() {
        let mut response = json!({});
        let settings = ResponseSettings {
            temperature: 0.7,
            text: Some(json!({"verbosity": "medium"})),
            logprobs: Some(3),
            ..ResponseSettings::default()
        };
        settings.tell(&mut response);
        assert_eq!((&response["temperature"], &response["top_p"]), (&json!(0.7), &json!(1.0)));
        assert_eq!(response["text"], json!({"verbosity": "medium", "format": {"type": "text"}}));
        assert_eq!((&response["truncation"], &response["top_logprobs"]), (&json!("disabled"), &json!(3)));
        let read: ResponseSettings = serde_json::from_value(json!({})).unwrap();
        assert_eq!(read, ResponseSettings::default());
    }
}
