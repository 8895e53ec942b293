//! Sliding windows. No layer is computed with one: up to its length it hides nothing, and a model is used no longer than that.

use serde_json::Value;

use super::keys::{Fields, described, refused};
use crate::ModelError;

/// Longest window.
const LONGEST_WINDOW: usize = 1 << 28;

/// The window that some layer of so many has, if one has.
///
/// # Errors
/// For layers that neither see all before them nor slide, and for some that slide without a window.
pub(super) fn window(fields: &Fields, layers: usize) -> Result<Option<usize>, ModelError> {
    let used = !fields.is_read("use_sliding_window") || fields.flag("use_sliding_window")?;
    let window = if used { fields.count_or_none("sliding_window", LONGEST_WINDOW)? } else { None };
    let types = types(fields, layers)?;
    let slides = types.map(|types| types.contains(&true));
    match slides {
        Some(true) if window.is_none() => {
            let why = "layers of this type need sliding_window (and use_sliding_window where the family has it)";
            Err(refused("layer_types", "sliding_attention", why))
        }
        // transformers masks all layers of a Mistral alike, and keeps no more than the window of an undeclared Llama.
        Some(false) if fields.family.windows_by_layer => Ok(None),
        None if window.is_some() && fields.is_read("max_window_layers") => {
            let full = match fields.value("max_window_layers") {
                // No layer before the first slides.
                Value::Number(number) if number.as_i64().is_some_and(|layers| layers <= 0) => 0,
                _ => fields.count("max_window_layers", LONGEST_WINDOW)?,
            };
            Ok(window.filter(|_| full < layers))
        }
        _ => Ok(window),
    }
}

/// Of each layer whether it has a window, where the file says so.
fn types(fields: &Fields, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
    let listed = match fields.value("layer_types") {
        Value::Null => return Ok(None),
        Value::Array(listed) if listed.len() == layers => listed,
        Value::Array(listed) => {
            let got = format!("{} layers", listed.len());
            return Err(refused("layer_types", got, format!("num_hidden_layers says {layers}")));
        }
        other => return Err(refused("layer_types", described(other), "expected a list of a type for each layer")),
    };
    let slides = |kind: &Value| match kind.as_str() {
        Some("full_attention" | "attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(refused("layer_types", described(kind), "full_attention and sliding_attention are supported")),
    };
    listed.iter().map(slides).collect::<Result<Vec<_>, _>>().map(Some)
}
