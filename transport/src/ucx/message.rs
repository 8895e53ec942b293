//! What asterism's messages say before their body. Knows no socket and never panics on what a peer sent.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | token that the receiver gave the sender |
//! | 16..20 | the receiver's number of the link |
//! | 20 | kind |
//! | 21 | which part of the frame's payload the body is |
//! | 22 | how many parts there are; 0 where the body is all that comes of the frame |
//! | 23 | zero |
//! | 24..32 | channel |
//! | 32..40 | number: place in the channel, bytes read, or a clock |
//! | 40..80 | of frames only: the frame's header |
//! | 80.. | of frames only: the meta, unless the body begins with it; with the first part where there are some |

use bytes::Buf;

use crate::frame::HEADER_BYTES;

const FIXED: usize = 40;
/// A meta up to here goes beside its frame's header: a body of one piece is copied once, straight to where the peer finds it.
pub(super) const SMALL_UCX_META: usize = 256;
/// Bytes of the longest header.
pub(super) const LONGEST_HEADER: usize = FIXED + HEADER_BYTES + SMALL_UCX_META;
/// Most parts of a payload.
pub(super) const MOST_PARTS: usize = 64;
/// Bytes of a token.
pub(super) const TOKEN_BYTES: usize = 16;

/// What proves that a message comes from the peer of a link: only that peer was told it, over QUIC.
pub(super) type LinkToken = [u8; TOKEN_BYTES];

/// A token as two numbers, which are compared faster than bytes one by one.
pub(super) fn halves(token: &LinkToken) -> [u64; 2] {
    let whole = u128::from_le_bytes(*token);
    [whole as u64, (whole >> 64) as u64]
}

/// To whom a message goes, in the receiver's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Addressee {
    pub token: LinkToken,
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

/// What a message brings of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessagePiece<'a> {
    /// The frame's header.
    pub frame: &'a [u8; HEADER_BYTES],
    /// Which part of the payload the body is, of how many; 0 of 0 where it is all of it.
    pub part: u8,
    pub parts: u8,
    /// The meta, where the body does not begin with it.
    pub meta: &'a [u8],
}

impl<'a> MessagePiece<'a> {
    /// Of a frame whose body is meta and payload.
    pub fn whole(frame: &'a [u8; HEADER_BYTES]) -> Self {
        Self { frame, part: 0, parts: 0, meta: &[] }
    }
}

/// A message as it is sent, without its body.
#[derive(Clone)]
pub(super) struct Header {
    bytes: [u8; LONGEST_HEADER],
    length: usize,
}

impl Header {
    pub fn new(to: &Addressee, message: Message, piece: Option<MessagePiece<'_>>) -> Self {
        let mut bytes = [0; LONGEST_HEADER];
        bytes[..16].copy_from_slice(&to.token);
        bytes[16..20].copy_from_slice(&to.link.to_le_bytes());
        bytes[20] = message.kind as u8;
        bytes[24..32].copy_from_slice(&message.channel.to_le_bytes());
        bytes[32..FIXED].copy_from_slice(&message.number.to_le_bytes());
        let Some(MessagePiece { frame, part, parts, meta }) = piece else { return Self { bytes, length: FIXED } };
        (bytes[21], bytes[22]) = (part, parts);
        let length = FIXED + HEADER_BYTES + meta.len();
        bytes[FIXED..FIXED + HEADER_BYTES].copy_from_slice(frame);
        bytes[FIXED + HEADER_BYTES..length].copy_from_slice(meta);
        Self { bytes, length }
    }

    /// The same of another part, which no meta goes beside.
    pub fn turn_to(&mut self, part: u8) {
        self.bytes[21] = part;
        self.length = FIXED + HEADER_BYTES;
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// What a header says; none where it is none.
pub(super) fn read(header: &[u8]) -> Option<(Addressee, Message, Option<MessagePiece<'_>>)> {
    let (mut fixed, rest) = header.split_at_checked(FIXED)?;
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
    let [part, parts, zero] = [fixed.get_u8(), fixed.get_u8(), fixed.get_u8()];
    let is_whole = [part, parts] == [0, 0];
    if zero != 0 || !is_whole && (part >= parts || usize::from(parts) > MOST_PARTS) {
        return None;
    }
    let (channel, number) = (fixed.get_u64_le(), fixed.get_u64_le());
    let piece = match (kind, rest.split_first_chunk()) {
        (Kind::Frame, Some((frame, meta))) if meta.len() <= SMALL_UCX_META => {
            Some(MessagePiece { frame, part, parts, meta })
        }
        (Kind::Frame, _) => return None,
        _ if is_whole && rest.is_empty() => None,
        _ => return None,
    };
    Some((Addressee { token, link }, Message { kind, channel, number }, piece))
}

/// Bytes of a part at most.
pub(crate) const PART: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn messages() -> impl Strategy<Value = (Addressee, Message)> {
        let kinds = vec![Kind::Frame, Kind::Finish, Kind::Stop, Kind::Credit, Kind::Ping, Kind::Pong, Kind::LinkCredit];
        (any::<LinkToken>(), any::<u32>(), prop::sample::select(kinds), any::<[u64; 2]>()).prop_map(
            |(token, link, kind, [channel, number])| (Addressee { token, link }, Message { kind, channel, number }),
        )
    }

    proptest! {
        #[test]
        fn messages_come_back(
            (to, message) in messages(),
            first in any::<[u8; 32]>(),
            meta in vec(any::<u8>(), 0..=SMALL_UCX_META),
            parts in 0..=MOST_PARTS as u8,
        ) {
            let mut frame = [0; HEADER_BYTES];
            frame[..32].copy_from_slice(&first);
            let piece = MessagePiece { frame: &frame, part: parts.saturating_sub(1), parts, meta: &meta };
            let piece = (message.kind == Kind::Frame).then_some(piece);
            let header = Header::new(&to, message, piece);
            prop_assert_eq!(read(header.as_bytes()), Some((to, message, piece)));
        }

        #[test]
        fn what_is_read_is_what_was_written(bytes in vec(any::<u8>(), 0..400), (to, message) in messages(), cut in 0..200usize) {
            let mut header = Header::new(&to, message, None).as_bytes().to_vec();
            header.truncate(cut);
            header.extend_from_slice(&bytes);
            for bytes in [&bytes, &header] {
                if let Some((to, message, piece)) = read(bytes) {
                    let again = Header::new(&to, message, piece);
                    prop_assert_eq!(again.as_bytes(), &bytes[..]);
                }
            }
        }
    }
}
