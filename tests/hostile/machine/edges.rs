//! Models, templates, cluster files and settings that are wrong on purpose.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{Cluster, ClusterSpec, golden};

fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_asterism-under-test")
}

fn spec(model: Option<&Path>) -> ClusterSpec {
    let model = model.map(Path::to_owned);
    ClusterSpec { contexts: 1, model, method: "[attention.star]\nblock_tokens = 16", listen: "127.0.0.1:0".into() }
}

pub fn started() -> Cluster {
    Cluster::start(binary(), &spec(None))
}

/// A copy of the tiny Llama, to break.
fn model() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(golden().join("models/tiny-llama").join(file), folder.path().join(file)).expect("the tiny model");
    }
    folder
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command of a cluster file to its end; it says everything of `expected` and ends with `code`.
fn refused(cluster: &Cluster, arguments: &[&str], code: i32, expected: &[&str]) {
    let output = cluster.run(arguments);
    let printed = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {printed}");
    for part in expected {
        assert!(printed.contains(part), "{arguments:?} says nothing of {part:?}: {printed}");
    }
    assert!(!printed.contains("panicked"), "{printed}");
}

pub fn ask(cluster: &Cluster, request: &Value) -> (u16, Value) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let answer = agent.post(format!("{}/api/v1/jobs", cluster.server())).send_json(request).expect("an answer");
    (answer.status().as_u16(), answer.into_body().read_json().expect("JSON"))
}

pub fn is_alive(cluster: &Cluster) {
    ureq::get(format!("{}/livez", cluster.server())).call().expect("the supervisor lives");
}

/// Templates that do not end by themselves, or take all memory, and what is said of them: memory or
/// time, whichever is met first.
const BURNING: [(&str, &str); 5] = [
    ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "instructions"),
    ("{% set n = namespace(x='xx') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "takes more than"),
    ("{{ range(99999) | join('x' * 99999) }}", "takes more than"),
    ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
    // Few instructions of much work each.
    (
        "{% set w = 'x ' * 4000000 %}{% for a in range(9999) %}{% if w.split() | length == 1 %}{% endif %}{% endfor %}",
        "takes more than",
    ),
];

#[test]
fn a_model_whose_template_burns_is_refused_at_start() {
    for (template, cause) in BURNING {
        let model = model();
        let text = format!("{template}{{{{ messages[0].content }}}}");
        fs::write(model.path().join("chat_template.jinja"), text).expect("a template");
        let cluster = Cluster::written(binary(), &spec(Some(model.path())), |text| text);
        refused(&cluster, &["validate"], 2, &["chat_template.jinja", cause]);
        refused(&cluster, &["up", "--detach"], 2, &["chat_template.jinja", cause]);
    }
}

#[test]
fn a_template_that_burns_at_a_question_refuses_that_and_nothing_else() {
    let burns: String = BURNING
        .iter()
        .enumerate()
        .map(|(at, (template, _))| format!("{{% if 'burn {at}' in messages[0].content %}}{template}{{% endif %}}"))
        .collect();
    let says = "{% if messages[0].role == 'system' %}{{ raise_exception('No system here!') }}{% endif %}";
    let model = model();
    let text = format!("{burns}{says}{{{{ messages[0].content }}}}");
    fs::write(model.path().join("chat_template.jinja"), text).expect("a template");
    let cluster = Cluster::start(binary(), &spec(Some(model.path())));
    let question = |context: &str| {
        let request =
            json!({"context": context, "query": "d", "max_tokens": 1, "chat_template": true, "method": {"dense": {}}});
        ask(&cluster, &request)
    };
    for (at, (_, cause)) in BURNING.iter().enumerate() {
        let (status, answer) = question(&format!("burn {at} b c"));
        assert_eq!(status, 400, "{answer}");
        let code = answer["error"]["code"].as_str().expect("a code");
        assert!(["template_limit", "chat_template"].contains(&code), "{answer}");
        assert!(answer["error"]["message"].as_str().expect("a message").contains(cause), "{answer}");
        is_alive(&cluster);
        let (status, answer) = question("a b c");
        assert_eq!(status, 202, "another conversation is rendered by a process of its own: {answer}");
    }
}

#[test]
fn a_config_that_is_nonsense_is_refused_by_name() {
    let nonsense = [
        ("rope_theta", json!(0.0)),
        ("rope_theta", json!(-500000.0)),
        ("rms_norm_eps", json!(-1e-5)),
        ("rms_norm_eps", json!(1e50)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(1u64 << 60)),
        ("num_key_value_heads", json!(3)),
        ("hidden_size", json!(u64::MAX)),
        ("vocab_size", json!(1u64 << 62)),
        ("max_position_embeddings", json!(u64::MAX)),
    ];
    for (key, value) in nonsense {
        let model = model();
        let path = model.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("a config")).expect("JSON");
        config[key] = value.clone();
        if let Some(parameters) = config.get_mut("rope_parameters").filter(|_| key == "rope_theta") {
            parameters[key] = value.clone();
        }
        fs::write(&path, config.to_string()).expect("a config");
        let cluster = Cluster::written(binary(), &spec(Some(model.path())), |text| text);
        let expected = if key == "num_key_value_heads" { "divide" } else { "expected" };
        refused(&cluster, &["validate"], 2, &["config.json", key, expected]);
        refused(&cluster, &["up", "--detach"], 2, &["config.json", key]);
    }
}

/// Overwrites the first elements of a tensor of an f32 or bf16 file with one value.
fn poison(model: &Path, tensor: &str, value: f32) {
    let path = model.join("model.safetensors");
    let mut bytes = fs::read(&path).expect("weights");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let names: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
    let start = 8 + header + names[tensor]["data_offsets"][0].as_u64().expect("an offset") as usize;
    match names[tensor]["dtype"].as_str().expect("a type") {
        "F32" => bytes[start..start + 4].copy_from_slice(&value.to_le_bytes()),
        "BF16" => bytes[start..start + 2].copy_from_slice(&value.to_le_bytes()[2..]),
        other => panic!("{other} is not written here"),
    }
    fs::write(&path, bytes).expect("weights");
}

#[test]
fn weights_that_are_no_numbers_are_refused_at_load() {
    for (tensor, value) in [
        ("model.layers.0.self_attn.k_proj.weight", f32::NAN),
        ("model.norm.weight", f32::INFINITY),
        ("model.embed_tokens.weight", f32::NEG_INFINITY),
    ] {
        let model = model();
        poison(model.path(), tensor, value);
        let cluster = Cluster::written(binary(), &spec(Some(model.path())), |text| text);
        let output = cluster.run(&["up", "--detach", "--timeout", "30"]);
        let printed = stderr(&output);
        assert!(!output.status.success(), "{tensor} is {value}: {printed}");
        assert!(printed.contains(tensor) && printed.contains("model.safetensors"), "{printed}");
    }
}

#[test]
fn a_step_that_ends_in_no_number_fails_its_job() {
    // Each finite, and infinite once they are multiplied.
    let overflows = [
        (["model.norm.weight", "lm_head.weight"], "not_finite_logits", "token"),
        (
            ["model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.v_proj.weight"],
            "not_finite_partial",
            "its partial of shard 0 in layer 0 is not finite",
        ),
    ];
    for (tensors, code, cause) in overflows {
        let model = model();
        tensors.iter().for_each(|tensor| poison(model.path(), tensor, 3e38));
        let cluster = Cluster::start(binary(), &spec(Some(model.path())));
        let case = json!({"context_ids": [5, 6, 7, 8], "query_ids": [9], "max_new_tokens": 2});
        let status = cluster.answer_tokens(&case, json!({"star": {"block_tokens": 16}}));
        assert_eq!((&status["state"], &status["error"]["code"]), (&json!("FAILED"), &json!(code)), "{status}");
        assert!(status["error"]["message"].as_str().expect("a message").contains(cause), "{status}");
    }
}

#[test]
fn a_model_folder_of_other_things_is_refused() {
    type Damage = fn(&Path);
    let damages: [(Damage, &str); 3] = [
        (|folder| make_fifo(&folder.join("config.json")), "no regular file"),
        (|folder| make_fifo(&folder.join("model.safetensors")), "no regular file"),
        (
            |folder| {
                let file = fs::File::create(folder.join("tokenizer.json")).expect("a file");
                file.set_len(1 << 40).expect("a sparse file");
            },
            "bytes long",
        ),
    ];
    for (damage, cause) in damages {
        let model = model();
        damage(model.path());
        let cluster = Cluster::written(binary(), &spec(Some(model.path())), |text| text);
        refused(&cluster, &["validate"], 2, &[cause]);
    }
}

fn make_fifo(path: &Path) {
    fs::remove_file(path).expect("the file");
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

#[test]
fn numbers_that_cannot_be_meant_end_with_2() {
    let cluster = Cluster::written(binary(), &spec(None), |text| text);
    let huge = "99999999999k";
    let commands: [&[&str]; 16] = [
        &["plan", "--tokens", "99999999999"],
        &["plan", "--tokens", huge],
        &["plan", "--tokens", "18446744073709551615"],
        &["plan", "--tokens", "-1"],
        &["plan", "--tokens", "256m"],
        &["plan", "--tokens", "64", "--query-tokens", huge],
        &["plan", "--tokens", "64", "--block-size", huge],
        &["bench", "prefill", "--tokens", "99999999999"],
        &["bench", "prefill", "--tokens", "256m"],
        &["bench", "prefill", "--hosts", "18446744073709551615"],
        &["bench", "prefill", "--threads", "1000000"],
        &["bench", "decode", "--max-tokens", huge],
        &["init", "--hosts", "99999999999"],
        &["eval", "make", "niah_single_1", "--samples", "18446744073709551615"],
        &["eval", "make", "niah_single_1", "--seed", "18446744073709551615"],
        &["session", "create", "a", "--context", "cluster.toml", "--ttl", "1e300"],
    ];
    for arguments in commands {
        refused(&cluster, arguments, 2, &[]);
    }
}

#[test]
fn validate_refuses_what_up_refuses() {
    type Edit = fn(String, &Path) -> String;
    let edits: [(Edit, &str); 9] = [
        (|text, _| text.replace("[api]", "[model]\npath = \"nowhere\"\n[api]"), "no config.json"),
        (|text, folder| with_token(text, folder, "", 0o600), "empty"),
        (|text, folder| with_token(text, folder, "moon\n", 0o644), "chmod 600"),
        (|text, _| text.replace("\"context-0\"", "\"supervisor\""), "supervisor"),
        (|text, _| text.replace("\"context-0\"", "\"local\""), "a node"),
        (|text, _| text.replace("\"context-0\"", "\"context-0\"\nthreads = 1000000"), "host.threads"),
        (|text, _| text.replace("\"127.0.0.1:0\"\n\n[[node]]", "\"0.0.0.0:0\"\n\n[[node]]"), "token_file"),
        (|text, _| text.replace("[api]", "[security]\nca = \"x\"\ncert = \"x\"\nkey = \"x\"\n[api]"), "cannot read"),
        (
            |text, _| {
                text.replace("\"127.0.0.1:0\"\n\n[[node]]", "\"127.0.0.1:7999\"\n\n[[node]]")
                    .replace("[api]", "[security]\njoin_listen = \"127.0.0.1:7999\"\n[api]")
            },
            "7999",
        ),
    ];
    for (edit, cause) in edits {
        let cluster = Cluster::written(binary(), &spec(None), |text| text);
        let text = fs::read_to_string(cluster.file()).expect("a file");
        fs::write(cluster.file(), edit(text, cluster.folder())).expect("a file");
        let outputs =
            ["validate", "up"].map(|verb| cluster.run(if verb == "up" { &["up", "--detach"] } else { &["validate"] }));
        let [validated, up] = outputs.map(|output| (output.status.code(), stderr(&output)));
        assert!(validated.0 != Some(0) && validated.0 == up.0, "{cause}: {validated:?} and {up:?}");
        assert!(validated.1.contains(cause) && up.1.contains(cause), "{cause}: {validated:?} and {up:?}");
    }
}

#[test]
fn validate_lists_every_problem_at_once() {
    let cluster = Cluster::written(binary(), &spec(None), |text| {
        text.replace(
            "[api]",
            "[model]\npath = \"nowhere\"\n[security]\nca = \"x\"\ncert = \"x\"\nkey = \"x\"\ntoken_file = \"y\"\n[api]",
        )
    });
    let printed = stderr(&cluster.run(&["validate"]));
    for part in ["no config.json", "/x", "token file"] {
        assert!(printed.contains(part), "nothing of {part:?} in {printed}");
    }
}

fn with_token(text: String, folder: &Path, token: &str, mode: u32) -> String {
    let path = folder.join("token");
    fs::write(&path, token).expect("a token");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
    text.replace("[api]", "[security]\ntoken_file = \"token\"\n[api]")
}

#[test]
fn an_open_admin_api_is_one_that_somebody_allowed() {
    let cluster = Cluster::written(binary(), &spec(None), |text| {
        text.replace("admin_listen = \"127.0.0.1:0\"", "admin_listen = \"0.0.0.0:0\"")
            .replace("[api]", "[security]\nallow_open_admin = true\n\n[api]")
    });
    assert!(cluster.run(&["validate"]).status.success());
}

#[test]
fn a_token_is_borne_in_lower_case_too() {
    let cluster = Cluster::written(binary(), &spec(None), |text| text);
    let text = fs::read_to_string(cluster.file()).expect("a file");
    fs::write(cluster.file(), with_token(text, cluster.folder(), "moon\n", 0o600)).expect("a file");
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", stderr(&up));
    let status = |value: &str| {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let request = agent.get(format!("{}/api/v1/jobs", cluster.server())).header("Authorization", value);
        request.call().expect("an answer").status().as_u16()
    };
    let got = ["Bearer moon", "bearer moon", "BEARER   moon", "bearer sun", "Basic moon"].map(status);
    assert_eq!(got, [200, 200, 200, 401, 401]);
}
