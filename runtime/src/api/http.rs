//! What listeners of HTTP have in common: connections, bodies, refusals, origins, TLS. Knows no endpoint.

pub mod body;
pub(crate) mod cors;
pub(crate) mod document;
pub(crate) mod error;
pub(crate) mod limits;
pub(crate) mod listening;
pub(crate) mod origin;
pub(crate) mod pace;
pub(crate) mod request;
pub(crate) mod span;
pub(crate) mod tls;
