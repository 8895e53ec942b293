//! How likely tokens were, as OpenAI's clients ask for it and read it. Computes no probability.

use asterism_actors::api::{JobStatus, TokenLogprobs, TopLogprob, bounds::TOP_LOGPROBS};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::api::{http::error::Refusal, openai::Checked};

/// Most likely tokens that a completion tells beside each.
const LOGPROBS_OF_TEXT: u32 = 5;

/// A token of an answer, and how likely it was.
pub type TokenProbability<'a> = (u32, &'a TokenLogprobs);

/// The tokens of an answer, where it is known how likely they were.
pub fn token_probabilities(status: &JobStatus) -> Option<Vec<TokenProbability<'_>>> {
    let known = !status.logprobs.is_empty();
    known.then(|| status.tokens.iter().copied().zip(&status.logprobs).collect())
}

/// What a chat asks for: `logprobs` says whether, `top_logprobs` how many beside each token.
pub fn of_chat_asked(fields: &mut Fields) -> Checked<Option<u32>> {
    let wanted: bool = fields.take("logprobs")?.unwrap_or(false);
    let most: Option<u32> = fields.take("top_logprobs")?;
    match (wanted, most) {
        (false, Some(1..)) => Err(Refusal::invalid("top_logprobs", "top_logprobs is given, and logprobs is not true")),
        (_, Some(most)) if most > TOP_LOGPROBS => Err(too_many("top_logprobs", most, TOP_LOGPROBS)),
        (wanted, most) => Ok(wanted.then_some(most.unwrap_or(0))),
    }
}

/// What a completion asks for: how many beside each token.
pub fn of_text_asked(fields: &mut Fields) -> Checked<Option<u32>> {
    let wanted: Option<u32> = fields.take("logprobs")?;
    match wanted {
        Some(most) if most > LOGPROBS_OF_TEXT => Err(too_many("logprobs", most, LOGPROBS_OF_TEXT)),
        wanted => Ok(wanted),
    }
}

fn too_many(name: &str, got: u32, most: u32) -> Refusal {
    Refusal::invalid(name, format!("{name} is {got}, expected 0 to {most}"))
}

/// `logprobs` of a chat's choice.
pub fn of_chat(stated: &[TokenProbability<'_>], bytes: impl Fn(u32) -> Vec<u8>) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = bytes(id);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes })
    };
    let content: Vec<Value> = stated
        .iter()
        .map(|(id, TokenLogprobs { logprob, top })| {
            let mut token = entry(*id, *logprob);
            token["top_logprobs"] = top.iter().map(|TopLogprob { id, logprob }| entry(*id, *logprob)).collect();
            token
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

/// `logprobs` of a completion's choice; `reported`: characters of the tokens before these.
pub fn of_text(stated: &[TokenProbability<'_>], bytes: impl Fn(u32) -> Vec<u8>, reported: &mut usize) -> Value {
    let text = |id: u32| String::from_utf8_lossy(&bytes(id)).into_owned();
    let (mut tokens, mut offsets, mut logprobs, mut tops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (id, TokenLogprobs { logprob, top }) in stated {
        let token = text(*id);
        let mut beside = Map::new();
        // The likelier of tokens of the same text; the token itself is always there.
        for (id, logprob) in top.iter().map(|top| (top.id, top.logprob)).chain([(*id, *logprob)]) {
            beside.entry(text(id)).or_insert_with(|| logprob.into());
        }
        offsets.push(*reported);
        *reported += token.chars().count();
        tokens.push(token);
        logprobs.push(*logprob);
        tops.push(beside);
    }
    json!({ "tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: Value) -> Fields {
        serde_json::from_value(body).unwrap()
    }

    fn likely(logprob: f32, top: &[(u32, f32)]) -> TokenLogprobs {
        TokenLogprobs { logprob, top: top.iter().map(|&(id, logprob)| TopLogprob { id, logprob }).collect() }
    }

    fn bytes(id: u32) -> Vec<u8> {
        [b" a".to_vec(), vec![0xe2, 0x82], vec![0xac], "é".into()][id as usize].clone()
    }

    #[test]
    fn what_is_asked_for_is_within_bounds() {
        let chat = |body| of_chat_asked(&mut fields(body));
        assert_eq!(chat(json!({})).unwrap(), None);
        assert_eq!(chat(json!({"logprobs": false, "top_logprobs": 0})).unwrap(), None);
        assert_eq!(chat(json!({"logprobs": true})).unwrap(), Some(0));
        assert_eq!(chat(json!({"logprobs": true, "top_logprobs": 20})).unwrap(), Some(20));
        for wrong in [
            json!({"top_logprobs": 3}),
            json!({"logprobs": true, "top_logprobs": 21}),
            json!({"logprobs": true, "top_logprobs": -1}),
            json!({"logprobs": 3}),
        ] {
            assert_eq!(chat(wrong.clone()).unwrap_err().status(), 400, "{wrong}");
        }
        let text = |body| of_text_asked(&mut fields(body));
        assert_eq!((text(json!({})).unwrap(), text(json!({"logprobs": 0})).unwrap()), (None, Some(0)));
        assert_eq!(text(json!({"logprobs": 5})).unwrap(), Some(5));
        for wrong in [json!({"logprobs": 6}), json!({"logprobs": true}), json!({"logprobs": 1.5})] {
            assert_eq!(text(wrong.clone()).unwrap_err().status(), 400, "{wrong}");
        }
    }

    #[test]
    fn a_chat_tells_bytes_and_a_completion_where_tokens_begin() {
        let (first, half, rest) = (likely(-0.5, &[(3, -0.25)]), likely(-1.0, &[]), likely(-2.0, &[(2, -2.0)]));
        let stated = [(0, &first), (1, &half), (2, &rest)];
        let chat = of_chat(&stated, bytes);
        assert_eq!(
            chat["content"][0],
            json!({
                "token": " a", "logprob": -0.5, "bytes": [32, 97],
                "top_logprobs": [{"token": "é", "logprob": -0.25, "bytes": [195, 169]}],
            })
        );
        assert_eq!(chat["content"][1]["bytes"], json!([0xe2, 0x82]));
        let mut reported = 0;
        let text = of_text(&stated[..2], bytes, &mut reported);
        assert_eq!(text["text_offset"], json!([0, 2]));
        assert_eq!(text["top_logprobs"][0], json!({"é": -0.25, " a": -0.5}));
        assert_eq!(of_text(&stated[2..], bytes, &mut reported)["text_offset"], json!([3]));
    }
}
