//! Parcels of phase 1, and shards that move: cut, sent, taken in and put together. Computes nothing.

pub mod frames;
pub mod moving;
pub mod parcel_inbox;
pub mod passing;
pub mod pieces;
