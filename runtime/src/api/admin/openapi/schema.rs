//! Schemas out of the types that requests and answers have. Knows no endpoint.

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Makes the schema of a type.
pub(crate) type Make = fn(&mut SchemaGenerator) -> Schema;

pub(crate) fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}
