//! What the command line says of itself, and whose model, type and method `bench` times.

use std::net::TcpListener;

use super::{Place, SMALL};

#[test]
fn shells_and_manual_readers_learn_every_command() {
    let place = Place::new(SMALL);
    for shell in ["bash", "zsh", "fish"] {
        let script = place.says(&["completions", shell]);
        assert!(script.starts_with("exit 0") && script.contains("allow-idle-hosts"), "{script:.400}");
    }
    let man = place.says(&["man", "pages"]);
    assert!(man.starts_with("exit 0") && man.contains("man pages/asterism.1"), "{man}");
    for page in ["asterism.1", "asterism-job-submit.1", "asterism-session-ask.1"] {
        let text = std::fs::read_to_string(place.path().join("pages").join(page)).expect("a page");
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text:.200}");
    }
}

/// What is no JSON is not printed where JSON was asked for.
#[test]
fn json_is_printed_or_refused() {
    let place = Place::new(SMALL);
    for command in [&["init"][..], &["completions", "bash"], &["man", "pages"]] {
        for format in ["json", "jsonl"] {
            let said = place.says(&[command, &["-o", format]].concat());
            let refused = format!("error: `asterism {}` has no -o {format}: it", command[0]);
            assert!(said.starts_with("exit 2\n--- stdout\n\n---") && said.contains(&refused), "{said:.400}");
        }
        assert!(place.says(&[command, &["-o", "text"]].concat()).starts_with("exit 0"), "{command:?}");
    }
    let said = place.says(&["config", "default", "-o", "json"]);
    let printed = said.split("--- stdout\n").nth(1).and_then(|rest| rest.split("\n--- stderr").next());
    let defaults: serde_json::Value = serde_json::from_str(printed.expect("a part")).expect("JSON");
    assert!(defaults["supervisor"]["heartbeat_ms"].is_u64() && defaults["version"] == 1, "{defaults:#}");
    let text = place.says(&["config", "default"]);
    assert!(text.contains(&format!("heartbeat_ms = {}", defaults["supervisor"]["heartbeat_ms"])), "{text}");
}

#[test]
fn short_help_leaves_the_options_of_every_command_to_long_help() {
    let place = Place::new(SMALL);
    let (short, long) = (place.says(&["status", "-h"]), place.says(&["status", "--help"]));
    assert!(!short.contains("--request-timeout"), "{short}");
    assert!(long.contains("Options of every command:") && long.contains("--request-timeout"), "{long}");
}

#[test]
fn bench_times_what_the_cluster_file_names() {
    let short = ["bench", "prefill", "--tokens", "600", "--repeat", "1"];
    let place = Place::new(&SMALL.replace("[attention.star]", "[model]\ndtype = \"bf16\"\n[attention.star]"));
    let file = place.says(&short);
    assert!(file.contains("prefill of asterism-7m with star, 1 host,"), "{file}");
    assert!(file.contains("bf16"), "{file}");
    let named = place.says(&[&short[..], &["--method", "dense", "--dtype", "f32", "--hosts", "2"]].concat());
    assert!(named.contains("with dense, 2 hosts") && named.contains("f32"), "{named}");
    let absent = Place::new(&SMALL.replace("[attention.star]", "[model]\npath = \"nowhere\"\n[attention.star]"));
    assert!(absent.says(&short).starts_with("exit 2"), "a model of the file that is not there");
}

#[test]
fn who_waits_for_a_supervisor_that_hangs_is_told_so() {
    // The system takes connections, and nobody reads them.
    let hangs = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("http://{}", hangs.local_addr().expect("an address"));
    let place = Place::new(SMALL);
    let asking: [&[&str]; 6] = [
        &["status"],
        &["job", "list"],
        &["job", "status", "job-1"],
        &["host", "list"],
        &["session", "list"],
        &["bench", "links"],
    ];
    for command in asking {
        let printed = place.says(&[command, &["--server", &server, "--request-timeout", "3"]].concat());
        assert!(printed.contains(&format!("no answer from {server} yet; it is waited for, up to 3 s")), "{printed}");
        assert!(!printed.starts_with("exit 0"), "{printed}");
    }
}
