//! Bytes between hosts: framed, bounded, with deadlines. Knows no model, no message type and no metrics exporter.
//!
//! One [`Transport`] listens and connects; a [`Link`] is one authenticated peer; a [`Channel`] is one ordered, reliable
//! two-way sequence of [`Frame`]s within a link. `quic`, `ucx`, `local` and `sim` implement them; one suite of tests runs over all.

#![deny(unsafe_code)]

pub mod certificates;
mod error;
mod frame;
pub mod join;
pub mod link;
pub mod local;
mod plane;
pub mod quic;
pub(crate) mod signal;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "ucx")]
#[allow(unsafe_code, reason = "UCX is a C library; safe Rust begins above this module")]
pub mod ucx;

pub use crate::{
    frame::meta::Meta,
    link::{Channel, FrameReceiver, FrameSender, Link, NoObserver, Observer, Transport},
};
pub use error::TransportError;
pub use frame::{
    FRAME_VERSION, Frame, FrameError, FrameHeader, FrameKind, LocalValue, MAX_META_BYTES, MAX_PAYLOAD_BYTES,
    PAYLOAD_ALIGNMENT, PayloadType, codec,
    version::{OLDEST_PROTOCOL, PROTOCOL_VERSION, SpokenVersions},
};
pub use link::measure;
pub use link::place::{Place, PlaceError, PlacePort, Places};
pub use plane::{BEST_FIRST, DataPlane, Endpoint, Reached};
