//! How likely tokens were: as a decoder of its own computes it from the same ids, whole and streamed, greedy and drawn.

use std::sync::Arc;

use asterism_kernels::{Cpu, CpuOptions, DType};
use asterism_models::{Checkpoint, ContextKeys, Decoder, DecoderParts, Generator, LocalContext};
use serde_json::{Value, json};

use super::openai::{CHAT, JSON, answered, cluster, newest, send, streamed};

const TEXT: &str = "/v1/completions";
/// Two phases and one pass add in another order.
const TOLERANCE: f64 = 1e-3;

/// Log-softmax of the row that each of the last `count` ids was chosen from, in one pass without a cluster.
fn recomputed(ids: &[u32], count: usize) -> Vec<Vec<f64>> {
    let backend = Cpu::new(CpuOptions { dtype: DType::F32, ..CpuOptions::default() }).expect("a processor");
    let checkpoint = Checkpoint::embedded().expect("the embedded model");
    let decoder = Decoder::load(Arc::new(backend), &checkpoint, DecoderParts::All).expect("a decoder");
    let mut nowhere = LocalContext::new(decoder.backend(), &[]);
    let x = Generator::new(ContextKeys::default(), 0).step(&decoder, ids, &mut nowhere).expect("rows");
    let all = decoder.all_logits(&x).expect("logits");
    let vocab = decoder.config().vocab;
    (ids.len() - count..ids.len())
        .map(|at| {
            let row = &all[(at - 1) * vocab..at * vocab];
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|logit| f64::from(logit - most).exp()).sum();
            row.iter().map(|logit| f64::from(logit - most) - sum.ln()).collect()
        })
        .collect()
}

#[test]
fn they_are_those_of_the_logits_that_tokens_are_chosen_from() {
    let cluster = cluster(None);
    let prompt: Vec<u32> = (0..90).map(|at| 300 + (at * 37) % 500).collect();
    for drawn in [json!({}), json!({"temperature": 1.3, "top_p": 0.95, "seed": 7})] {
        let mut body =
            json!({"prompt": prompt, "max_tokens": 8, "ignore_eos": true, "logprobs": 5, "attention": "dense"});
        drawn.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        let answer = answered(&cluster, TEXT, &body);
        let reported = &answer["choices"][0]["logprobs"];
        let job = newest(&cluster);
        let tokens: Vec<u32> = serde_json::from_value(job["tokens"].clone()).expect("ids");
        let ids: Vec<u32> = prompt.iter().chain(&tokens).copied().collect();
        let expected = recomputed(&ids, tokens.len());
        assert_eq!((tokens.len(), reported["tokens"].as_array().expect("texts").len()), (8, 8), "{reported}");
        for (at, (id, row)) in tokens.iter().zip(&expected).enumerate() {
            let chosen = reported["token_logprobs"][at].as_f64().expect("a number");
            assert!((chosen - row[*id as usize]).abs() < TOLERANCE, "token {at}: {chosen}, not {}", row[*id as usize]);
            let mut best: Vec<f64> = row.clone();
            best.sort_by(|a, b| b.total_cmp(a));
            let top = job["logprobs"][at]["top"].as_array().expect("the likeliest");
            assert_eq!(top.len(), 5);
            for (top, best) in top.iter().zip(best) {
                let (id, logprob) = (top["id"].as_u64().expect("an id"), top["logprob"].as_f64().expect("a number"));
                assert!((logprob - best).abs() < TOLERANCE, "token {at}: {logprob}, not {best}");
                assert!((logprob - row[id as usize]).abs() < TOLERANCE, "token {at}: {id} is not at {logprob}");
            }
        }
        let chunks = streamed(&cluster, TEXT, &body);
        let printed = |name: &str| -> Vec<Value> {
            let lists = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array());
            lists.flatten().cloned().collect()
        };
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(json!(printed(name)), reported[name], "{name}");
        }
    }
}

#[test]
fn a_chat_tells_every_token_with_its_bytes_whole_and_streamed() {
    let cluster = cluster(None);
    let messages =
        json!([{"role": "system", "content": super::openai::whale()}, {"role": "user", "content": "Which colour?"}]);
    let body = json!({"messages": messages, "max_tokens": 12, "logprobs": true, "top_logprobs": 3});
    let answer = answered(&cluster, CHAT, &body);
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().expect("tokens");
    assert_eq!(Some(content.len() as u64), answer["usage"]["completion_tokens"].as_u64());
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .map(|byte| u8::try_from(byte.as_u64().expect("a number")).expect("a byte"))
        .collect();
    assert_eq!(String::from_utf8(bytes).expect("text"), choice["message"]["content"].as_str().expect("text"));
    for token in content {
        // The likeliest token was chosen.
        assert_eq!(
            (&token["top_logprobs"][0]["token"], &token["top_logprobs"][0]["logprob"]),
            (&token["token"], &token["logprob"])
        );
        assert_eq!(token["top_logprobs"].as_array().expect("the likeliest").len(), 3);
    }
    let printed: Vec<Value> = streamed(&cluster, CHAT, &body)
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&printed, content);
    let plain = answered(&cluster, CHAT, &json!({"messages": messages, "max_tokens": 12}));
    assert_eq!((&plain["choices"][0]["logprobs"], &plain["choices"][0]["message"]), (&Value::Null, &choice["message"]));
    let (status, refused) =
        send(&cluster, ("POST", "/v1/completions"), &[JSON], &json!({"prompt": "a b", "logprobs": 6}).to_string());
    assert_eq!((status, refused["error"]["param"].as_str()), (400, Some("logprobs")), "{refused}");
}
