//! Every field of a request that is known, and what becomes of it: honoured, taken for nothing, or taken with the values that ask for
//! nothing. Reads no request.

use serde_json::Value;

/// Fields that are honoured, where, and how, as the reference says.
pub const HONOURED: &[(&str, &str, &str)] = &[
    ("model", "all", "a name that `/v1/models` lists, or absent"),
    ("max_completion_tokens", "all", "absent: 1,024, a quarter of what the model takes, or what room there is"),
    ("max_output_tokens", "all", "the same"),
    ("max_tokens", "all", "the same; 0 for a completion with `echo`"),
    ("temperature", "all", "absent: 0, the likeliest token"),
    ("top_p", "all", "absent: 1; 0 leaves the likeliest token alone"),
    ("top_k", "all", "0 and -1: all tokens"),
    ("min_p", "all", "0 to 1, of the likeliest token's probability"),
    ("seed", "all", "absent: another one each time, where `temperature` is above 0"),
    ("repetition_penalty", "all", "above 0 to 10; of tokens of the question and the answer"),
    ("presence_penalty", "all", "-2 to 2; of tokens of the answer"),
    ("frequency_penalty", "all", "-2 to 2; of tokens of the answer"),
    ("logit_bias", "all", "up to 1,024 token ids, -100 to 100 each"),
    (
        "min_tokens",
        "all",
        "no end of sequence before so many; a form that nothing can follow ends an answer all the same",
    ),
    ("stop", "all", "a text or up to 16"),
    ("n", "chats, completions", "1 to 16 answers; 1 in a batch"),
    ("best_of", "completions", "as `n`, or absent"),
    ("logprobs", "chats, completions", "chats: whether; completions: up to 5 beside each token"),
    ("top_logprobs", "chats, responses", "up to 20 beside each token; of responses where `include` asks for them"),
    (
        "prompt_logprobs",
        "chats, completions",
        "up to 20 beside each token of the prompt, with `rank` where a token is among them; not in streams",
    ),
    ("echo", "completions", "the prompt before the answer, with `logprobs` also its tokens'"),
    ("response_format", "all", "`text`, `json_object`, `json_schema`"),
    ("text", "responses", "`format` as `response_format`; `verbosity` is medium"),
    ("guided_json", "all", "a JSON schema"),
    ("guided_regex", "all", "a regular expression that the whole answer matches"),
    ("guided_choice", "all", "up to 1,024 texts of which the answer is one"),
    ("structured_outputs", "all", "vLLM's: one of `json`, `json_object`, `regex`, `choice`"),
    ("tools", "chats, responses", "up to 128 functions, by the model's own template"),
    ("tool_choice", "chats, responses", "`none`, `auto`, `required`, or a function by its name"),
    ("parallel_tool_calls", "chats, responses", "`false` ends an answer behind its first call"),
    ("chat_template_kwargs", "chats", "further variables of the chat template, such as `enable_thinking`"),
    ("stream", "all", "server-sent events, `[DONE]` at the end; a comment every 10 s of silence"),
    ("stream_options", "all", "`include_usage`, `continuous_usage_stats`, `include_obfuscation`"),
    ("session_id", "all", "asks a session: `messages` is one user message, `context` is absent"),
    ("attention", "all", "a method's name, or `{\"method\": NAME, ...}` with its sizes"),
    ("return_progress", "all", "in streams: `prompt_progress` and `recovery`"),
    ("timeout_s", "all", "as jobs have it"),
    ("ignore_eos", "all", "as jobs have it"),
    (
        "prompt_cache_key",
        "all",
        "any text: the context comes again, and is encoded in [a form that goes on](sessions.md#chats)",
    ),
    (
        "cache_salt",
        "all",
        "up to 256 bytes: nothing of the context is shared with requests of another salt, or of none; not with `session_id`",
    ),
    ("template_date", "all", "what the chat template is told"),
    ("continue_final_message", "chats, responses", "goes on with an answer at the end"),
    ("add_generation_prompt", "chats, responses", "`false` opens no answer"),
    ("instructions", "responses", "what stands before the conversation; not taken over by the next response"),
    ("previous_response_id", "responses", "goes on behind that response's answer"),
    ("include", "responses", "`message.output_text.logprobs`; what answers here never have is taken, too"),
    ("truncation", "responses", "`auto` leaves out the oldest messages of a conversation that is too long"),
    ("reasoning", "responses", "`effort`, where the chat template has `enable_thinking` or `reasoning_effort`"),
    ("reasoning_effort", "chats", "the same as a word"),
    ("metadata", "responses", "told again; 16 pairs of 64 and 512 characters"),
    ("store", "responses", "`false` keeps no conversation to go on with"),
    ("background", "responses", "goes on whoever listens"),
    ("query_separator", "completions", "between `context` and `prompt`"),
];

/// Fields that clients send and that change nothing of an answer.
pub const HARMLESS: &[&str] =
    &["guided_decoding_backend", "metadata", "request_id", "safety_identifier", "service_tier", "user"];

/// Fields that are taken with the values that ask for nothing, and what to expect. Of an object each part may be absent.
pub const NEUTRAL: &[(&str, &[&str], &str)] = &[
    ("n", &["1"], "expected 1; ask again for another answer"),
    ("best_of", &["1"], "expected 1"),
    ("logprobs", &["false"], "chats and completions alone tell probabilities"),
    ("top_logprobs", &["0"], "chats and completions alone tell probabilities"),
    ("echo", &["false"], "completions alone repeat a prompt"),
    ("suffix", &["\"\""], "expected none"),
    ("tools", &["[]"], "expected none; chats and responses take tools"),
    ("tool_choice", &["\"none\"", "\"auto\""], "chats and responses take tools"),
    ("parallel_tool_calls", &["true", "false"], "completions call no tools"),
    ("functions", &["[]"], "expected none; name them in tools"),
    ("function_call", &["\"none\"", "\"auto\""], "there are no functions; use tool_choice"),
    ("modalities", &["[\"text\"]"], "answers are text"),
    ("reasoning_effort", &["\"none\"", "\"medium\""], "the model is asked as it is"),
    ("truncation", &["\"disabled\""], "nothing is left out of a context"),
    ("include", &["[]"], "there is nothing more to tell"),
    ("reasoning", &["{}"], "the model is asked as it is"),
    ("verbosity", &["\"medium\""], "the model is asked as it is"),
    ("prompt_cache_retention", &["\"in_memory\"", "\"in-memory\""], "create a session to keep a document"),
    ("chat_template_kwargs", &["{}"], "expected none"),
    ("skip_special_tokens", &["true"], "answers have no special tokens"),
    ("spaces_between_special_tokens", &["true"], "answers have no special tokens"),
    ("add_special_tokens", &["true"], "a text gets what its tokenizer puts around it"),
    ("include_stop_str_in_output", &["false"], "answers end before a stop string"),
    ("stop_token_ids", &["[]"], "give texts in stop"),
    ("bad_words", &["[]"], "give ids in logit_bias"),
    ("allowed_token_ids", &["[]"], "give ids in logit_bias"),
    ("use_beam_search", &["false"], "expected false"),
    ("length_penalty", &["1"], "there is no beam search"),
    ("early_stopping", &["false"], "there is no beam search"),
    ("store", &["true", "false"], "answers to chats and completions are not kept"),
    ("priority", &["0"], "keys share what there is"),
    ("return_token_ids", &["false"], "logprobs tell tokens"),
    ("return_tokens_as_token_ids", &["false"], "tokens are told as texts"),
    ("include_reasoning", &["true", "false"], "the model is asked as it is"),
    ("documents", &["[]"], "put them into a message"),
    ("web_search_options", &["{}"], "there is no search"),
];

/// Whether a field is known, whatever becomes of it.
pub fn is_known(name: &str) -> bool {
    HONOURED.iter().any(|known| known.0 == name)
        || NEUTRAL.iter().any(|known| known.0 == name)
        || HARMLESS.contains(&name)
}

/// Whether a value asks for as much as a known one does: numbers by what they are, objects without some of their parts.
pub fn asks_for(value: &Value, known: &Value) -> bool {
    match (value, known) {
        (Value::Number(value), Value::Number(known)) => value.as_f64() == known.as_f64(),
        (Value::Object(value), Value::Object(known)) => value
            .iter()
            .all(|(name, value)| value.is_null() || known.get(name).is_some_and(|known| asks_for(value, known))),
        (value, known) => value == known,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Where the reference has the table.
    const MARKS: (&str, &str) = ("<!-- fields: made by a test of runtime -->\n", "<!-- end of fields -->");

    /// The table of the reference.
    fn table() -> String {
        let mut rows = Vec::new();
        for (name, place, what) in HONOURED {
            rows.push((*name, format!("| `{name}` | honoured ({place}) | {what} |")));
        }
        let is_honoured = |name: &str| HONOURED.iter().any(|other| other.0 == name);
        for name in HARMLESS.iter().filter(|name| !is_honoured(name)) {
            rows.push((*name, format!("| `{name}` | taken | changes nothing |")));
        }
        for (name, values, expected) in NEUTRAL.iter().filter(|(name, ..)| !is_honoured(name)) {
            let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
            rows.push((*name, format!("| `{name}` | refused, but for {values} | {expected} |")));
        }
        rows.sort();
        let rows = rows.into_iter().map(|(_, row)| row + "\n").collect::<String>();
        format!("| field | | |\n|---|---|---|\n{rows}")
    }

    #[test]
    fn the_reference_says_what_becomes_of_each_field() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(MARKS.0).expect("a mark before the table");
        let (stated, after) = rest.split_once(MARKS.1).expect("a mark behind the table");
        if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
            std::fs::write(&path, format!("{before}{}{}{}{after}", MARKS.0, table(), MARKS.1)).unwrap();
        } else {
            assert_eq!(stated, table(), "INSTA_UPDATE=always writes it anew");
        }
    }

    #[test]
    fn neutral_values_are_json_and_asked_for_by_what_they_are() {
        let json = |text: &str| serde_json::from_str::<Value>(text).expect(text);
        for (name, values, _) in NEUTRAL {
            values.iter().for_each(|value| assert!(asks_for(&json(value), &json(value)), "{name}: {value}"));
        }
        for (value, known, expected) in [
            ("1.0", "1", true),
            ("-0.0", "0", true),
            ("2", "1", false),
            ("{}", r#"{"a": {"b": 1}}"#, true),
            (r#"{"a": null}"#, r#"{"b": 1}"#, true),
            (r#"{"a": {"b": 2}}"#, r#"{"a": {"b": 1}}"#, false),
            (r#"{"c": 1}"#, r#"{"a": 1}"#, false),
            ("[1]", "[]", false),
        ] {
            assert_eq!(asks_for(&json(value), &json(known)), expected, "{value} {known}");
        }
    }
}
