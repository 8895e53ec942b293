//! Rotary frequencies of every kind that transformers computes for these families, each operation rounded as it does. Reads no file.

use std::f64::consts::PI;

use asterism_plan::RopeLength;

/// Rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base: frequency `j` of a head is `theta ^ (-2 j / dim)`, before scaling.
    pub theta: f64,
    /// What is made of these.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for contexts longer than those of the pre-training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Plain,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f32,
    },
    /// A larger base the longer the sequence, beyond `original` tokens (dynamic NTK).
    Dynamic {
        /// How much.
        factor: f64,
        /// Tokens up to which nothing is changed.
        original: u32,
    },
    /// Slow pairs divided by `factor`, fast ones kept, a ramp in between, cosines and sines multiplied (YaRN, arXiv 2309.00071).
    Yarn(Yarn),
    /// Each frequency divided by a number of its own, of one list up to `original` tokens and of another beyond (LongRoPE).
    LongRope {
        /// Divisors `(dim / 2)` up to `original` tokens.
        short: Vec<f32>,
        /// Divisors beyond.
        long: Vec<f32>,
        /// Positions of the pre-training.
        original: u32,
        /// Cosines and sines are multiplied by this.
        attention_factor: f32,
    },
    /// Long wavelengths divided by `factor`, short ones kept, a smooth passage in between (Llama 3.1).
    Llama3 {
        /// Divisor of wavelengths longer than `original / low`.
        factor: f32,
        /// See `factor`.
        low: f32,
        /// Wavelengths shorter than `original / high` are kept.
        high: f32,
        /// Positions of the pre-training.
        original: f32,
    },
    /// The first pairs alone turn, every frequency divided by `factor`.
    Proportional {
        /// Divisor.
        factor: f32,
        /// Share of the pairs that turn.
        share: f64,
    },
}

/// The numbers of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Divisor of the slow pairs.
    pub factor: f64,
    /// Turns within `original` positions at and above which a pair is fast.
    pub beta_fast: f64,
    /// Turns at and below which it is slow.
    pub beta_slow: f64,
    /// Positions of the pre-training.
    pub original: f64,
    /// Whether the ramp begins and ends at whole pairs.
    pub truncate: bool,
    /// Cosines and sines are multiplied by this.
    pub attention_factor: f32,
}

impl Rope {
    /// Which lengths of a sequence share frequencies.
    pub fn lengths(&self) -> RopeLength {
        match &self.scaling {
            RopeScaling::Dynamic { original, .. } => RopeLength::Growing(*original),
            RopeScaling::LongRope { original, .. } => RopeLength::Switched(*original),
            _ => RopeLength::Any,
        }
    }

    /// What cosines and sines are multiplied by.
    pub fn attention_factor(&self) -> f32 {
        match &self.scaling {
            RopeScaling::Yarn(Yarn { attention_factor, .. }) | RopeScaling::LongRope { attention_factor, .. } => {
                *attention_factor
            }
            _ => 1.0,
        }
    }

    /// Frequencies `(dim / 2)` of a sequence of `tokens`, or of one that these stand for ([`RopeLength::stands_for`]).
    pub fn inv_freq(&self, dim: usize, tokens: u32) -> Vec<f32> {
        let theta = self.theta as f32;
        let plain = || powers(theta, dim).map(|power| 1.0 / power);
        match &self.scaling {
            RopeScaling::Plain => plain().collect(),
            RopeScaling::Linear { factor } => plain().map(|f| f / factor).collect(),
            RopeScaling::Dynamic { factor, original } if tokens > *original => {
                powers(self.grown(*factor, *original, tokens, dim), dim).map(|power| 1.0 / power).collect()
            }
            RopeScaling::Dynamic { .. } => plain().collect(),
            RopeScaling::Yarn(yarn) => yarn.inv_freq(theta, dim),
            RopeScaling::LongRope { short, long, original, .. } => {
                let divisors = if tokens > *original { long } else { short };
                powers(theta, dim).zip(divisors).map(|(power, divisor)| 1.0 / (divisor * power)).collect()
            }
            &RopeScaling::Llama3 { factor, low, high, original } => {
                plain().map(|f| llama3(f, factor, [low, high], original)).collect()
            }
            RopeScaling::Proportional { factor, share } => {
                let turning = (share * dim as f64 / 2.0).floor() as usize;
                plain().enumerate().map(|(j, f)| if j < turning { f / factor } else { 0.0 }).collect()
            }
        }
    }

    /// The base beyond `original` tokens: there the reference computes with tensors in f32.
    fn grown(&self, factor: f64, original: u32, tokens: u32, dim: usize) -> f32 {
        let stretched = factor as f32 * tokens as f32 / original as f32 - (factor - 1.0) as f32;
        let exponent = dim as f64 / (dim as f64 - 2.0);
        self.theta as f32 * f64::from(stretched).powf(f64::from(exponent as f32)) as f32
    }
}

/// `theta ^ (2 j / dim)` of every pair.
fn powers(theta: f32, dim: usize) -> impl Iterator<Item = f32> {
    (0..dim / 2).map(move |j| f64::from(theta).powf(f64::from(2.0 * j as f32 / dim as f32)) as f32)
}

fn llama3(f: f32, factor: f32, [low, high]: [f32; 2], original: f32) -> f32 {
    let wavelength = 2.0 * std::f32::consts::PI / f;
    if wavelength > original / low {
        f / factor
    } else if wavelength < original / high {
        f
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * f / factor + smooth * f
    }
}

impl Yarn {
    /// The attention factor that the paper proposes for a factor; with both `mscale` and `mscale_all_dim`, a quotient of such.
    pub(super) fn attention_factor(factor: f64, mscales: Option<[f64; 2]>) -> f64 {
        let of = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        mscales.map_or(of(1.0), |[mscale, all_dim]| of(mscale) / of(all_dim))
    }

    fn inv_freq(&self, theta: f32, dim: usize) -> Vec<f32> {
        let pair = |turns: f64| dim as f64 * (self.original / (turns * 2.0 * PI)).ln() / (2.0 * f64::from(theta).ln());
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let of = |(j, power): (usize, f32)| {
            let ramp = ((j as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            1.0 / (self.factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
        };
        powers(theta, dim).enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { theta: 500_000.0, scaling }
    }

    #[test]
    fn llama3_keeps_short_and_divides_long_wavelengths() {
        let llama3 = rope(RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 });
        let (scaled, plain) = (llama3.inv_freq(16, 0), rope(RopeScaling::Plain).inv_freq(16, 0));
        assert_eq!(plain.len(), 8);
        assert_eq!(plain[0], 1.0);
        assert_eq!(scaled[0], plain[0], "wavelength 6.3 is below 64 / 4");
        assert!(scaled[1] < plain[1] && scaled[1] > plain[1] / 8.0, "wavelength 32 lies between 64 / 4 and 64");
        assert_eq!(scaled[2], plain[2] / 8.0, "wavelength 167 is above 64");
        assert_eq!(rope(RopeScaling::Linear { factor: 2.0 }).inv_freq(16, 0)[3], plain[3] / 2.0);
    }

    #[test]
    fn frequencies_follow_the_length_where_the_kind_says_so() {
        let plain = rope(RopeScaling::Plain).inv_freq(8, 0);
        let dynamic = rope(RopeScaling::Dynamic { factor: 2.0, original: 64 });
        assert_eq!((dynamic.inv_freq(8, 0), dynamic.inv_freq(8, 64)), (plain.clone(), plain.clone()));
        let (little, more) = (dynamic.inv_freq(8, 65), dynamic.inv_freq(8, 128));
        assert!((1..4).all(|j| more[j] < little[j] && little[j] < plain[j]), "{little:?} {more:?}");
        let (short, long) = (vec![1.0; 4], vec![4.0; 4]);
        let switched = rope(RopeScaling::LongRope { short, long, original: 64, attention_factor: 1.5 });
        assert_eq!(switched.inv_freq(8, 64), plain);
        assert_eq!(switched.inv_freq(8, 65), plain.iter().map(|f| f / 4.0).collect::<Vec<_>>());
        assert_eq!((switched.attention_factor(), dynamic.attention_factor()), (1.5, 1.0));
    }
}
