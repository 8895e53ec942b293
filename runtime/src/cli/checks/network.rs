//! What the system lets sockets have: queues of datagrams, and the size of packets. Opens no link.

use std::{fs, net::UdpSocket, path::Path};

use asterism_transport::{TransportError, quic::SOCKET_QUEUE};
use socket2::SockRef;

use super::Judgment;
use crate::{
    cluster::{Cluster, file::DataTransport},
    processes::wiring,
};

/// Where Linux tells of its interfaces.
const INTERFACES: &str = "/sys/class/net";
/// QUIC's smallest packets (RFC 9000, section 14) with the headers of IPv6 and UDP.
const LEAST_MTU: u32 = 1200 + 48;

pub fn look() -> Vec<Judgment> {
    let mut judgments: Vec<Judgment> =
        queues().into_iter().map(|granted| judge_queues(SOCKET_QUEUE, granted)).collect();
    judgments.extend(judge_mtus(&mtus(Path::new(INTERFACES))));
    judgments
}

/// Whether hosts of this machine can have UCX.
pub fn judge_ucx(cluster: &Cluster, tried: Result<Vec<String>, TransportError>) -> Judgment {
    match (tried, cluster.data.transport) {
        (Ok(found), _) if wiring::memory_alone(cluster) => Judgment::ok(
            "UCX",
            format!("hosts of this machine share memory, and have no ports for it: {}", found.join(", ")),
        ),
        (Ok(found), _) => Judgment::warning(
            "UCX",
            format!(
                "hosts of this machine can have {}, with ports that take whatever comes, unencrypted and from anybody",
                found.join(", ")
            ),
            "see that nobody else reaches these interfaces",
        ),
        (Err(TransportError::Ucx { cause, remedy }), DataTransport::Auto) => {
            Judgment::warning("UCX", format!("{cause}: tensors travel over QUIC"), remedy)
        }
        (Err(TransportError::Ucx { cause, remedy }), _) => Judgment::error("UCX", cause, remedy),
        (Err(error), _) => Judgment::error("UCX", error.to_string(), "see the error"),
    }
}

/// What a socket is granted of what the transport asks for.
fn queues() -> Option<(usize, usize)> {
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    let socket = SockRef::from(&socket);
    let _ = socket.set_recv_buffer_size(SOCKET_QUEUE).and_then(|()| socket.set_send_buffer_size(SOCKET_QUEUE));
    // Linux tells twice what it grants, as it counts its own part (socket(7)).
    let reported = if cfg!(target_os = "linux") { 2 } else { 1 };
    Some((socket.recv_buffer_size().ok()? / reported, socket.send_buffer_size().ok()? / reported))
}

fn judge_queues(wanted: usize, (received, sent): (usize, usize)) -> Judgment {
    let found = format!("{} KiB to receive, {} KiB to send", received >> 10, sent >> 10);
    if received.min(sent) >= wanted {
        return Judgment::ok("UDP queues", found);
    }
    Judgment::warning(
        "UDP queues",
        format!(
            "{found}, of {} KiB that links ask for: bursts lose packets, and each loss costs a round trip",
            wanted >> 10
        ),
        format!("`sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}`, and in /etc/sysctl.d to keep it"),
    )
}

/// Interfaces that are up, with the largest packet that each takes.
fn mtus(folder: &Path) -> Vec<(String, u32)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(String, u32)> = entries
        .flatten()
        .filter_map(|entry| {
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
            let is_down = read("operstate").is_some_and(|state| state.trim() == "down");
            let mtu = read("mtu")?.trim().parse().ok()?;
            (!is_down).then(|| (entry.file_name().to_string_lossy().into_owned(), mtu))
        })
        .collect();
    found.sort();
    found
}

fn judge_mtus(mtus: &[(String, u32)]) -> Option<Judgment> {
    let shown =
        |mtus: &[&(String, u32)]| mtus.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect::<Vec<_>>().join(", ");
    let small: Vec<_> = mtus.iter().filter(|(_, mtu)| *mtu < LEAST_MTU).collect();
    match (mtus.is_empty(), small.is_empty()) {
        (true, _) => None,
        (_, true) => Some(Judgment::ok("MTU", shown(&mtus.iter().collect::<Vec<_>>()))),
        _ => Some(Judgment::warning(
            "MTU",
            format!("{}: links of hosts need {LEAST_MTU} bytes, and would get nothing through there", shown(&small)),
            "`ip link set dev NAME mtu 1500`, or give nodes addresses of another interface",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    #[test]
    fn what_the_system_clamps_is_told() {
        assert_eq!(judge_queues(4096, (8192, 4096)).verdict, Verdict::Ok);
        let clamped = judge_queues(4 << 20, (425_984, 8 << 20));
        assert_eq!(clamped.verdict, Verdict::Warning);
        assert!(
            clamped.found.starts_with("416 KiB to receive") && clamped.remedy.unwrap().contains("rmem_max=4194304")
        );
        assert!(queues().is_some());
    }

    #[test]
    fn a_small_packet_size_is_told_with_its_interface() {
        let folder = tempfile::tempdir().unwrap();
        for (name, mtu, state) in [("eth0", "1500", "up"), ("tun0", "1000", "unknown"), ("old0", "68", "down")] {
            let at = folder.path().join(name);
            fs::create_dir(&at).unwrap();
            fs::write(at.join("mtu"), format!("{mtu}\n"))
                .and_then(|()| fs::write(at.join("operstate"), state))
                .unwrap();
        }
        let found = mtus(folder.path());
        assert_eq!(found, [("eth0".to_owned(), 1500), ("tun0".to_owned(), 1000)]);
        let judged = judge_mtus(&found).unwrap();
        assert!(judged.verdict == Verdict::Warning && judged.found.starts_with("tun0 1000:"), "{judged:?}");
        assert_eq!(judge_mtus(&found[..1]).unwrap().verdict, Verdict::Ok);
        assert_eq!(judge_mtus(&mtus(&folder.path().join("none"))), None);
    }
}
