//! One frame: a fixed little-endian header, an rkyv-archived meta, and a raw payload aligned to 64 bytes.
//! Tensors are never inside an archive.

pub(crate) mod buffers;
pub mod codec;
pub(crate) mod meta;
pub(crate) mod version;

use std::{any::Any, fmt, sync::Arc};

use bytes::Bytes;
use rkyv::util::AlignedVec;
use thiserror::Error;

use crate::Meta;

/// Layout of a frame, which each states; frames of another are refused. What is said in them has a
/// [version of its own](crate::PROTOCOL_VERSION).
pub const FRAME_VERSION: u16 = 2;
/// Bytes before the meta.
pub const HEADER_BYTES: usize = 40;
/// Largest archived meta accepted from a peer.
pub const MAX_META_BYTES: usize = 64 << 20;
/// Largest payload accepted from a peer.
pub const MAX_PAYLOAD_BYTES: usize = 256 << 20;
/// Alignment of payloads, on the wire from the frame's start and in memory.
pub const PAYLOAD_ALIGNMENT: usize = 64;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// An archived control message; no payload.
    Control = 1,
    /// What is answered.
    Request = 2,
    /// The answer to a request.
    Response = 3,
    /// What is not answered.
    Data = 4,
}

/// Element type of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PayloadType {
    /// No payload.
    #[default]
    None = 0,
    /// Little-endian f32.
    F32 = 1,
    /// Little-endian bfloat16.
    Bf16 = 2,
    /// Bytes that are no numbers by themselves: keys and values as they are kept.
    Bytes = 3,
}

/// The fields of the header that its user sets. Lengths, magic and version are the transport's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is for.
    pub kind: FrameKind,
    /// Element type of the payload.
    pub payload_type: PayloadType,
    /// A number of the asker's own choosing, which a response repeats; the transport reads nothing into it.
    pub correlation: u64,
}

/// A frame as sent or as received. `meta` is an rkyv archive on an aligned buffer, to be read by validated `rkyv::access`
/// only; a received `payload` starts at an address divisible by 64, a sent one may start anywhere.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What it is.
    pub header: FrameHeader,
    /// Archived meta; may be empty.
    pub meta: Meta,
    /// Raw tensor bytes; may be empty.
    pub payload: Bytes,
    /// What goes along as it is, over a channel whose sender [hands over](crate::FrameSender::hands_over).
    pub handed: Option<LocalValue>,
}

/// A value that stays in its process, such as tensors on a device.
#[derive(Clone)]
pub struct LocalValue(Arc<dyn Any + Send + Sync>);

impl LocalValue {
    /// Takes a value to hand over.
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// The value, if it is of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.clone().downcast().ok()
    }
}

impl fmt::Debug for LocalValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Handed")
    }
}

impl Frame {
    /// A frame of any kind.
    pub fn new(header: FrameHeader, meta: impl Into<Meta>, payload: Bytes) -> Self {
        Self { header, meta: meta.into(), payload, handed: None }
    }

    /// The frame, with a value that goes along.
    #[must_use]
    pub fn handing(self, value: LocalValue) -> Self {
        Self { handed: Some(value), ..self }
    }

    /// A control message: an archived meta without payload.
    pub fn control(meta: AlignedVec) -> Self {
        let header = FrameHeader { kind: FrameKind::Control, payload_type: PayloadType::None, correlation: 0 };
        Self::new(header, meta, Bytes::new())
    }

    /// Bytes this frame takes on the wire.
    pub fn wire_bytes(&self) -> usize {
        wire_bytes(self.meta.len(), self.payload.len())
    }
}

/// Why a frame was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The bytes are not a frame.
    #[error("not a frame: it starts with {got:02x?}; the peer is no asterism host or its stream lost its place")]
    Magic {
        /// The first four bytes.
        got: [u8; 4],
    },
    /// The frame is of another layout.
    #[error(
        "frame of layout {got}, expected {expected}; run versions of asterism that talk to each other (docs/operations.md)"
    )]
    Version {
        /// The layout of the frame.
        got: u16,
        /// The layout spoken here.
        expected: u16,
    },
    /// The frame is of a kind this version does not know.
    #[error("frame of unknown kind {got}; run the same version of asterism on every host")]
    Kind {
        /// The kind's number.
        got: u8,
    },
    /// The payload is of a type this version does not know.
    #[error("payload of unknown type {got}; run the same version of asterism on every host")]
    PayloadType {
        /// The type's number.
        got: u8,
    },
    /// Bytes that must be zero are not.
    #[error("{field} of the frame must be zero; the peer is faulty or of another version")]
    NotZero {
        /// Which bytes.
        field: &'static str,
    },
    /// Meta or payload is larger than any peer accepts.
    #[error("{part} of {got} bytes is over the limit of {max}; send it in several frames")]
    TooLarge {
        /// `meta` or `payload`.
        part: &'static str,
        /// Its length.
        got: u64,
        /// The limit.
        max: usize,
    },
    /// The payload's length contradicts its type.
    #[error(
        "payload of {got} bytes does not hold whole elements of type {payload_type:?}; the sender set a wrong type"
    )]
    PayloadLength {
        /// Type named by the header.
        payload_type: PayloadType,
        /// Length of the payload in bytes.
        got: u64,
    },
    /// A frame that was to leave its process hands a value over.
    #[error("the frame hands over what cannot leave its process; send its bytes")]
    Handed,
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame; the peer stopped while sending")]
    Truncated,
}

impl FrameError {
    /// A stable word for metric labels and messages.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Magic { .. } => "frame_magic",
            Self::Version { .. } => "frame_version",
            Self::Kind { .. } => "frame_kind",
            Self::PayloadType { .. } => "frame_payload_type",
            Self::NotZero { .. } => "frame_not_zero",
            Self::TooLarge { .. } => "frame_too_large",
            Self::PayloadLength { .. } => "frame_payload_length",
            Self::Handed => "frame_handed",
            Self::Truncated => "frame_truncated",
        }
    }
}

/// Bytes a frame takes on the wire.
pub(crate) fn wire_bytes(meta: usize, payload: usize) -> usize {
    HEADER_BYTES + meta + padding(meta, payload) + payload
}

/// Zeros between meta and payload; none where there is no payload.
pub(crate) fn padding(meta: usize, payload: usize) -> usize {
    if payload == 0 { 0 } else { (HEADER_BYTES + meta).next_multiple_of(PAYLOAD_ALIGNMENT) - HEADER_BYTES - meta }
}
