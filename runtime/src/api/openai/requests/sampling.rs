//! How tokens are to be chosen, under the names that OpenAI's and vLLM's clients have for it. Chooses none.

use std::collections::BTreeMap;

use asterism_models::Sampling;

use super::fields::Fields;
use crate::api::{http::error::Refusal, openai::Checked};

/// What a request says of how tokens are chosen.
pub fn take(fields: &mut Fields) -> Checked<Sampling> {
    let plain = Sampling::default();
    let temperature = fields.take("temperature")?.unwrap_or(plain.temperature);
    // A nucleus of nothing has the likeliest token, as one of very little has.
    let top_p = fields.take("top_p")?.unwrap_or(plain.top_p);
    let top_p = if top_p == 0.0 { f32::MIN_POSITIVE } else { top_p };
    // Whoever names no seed wants another answer each time, where tokens are drawn at all.
    let drawn = || if temperature > 0.0 { rand::random() } else { 0 };
    let seed = fields.take::<i64>("seed")?.map_or_else(drawn, i64::cast_unsigned);
    let top_k = match fields.take::<i64>("top_k")? {
        None | Some(-1) => 0,
        Some(most) => u32::try_from(most).map_err(|_| {
            Refusal::invalid("top_k", format!("top_k is {most}, expected a number of tokens, or 0 or -1 for all"))
        })?,
    };
    Ok(Sampling {
        temperature,
        top_p,
        seed,
        top_k,
        min_p: fields.take("min_p")?.unwrap_or(plain.min_p),
        repetition_penalty: fields.take("repetition_penalty")?.unwrap_or(plain.repetition_penalty),
        presence_penalty: fields.take("presence_penalty")?.unwrap_or(plain.presence_penalty),
        frequency_penalty: fields.take("frequency_penalty")?.unwrap_or(plain.frequency_penalty),
        min_tokens: fields.take("min_tokens")?.unwrap_or(plain.min_tokens),
        logit_bias: fields.take::<BTreeMap<u32, f32>>("logit_bias")?.unwrap_or_default(),
        constraint: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn taken(body: Value) -> Checked<Sampling> {
        take(&mut serde_json::from_value(body).expect("an object"))
    }

    #[test]
    fn values_that_ask_for_nothing_are_the_default() {
        let neutral = json!({
            "repetition_penalty": 1.0, "top_k": -1, "min_p": 0, "min_tokens": 0, "presence_penalty": -0.0,
            "frequency_penalty": 0, "logit_bias": {}, "temperature": -0.0, "top_p": 1,
        });
        assert_eq!(taken(neutral).unwrap(), Sampling::default());
        assert_eq!(taken(json!({"top_k": 0})).unwrap(), Sampling::default());
    }

    #[test]
    fn others_are_taken_as_they_are() {
        let sampling = taken(json!({"top_k": 3, "min_p": 0.5, "logit_bias": {"7": -1.5}, "top_p": 0.0})).unwrap();
        assert_eq!((sampling.top_k, sampling.min_p, sampling.logit_bias), (3, 0.5, BTreeMap::from([(7, -1.5)])));
        assert!(sampling.top_p > 0.0 && sampling.top_p < 1e-30);
        for (name, value) in [("top_k", json!(-2)), ("logit_bias", json!({"a": 1})), ("min_tokens", json!(-1))] {
            assert!(taken(json!({ name: value })).unwrap_err().to_string().contains(name), "{name}");
        }
    }
}
