//! One frame: a fixed little-endian header, an rkyv-archived meta, and a raw payload aligned to 64 bytes.
//! Tensors are never inside an archive.

use bytes::Bytes;
use rkyv::util::AlignedVec;

/// Version of header and messages; peers of another version are refused.
pub const PROTOCOL_VERSION: u16 = 1;
/// Largest archived meta accepted from a peer.
pub const MAX_META_BYTES: usize = 64 << 20;
/// Largest payload accepted from a peer.
pub const MAX_PAYLOAD_BYTES: usize = 256 << 20;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// An archived control message; no payload.
    Control = 1,
    /// Phase 2: queries `(heads, rows, dim)` of one layer step to a context host.
    Query = 2,
    /// Phase 2: partial outputs and log-sum-exps of the shards a context host holds.
    Partials = 3,
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
}

/// The fields of the header that its user sets. Lengths, magic and version are the transport's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is for.
    pub kind: FrameKind,
    /// Job the frame belongs to; 0 for none.
    pub job: u64,
    /// Generation of the job's shard placement, so that a late answer of an earlier placement is recognised.
    pub shard_set: u32,
    /// Layer of a phase-2 step.
    pub layer: u32,
    /// Step of phase 2: 0 is the query.
    pub step: u32,
    /// Token rows in the payload.
    pub rows: u32,
    /// Element type of the payload.
    pub payload_type: PayloadType,
}

/// A frame as sent or as received. `meta` is an rkyv archive on an aligned buffer, to be read by validated `rkyv::access`
/// only; `payload` starts at an address divisible by 64.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Addressing.
    pub header: FrameHeader,
    /// Archived meta; may be empty.
    pub meta: AlignedVec,
    /// Raw tensor bytes; may be empty.
    pub payload: Bytes,
}
