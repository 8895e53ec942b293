//! What asterism's messages say before their body. Knows no socket and never panics on what a peer sent.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | token that the receiver gave the sender |
//! | 16..20 | the receiver's number of the link |
//! | 20 | kind |
//! | 21..24 | zero |
//! | 24..32 | channel |
//! | 32..40 | number: place in the channel, bytes read, or a clock |
//! | 40..104 | of frames only: the frame's header |

use bytes::Buf;

use crate::codec::HEADER_BYTES;

const FIXED: usize = 40;
/// Bytes of the longest header.
pub(super) const LONGEST: usize = FIXED + HEADER_BYTES;
/// Bytes of a token.
pub(super) const TOKEN_BYTES: usize = 16;

/// What proves that a message comes from the peer of a link: only that peer was told it, over QUIC.
pub(super) type Token = [u8; TOKEN_BYTES];

/// To whom a message goes, in the receiver's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addressee {
    pub token: Token,
    pub link: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// One frame; `number` is its place in the channel.
    Frame = 1,
    /// No more frames come; `number` is the place after the last.
    Finish = 2,
    /// The receiving half was dropped.
    Stop = 3,
    /// `number` bytes of the channel were read or given up since it was opened.
    Credit = 4,
    /// Asks for [`Kind::Pong`] with the same number.
    Ping = 5,
    /// Answers [`Kind::Ping`].
    Pong = 6,
    /// `number` bytes of all channels were read or given up since the link came about.
    LinkCredit = 7,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub kind: Kind,
    pub channel: u64,
    pub number: u64,
}

/// A message as it is sent, without its body.
pub(super) struct Header {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Header {
    pub fn new(to: &Addressee, message: Message, frame: Option<&[u8; HEADER_BYTES]>) -> Self {
        let mut bytes = [0; LONGEST];
        bytes[..16].copy_from_slice(&to.token);
        bytes[16..20].copy_from_slice(&to.link.to_le_bytes());
        bytes[20] = message.kind as u8;
        bytes[24..32].copy_from_slice(&message.channel.to_le_bytes());
        bytes[32..FIXED].copy_from_slice(&message.number.to_le_bytes());
        if let Some(frame) = frame {
            bytes[FIXED..].copy_from_slice(frame);
        }
        Self { bytes, length: if frame.is_some() { LONGEST } else { FIXED } }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// What a header says; none where it is none.
pub(super) fn read(header: &[u8]) -> Option<(Addressee, Message, Option<&[u8; HEADER_BYTES]>)> {
    let (mut fixed, frame) = header.split_at_checked(FIXED)?;
    let mut token = [0; TOKEN_BYTES];
    fixed.copy_to_slice(&mut token);
    let link = fixed.get_u32_le();
    let kind = match fixed.get_u8() {
        1 => Kind::Frame,
        2 => Kind::Finish,
        3 => Kind::Stop,
        4 => Kind::Credit,
        5 => Kind::Ping,
        6 => Kind::Pong,
        7 => Kind::LinkCredit,
        _ => return None,
    };
    if fixed.get_uint_le(3) != 0 {
        return None;
    }
    let (channel, number) = (fixed.get_u64_le(), fixed.get_u64_le());
    let frame = match (kind, frame.len()) {
        (Kind::Frame, _) => Some(frame.try_into().ok()?),
        (_, 0) => None,
        _ => return None,
    };
    Some((Addressee { token, link }, Message { kind, channel, number }, frame))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn messages() -> impl Strategy<Value = (Addressee, Message)> {
        let kinds = vec![Kind::Frame, Kind::Finish, Kind::Stop, Kind::Credit, Kind::Ping, Kind::Pong, Kind::LinkCredit];
        (any::<Token>(), any::<u32>(), prop::sample::select(kinds), any::<[u64; 2]>()).prop_map(
            |(token, link, kind, [channel, number])| (Addressee { token, link }, Message { kind, channel, number }),
        )
    }

    proptest! {
        #[test]
        fn messages_come_back((to, message) in messages(), frame in any::<[u8; 32]>()) {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..32].copy_from_slice(&frame);
            let frame = (message.kind == Kind::Frame).then_some(&bytes);
            let header = Header::new(&to, message, frame);
            prop_assert_eq!(read(header.as_bytes()), Some((to, message, frame)));
        }

        #[test]
        fn what_is_read_is_what_was_written(bytes in vec(any::<u8>(), 0..200), (to, message) in messages(), cut in 0..200usize) {
            let mut header = Header::new(&to, message, None).as_bytes().to_vec();
            header.truncate(cut);
            header.extend_from_slice(&bytes);
            for bytes in [&bytes, &header] {
                if let Some((to, message, frame)) = read(bytes) {
                    let again = Header::new(&to, message, frame);
                    prop_assert_eq!(again.as_bytes(), &bytes[..]);
                }
            }
        }
    }
}
