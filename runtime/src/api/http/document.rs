//! What OpenAPI documents of all listeners have in common. Describes no endpoint.

use serde_json::{Value, json};

/// A document for OpenAPI 3.1, without paths and components.
pub fn head(title: &str, description: &str) -> Value {
    let license = env!("CARGO_PKG_LICENSE");
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "description": description,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": license, "identifier": license },
        },
        "servers": [{ "url": "/" }],
    })
}
