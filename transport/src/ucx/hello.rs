//! What two hosts tell each other over QUIC before they meet over UCX. Reads and writes one stream.

use std::net::SocketAddr;

use bytes::{Buf, BufMut};
use quinn::{RecvStream, SendStream};

use super::message::{Addressee, TOKEN_BYTES};
use crate::{TransportError, quic::cause};

/// Longer than any address of UCX that was seen: a few hundred bytes for each interface.
const LONGEST: usize = 64 << 10;
const LONGEST_VERSION: usize = 64;

/// One side's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The version of UCX.
    pub version: String,
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
        let mut token = [0; TOKEN_BYTES];
        bytes.try_copy_to_slice(&mut token).map_err(short)?;
        let link = bytes.try_get_u32_le().map_err(short)?;
        let window = bytes.try_get_u32_le().map_err(short)?;
        if bytes.is_empty() {
            return Err("it has no worker");
        }
        let version = String::from_utf8_lossy(version).into_owned();
        Ok(Self { version, addressee: Addressee { token, link }, window, worker: bytes.to_vec() })
    }

    /// Refuses a peer whose UCX may not understand this one's.
    pub fn check_version(&self, own: &str, peer: SocketAddr) -> Result<(), TransportError> {
        let release = |version: &str| version.splitn(3, '.').take(2).map(str::to_owned).collect::<Vec<_>>();
        if release(&self.version) == release(own) {
            return Ok(());
        }
        Err(TransportError::UcxVersion { peer, theirs: self.version.clone(), ours: own.into() })
    }
}

/// Says ours as all that this side says on the stream.
pub(super) async fn say(stream: &mut SendStream, hello: &Hello, peer: SocketAddr) -> Result<(), TransportError> {
    let failed = |error: quinn::WriteError| match error {
        quinn::WriteError::ConnectionLost(error) => cause::of_handshake(error, peer),
        other => TransportError::Handshake { peer, cause: other.to_string() },
    };
    stream.write_all(&hello.to_bytes()).await.map_err(failed)?;
    stream.finish().map_err(|error| TransportError::Handshake { peer, cause: error.to_string() })
}

/// Hears theirs.
pub(super) async fn hear(stream: &mut RecvStream, peer: SocketAddr) -> Result<Hello, TransportError> {
    let bytes = stream.read_to_end(LONGEST).await.map_err(|error| match error {
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
        Hello { version: "1.22.0".into(), addressee, window: 1 << 20, worker: vec![1, 2, 3] }
    }

    proptest! {
        #[test]
        fn words_come_back(link in any::<u32>(), window in any::<u32>(), worker in vec(any::<u8>(), 1..300)) {
            let mut said = Hello { window, worker, ..hello() };
            said.addressee.link = link;
            prop_assert_eq!(Hello::from_bytes(&said.to_bytes()), Ok(said));
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
        hello().check_version("1.22.3", peer).expect("a patch changes nothing on the wire");
        let error = hello().check_version("1.21.0", peer).expect_err("another release");
        assert_eq!(error.code(), "ucx_version");
        assert!(error.to_string().contains("runs UCX 1.22.0, this host 1.21.0"), "{error}");
    }
}
