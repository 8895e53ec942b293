//! GPUs of a machine, as a library in the place of NVIDIA's tells of them: who sees what.

use std::{fs, process::Command};

use tests::{Cluster, skipped};

use super::{BINARY, eventually, tiny};

#[test]
fn what_a_machine_tells_of_its_gpus_is_shown_and_measured() {
    let cluster = Cluster::written(BINARY, &tiny(1), |text| text);
    let (source, library) = (cluster.folder().join("nvml.c"), cluster.folder().join("libnvidia-ml.so.1"));
    fs::write(&source, include_str!("nvml.c")).expect("a file");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        return skipped("no C compiler makes a library in the place of NVIDIA's");
    }
    let up = cluster.command(&["up", "--detach"]).env("LD_LIBRARY_PATH", cluster.folder()).output().expect("it runs");
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    eventually("the GPUs", || cluster.status()["gpus"].as_array().is_some_and(|gpus| gpus.len() == 2));
    let gpus = &cluster.status()["gpus"];
    assert_eq!(
        (&gpus[0]["node"], &gpus[0]["busy_percent"], &gpus[0]["last_xid"]),
        (&"local".into(), &97.into(), &79.into())
    );
    assert!(gpus[1]["name"] == "NVIDIA Fake" && gpus[1].get("celsius").is_none(), "{gpus:#}");
    let printed = String::from_utf8_lossy(&cluster.run(&["status"]).stderr).into_owned();
    let line = "GPU 0 of node local (NVIDIA Fake): 97% busy, 50 B of 80 B used, 61 C, 1980 MHz, 2 uncorrected ECC errors, Xid 79";
    assert!(printed.contains(line), "{printed}");
    let metrics = cluster.metrics();
    for metric in [
        "gpu_busy_ratio{gpu=\"0\",node=\"local\"} 0.97",
        "gpu_temperature_celsius{gpu=\"0\",node=\"local\"} 61",
        "gpu_clock_hertz{clock=\"sm\",gpu=\"0\",node=\"local\"} 1980000000",
        "gpu_device_memory_bytes{gpu=\"0\",node=\"local\",state=\"used\"} 50",
        "gpu_ecc_errors{gpu=\"0\",kind=\"uncorrected\",node=\"local\"} 2",
        "gpu_xids{gpu=\"0\",node=\"local\"} 2",
        "gpu_last_xid_timestamp_seconds{gpu=\"0\",node=\"local\",xid=\"79\"}",
        "gpu_xids{gpu=\"1\",node=\"local\"} 0",
    ] {
        assert!(metrics.contains(&format!("asterism_{metric}")), "{metric}\n{metrics}");
    }
    assert!(!metrics.contains("asterism_gpu_temperature_celsius{gpu=\"1\""), "what is not told is not served");
}
