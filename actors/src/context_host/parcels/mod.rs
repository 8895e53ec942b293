//! Parcels of phase 1: cut, sent, taken in and put together. Computes nothing.

pub mod frames;
pub mod parcel_inbox;
pub mod passing;
pub mod pieces;
