//! What `doctor` says of a machine that a cluster would not work on, and of one that it works on.

use std::{fs, net::TcpListener};

use serde_json::Value;
use tests::{Cluster, ClusterSpec};

use crate::api::openai::BINARY;

/// What it found, and how it ended.
fn doctor(cluster: &Cluster) -> (Option<i32>, Value) {
    let output = cluster.run(&["doctor", "-o", "json"]);
    let printed = serde_json::from_slice(&output.stdout);
    (
        output.status.code(),
        printed.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr))),
    )
}

/// Its judgments of one kind: verdict and words.
fn of(printed: &Value, what: &str) -> Vec<(String, String)> {
    let text = |check: &Value, field: &str| check[field].as_str().expect("text").to_owned();
    let checks = printed["checks"].as_array().expect("checks").iter().filter(|check| check["what"] == what);
    checks.map(|check| (text(check, "verdict"), text(check, "found"))).collect()
}

#[test]
fn what_would_not_work_is_told_with_a_remedy_and_ends_in_its_exit() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let spec = ClusterSpec { contexts: 1, model: None, method: "[attention.dense]", listen: "127.0.0.1:0".into() };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        text.replace(
            "admin_listen = \"127.0.0.1:0\"",
            &format!("admin_listen = \"{}\"", taken.local_addr().expect("it has one")),
        )
    });
    let (exit, printed) = doctor(&cluster);
    let ports = of(&printed, "port");
    assert_eq!(exit, Some(3), "{printed}");
    assert!(ports.iter().any(|(verdict, found)| verdict == "error" && found.contains("api.admin_listen")), "{ports:?}");
    let checks = printed["checks"].as_array().expect("checks");
    assert!(checks.iter().all(|check| (check["verdict"] == "ok") == check["remedy"].is_null()), "{printed}");
    drop(taken);

    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    // Hosts tell the time with their reports.
    cluster.wait_for("clocks", |status| {
        status["hosts"].as_array().expect("hosts").iter().all(|host| host["clock_offset_s"].is_number())
    });
    let (exit, printed) = doctor(&cluster);
    assert_eq!(exit, Some(0), "{printed:#}");
    let clocks = of(&printed, "clock");
    assert!(clocks.len() == 2 && clocks.iter().all(|(verdict, _)| verdict == "ok"), "{clocks:?}");
    let certificates = of(&printed, "certificate");
    assert!(certificates.len() == 4 && certificates.iter().all(|(verdict, _)| verdict == "ok"), "{certificates:?}");

    let file = cluster.folder().join("data/certificates/hosts/context-0/host.pem");
    assert!(file.exists(), "where it is has changed");
    fs::write(file, "no certificate").expect("a file");
    let (exit, printed) = doctor(&cluster);
    let wrong: Vec<_> = of(&printed, "certificate").into_iter().filter(|(verdict, _)| verdict == "error").collect();
    assert!(exit == Some(3) && wrong.len() == 1 && wrong[0].1.contains("context-0"), "{wrong:?}");
    let text = cluster.run(&["doctor"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("error      certificate: ") && text.contains("put a PEM certificate there"), "{text}");
}
