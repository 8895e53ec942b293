//! What people name as a model and is none, and clusters that `validate` must not call valid.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::unix::fs::symlink,
    path::Path,
    process::Output,
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, golden};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A cluster file with `[model] path = "model"`, as `edit` leaves it.
fn cluster(edit: impl FnOnce(String) -> String) -> Cluster {
    let spec = ClusterSpec { contexts: 1, model: None, method: "[attention.star]", listen: "127.0.0.1:0".into() };
    Cluster::written(BINARY, &spec, |text| edit(text.replace("[api]", "[model]\npath = \"model\"\n\n[api]")))
}

/// Copies the tiny Llama to `folder`.
fn copy_to(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(golden().join("models/tiny-llama").join(file), folder.join(file)).expect("the tiny model");
    }
}

fn validate(cluster: &Cluster) -> Output {
    cluster.command(&["validate"]).env("HOME", cluster.folder().join("home")).output().expect("the binary under test")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `validate` ends with `code` and says all of `words` in one error.
fn refuses(cluster: &Cluster, code: i32, words: &[&str]) {
    let output = validate(cluster);
    let printed = printed(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {printed}");
    assert!(words.iter().all(|word| printed.contains(word)), "nothing of one of {words:?} in {printed}");
    assert!(printed.matches("error: ").count() == 1 && !printed.contains("is valid"), "{printed}");
}

fn edited(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).expect("a config")).expect("JSON");
    edit(&mut config);
    fs::write(path, config.to_string()).expect("a config");
}

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 988097824\n";

type Damage = fn(&Path);

#[test]
fn what_is_no_model_is_refused_in_words_of_its_own() {
    let cases: [(Damage, &[&str]); 11] = [
        (
            |folder| fs::remove_dir_all(folder).and_then(|()| fs::write(folder, "GGUF\x03")).expect("a file"),
            &["model: version is cut short"],
        ),
        (
            |folder| fs::write(folder.join("model.safetensors"), POINTER).expect("a file"),
            &["model.safetensors is a Git LFS pointer", "git lfs pull"],
        ),
        (
            |folder| fs::write(folder.join("tokenizer.json"), POINTER).expect("a file"),
            &["tokenizer.json is a Git LFS pointer"],
        ),
        (
            |folder| fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin")).expect("a file"),
            &["no model.safetensors", "pytorch_model.bin", "PyTorch's format"],
        ),
        (
            |folder| {
                fs::remove_file(folder.join("model.safetensors")).expect("a file");
                symlink("../../blobs/0123", folder.join("model.safetensors")).expect("a link");
            },
            &["is a link to ../../blobs/0123, which is not there"],
        ),
        (
            |folder| fs::remove_dir_all(folder).and_then(|()| symlink("gone", folder)).expect("a link"),
            &["model is a link to gone"],
        ),
        (
            |folder| edited(folder, |config| *config = json!({"model_type": "gpt2", "n_embd": 768})),
            &["model_type = gpt2 is not supported"],
        ),
        (
            |folder| edited(folder, |config| config["quantization_config"] = json!({"quant_method": "awq", "bits": 4})),
            &["quantization_config.group_size is null"],
        ),
        (
            |folder| edited(folder, |config| config["quantization_config"] = json!({"quant_method": "hqq"})),
            &["quant_method is hqq"],
        ),
        (
            |folder| edited(folder, |config| config["quantization_config"] = json!({"load_in_4bit": true})),
            &["quant_method is bitsandbytes"],
        ),
        (
            |folder| edited(folder, |config| config["eos_token_id"] = json!(128_001)),
            &["eos_token_id is 128001", "vocab_size"],
        ),
    ];
    for (damage, words) in cases {
        let cluster = cluster(|text| text);
        let folder = cluster.folder().join("model");
        copy_to(&folder);
        damage(&folder);
        refuses(&cluster, 2, words);
    }
    let hub = cluster(|text| text.replace("\"model\"", "\"Qwen/Qwen2.5-0.5B\""));
    refuses(&hub, 2, &["no such folder", "asterism model pull Qwen/Qwen2.5-0.5B"]);
}

#[test]
fn a_repository_of_the_hubs_cache_is_a_model_by_its_name_at_home_too() {
    let cluster = cluster(|text| text.replace("\"model\"", "\"~/hub/models--org--tiny\""));
    copy_to(&cluster.folder().join("home/hub/models--org--tiny/snapshots").join(COMMIT));
    let output = validate(&cluster);
    assert!(output.status.success(), "{}", printed(&output));
    let mut plan = cluster.command(&["plan", "--tokens", "100"]);
    let plan = plan.env("HOME", cluster.folder().join("home")).output().expect("the binary under test");
    assert!(plan.status.success(), "{}", printed(&plan));
}

#[test]
fn validate_reads_all_weights_before_it_says_valid() {
    type Edit = fn(&mut Value);
    let cases: [(&str, Edit); 2] = [
        ("model.layers.0.mlp.gate_proj.weight", |config| config["intermediate_size"] = json!(64)),
        ("model.layers.4.input_layernorm.weight", |config| config["num_hidden_layers"] = json!(99)),
    ];
    for (tensor, edit) in cases {
        let cluster = cluster(|text| text);
        let folder = cluster.folder().join("model");
        copy_to(&folder);
        assert!(validate(&cluster).status.success());
        edited(&folder, edit);
        refuses(&cluster, 2, &[tensor, "do not belong together"]);
    }
}

#[test]
fn validate_tries_both_ports() {
    let (tcp, udp) =
        (TcpListener::bind("127.0.0.1:0").expect("a port"), UdpSocket::bind("127.0.0.1:0").expect("a port"));
    let [admin, listen] = [tcp.local_addr(), udp.local_addr()].map(|address| address.expect("an address").to_string());
    let edits: [(&str, String); 2] = [
        ("admin_listen = \"127.0.0.1:0\"", format!("admin_listen = \"{admin}\"")),
        ("\nlisten = \"127.0.0.1:0\"", format!("\nlisten = \"{listen}\"")),
    ];
    for ((from, to), address) in edits.into_iter().zip([&admin, &listen]) {
        let cluster = cluster(|text| text.replacen(from, &to, 1));
        copy_to(&cluster.folder().join("model"));
        refuses(&cluster, 2, &[address.as_str(), "is taken by another process"]);
    }
}

#[test]
fn weights_that_exceed_a_hosts_limit_start_nothing() {
    let cluster = cluster(|text| {
        let text = text.replace("[model]\npath = \"model\"\n", "");
        text.replace("role = \"query\"", "role = \"query\"\nmemory_limit = \"20MiB\"")
    });
    refuses(&cluster, 4, &["host 'query-0' needs 32.0 MiB", "its memory_limit is 20.0 MiB"]);
    let up = cluster.run(&["up", "--detach"]);
    assert_eq!(up.status.code(), Some(4), "{}", printed(&up));
}

#[test]
fn a_folder_whose_tokenizer_has_no_vocabulary_is_verified_by_nobody() {
    let cluster = cluster(|text| text);
    let folder = cluster.folder().join("model");
    copy_to(&folder);
    let verify = || cluster.command(&["model", "verify"]).arg(&folder).output().expect("the binary under test");
    let sound = verify();
    let stdout = String::from_utf8_lossy(&sound.stdout);
    assert!(
        sound.status.success() && stdout.contains("tokenizer") && stdout.contains("weights"),
        "{}",
        printed(&sound)
    );
    for (text, got) in [
        ("", "is an empty file"),
        ("{}", "is without a model"),
        (r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}"#, "is without a vocabulary"),
    ] {
        fs::write(folder.join("tokenizer.json"), text).expect("a file");
        let refused = verify();
        let printed = printed(&refused);
        assert_eq!(refused.status.code(), Some(2), "{printed}");
        assert!(printed.contains(&format!("model/tokenizer.json {got}; expected a tokenizer")), "{printed}");
        assert_eq!(printed.matches("error: ").count(), 1, "{printed}");
    }
}

#[test]
fn tensors_that_nothing_is_computed_with_are_refused_by_every_command_that_opens_a_model() {
    let cluster = cluster(|text| text);
    let folder = cluster.folder().join("model");
    copy_to(&folder);
    // Of the last layers nothing is left to compute.
    edited(&folder, |config| config["num_hidden_layers"] = json!(3));
    let words = [
        "model.safetensors: tensor model.layers.3.",
        "is there, one of 9 that are; expected no such tensor in a model of llama",
    ];
    refuses(&cluster, 2, &words);
    for verb in ["inspect", "verify"] {
        let refused = cluster.command(&["model", verb]).arg(&folder).output().expect("the binary under test");
        let printed = printed(&refused);
        assert_eq!(refused.status.code(), Some(2), "{printed}");
        assert!(words.iter().all(|word| printed.contains(word)), "{printed}");
    }
}

#[test]
fn a_model_that_a_hosts_devices_lack_operations_for_starts_nothing() {
    let cluster = cluster(|text| text.replace("role = \"query\"", "role = \"query\"\ndevices = [\"cpu\", \"cpu\"]"));
    let folder = cluster.folder().join("model");
    copy_to(&folder);
    let works = validate(&cluster);
    assert!(works.status.success(), "{}", printed(&works));
    // Norms behind attention, for which a group of devices has no sums.
    edited(&folder, |config| config["model_type"] = json!("olmo2"));
    let words = "host 'query-0' is to compute on cpu,cpu: the model needs sums of rows outside a linear layer";
    refuses(&cluster, 2, &[words, "docs/models.md"]);
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.code() == Some(2) && printed(&up).contains(words), "{}", printed(&up));
    let doctor = cluster.run(&["doctor"]);
    let told = String::from_utf8_lossy(&doctor.stdout);
    assert!(doctor.status.code() == Some(3) && told.contains(words), "{told}{}", printed(&doctor));
}
