//! Bodies on their way in and answers on their way out: bounded, paced and charged for. Knows no endpoint.

pub(crate) mod charged;
pub(crate) mod field;
pub(crate) mod intake;
pub(crate) mod weight;
