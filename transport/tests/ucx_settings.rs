//! UCX that cannot be had: settings that no host has, and a peer that speaks another version. And what it leaves alone.
#![cfg(feature = "ucx")]

mod common;

use std::sync::Arc;

use asterism_transport::{
    NoObserver, PROTOCOL_VERSION, Transport, TransportError,
    quic::{QuicConfig, QuicTransport, Security},
    ucx::{UcxConfig, UcxTransport},
};
use common::{loopback, within};

fn over(transports: &str) -> UcxConfig {
    UcxConfig { transports: Some(transports.into()), ..UcxConfig::default() }
}

fn bind(config: UcxConfig) -> Result<UcxTransport, TransportError> {
    let quic = QuicConfig::new(loopback(), Security::Insecure);
    let quic = QuicTransport::bind(quic, Arc::new(NoObserver)).expect("a port is free");
    UcxTransport::bind(config, Arc::new(quic), Arc::new(NoObserver))
}

/// What binding says about such settings.
fn refusal(config: UcxConfig) -> String {
    let error = bind(config).err().expect("no host has that");
    assert_eq!(error.code(), "ucx", "{error}");
    error.to_string()
}

#[tokio::test]
async fn an_interface_that_is_not_there_is_named() {
    let interfaces = vec!["lo".into(), "nowhere7".into()];
    let printed = refusal(UcxConfig { interfaces, ..over("tcp") });
    assert!(printed.contains("no network interface \"nowhere7\"") && printed.contains("use some of"), "{printed}");
}

#[tokio::test]
async fn the_c_library_is_left_as_it_is() {
    let _ucx = bind(over("shm,tcp")).expect("every host has both");
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("this is Linux");
    if smaps.contains("libucs.so") {
        return common::skipped("UCX is linked dynamically and was loaded first");
    }
    let code = |line: &str| line.contains(" r-xp ") && line.contains("/libc.so");
    let written: Vec<_> = smaps
        .split_inclusive("VmFlags:")
        .filter(|mapping| mapping.lines().any(code))
        .flat_map(|mapping| mapping.lines().filter(|line| line.starts_with("Private_Dirty:")))
        .collect();
    assert!(!written.is_empty(), "the C library is mapped");
    assert!(written.iter().all(|line| line.ends_with(" 0 kB")), "{written:?}");
}

#[test]
fn a_terminal_that_closes_ends_the_program() {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("caught signals");
    // The lowest bit is SIGHUP's.
    let caught = u64::from_str_radix(caught.trim(), 16).expect("hexadecimal");
    assert_eq!(caught & 1, 0, "SIGHUP is caught, of {caught:#x}");
}

#[tokio::test]
async fn a_transport_that_is_none_is_named() {
    let printed = refusal(over("shm,tpc"));
    assert!(printed.contains("\"tpc\" of UCX_TLS=\"shm,tpc\" is no transport"), "{printed}");
}

#[tokio::test]
async fn a_transport_that_is_not_built_in_is_named() {
    let printed = refusal(over("cuda_copy"));
    assert!(printed.contains("no transport of \"cuda_copy\" works over every interface"), "{printed}");
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        return;
    }
    // With InfiniBand built in, or without; a limit of locked memory that is too low for it is looked at first.
    let printed = refusal(over("rc"));
    let causes = ["no transport of \"rc\" works over every interface", "transport rc needs"];
    assert!(causes.iter().any(|cause| printed.contains(cause)), "{printed}");
}

#[tokio::test]
async fn a_setting_that_is_wrong_is_named() {
    for (name, value) in [("RNDV_THRESH", "many"), ("NO_SUCH_SETTING", "1")] {
        let printed = refusal(UcxConfig { settings: vec![(name.into(), value.into())], ..over("tcp") });
        assert!(printed.contains(&format!("UCX_{name}={value:?}")), "{printed}");
    }
}

/// Of a size that UCX begins to lay out its memory in, and that is too small before it is done.
const LITTLE: &str = "mount -t tmpfs -o size=17m none /dev/shm && exec \"$0\" \"$@\"";

#[tokio::test]
#[ignore = "it needs little shared memory; another starts it"]
async fn too_little_shared_memory() {
    let printed = refusal(over("posix"));
    assert!(printed.contains("its worker cannot be made") && printed.contains("/dev/shm"), "{printed}");
}

#[test]
fn shared_memory_that_fills_up_meanwhile_is_named() {
    let apart = |program: &std::path::Path| {
        let mut command = std::process::Command::new("unshare");
        command.args(["-rm", "sh", "-c", LITTLE]).arg(program);
        command
    };
    if !apart("true".as_ref()).status().is_ok_and(|status| status.success()) {
        return common::skipped("no mount of one's own may be made here");
    }
    let mut child = apart(&std::env::current_exe().expect("a test is a program"));
    let output = child.args(["--ignored", "--exact", "too_little_shared_memory"]).output().expect("it ran above");
    let printed = [output.stdout, output.stderr].map(|printed| String::from_utf8_lossy(&printed).into_owned()).concat();
    assert!(output.status.success() && printed.contains("1 passed"), "{:?}: {printed}", output.status);
}

/// A QUIC endpoint that takes links of frames, and vouches for those of UCX by the words of another version.
fn of_another_version() -> quinn::Endpoint {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring supports TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .expect("the key is the certificate's");
    tls.alpn_protocols = vec![format!("asterism/{PROTOCOL_VERSION}").into_bytes(), b"asterism-ucx/0".to_vec()];
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).expect("ring has QUIC's initial cipher suite");
    quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(crypto)), loopback()).expect("a port is free")
}

#[tokio::test]
async fn a_peer_of_another_version_of_the_protocol_is_named() {
    let near = bind(over("tcp")).expect("every host has TCP");
    let far = of_another_version();
    let peer = far.local_addr().expect("it is bound");
    let answering = async {
        while let Some(asked) = far.accept().await {
            assert!(asked.await.is_err(), "the two have no protocol in common");
        }
    };
    let error = tokio::select! {
        connected = within(near.connect(peer)) => connected.err().expect("the peer knows another version"),
        () = answering => unreachable!("the endpoint is open"),
    };
    let cause = "it does not know this version of asterism's UCX".into();
    assert_eq!(error, TransportError::NoUcx { peer, cause });
}
