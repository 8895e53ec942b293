//! What a context host says to those who ask it (phase 2), and to those who bring it parcels. Encodes nothing.

pub mod attending;
pub mod channels;
pub mod queries;
pub mod query_service;
pub mod relay;
mod spans;
