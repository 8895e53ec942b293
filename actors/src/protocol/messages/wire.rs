//! How messages become bytes and back: rkyv archives, validated before anything reads them.

use asterism_transport::{Frame, OLDEST_PROTOCOL};
use rkyv::{rancor, util::AlignedVec};
use thiserror::Error;

use super::{
    Admitted, ChannelOpening, HostCommand, HostMessage, ParcelMeta, ParcelsTaken, PartialsMeta, QueryMeta, ShardSent,
};

/// Bytes that are not the message they should be.
#[derive(Debug, Error)]
#[error("{peer} sent bytes that are not a valid {expected} message: {cause}")]
pub struct InvalidMessage {
    /// Who sent them.
    pub peer: String,
    /// What was expected.
    pub expected: &'static str,
    /// What the validator says.
    pub cause: String,
}

macro_rules! wire_message {
    ($($type:ty = $name:literal $(since $since:expr)?),+ $(,)?) => {$(
        impl WireMessage for $type {
            $(fn since(&self) -> u16 {
                $since(self)
            })?

            fn archive(&self) -> AlignedVec {
                rkyv::to_bytes::<rancor::Error>(self).expect("plain values archive without failing")
            }

            fn read(bytes: &AlignedVec, peer: &str) -> Result<Self, InvalidMessage> {
                rkyv::from_bytes::<Self, rancor::Error>(bytes).map_err(|cause| InvalidMessage {
                    peer: peer.to_string(),
                    expected: $name,
                    cause: cause.to_string(),
                })
            }
        }
    )+};
}

/// A value that travels as a validated archive.
pub trait WireMessage: Sized {
    /// Its archive.
    fn archive(&self) -> AlignedVec;
    /// Reads an archive of `peer`, validating it first.
    fn read(bytes: &AlignedVec, peer: &str) -> Result<Self, InvalidMessage>;
    /// The version of the protocol that it came with: it is not said to a peer of an older one.
    fn since(&self) -> u16 {
        OLDEST_PROTOCOL
    }
    /// Its archive in a control frame.
    fn frame(&self) -> Frame {
        Frame::control(self.archive())
    }
}

wire_message!(
    HostMessage = "host" since |message: &Self| match message {
        Self::Masked { .. } | Self::Gpus { .. } => 5,
        _ => OLDEST_PROTOCOL,
    },
    HostCommand = "supervisor" since |command: &Self| match command {
        Self::Configure { .. } => 3,
        _ => OLDEST_PROTOCOL,
    },
    ChannelOpening = "opening",
    Admitted = "admitted",
    ParcelsTaken = "taken",
    ShardSent = "sent shard",
    ParcelMeta = "parcel",
    QueryMeta = "query",
    PartialsMeta = "partials",
);
