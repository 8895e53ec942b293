//! Parcels of phase 1: cut, sent, taken in and put together. Computes nothing.

pub mod frames;
pub mod mailroom;
pub mod passing;
pub mod pieces;
