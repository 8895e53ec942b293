//! What `bench` times and prints: methods and lengths beside what the machine gives at most.

use serde_json::Value;

use super::{Place, SMALL};

/// Exit code and the JSON values of standard output.
fn asked(place: &Place, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = place.run(arguments);
    let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect::<Result<_, _>>();
    let printed = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), values.unwrap_or_else(|error| panic!("{error}: {printed}")))
}

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().filter(|number| *number > 0.0).unwrap_or_else(|| panic!("{key} of {value:#}"))
}

#[test]
fn prompts_are_timed_by_methods_and_lengths_beside_a_product() {
    let place = Place::new(SMALL);
    let several = ["bench", "prefill", "--tokens", "64,256", "--methods", "dense,star:block_tokens=32", "--hosts", "2"];
    let (code, documents) = asked(&place, &[&several[..], &["--repeat", "2", "-o", "json"]].concat());
    assert_eq!((code, documents.len()), (Some(0), 1));
    let (document, ceiling) = (&documents[0], &documents[0]["ceiling"]);
    assert_eq!((document["setup"]["phase"].as_str(), document["setup"]["hosts"].as_u64()), (Some("prefill"), Some(2)));
    let product = number(ceiling, "product_flops_per_s");
    let cases = document["cases"].as_array().expect("cases");
    let named: Vec<_> =
        cases.iter().map(|case| (case["method"].as_str().unwrap(), number(case, "prompt_tokens"))).collect();
    assert_eq!(
        named,
        [("dense", 64.0), ("dense", 256.0), ("star:block_tokens=32", 64.0), ("star:block_tokens=32", 256.0)]
    );
    for case in cases {
        let rate = number(case, "flops") / number(case, "median_s");
        assert!(close(number(case, "flops_per_s"), rate), "{case:#}");
        assert!(close(number(case, "share_of_ceiling"), rate / product), "{case:#}");
        assert!(number(case, "peak_memory_bytes") > 7e6 && case["peak_memory_of"] == "process", "{case:#}");
        assert_eq!(case["seconds"].as_array().map(Vec::len), Some(2));
    }
    assert!(number(&cases[3], "flops") < number(&cases[1], "flops"), "star has fewer pairs");
}

#[test]
fn a_case_that_fails_is_a_row_and_the_others_run() {
    let place = Place::new(SMALL);
    let some = [
        "bench",
        "prefill",
        "--tokens",
        "64",
        "--hosts",
        "2",
        "--repeat",
        "1",
        "--methods",
        "apb:retaining_heads=none,dense",
    ];
    let (code, lines) = asked(&place, &[&some[..], &["-o", "jsonl"]].concat());
    assert_eq!((code, lines.len()), (Some(1), 2));
    assert!(lines[0]["error"].as_str().is_some_and(|error| error.contains("retaining heads")), "{}", lines[0]);
    assert!(lines[0].get("median_s").is_none() && lines[1].get("error").is_none());
    assert!(number(&lines[1], "median_s") > 0.0 && number(&lines[1]["ceiling"], "product_flops_per_s") > 0.0);
    let table = place.says(&some);
    assert!(table.starts_with("exit 1") && table.contains("no retaining heads called none"), "{table}");
    let alone =
        place.says(&["bench", "prefill", "--tokens", "64", "--hosts", "2", "--method", "apb:retaining_heads=none"]);
    assert!(alone.starts_with("exit 2\n--- stdout\n\n") && alone.contains("error: no retaining heads"), "{alone}");
}

#[test]
fn tokens_are_timed_beside_a_copy() {
    let place = Place::new(SMALL);
    let (code, lines) = asked(
        &place,
        &[
            "bench",
            "decode",
            "--tokens",
            "64,512",
            "--max-tokens",
            "2",
            "--method",
            "dense",
            "--repeat",
            "1",
            "-o",
            "jsonl",
        ],
    );
    assert_eq!((code, lines.len()), (Some(0), 2));
    for line in &lines {
        assert_eq!((line["phase"].as_str(), line["tokens"].as_array().map(Vec::len)), (Some("decode"), Some(3)));
        let rate = number(line, "bytes_per_token") * 2.0 / number(line, "median_s");
        assert!(close(number(line, "share_of_ceiling"), rate / number(&line["ceiling"], "copy_bytes_per_s")), "{line}");
    }
    // Eight layers of two KV heads of 64, keys and values in f32.
    let keys = 448.0 * 8.0 * 2.0 * 2.0 * 64.0 * 4.0;
    assert_eq!(number(&lines[1], "bytes_per_token") - number(&lines[0], "bytes_per_token"), keys);
}

#[test]
fn attention_is_compared_with_the_reference_and_timed() {
    let place = Place::new(SMALL);
    let (code, documents) =
        asked(&place, &["bench", "attention", "--tokens", "16k,64", "--rows", "1,3", "--repeat", "1", "-o", "json"]);
    assert_eq!((code, documents.len()), (Some(0), 1));
    let ceiling = &documents[0]["ceiling"];
    let cases = documents[0]["cases"].as_array().expect("cases");
    let named: Vec<_> = cases.iter().map(|case| (case["mask"].as_str().unwrap(), number(case, "rows"))).collect();
    assert_eq!(
        named,
        [("causal", 16384.0), ("none", 1.0), ("none", 3.0), ("causal", 64.0), ("none", 1.0), ("none", 3.0)]
    );
    for case in cases {
        assert!(case["distance"].as_f64().is_some_and(|distance| distance < 1e-4), "{case:#}");
        let (flops, bytes) = (number(case, "flops_per_s"), number(case, "bytes_per_s"));
        assert!(close(flops, number(case, "flops") / number(case, "median_s")), "{case:#}");
        assert!(close(number(case, "share_of_product"), flops / number(ceiling, "product_flops_per_s")), "{case:#}");
        assert!(close(number(case, "share_of_copy"), bytes / number(ceiling, "copy_bytes_per_s")), "{case:#}");
    }
    let peak = |case: usize| number(&cases[case], "peak_memory_bytes");
    assert!(peak(0) > peak(3) + 16e6, "each case has its own peak: {} {}", peak(0), peak(3));
}

#[test]
fn what_cannot_be_timed_is_refused_before_anything_is() {
    let place = Place::new(SMALL);
    let printed = [
        place.says(&["bench", "prefill", "--methods", "dense,star", "--block-size", "1k"]),
        place.says(&["bench", "prefill", "--methods", "dense,comet"]),
        place.says(&["bench", "prefill", "--tokens", "64,1"]),
        place.says(&["bench", "prefill", "--tokens", "64,2m"]),
        place.says(&["bench", "decode", "--max-tokens", "0"]),
        place.says(&["bench", "attention", "--tokens", "8", "--rows", "1,9"]),
        place.says(&["bench", "attention", "--tokens", "32m"]),
        place.says(&["bench", "attention", "--rows", "0"]),
    ];
    insta::assert_snapshot!(printed.join("\n"));
}
