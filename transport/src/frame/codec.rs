//! Frames to bytes and back. Knows no socket and no clock, and never panics on what a peer sent.
//!
//! On the wire, offsets from the start of the frame:
//!
//! | bytes | field | bytes | field |
//! |---|---|---|---|
//! | 0..4 | magic `ASTR` | 16..24 | meta length |
//! | 4..6 | layout | 24..32 | payload length |
//! | 6 | kind | 32..34 | parts of the payload that go over other streams |
//! | 7 | payload type | 34..40 | zero |
//! | 8..16 | correlation | 40.. | meta, zeros up to a multiple of 64, payload or its first part |
//!
//! Every byte is decided by the frame and that number, so a decoded frame encodes to the bytes it came from.

use std::{ops::Range, sync::Arc};

use bytes::{Buf, Bytes, BytesMut};
use rkyv::util::AlignedVec;

pub use super::HEADER_BYTES;
use crate::{
    Meta,
    frame::{
        FRAME_VERSION, Frame, FrameError, FrameHeader, FrameKind, MAX_META_BYTES, MAX_PAYLOAD_BYTES, PAYLOAD_ALIGNMENT,
        PayloadType,
        buffers::{Buffer, Buffers},
        padding,
    },
};

/// A decoder reserves this much anew on a peer's word that so many bytes will come, once the first of them has.
pub const FIRST_RESERVATION: usize = 4 << 20;
/// Beyond [`FIRST_RESERVATION`] it reserves this many times what has come.
pub const RESERVATION_GROWTH: usize = 4;
/// A meta up to here is copied behind its header, which costs less than to hand it over by itself.
const COPIED_META_BYTES: usize = 2 << 10;
/// Payloads from here on may come in parts: below, one core is done before others have woken.
pub(crate) const STRIPED_FROM: usize = 1 << 20;
/// Bytes taken at once for headers and small metas.
const HEADS: usize = 16 << 10;
/// Where a header says how many parts of the payload go over other streams.
const PARTS: Range<usize> = 32..34;
const MAGIC: [u8; 4] = *b"ASTR";
const ZEROS: [u8; PAYLOAD_ALIGNMENT] = [0; PAYLOAD_ALIGNMENT];

/// The frame in wire order, in four parts. Meta and payload are moved, not copied, but for a small meta.
pub fn encode(frame: Frame) -> Result<[Bytes; 4], FrameError> {
    Encoder::default().encode(frame, 0)
}

/// Makes frames of one channel into bytes, and uses the memory of their headers again once nobody needs them.
#[derive(Default)]
pub(crate) struct Encoder {
    heads: BytesMut,
}

impl Encoder {
    /// The frame in wire order: header, with a small meta behind it, a large meta, padding, payload.
    /// The header says that so many `parts` of the payload go over other streams.
    pub fn encode(&mut self, frame: Frame, parts: usize) -> Result<[Bytes; 4], FrameError> {
        check_leaving(&frame)?;
        let (meta, payload) = (frame.meta.len(), frame.payload.len());
        let padding = &ZEROS[..padding(meta, payload)];
        let joined = if meta <= COPIED_META_BYTES { meta + padding.len() } else { 0 };
        if self.heads.capacity() < HEADER_BYTES + joined {
            self.heads.reserve(HEADS);
        }
        let mut header = encode_header(&frame.header, meta, payload);
        header[PARTS].copy_from_slice(&(parts as u16).to_le_bytes());
        self.heads.extend_from_slice(&header);
        if meta <= COPIED_META_BYTES {
            self.heads.extend_from_slice(&frame.meta);
            self.heads.extend_from_slice(padding);
            return Ok([self.heads.split().freeze(), Bytes::new(), Bytes::new(), frame.payload]);
        }
        let head = self.heads.split().freeze();
        Ok([head, Bytes::from_owner(frame.meta), Bytes::from_static(padding), frame.payload])
    }
}

/// Refuses what no peer would accept.
pub(crate) fn check(frame: &Frame) -> Result<(), FrameError> {
    check_lengths(frame.header.payload_type, frame.meta.len() as u64, frame.payload.len() as u64).map(drop)
}

/// The same of what is to leave its process.
pub(crate) fn check_leaving(frame: &Frame) -> Result<(), FrameError> {
    if frame.handed.is_some() { Err(FrameError::Handed) } else { check(frame) }
}

/// Turns the chunks of a byte stream back into frames. Keeps at most one frame: of its meta and of its payload no more than
/// the header says, nor than the larger of [`FIRST_RESERVATION`] and [`RESERVATION_GROWTH`] times what has come of it.
pub struct FrameDecoder {
    header: [u8; HEADER_BYTES],
    filled: usize,
    body: Option<Body>,
    buffers: Arc<Buffers>,
    /// Other streams that parts of a payload may come over.
    others: usize,
}

/// What a decoder makes of a stream.
pub(crate) enum Decoded {
    Frame(Frame),
    /// A frame has begun of whose payload parts come over other streams: their places, and how many bytes each has.
    Begun(Vec<(BytesMut, usize)>),
    /// All that comes of such a frame over this stream.
    Parted(Parted),
}

/// A frame that waits for parts of its payload.
pub(crate) struct Parted {
    header: FrameHeader,
    meta: Meta,
    payload: Buffer,
}

impl Parted {
    /// Adds the part that follows what is there.
    pub fn join(&mut self, part: BytesMut) {
        self.payload.join(part);
    }

    pub fn finish(self, buffers: &Buffers) -> Frame {
        Frame::new(self.header, self.meta, buffers.share(self.payload))
    }
}

struct Body {
    header: FrameHeader,
    lengths: Lengths,
    meta: Meta,
    padding_left: usize,
    payload: Option<Buffer>,
    is_parted: bool,
}

/// How long meta and payload of a frame are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub meta: usize,
    pub payload: usize,
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self::with(Default::default(), 0)
    }
}

impl FrameDecoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// One whose payloads arrive in `buffers`, parts of them over so many `others` streams at most.
    pub(crate) fn with(buffers: Arc<Buffers>, others: usize) -> Self {
        Self { header: [0; HEADER_BYTES], filled: 0, body: None, buffers, others }
    }

    /// Bytes held for the frame that is coming.
    pub fn reserved_bytes(&self) -> usize {
        let payload = |body: &Body| body.payload.as_ref().map_or(0, Buffer::size);
        self.body.as_ref().map_or(0, |body| body.meta.capacity() + payload(body))
    }

    /// Whether the stream may end here.
    pub fn is_between_frames(&self) -> bool {
        self.filled == 0
    }

    /// Takes bytes from `input` until a frame is whole or `input` is empty. After an error the stream has lost its place.
    pub fn decode(&mut self, input: &mut Bytes) -> Result<Option<Frame>, FrameError> {
        match self.next(input)? {
            None => Ok(None),
            Some(Decoded::Frame(frame)) => Ok(Some(frame)),
            Some(_) => unreachable!("a header that names other streams is refused where there are none"),
        }
    }

    /// The same where parts of payloads may come over other streams.
    pub(crate) fn next(&mut self, input: &mut Bytes) -> Result<Option<Decoded>, FrameError> {
        let mut body = match self.body.take() {
            Some(body) => body,
            None => {
                let taken = input.len().min(HEADER_BYTES - self.filled);
                input.copy_to_slice(&mut self.header[self.filled..self.filled + taken]);
                self.filled += taken;
                if self.filled < HEADER_BYTES {
                    return Ok(None);
                }
                let (mut body, parts) = Body::new(&self.header, self.others)?;
                if parts > 0 {
                    let places = body.part(parts, &self.buffers);
                    self.body = Some(body);
                    return Ok(Some(Decoded::Begun(places)));
                }
                body
            }
        };
        if !body.fill(input, &self.buffers)? {
            self.body = Some(body);
            return Ok(None);
        }
        self.filled = 0;
        let Body { header, meta, payload, is_parted, .. } = body;
        Ok(Some(match payload {
            Some(payload) if is_parted => Decoded::Parted(Parted { header, meta, payload }),
            Some(payload) => Decoded::Frame(Frame::new(header, meta, self.buffers.share(payload))),
            None => Decoded::Frame(Frame::new(header, meta, Bytes::new())),
        }))
    }
}

impl Body {
    /// What a header says, and how many parts of the payload come over other streams.
    fn new(bytes: &[u8; HEADER_BYTES], others: usize) -> Result<(Self, usize), FrameError> {
        let (header, lengths, parts) = decode_any_header(bytes)?;
        if parts > others || parts > 0 && lengths.payload < STRIPED_FROM {
            return Err(FrameError::NotZero { field: "the number of parts" });
        }
        let padding_left = padding(lengths.meta, lengths.payload);
        Ok((Self { header, lengths, meta: Meta::default(), padding_left, payload: None, is_parted: false }, parts))
    }

    /// Takes the whole payload's buffer, which nothing has touched yet, keeps the first part and gives the places of others.
    fn part(&mut self, parts: usize, buffers: &Buffers) -> Vec<(BytesMut, usize)> {
        let whole = self.lengths.payload;
        let mut buffer = buffers.again(whole).unwrap_or_else(|| Buffer::new(whole));
        let mut cuts = cut(whole, parts + 1);
        self.lengths.payload = cuts.next().expect("the first part").len();
        let places = buffer.split(cuts);
        (self.payload, self.is_parted) = (Some(buffer), true);
        places
    }

    /// Whether the frame is whole.
    fn fill(&mut self, input: &mut Bytes, buffers: &Buffers) -> Result<bool, FrameError> {
        let meta = input.split_to(input.len().min(self.lengths.meta - self.meta.len()));
        let come = self.meta.len();
        if come + meta.len() > self.meta.capacity() {
            if let Some(kept) = buffers.meta(self.lengths.meta).filter(|_| come == 0) {
                self.meta = kept;
            }
            self.meta.reserve_exact(room(come + meta.len(), self.lengths.meta) - come);
        }
        self.meta.extend_from_slice(&meta);
        let padding = input.split_to(input.len().min(self.padding_left));
        self.padding_left -= padding.len();
        if padding.iter().any(|byte| *byte != 0) {
            return Err(FrameError::NotZero { field: "padding" });
        }
        let come = self.payload.as_ref().map_or(0, Buffer::len);
        let payload = input.split_to(input.len().min(self.lengths.payload - come));
        if !payload.is_empty() {
            self.add(&payload, buffers);
        }
        Ok(self.meta.len() == self.lengths.meta && come + payload.len() == self.lengths.payload)
    }

    /// Adds what came of the payload: to a buffer that came back, if one takes the whole, else to a new one.
    fn add(&mut self, bytes: &[u8], buffers: &Buffers) {
        let whole = self.lengths.payload;
        let begun = self.payload.take().or_else(|| buffers.again(whole));
        let mut buffer = begun.unwrap_or_else(|| Buffer::new(room(bytes.len(), whole)));
        let come = buffer.len() + bytes.len();
        if come > buffer.size() {
            let smaller = std::mem::replace(&mut buffer, Buffer::new(room(come, whole)));
            buffer.append(smaller.filled());
        }
        buffer.append(bytes);
        self.payload = Some(buffer);
    }
}

/// Bytes to reserve for a part of which so many have `come` and that is to have `whole`: all at once where it is small, so
/// that most frames are never moved, and in few steps where it is large, so that a lying header gets little.
fn room(come: usize, whole: usize) -> usize {
    (come * RESERVATION_GROWTH).max(FIRST_RESERVATION).min(whole)
}

/// `bytes` at an address divisible by 64: itself where it is, else a copy.
pub(crate) fn align(bytes: Bytes) -> Bytes {
    if bytes.as_ptr().addr().is_multiple_of(PAYLOAD_ALIGNMENT) || bytes.is_empty() {
        return bytes;
    }
    let mut aligned = AlignedVec::<PAYLOAD_ALIGNMENT>::with_capacity(bytes.len());
    aligned.extend_from_slice(&bytes);
    Bytes::from_owner(aligned)
}

/// Where the parts of a payload begin and end.
pub(crate) fn cut(payload: usize, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let part = payload.div_ceil(parts).next_multiple_of(PAYLOAD_ALIGNMENT);
    (0..parts).map(move |index| (index * part).min(payload)..((index + 1) * part).min(payload))
}

/// The first bytes of a frame.
pub(crate) fn encode_header(header: &FrameHeader, meta: usize, payload: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&FRAME_VERSION.to_le_bytes());
    bytes[6] = header.kind as u8;
    bytes[7] = header.payload_type as u8;
    bytes[8..16].copy_from_slice(&header.correlation.to_le_bytes());
    bytes[16..24].copy_from_slice(&(meta as u64).to_le_bytes());
    bytes[24..32].copy_from_slice(&(payload as u64).to_le_bytes());
    bytes
}

/// The fields and lengths that a frame begins with, within the limits, where all of it comes over one stream.
#[cfg(feature = "ucx")]
pub(crate) fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Result<(FrameHeader, Lengths), FrameError> {
    let (header, lengths, parts) = decode_any_header(bytes)?;
    if parts > 0 { Err(FrameError::NotZero { field: "the number of parts" }) } else { Ok((header, lengths)) }
}

/// The same, and how many parts of the payload come over other streams.
fn decode_any_header(bytes: &[u8; HEADER_BYTES]) -> Result<(FrameHeader, Lengths, usize), FrameError> {
    let mut rest = &bytes[..];
    let mut magic = [0; 4];
    rest.copy_to_slice(&mut magic);
    if magic != MAGIC {
        return Err(FrameError::Magic { got: magic });
    }
    let version = rest.get_u16_le();
    if version != FRAME_VERSION {
        return Err(FrameError::Version { got: version, expected: FRAME_VERSION });
    }
    let header = FrameHeader {
        kind: decode_kind(rest.get_u8())?,
        payload_type: decode_payload_type(rest.get_u8())?,
        correlation: rest.get_u64_le(),
    };
    let lengths = check_lengths(header.payload_type, rest.get_u64_le(), rest.get_u64_le())?;
    let parts = rest.get_u16_le();
    if rest.iter().any(|byte| *byte != 0) {
        return Err(FrameError::NotZero { field: "the end of the header" });
    }
    Ok((header, lengths, parts.into()))
}

fn decode_kind(got: u8) -> Result<FrameKind, FrameError> {
    match got {
        1 => Ok(FrameKind::Control),
        2 => Ok(FrameKind::Request),
        3 => Ok(FrameKind::Response),
        4 => Ok(FrameKind::Data),
        _ => Err(FrameError::Kind { got }),
    }
}

fn decode_payload_type(got: u8) -> Result<PayloadType, FrameError> {
    match got {
        0 => Ok(PayloadType::None),
        1 => Ok(PayloadType::F32),
        2 => Ok(PayloadType::Bf16),
        3 => Ok(PayloadType::Bytes),
        _ => Err(FrameError::PayloadType { got }),
    }
}

fn check_lengths(payload_type: PayloadType, meta: u64, payload: u64) -> Result<Lengths, FrameError> {
    if meta > MAX_META_BYTES as u64 {
        return Err(FrameError::TooLarge { part: "meta", got: meta, max: MAX_META_BYTES });
    }
    if payload > MAX_PAYLOAD_BYTES as u64 {
        return Err(FrameError::TooLarge { part: "payload", got: payload, max: MAX_PAYLOAD_BYTES });
    }
    let whole = match payload_type {
        PayloadType::None => payload == 0,
        PayloadType::F32 => payload.is_multiple_of(4),
        PayloadType::Bf16 => payload.is_multiple_of(2),
        PayloadType::Bytes => true,
    };
    if !whole {
        return Err(FrameError::PayloadLength { payload_type, got: payload });
    }
    Ok(Lengths { meta: meta as usize, payload: payload as usize })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::Index};

    use super::*;

    fn headers() -> impl Strategy<Value = FrameHeader> {
        let kinds =
            prop::sample::select(vec![FrameKind::Control, FrameKind::Request, FrameKind::Response, FrameKind::Data]);
        let types =
            prop::sample::select(vec![PayloadType::None, PayloadType::F32, PayloadType::Bf16, PayloadType::Bytes]);
        (kinds, types, any::<u64>()).prop_map(|(kind, payload_type, correlation)| FrameHeader {
            kind,
            payload_type,
            correlation,
        })
    }

    fn frames() -> impl Strategy<Value = Frame> {
        (headers(), vec(any::<u8>(), 0..200), vec(any::<u8>(), 0..300)).prop_map(|(header, meta, payload)| {
            let element = match header.payload_type {
                PayloadType::None => 301,
                PayloadType::F32 => 4,
                PayloadType::Bf16 => 2,
                PayloadType::Bytes => 1,
            };
            let mut archived = AlignedVec::new();
            archived.extend_from_slice(&meta);
            Frame::new(header, archived, Bytes::from(payload[..payload.len() / element * element].to_vec()))
        })
    }

    fn wire(frame: &Frame) -> Vec<u8> {
        let encoded = encode(frame.clone()).expect("the frame is valid").concat();
        assert_eq!(encoded.len(), frame.wire_bytes());
        encoded
    }

    /// Every frame in `wire`, fed in pieces of the given sizes in turn.
    fn decode_pieces(wire: &[u8], sizes: &[usize]) -> Result<(Vec<Frame>, bool), FrameError> {
        let mut decoder = FrameDecoder::new();
        let (mut frames, mut rest, mut sizes) = (Vec::new(), Bytes::copy_from_slice(wire), sizes.iter().cycle());
        while !rest.is_empty() {
            let mut piece = rest.split_to(rest.len().min(*sizes.next().expect("sizes are not empty")));
            while !piece.is_empty() {
                frames.extend(decoder.decode(&mut piece)?);
            }
        }
        Ok((frames, decoder.is_between_frames()))
    }

    proptest! {
        #[test]
        fn frames_come_back_however_they_are_cut(frames in vec(frames(), 1..4), sizes in vec(1..150usize, 1..9)) {
            let wire = frames.iter().flat_map(wire).collect::<Vec<_>>();
            let (decoded, whole) = decode_pieces(&wire, &sizes).expect("the frames are valid");
            prop_assert!(whole);
            prop_assert_eq!(decoded.len(), frames.len());
            for (got, expected) in decoded.iter().zip(&frames) {
                prop_assert_eq!(got.header, expected.header);
                prop_assert_eq!(got.meta.as_slice(), expected.meta.as_slice());
                prop_assert_eq!(&got.payload, &expected.payload);
                prop_assert!(got.meta.is_empty() || got.meta.as_ptr().addr().is_multiple_of(16));
                prop_assert!(got.payload.is_empty() || got.payload.as_ptr().addr().is_multiple_of(PAYLOAD_ALIGNMENT));
            }
        }

        #[test]
        fn payloads_start_at_multiples_of_64(frame in frames()) {
            let [header, meta, padding, _] = encode(frame.clone()).expect("the frame is valid");
            let offset = header.len() + meta.len() + padding.len();
            prop_assert!(frame.payload.is_empty() || offset.is_multiple_of(PAYLOAD_ALIGNMENT));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_wait(bytes in vec(any::<u8>(), 0..500), sizes in vec(1..150usize, 1..9)) {
            match decode_pieces(&bytes, &sizes) {
                Ok((frames, _)) => prop_assert!(frames.is_empty()),
                Err(error) => prop_assert_eq!(error.code(), "frame_magic"),
            }
        }

        #[test]
        fn a_mutated_frame_never_panics(frame in frames(), at in any::<Index>(), to in any::<u8>(), cut in any::<Index>()) {
            let mut wire = wire(&frame);
            let at = at.index(wire.len());
            wire[at] = to;
            wire.truncate(cut.index(wire.len()) + 1);
            if let Ok((frames, whole)) = decode_pieces(&wire, &[64]) {
                prop_assert!(frames.len() <= 1 || whole);
                for frame in frames {
                    prop_assert!(frame.wire_bytes() <= wire.len());
                }
            }
        }

        #[test]
        fn a_cut_frame_is_noticed(frame in frames(), cut in any::<Index>()) {
            let wire = wire(&frame);
            let cut = cut.index(wire.len());
            let (frames, whole) = decode_pieces(&wire[..cut], &[64]).expect("what came is valid");
            prop_assert!(frames.is_empty());
            prop_assert_eq!(whole, cut == 0);
        }
    }

    #[test]
    fn a_header_is_refused_for_its_first_fault() {
        let frame = Frame::control(AlignedVec::new());
        let with = |at: usize, bytes: &[u8]| {
            let mut wire = wire(&frame);
            wire[at..at + bytes.len()].copy_from_slice(bytes);
            decode_pieces(&wire, &[7]).expect_err("the header is wrong")
        };
        assert_eq!(with(0, b"HTTP"), FrameError::Magic { got: *b"HTTP" });
        let other = FRAME_VERSION + 1;
        assert_eq!(with(4, &other.to_le_bytes()), FrameError::Version { got: other, expected: FRAME_VERSION });
        assert_eq!(with(6, &[0]), FrameError::Kind { got: 0 });
        assert_eq!(with(6, &[5]), FrameError::Kind { got: 5 });
        assert_eq!(with(7, &[4]), FrameError::PayloadType { got: 4 });
        assert_eq!(with(32, &[1]), FrameError::NotZero { field: "the number of parts" });
        assert_eq!(with(39, &[1]), FrameError::NotZero { field: "the end of the header" });
        let (got, max) = (u64::MAX, MAX_META_BYTES);
        assert_eq!(with(16, &got.to_le_bytes()), FrameError::TooLarge { part: "meta", got, max });
        let (got, max) = (MAX_PAYLOAD_BYTES as u64 + 1, MAX_PAYLOAD_BYTES);
        assert_eq!(with(24, &got.to_le_bytes()), FrameError::TooLarge { part: "payload", got, max });
        let length = FrameError::PayloadLength { payload_type: PayloadType::None, got: 2 };
        assert_eq!(with(24, &[2]), length);
    }

    #[test]
    fn a_lying_header_reserves_little() {
        let mut frame = Frame::control(AlignedVec::new());
        frame.header.payload_type = PayloadType::F32;
        let mut wire = wire(&frame);
        wire[24..32].copy_from_slice(&(MAX_PAYLOAD_BYTES as u64).to_le_bytes());
        wire.resize(PAYLOAD_ALIGNMENT, 0);
        let mut decoder = FrameDecoder::new();
        let mut feed = |bytes: Vec<u8>| {
            assert!(decoder.decode(&mut Bytes::from(bytes)).expect("the frame is valid so far").is_none());
            decoder.reserved_bytes()
        };
        assert_eq!(feed(wire), 0);
        assert_eq!(feed(vec![1]), FIRST_RESERVATION);
        assert_eq!(feed(vec![1; FIRST_RESERVATION - 1]), FIRST_RESERVATION);
        assert_eq!(feed(vec![1; FIRST_RESERVATION]), RESERVATION_GROWTH * 2 * FIRST_RESERVATION);
    }

    #[test]
    fn a_payload_in_parts_is_one_again() {
        for (payload, parts) in [(STRIPED_FROM, 1), (STRIPED_FROM + 6, 3), (5 * STRIPED_FROM - 2, 15)] {
            let mut frame = Frame::control(AlignedVec::new());
            frame.meta.extend_from_slice(&[3; 77]);
            frame.header.payload_type = PayloadType::Bf16;
            frame.payload = (0..payload).map(|index| (index ^ (index >> 9)) as u8).collect();
            let encoded = Encoder::default().encode(frame.clone(), parts).expect("the frame is valid");
            let mut cuts = cut(payload, parts + 1);
            let first = cuts.next().expect("a first part");
            let mut wire = Bytes::from([&encoded[..3].concat()[..], &frame.payload[first]].concat());
            let buffers = Arc::new(Buffers::default());
            let mut decoder = FrameDecoder::with(buffers.clone(), 15);
            let Ok(Some(Decoded::Begun(places))) = decoder.next(&mut wire) else { panic!("the header says so") };
            let Ok(Some(Decoded::Parted(mut parted))) = decoder.next(&mut wire) else {
                panic!("the first part is there")
            };
            assert!(decoder.is_between_frames() && wire.is_empty());
            for ((mut place, bytes), cut) in places.into_iter().zip(cuts) {
                assert_eq!(bytes, cut.len());
                place.extend_from_slice(&frame.payload[cut]);
                parted.join(place);
            }
            let got = parted.finish(&buffers);
            assert!(got.payload == frame.payload && got.meta[..] == frame.meta[..] && got.header == frame.header);
            assert!(got.payload.as_ptr().addr().is_multiple_of(PAYLOAD_ALIGNMENT));
        }
    }

    #[test]
    fn padding_that_is_not_zero_is_refused() {
        let mut frame = Frame::control(AlignedVec::new());
        frame.meta.push(7);
        frame.header.payload_type = PayloadType::F32;
        frame.payload = Bytes::from_static(&[0; 4]);
        let mut wire = wire(&frame);
        wire[50] = 1;
        assert_eq!(decode_pieces(&wire, &[64]).err(), Some(FrameError::NotZero { field: "padding" }));
    }
}
