//! Why a channel to a context host ends early, and why an attachment has no answer. Both are reported: the one to the log here, the
//! other to the query host.

use std::time::Duration;

use asterism_kernels::KernelError;
use asterism_models::ModelError;
use asterism_transport::{FrameKind, PayloadType, TransportError};
use thiserror::Error;

use crate::{
    authority::Denied,
    messages::{InvalidMerge, InvalidMessage},
    payload::WrongPayload,
};

/// Why a channel ends before its peer is done.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The network.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Bytes that are no message.
    #[error(transparent)]
    Message(#[from] InvalidMessage),
    /// Not the peer's to say.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// A frame that has no place on the channel.
    #[error("{peer} sent a {kind:?} frame on a channel of {of}; run the same version of asterism on every host")]
    Frame {
        /// Who sent it.
        peer: String,
        /// The frame's kind.
        kind: FrameKind,
        /// What the channel is for.
        of: &'static str,
    },
    /// Words that have no place where they were said.
    #[error("{peer} said {what}; run the same version of asterism on every host")]
    OutOfPlace {
        /// Who said it.
        peer: String,
        /// What.
        what: &'static str,
    },
    /// Queries that the model cannot have.
    #[error(
        "expected {expected:?} queries of a layer below {layers}, got {got:?} of layer {layer}; do all hosts have one model?"
    )]
    Query {
        /// How rows travel for this model.
        expected: PayloadType,
        /// Layers of the model.
        layers: usize,
        /// How these did.
        got: PayloadType,
        /// The layer asked for.
        layer: usize,
    },
    /// A payload of another size.
    #[error(transparent)]
    Payload(#[from] WrongPayload),
    /// A piece of a parcel that is not the next.
    #[error("{peer} sent {cause}; the attempt ends, and another follows")]
    Piece {
        /// Who sent it.
        peer: String,
        /// What is wrong with it.
        cause: PieceError,
    },
    /// Parcels for an order that did not come.
    #[error("context {context} was not ordered here in {} s; its parcels are dropped", waited.as_secs())]
    NotOrdered {
        /// Context.
        context: u64,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Parcels that nobody may have taken.
    #[error("it closed the channel before it had taken all parcels; the attempt ends, and another follows")]
    NotTaken,
    /// What a ticket, or the lack of something, forbids.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The device.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device has no room for what attention makes.
    #[error("the device's memory is full of contexts; end sessions, or ask for fewer tokens at a time")]
    Full,
    /// A bug of ours.
    #[error("attention ended in a panic: {cause}; that is a bug of asterism, please report it")]
    Panicked {
        /// Its words.
        cause: String,
    },
}

/// Why the keys and values of a shard did not come from the host that holds them.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The channel, or what came on it.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The network.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The device.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// It keeps the channel open, and sends nothing.
    #[error("it sent nothing for {} s", waited.as_secs())]
    Silent {
        /// For how long.
        waited: Duration,
    },
    /// It sent less than all.
    #[error("it closed the channel after {layers} of {of} layers")]
    Short {
        /// Layers that came.
        layers: usize,
        /// Layers of the model.
        of: usize,
    },
    /// Something else than the next layer came.
    #[error("expected {expected}, got {got}")]
    Other {
        /// What was expected.
        expected: String,
        /// What came.
        got: String,
    },
    /// Not all bytes came as they were sent, or they are of another shard.
    #[error("expected the checksums {expected} of what it read and of its keys, got {got}")]
    Checksum {
        /// Of the order, and of what was sent.
        expected: String,
        /// Of what came.
        got: String,
    },
    /// Nobody is named who holds it.
    #[error("no host is named that holds shard {block}")]
    NoHolder {
        /// The shard.
        block: usize,
    },
}

/// A piece of a parcel that is not the one expected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PieceError {
    /// Not the first, where one begins, or of too many.
    #[error("piece {piece} of {pieces} of a parcel, expected the first of at most {most}")]
    First {
        /// Its number.
        piece: u32,
        /// Of how many.
        pieces: u32,
        /// Most there may be.
        most: u32,
    },
    /// Not the next.
    #[error("piece {got}, expected {expected}")]
    Next {
        /// What was expected.
        expected: String,
        /// What came.
        got: String,
    },
    /// More than the shapes say, or than any parcel has.
    #[error("more bytes than a parcel of {shapes:?} has, or than the 4 GiB that any may have")]
    TooLong {
        /// The shapes.
        shapes: Vec<Vec<u32>>,
    },
}

/// Why an attachment has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Not encoded here, or freed.
    #[error("shard {block} of context {context} is not here")]
    Missing {
        /// Context.
        context: u64,
        /// Shard.
        block: u32,
    },
    /// Queries for what was not attached, or was refused.
    #[error("nothing is attached by number {attachment}")]
    NotAttached {
        /// The number.
        attachment: u64,
    },
    /// Another ticket.
    #[error("context {context} opens to its ticket only, and another one was shown")]
    Ticket {
        /// Context.
        context: u64,
    },
    /// Nothing to answer with.
    #[error("a group has no shard; each partial is of one at least")]
    EmptyGroup,
    /// A shard twice.
    #[error("a shard is named twice; each counts once")]
    NamedTwice,
    /// Keys that a shard does not have.
    #[error("what is hidden of shard {block} is none of its keys, in order")]
    Hidden {
        /// Shard.
        block: u32,
    },
    /// A mask beside hidden keys.
    #[error("keys are hidden, so that no other mask can be; ask without one")]
    HiddenAndMasked,
    /// Too many at a time.
    #[error("{most} {what} at a time already; detach some")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// Most there may be.
        most: usize,
    },
    /// More than a frame holds.
    #[error("{rows} partial rows do not fit into a frame; ask for fewer at a time")]
    TooManyRows {
        /// Rows times shards.
        rows: usize,
    },
    /// Merges that cannot be.
    #[error(transparent)]
    Merge(#[from] InvalidMerge),
    /// A host that this one asks.
    #[error("{host}, which is asked through this host, does not answer: {cause}")]
    Below {
        /// The host at fault.
        host: String,
        /// What was observed.
        cause: String,
    },
    /// The device, or a bug.
    #[error("the partials were not computed: {cause}")]
    NotComputed {
        /// What was observed.
        cause: String,
    },
}
