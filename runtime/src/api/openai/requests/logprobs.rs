//! How likely tokens were, as OpenAI's clients ask for it and read it. Computes no probability.

use asterism_actors::api::{JobStatus, TokenLogprobs, TopLogprob, bounds::TOP_LOGPROBS};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::api::{http::error::Refusal, openai::Checked};

/// Most likely tokens that a completion tells beside each.
const LOGPROBS_OF_TEXT: u32 = 5;

/// A token of an answer, and how likely it was.
pub type TokenProbability<'a> = (u32, &'a TokenLogprobs);

/// The tokens of a prompt and of an answer, where it is known how likely they were.
pub fn token_probabilities(status: &JobStatus) -> (Vec<TokenProbability<'_>>, Vec<TokenProbability<'_>>) {
    let mut prompt: Vec<TokenProbability<'_>> = status.tokens.iter().copied().zip(&status.logprobs).collect();
    let answer = prompt.split_off(status.scored_tokens.min(prompt.len()));
    (prompt, answer)
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

/// How many are told beside each token of the prompt.
pub fn of_prompt_asked(fields: &mut Fields) -> Checked<Option<u32>> {
    match fields.take("prompt_logprobs")? {
        Some(most) if most > TOP_LOGPROBS => Err(too_many("prompt_logprobs", most, TOP_LOGPROBS)),
        wanted => Ok(wanted),
    }
}

fn too_many(name: &str, got: u32, most: u32) -> Refusal {
    Refusal::invalid(name, format!("{name} is {got}, expected 0 to {most}"))
}

/// `logprobs` of a chat's choice.
pub fn of_chat((stated, most): (&[TokenProbability<'_>], u32), bytes: impl Fn(u32) -> Vec<u8>) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = bytes(id);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes })
    };
    let content: Vec<Value> = stated
        .iter()
        .map(|(id, TokenLogprobs { logprob, top })| {
            let mut token = entry(*id, *logprob);
            token["top_logprobs"] =
                top.iter().take(most as usize).map(|TopLogprob { id, logprob }| entry(*id, *logprob)).collect();
            token
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

/// Where the tokens of a text begin, in characters: one that ends within a character stands where that begins.
#[derive(Clone, Debug, Default)]
pub struct TextOffset {
    characters: usize,
    /// Bytes of a character that is not there yet.
    begun: Vec<u8>,
}

impl TextOffset {
    /// Where a token of these bytes begins.
    pub fn next(&mut self, bytes: &[u8]) -> usize {
        let at = self.characters;
        self.begun.extend_from_slice(bytes);
        loop {
            match std::str::from_utf8(&self.begun) {
                Ok(text) => {
                    self.characters += text.chars().count();
                    self.begun.clear();
                    return at;
                }
                Err(error) => {
                    let whole = error.valid_up_to();
                    let text = std::str::from_utf8(&self.begun[..whole]).unwrap_or_default();
                    self.characters += text.chars().count();
                    // What can become no character is replaced by one.
                    let wrong = error.error_len();
                    self.characters += usize::from(wrong.is_some());
                    self.begun.drain(..whole + wrong.unwrap_or(0));
                    if wrong.is_none() {
                        return at;
                    }
                }
            }
        }
    }
}

/// `logprobs` of a completion's choice; `first`: a token that nothing tells the probability of.
pub fn of_text(
    first: Option<u32>,
    (stated, most): (&[TokenProbability<'_>], u32),
    bytes: impl Fn(u32) -> Vec<u8>,
    reported: &mut TextOffset,
) -> Value {
    let text = |id: u32| String::from_utf8_lossy(&bytes(id)).into_owned();
    let (mut tokens, mut offsets, mut logprobs, mut tops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    if let Some(id) = first {
        offsets.push(reported.next(&bytes(id)));
        tokens.push(text(id));
        logprobs.push(None);
        tops.push(None);
    }
    for (id, TokenLogprobs { logprob, top }) in stated {
        let token = text(*id);
        let mut beside = Map::new();
        // The likelier of tokens of the same text; the token itself is always there.
        for (id, logprob) in top.iter().take(most as usize).map(|top| (top.id, top.logprob)).chain([(*id, *logprob)]) {
            beside.entry(text(id)).or_insert_with(|| logprob.into());
        }
        offsets.push(reported.next(&bytes(*id)));
        tokens.push(token);
        logprobs.push(Some(*logprob));
        tops.push(Some(beside));
    }
    json!({ "tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets })
}

/// `prompt_logprobs`, as vLLM tells them: nothing of the first token, and of each other its own and the likeliest at its place. A token
/// that is none of those that were looked at has no rank.
pub fn of_prompt(stated: &[TokenProbability<'_>], most: usize, bytes: impl Fn(u32) -> Vec<u8>) -> Value {
    let of = |id: u32, logprob: f32, rank: Option<usize>| {
        let text = String::from_utf8_lossy(&bytes(id)).into_owned();
        let mut told = json!({ "logprob": logprob, "decoded_token": text });
        if let Some(rank) = rank {
            told["rank"] = rank.into();
        }
        (id.to_string(), told)
    };
    let token = |(id, TokenLogprobs { logprob, top }): &TokenProbability<'_>| {
        let rank = top.iter().position(|top| top.id == *id).map(|place| place + 1);
        let likeliest = top.iter().take(most).enumerate().map(|(place, top)| of(top.id, top.logprob, Some(place + 1)));
        Value::Object([of(*id, *logprob, rank)].into_iter().chain(likeliest).collect())
    };
    [Value::Null].into_iter().chain(stated.iter().map(token)).collect()
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

    #[test]
    fn of_a_prompt_the_first_token_is_not_told() {
        let (second, third) = (likely(-0.5, &[(3, -0.25), (0, -0.5)]), likely(-7.0, &[(2, -1.0)]));
        let told = of_prompt(&[(0, &second), (3, &third)], 1, bytes);
        assert_eq!(told[0], Value::Null);
        assert_eq!(told[1]["0"], json!({"logprob": -0.5, "rank": 2, "decoded_token": " a"}));
        assert_eq!((told[1]["3"]["rank"].as_u64(), told[2].as_object().unwrap().len()), (Some(1), 2));
        assert_eq!(told[2]["3"], json!({"logprob": -7.0, "decoded_token": "é"}), "no rank is known of it");
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
        let chat = of_chat((&stated, 20), bytes);
        assert_eq!(
            chat["content"][0],
            json!({
                "token": " a", "logprob": -0.5, "bytes": [32, 97],
                "top_logprobs": [{"token": "é", "logprob": -0.25, "bytes": [195, 169]}],
            })
        );
        assert_eq!(chat["content"][1]["bytes"], json!([0xe2, 0x82]));
        let mut reported = TextOffset::default();
        let text = of_text(None, (&stated[..2], 5), bytes, &mut reported);
        assert_eq!(text["text_offset"], json!([0, 2]));
        assert_eq!(text["top_logprobs"][0], json!({"é": -0.25, " a": -0.5}));
        assert_eq!(
            of_text(None, (&stated[2..], 5), bytes, &mut reported)["text_offset"],
            json!([2]),
            "within a character"
        );
        assert_eq!(of_text(Some(3), (&[], 5), bytes, &mut reported)["text_offset"], json!([3]), "behind it");
    }
}
