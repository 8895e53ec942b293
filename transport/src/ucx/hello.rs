//! What two hosts tell each other over QUIC before they meet over UCX. Reads and writes one stream.

use std::{fmt, fs, net::SocketAddr, os::unix::fs::MetadataExt};

use bytes::{Buf, BufMut};
use quinn::{RecvStream, SendStream};

use super::message::{Addressee, TOKEN_BYTES};
use crate::{TransportError, quic::cause};

/// Longer than any address of UCX that was seen: a few hundred bytes for each interface.
const LONGEST_HELLO: usize = 64 << 10;
const LONGEST_VERSION: usize = 64;

/// The machine and the network that a process is in; zeros where the system does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessLocation {
    /// Of this boot.
    pub machine: u64,
    /// The network namespace.
    pub network: u64,
}

impl ProcessLocation {
    /// Of a process that shares memory with none.
    pub fn nowhere() -> Self {
        Self { machine: 0, network: 0 }
    }

    /// This process's.
    pub fn here() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().replace('-', "");
        let machine = boot.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default();
        Self { machine, network: fs::metadata("/proc/self/ns/net").map_or(0, |network| network.ino()) }
    }

    /// Whether UCX shares memory with a process there.
    pub fn is_shared_with(self, other: Self) -> bool {
        self.machine != 0 && self == other
    }

    /// Whether UCX would share memory with a process there and never be woken by it: its signals are abstract sockets, of which
    /// each network namespace has its own.
    fn is_out_of_earshot(self, other: Self) -> bool {
        self.machine != 0 && self.machine == other.machine && self.network != other.network
    }
}

/// Where a process is that is reached by shared memory alone: machine, namespaces of network and processes, user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Whereabouts([u64; 4]);

/// Why two such processes do not meet, by the first of the four in which they differ.
const APART: [&str; 4] = [
    "it is on another machine: UCX takes a network where `[transport] interfaces` names one that nobody else reaches, because its TCP \
     neither encrypts nor asks who speaks",
    DEAF,
    "it is on this machine in another namespace of processes, where shared memory is not found (UCX_TLS=tcp does without)",
    "it is another user's, whose shared memory is his alone (UCX_TLS=tcp does without)",
];
const DEAF: &str =
    "it is on this machine in another network namespace, where shared memory wakes nobody (UCX_TLS=tcp does without)";

impl Whereabouts {
    /// This process's.
    fn here() -> Self {
        let ProcessLocation { machine, network } = ProcessLocation::here();
        let reported = |path| fs::metadata(path).ok();
        let processes = reported("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
        Self([machine, network, processes, reported("/proc/self").map_or(0, |process| process.uid().into())])
    }

    /// Whether a process at `theirs` can be met from here; the error says why not.
    fn check(self, theirs: &str) -> Result<(), String> {
        let same = |(ours, theirs): (u64, &str)| u64::from_str_radix(theirs, 16) == Ok(ours);
        let mut theirs = theirs.split('.');
        let apart = self.0.into_iter().zip(APART).find(|(ours, _)| !same((*ours, theirs.next().unwrap_or_default())));
        apart.map_or(Ok(()), |(_, cause)| Err(cause.into()))
    }
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [machine, network, processes, user] = self.0;
        write!(formatter, "{machine:x}.{network:x}.{processes:x}.{user:x}")
    }
}

/// What a process offers: its address, and before it where it is if it is reached by shared memory alone.
pub(super) fn offered(address: SocketAddr, within: bool) -> String {
    if within { format!("{}/{address}", Whereabouts::here()) } else { address.to_string() }
}

/// The address in what a peer offers, where it can be met: `within` says that this process is reached by shared memory alone.
pub(super) fn address_in(offered: &str, within: bool) -> Result<SocketAddr, String> {
    let address = match offered.rsplit_once('/') {
        Some((place, address)) => Whereabouts::here().check(place).map(|()| address)?,
        None if within => return Err("the peer's UCX takes a network, and this process shares memory alone".into()),
        None => offered,
    };
    address.parse().map_err(|_| format!("'{offered}' is no address"))
}

/// One side's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The version of UCX.
    pub version: String,
    /// Where this side is.
    pub place: ProcessLocation,
    /// How the other side is to address this one.
    pub addressee: Addressee,
    /// Bytes that the other side may send ahead of the reader of a channel.
    pub window: u32,
    /// Where this side's worker is, in UCX's own format.
    pub worker: Vec<u8>,
}

impl Hello {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.worker.len() + 64);
        bytes.put_u8(self.version.len() as u8);
        bytes.put_slice(self.version.as_bytes());
        bytes.put_u64_le(self.place.machine);
        bytes.put_u64_le(self.place.network);
        bytes.put_slice(&self.addressee.token);
        bytes.put_u32_le(self.addressee.link);
        bytes.put_u32_le(self.window);
        bytes.put_slice(&self.worker);
        bytes
    }

    /// The words in `bytes`; the error says what is wrong with them.
    pub fn from_bytes(mut bytes: &[u8]) -> Result<Self, &'static str> {
        let short = |_| "it ends early";
        let version = usize::from(bytes.try_get_u8().map_err(short)?);
        let version = bytes.split_off(..version).ok_or("it ends early")?;
        if version.is_empty() || version.len() > LONGEST_VERSION || !version.iter().all(u8::is_ascii_graphic) {
            return Err("the version is no version");
        }
        let machine = bytes.try_get_u64_le().map_err(short)?;
        let network = bytes.try_get_u64_le().map_err(short)?;
        let mut token = [0; TOKEN_BYTES];
        bytes.try_copy_to_slice(&mut token).map_err(short)?;
        let link = bytes.try_get_u32_le().map_err(short)?;
        let window = bytes.try_get_u32_le().map_err(short)?;
        if bytes.is_empty() {
            return Err("it has no worker");
        }
        let version = String::from_utf8_lossy(version).into_owned();
        Ok(Self {
            version,
            place: ProcessLocation { machine, network },
            addressee: Addressee { token, link },
            window,
            worker: bytes.to_vec(),
        })
    }

    /// Refuses a peer whose UCX may not understand this one's, or not wake it.
    pub fn check(&self, own: &str, here: ProcessLocation, peer: SocketAddr) -> Result<(), TransportError> {
        if here.is_out_of_earshot(self.place) {
            return Err(TransportError::NoUcx { peer, cause: DEAF.into() });
        }
        let release = |version: &str| version.splitn(3, '.').take(2).map(str::to_owned).collect::<Vec<_>>();
        if release(&self.version) == release(own) {
            return Ok(());
        }
        Err(TransportError::UcxVersion { peer, theirs: self.version.clone(), ours: own.into() })
    }
}

/// Says ours as all that this side says on the stream.
pub(super) async fn send_hello(stream: &mut SendStream, hello: &Hello, peer: SocketAddr) -> Result<(), TransportError> {
    let failed = |error: quinn::WriteError| match error {
        quinn::WriteError::ConnectionLost(error) => cause::of_handshake(error, peer),
        other => TransportError::Handshake { peer, cause: other.to_string() },
    };
    stream.write_all(&hello.to_bytes()).await.map_err(failed)?;
    stream.finish().map_err(|error| TransportError::Handshake { peer, cause: error.to_string() })
}

/// Hears theirs.
pub(super) async fn receive_hello(stream: &mut RecvStream, peer: SocketAddr) -> Result<Hello, TransportError> {
    let bytes = stream.read_to_end(LONGEST_HELLO).await.map_err(|error| match error {
        quinn::ReadToEndError::Read(quinn::ReadError::ConnectionLost(error)) => cause::of_handshake(error, peer),
        other => TransportError::Handshake { peer, cause: other.to_string() },
    })?;
    Hello::from_bytes(&bytes).map_err(|cause| TransportError::Handshake { peer, cause: format!("its hello: {cause}") })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn hello() -> Hello {
        let addressee = Addressee { token: [7; TOKEN_BYTES], link: 3 };
        let place = ProcessLocation { machine: 5, network: 6 };
        Hello { version: "1.22.0".into(), place, addressee, window: 1 << 20, worker: vec![1, 2, 3] }
    }

    #[test]
    fn shared_memory_alone_leads_to_processes_of_the_machine_and_nowhere_else() {
        let address: SocketAddr = "127.0.0.1:7400".parse().expect("an address");
        let stated = offered(address, true);
        assert_eq!([true, false].map(|within| address_in(&stated, within)), [Ok(address), Ok(address)], "it is here");
        let (place, _) = stated.split_once('/').expect("a place");
        let other = |at: usize| {
            let mut place: Vec<&str> = place.split('.').collect();
            place[at] = "f00";
            address_in(&format!("{}/{address}", place.join(".")), at > 1).expect_err("it is not to be reached")
        };
        let causes = ["on another machine", "another network namespace", "namespace of processes", "another user's"];
        for (at, cause) in causes.iter().enumerate() {
            assert!(other(at).contains(cause), "{}", other(at));
        }
        assert!(address_in(&format!("/{address}"), true).is_err());
        let plain = offered(address, false);
        assert_eq!(address_in(&plain, false), Ok(address));
        assert!(address_in(&plain, true).expect_err("it may be anywhere").contains("shares memory alone"));
    }

    proptest! {
        #[test]
        fn words_come_back(link in any::<u32>(), window in any::<u32>(), worker in vec(any::<u8>(), 1..300)) {
            let mut stated = Hello { window, worker, ..hello() };
            stated.addressee.link = link;
            prop_assert_eq!(Hello::from_bytes(&stated.to_bytes()), Ok(stated));
        }

        #[test]
        fn arbitrary_words_are_refused_or_kept(bytes in vec(any::<u8>(), 0..200)) {
            if let Ok(hello) = Hello::from_bytes(&bytes) {
                prop_assert_eq!(hello.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn another_release_is_refused() {
        let peer = "127.0.0.1:7".parse().expect("the literal is an address");
        let here = hello().place;
        hello().check("1.22.3", here, peer).expect("a patch changes nothing on the wire");
        let error = hello().check("1.21.0", here, peer).expect_err("another release");
        assert_eq!(error.code(), "ucx_version");
        assert!(error.to_string().contains("runs UCX 1.22.0, this host 1.21.0"), "{error}");
    }

    #[test]
    fn a_peer_that_cannot_be_woken_is_refused() {
        let peer = "127.0.0.1:7".parse().expect("the literal is an address");
        let check = |machine, network| hello().check("1.22.0", ProcessLocation { machine, network }, peer);
        assert_eq!(check(5, 7).expect_err("another network of one machine").code(), "no_ucx");
        check(4, 7).expect("another machine");
        check(0, 0).expect("nobody knows");
        assert!(
            ProcessLocation::here().is_shared_with(ProcessLocation::here())
                && !ProcessLocation::nowhere().is_shared_with(ProcessLocation::nowhere())
        );
        assert!(ProcessLocation::here().network != 0 && ProcessLocation::here().machine != 0);
    }
}
