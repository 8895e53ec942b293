//! Whether the clocks of a running cluster's hosts agree with the supervisor's. Sets none.

use asterism_actors::api::HostStatus;

use super::Judgment;
use crate::{client::Client, cluster::Cluster, data_dir, globals::Globals};

/// Seconds that clocks may differ: beyond, times in logs and spans are in another order than things happened; far beyond, certificates are
/// refused.
const APART_S: (f64, f64) = (1.0, 60.0);

pub fn look(globals: &Globals, cluster: &Cluster) -> Vec<Judgment> {
    if data_dir::served(&cluster.data_dir).is_none() && globals.server.is_none() {
        return Vec::new();
    }
    match Client::find(globals).and_then(|client| client.topology()) {
        Ok(status) => status.hosts.iter().filter_map(judge).collect(),
        Err(error) => vec![Judgment::warning("clocks", error.message, "`asterism status` says what is wrong")],
    }
}

/// One that has said what time it has.
fn judge(host: &HostStatus) -> Option<Judgment> {
    let offset = host.clock_offset_s?;
    let direction = if offset < 0.0 { "behind" } else { "ahead of" };
    let found = format!("{} is {:.1} s {direction} the supervisor", host.name, offset.abs());
    let remedy = "keep the clocks of all machines with NTP: `timedatectl set-ntp true`";
    Some(match (offset.abs(), APART_S) {
        (apart, (fine, _)) if apart <= fine => Judgment::ok("clock", found),
        (apart, (_, far)) if apart <= far => Judgment::warning("clock", found, remedy),
        _ => Judgment::error("clock", format!("{found}: certificates may be refused"), remedy),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    #[test]
    fn a_clock_that_is_apart_is_told() {
        let host = |offset: Option<f64>| -> HostStatus {
            serde_json::from_value(serde_json::json!({
                "name": "context-0", "role": "context", "device": "cpu", "health": "ready", "pid": null, "address": null,
                "heartbeat_age_s": null, "kv_bytes": 0, "cause": null, "clock_offset_s": offset,
            }))
            .unwrap()
        };
        assert_eq!(judge(&host(None)), None);
        for (offset, expected) in [
            (0.0, Verdict::Ok),
            (-1.0, Verdict::Ok),
            (1.5, Verdict::Warning),
            (-60.0, Verdict::Warning),
            (61.0, Verdict::Error),
        ] {
            let judged = judge(&host(Some(offset))).unwrap();
            assert_eq!((judged.verdict, judged.remedy.is_some()), (expected, expected != Verdict::Ok), "{judged:?}");
        }
        assert!(judge(&host(Some(-7.0))).unwrap().found.contains("7.0 s behind"));
    }
}
