//! What clients, members and files that mean harm cannot do: over real processes, TLS and HTTP.

mod api;
mod machine;
mod members;
