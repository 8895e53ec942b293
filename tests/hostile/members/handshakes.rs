//! Strangers who begin handshakes by the thousand, at the supervisor's port and where nodes join: memory comes back, hosts stay,
//! and a machine joins meanwhile.

use std::{
    env, fs,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use asterism_transport::{PROTOCOL_VERSION, certificates::CLUSTER_DNS_NAME, join::JOIN_DNS_NAME};

use super::{
    initials::{DATAGRAM, Initials, Retry},
    joining::Machines,
};

/// How many first packets are sent in all, and from how many addresses, where the environment does not say so: a hundred thousand
/// from a thousand are `ASTERISM_INITIALS=100000`.
const INITIALS: usize = 10_000;
const BY_SOURCE: usize = 100;
/// A packet that nothing answers is sent so often.
const SENT_AT_MOST: usize = 15;
/// How long memory may take to come back.
const BACK_WITHIN: Duration = Duration::from_secs(30);

fn resident(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it has memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// Begins so many handshakes from each of some addresses of this machine.
fn flood(to: SocketAddr, (protocol, name): (&[u8], &'static str), sources: std::ops::Range<usize>) -> usize {
    let mut initials = Initials::new(protocol, name);
    let mut sent = 0;
    for source in sources {
        let address = [127, 9, (source / 250) as u8, (source % 250 + 1) as u8];
        let socket = UdpSocket::bind(SocketAddr::from((address, 0))).expect("loopback is 127.0.0.0/8");
        sent += (0..BY_SOURCE).filter(|_| socket.send_to(&initials.next(), to).is_ok()).count();
    }
    sent
}

#[test]
fn a_flood_of_first_packets_keeps_nobody_out_and_leaves_no_memory_behind() {
    let initials = env::var("ASTERISM_INITIALS").ok().and_then(|count| count.parse().ok()).unwrap_or(INITIALS);
    let machines = Machines::new();
    let _running = machines.supervisor();
    machines.cluster.wait_for("the near hosts", |status| status["hosts"][0]["health"] == "ready");
    let token = machines.token();
    let (supervisor, desk): (SocketAddr, SocketAddr) =
        (machines.listen().parse().expect("an address"), token.1.parse().expect("an address"));
    let (pid, near) = (machines.cluster.supervisor(), machines.cluster.pid("context-0"));
    let before = resident(pid);

    let sent = Arc::new(AtomicUsize::new(0));
    let half = initials / BY_SOURCE / 2;
    let flooding = thread::spawn({
        let sent = sent.clone();
        move || {
            let protocol = format!("asterism/{PROTOCOL_VERSION}").into_bytes();
            for source in 0..half {
                let count = flood(supervisor, (&protocol, CLUSTER_DNS_NAME), source..source + 1)
                    + flood(desk, (b"asterism-join/1", JOIN_DNS_NAME), half + source..half + source + 1);
                sent.fetch_add(count, Ordering::Relaxed);
            }
        }
    });
    machines.joins(&token);
    flooding.join().expect("it sends");
    assert!(sent.load(Ordering::Relaxed) >= half * BY_SOURCE, "{sent:?} were sent");

    let began = Instant::now();
    while resident(pid) > before + before / 10 {
        let now = resident(pid);
        assert!(began.elapsed() < BACK_WITHIN, "{before} KiB became {now} KiB");
        thread::yield_now();
    }
    assert_eq!(machines.cluster.pid("context-0"), near, "it works on");
    let page = machines.cluster.metrics();
    assert!(page.contains("asterism_host_failures_total{reason=\"heartbeat\"} 0"), "{page}");
    assert!(page.contains("asterism_host_failures_total{reason=\"disconnected\"} 0"), "{page}");
}

#[test]
fn a_stranger_is_sent_less_than_he_sends() {
    let machines = Machines::new();
    let _running = machines.supervisor();
    let desk = machines.token().1.parse().expect("an address");
    let supervisor: SocketAddr = machines.listen().parse().expect("an address");
    let protocol = format!("asterism/{PROTOCOL_VERSION}").into_bytes();
    for (to, protocol, name) in
        [(supervisor, &protocol[..], CLUSTER_DNS_NAME), (desk, b"asterism-join/1", JOIN_DNS_NAME)]
    {
        let socket = UdpSocket::bind("127.9.9.9:0").expect("loopback is 127.0.0.0/8");
        socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
        let packet = Initials::new(protocol, name).next();
        let (mut datagram, mut received, mut sent) = ([0; 2048], Vec::new(), 0);
        // A datagram may be lost.
        while received.is_empty() && sent < SENT_AT_MOST {
            socket.send_to(&packet, to).expect("loopback takes it");
            sent += 1;
            while let Ok(length) = socket.recv(&mut datagram) {
                assert!(Retry::read(&datagram[..length]).is_some(), "it is asked to show that it receives");
                received.push(length);
            }
        }
        let answers = 1..=sent;
        assert!(answers.contains(&received.len()) && received.iter().all(|length| *length < DATAGRAM), "{received:?}");
    }
}
