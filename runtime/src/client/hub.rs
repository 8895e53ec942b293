//! Models of a hub that speaks Hugging Face's paths: their names, the cache on this machine that its other tools share, and what fetches
//! files into it. Loads no model.

mod cache;
mod client;
mod download;
mod error;
mod lock;
mod meter;
mod name;
mod origin;
mod pull;
mod retry;

pub use cache::{CachedModel, HubCache, located, name_of};
pub use client::{HubAccess, HubClient};
pub use error::HubError;
pub use name::HubName;
pub use pull::{Pulled, damaged, pull};
