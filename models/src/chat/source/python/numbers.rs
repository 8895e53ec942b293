//! Numbers as Python writes and reads them. Computes nothing.

use minijinja::value::{Value, ValueKind};

/// A number that is no whole one by its type.
pub fn float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// `repr` of a float: the shortest digits that read back, in powers of ten where there are many.
pub fn repr(float: f64) -> String {
    if !float.is_finite() {
        return if float.is_nan() {
            "nan"
        } else if float > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    // Rust goes over to powers where Python does, and writes them otherwise.
    let written = format!("{float:?}");
    match written.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
            format!("{digits}e{sign}{power:0>2}")
        }
        None => written,
    }
}
