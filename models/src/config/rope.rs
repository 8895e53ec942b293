//! Rotary frequencies: plain, linearly scaled, and with the wavelength-dependent scaling of Llama 3.1.

use serde::Deserialize;

use super::refused;
use crate::ModelError;

/// Rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rope {
    /// `theta ^ (-2 j / dim)`.
    Plain {
        /// Base.
        theta: f64,
    },
    /// Every frequency divided by `factor`.
    Linear {
        /// Base.
        theta: f64,
        /// Divisor.
        factor: f32,
    },
    /// Long wavelengths divided by `factor`, short ones kept, a smooth passage in between (Llama 3.1).
    Llama3 {
        /// Base.
        theta: f64,
        /// Divisor of wavelengths longer than `original / low`.
        factor: f32,
        /// See `factor`.
        low: f32,
        /// Wavelengths shorter than `original / high` are kept.
        high: f32,
        /// Positions of the pre-training.
        original: f32,
    },
}

impl Rope {
    /// Frequencies `(dim / 2)`, each operation rounded to f32 as transformers does.
    pub fn inv_freq(&self, dim: usize) -> Vec<f32> {
        let (Self::Plain { theta } | Self::Linear { theta, .. } | Self::Llama3 { theta, .. }) = *self;
        let plain = (0..dim / 2).map(|j| 1.0 / theta.powf(f64::from(2.0 * j as f32 / dim as f32)) as f32);
        match *self {
            Self::Plain { .. } => plain.collect(),
            Self::Linear { factor, .. } => plain.map(|f| f / factor).collect(),
            Self::Llama3 { factor, low, high, original, .. } => plain
                .map(|f| {
                    let wavelength = 2.0 * std::f32::consts::PI / f;
                    if wavelength > original / low {
                        f / factor
                    } else if wavelength < original / high {
                        f
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
        }
    }
}

/// The rotary keys of config.json: flat in transformers 4, under `rope_parameters` in transformers 5.
#[derive(Deserialize)]
pub(super) struct RopeKeys {
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
}

#[derive(Clone, Default, Deserialize)]
struct Scaling {
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_type: Option<String>,
    r#type: Option<String>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
}

impl RopeKeys {
    pub(super) fn resolve(&self, max_position: usize) -> Result<Rope, ModelError> {
        let scaling = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref()).cloned().unwrap_or_default();
        let theta = scaling.rope_theta.or(self.rope_theta).unwrap_or(10_000.0);
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(refused("rope_theta", theta, "expected a finite number above 0"));
        }
        let rotary = scaling.partial_rotary_factor.or(self.partial_rotary_factor).unwrap_or(1.0);
        if rotary != 1.0 {
            return Err(refused("partial_rotary_factor", rotary, "the whole head is rotated"));
        }
        let needed = |key: &'static str, value: Option<f32>| match value {
            Some(value) if value > 0.0 && value.is_finite() => Ok(value),
            Some(value) => Err(refused(key, value, "expected a finite number above 0")),
            None => Err(refused(key, "(none)", "this rope_type needs it")),
        };
        match scaling.rope_type.or(scaling.r#type).as_deref() {
            None | Some("default") => Ok(Rope::Plain { theta }),
            Some("linear") => Ok(Rope::Linear { theta, factor: needed("rope_scaling.factor", scaling.factor)? }),
            Some("llama3") => {
                let original = scaling.original_max_position_embeddings.unwrap_or(max_position as f32);
                let low = needed("rope_scaling.low_freq_factor", scaling.low_freq_factor)?;
                let high = needed("rope_scaling.high_freq_factor", scaling.high_freq_factor)?;
                if low >= high {
                    let expected = format!("expected more than low_freq_factor = {low}");
                    return Err(refused("rope_scaling.high_freq_factor", high, expected));
                }
                Ok(Rope::Llama3 {
                    theta,
                    factor: needed("rope_scaling.factor", scaling.factor)?,
                    low,
                    high,
                    original: needed("rope_scaling.original_max_position_embeddings", Some(original))?,
                })
            }
            Some(other) => Err(refused("rope_scaling.rope_type", other, "default, linear and llama3 are supported")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_short_and_divides_long_wavelengths() {
        let rope = Rope::Llama3 { theta: 500_000.0, factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
        let (scaled, plain) = (rope.inv_freq(16), Rope::Plain { theta: 500_000.0 }.inv_freq(16));
        assert_eq!(plain.len(), 8);
        assert_eq!(plain[0], 1.0);
        assert_eq!(scaled[0], plain[0], "wavelength 6.3 is below 64 / 4");
        assert!(scaled[1] < plain[1] && scaled[1] > plain[1] / 8.0, "wavelength 32 lies between 64 / 4 and 64");
        assert_eq!(scaled[2], plain[2] / 8.0, "wavelength 167 is above 64");
        assert_eq!(Rope::Linear { theta: 500_000.0, factor: 2.0 }.inv_freq(16)[3], plain[3] / 2.0);
    }
}
