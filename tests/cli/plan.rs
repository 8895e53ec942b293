//! What `plan` says: costs, and refusals of methods whose sizes make no plan.

use std::fs;

use tests::golden;

use super::{Place, SMALL};

/// A place with three context hosts.
fn wide() -> Place {
    let host = |name: &str| format!("[[host]]\nname = \"{name}\"\nrole = \"context\"\n");
    Place::new(&(SMALL.to_string() + &host("context-1") + &host("context-2")))
}

/// What `plan` says of a method, for 2,000 tokens on three context hosts.
fn plan(method: &str) -> String {
    wide().says(&["plan", "--tokens", "2000", "--method", method])
}

#[test]
fn methods_whose_sizes_make_no_plan() {
    let methods = [
        "pulsar:summary_tokens=8:chunk_tokens=16:heuristic=max-idf",
        "star:block_tokens=500:anchor_tokens=501",
        "star:block_tokens=1500",
        "apb:anchor_tokens=63",
        "apb:anchor_tokens=1001",
        "apb:retaining_heads=none.safetensors",
        "ulysses",
        "apb:embed_query=false",
        "anchor:theta=nan",
        "anchor:step=0",
        "streaming:window_tokens=0",
        "pulsar:summary_fraction=1.5",
        "pulsar:positions=contiguous:shared_prefix=true",
        "star:balanced=true:block_tokens=500",
    ];
    let said: Vec<_> = methods.iter().map(|method| format!("{method}\n{}", plan(method))).collect();
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn retaining_heads_of_another_shape() {
    let place = wide();
    let heads = golden().join("models/tiny-qwen2/retaining_heads.safetensors");
    place.write("heads.safetensors", &fs::read(heads).expect("the fixture"));
    let method = "apb:retaining_heads=heads.safetensors";
    insta::assert_snapshot!(place.says(&["plan", "--tokens", "2000", "--method", method]));
}

#[test]
fn a_plan_shows_what_a_job_costs_and_why_auto_chose() {
    insta::assert_snapshot!([plan("auto"), plan("auto:dense_below_tokens=1k")].join("\n"));
}
