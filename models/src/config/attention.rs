//! What tells the attention of layers apart: sliding windows, and how queries and keys turn.

use serde_json::Value;

use super::keys::{Fields, described, refused};
use crate::{
    ModelError,
    family::{LayerAttention, Rotation, Windows},
};

/// Longest window.
const LONGEST_WINDOW: usize = 1 << 28;

/// The attention of each layer, and the most tokens of a sequence where its class keeps no more.
pub(super) struct ConfiguredAttention {
    pub layers: Vec<LayerAttention>,
    pub bound: Option<usize>,
}

/// Of so many layers.
///
/// # Errors
/// For layers that neither see all before them nor slide, and for some that slide without a window.
pub(super) fn attention(fields: &Fields, layers: usize) -> Result<ConfiguredAttention, ModelError> {
    let turns = turns(fields, layers)?;
    let (window, slides) = (window(fields)?, slides(fields, layers, &turns)?);
    if fields.family.windows == Windows::Bound {
        let bound = if slides.contains(&true) || types(fields, layers)?.is_none() { window } else { None };
        return Ok(ConfiguredAttention { layers: vec![LayerAttention::default(); layers], bound });
    }
    let of_layer = |(slides, turns): (&bool, &bool)| LayerAttention {
        window: window.filter(|_| *slides),
        rotation: match (*turns, *slides && fields.family.local_rope) {
            (false, _) => Rotation::Still,
            (true, true) => Rotation::Local,
            (true, false) => Rotation::Global,
        },
    };
    Ok(ConfiguredAttention { layers: slides.iter().zip(&turns).map(of_layer).collect(), bound: None })
}

/// The window that some layers may have.
fn window(fields: &Fields) -> Result<Option<usize>, ModelError> {
    let used = !fields.is_read("use_sliding_window") || fields.flag("use_sliding_window")?;
    if used { fields.count_or_none("sliding_window", LONGEST_WINDOW) } else { Ok(None) }
}

/// Of each layer whether it slides, where there is a window.
fn slides(fields: &Fields, layers: usize, turns: &[bool]) -> Result<Vec<bool>, ModelError> {
    let (window, types) = (window(fields)?, types(fields, layers)?);
    let declared = types.as_ref().is_some_and(|types| types.contains(&true));
    if declared && window.is_none() {
        let why = "layers of this type need sliding_window (and use_sliding_window where the family has it)";
        return Err(refused("layer_types", "sliding_attention", why));
    }
    Ok(match (fields.family.windows, types) {
        (Windows::All, _) => vec![true; layers],
        (_, Some(types)) => types,
        (Windows::Bound, None) => vec![false; layers],
        (Windows::Late, None) => {
            let full = match fields.value("max_window_layers") {
                // No layer before the first slides.
                Value::Number(number) if number.as_i64().is_some_and(|layers| layers <= 0) => 0,
                _ if window.is_none() => layers,
                _ => fields.count("max_window_layers", LONGEST_WINDOW)?,
            };
            (0..layers).map(|layer| layer >= full).collect()
        }
        (Windows::AllBut(usual), None) => {
            let each = match fields.is_read("sliding_window_pattern") {
                true => fields.count("sliding_window_pattern", LONGEST_WINDOW)?,
                false => usual,
            };
            (1..=layers).map(|layer| layer % each != 0).collect()
        }
        (Windows::Still, None) => turns.iter().map(|turns| !turns).collect(),
    })
}

/// Of each layer whether its queries and keys turn.
fn turns(fields: &Fields, layers: usize) -> Result<Vec<bool>, ModelError> {
    if !fields.is_read("no_rope_layers") {
        return Ok(vec![true; layers]);
    }
    let listed = match fields.value("no_rope_layers") {
        Value::Null => {
            let each = fields.count("no_rope_layer_interval", LONGEST_WINDOW)?;
            return Ok((1..=layers).map(|layer| layer % each != 0).collect());
        }
        Value::Array(listed) if listed.len() >= layers => listed,
        Value::Array(listed) => {
            let got = format!("{} layers", listed.len());
            return Err(refused("no_rope_layers", got, format!("num_hidden_layers says {layers}")));
        }
        other => return Err(refused("no_rope_layers", described(other), "expected a list of 0 and 1, or null")),
    };
    let turns = |listed: &Value| match listed.as_i64() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(refused(
            "no_rope_layers",
            described(listed),
            "expected 1 for a layer that turns, 0 for one that does not",
        )),
    };
    listed.iter().take(layers).map(turns).collect()
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
