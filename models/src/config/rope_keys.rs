//! The rotary keys of config.json: flat in transformers 4, in `rope_parameters` in transformers 5, and what of them wins. Computes no
//! frequency.

use std::{borrow::Cow, sync::LazyLock};

use serde_json::{Map, Value};

use super::keys::{Fields, described, positive, refused};
use super::rope::{Rope, RopeScaling, Yarn};
use crate::ModelError;

/// A key of the dictionary, as errors name it in either.
struct RopeKeyName {
    plain: &'static str,
    scaling: &'static str,
    parameters: &'static str,
}

macro_rules! name {
    ($plain:literal) => {
        &RopeKeyName {
            plain: $plain,
            scaling: concat!("rope_scaling.", $plain),
            parameters: concat!("rope_parameters.", $plain),
        }
    };
}

/// What a config.json says of rotation, read by the rules of transformers: the one dictionary that counts, and keys beside it.
struct RopeKeys<'a> {
    fields: &'a Fields,
    keys: Cow<'a, Map<String, Value>>,
    old: bool,
    max_position: usize,
}

/// How heads turn.
pub(super) struct Turning {
    /// The rotary embedding.
    pub rope: Rope,
    /// That of layers with a window, where they have one of their own.
    pub local: Option<Rope>,
    /// Elements of a head that turn.
    pub turned: usize,
    /// The tokens that it is meant for: what vLLM takes a model to be of too.
    pub usable: usize,
}

/// How heads of `dim` elements turn.
///
/// # Errors
/// For what transformers does not compute, or could not.
pub(super) fn read(fields: &Fields, dim: usize, max_position: usize) -> Result<Turning, ModelError> {
    if !fields.family.local_rope {
        let (rope, turned, usable) = RopeKeys::of(fields, max_position)?.rope("rope_theta", dim)?;
        return Ok(Turning { rope, local: None, turned, usable });
    }
    let (rope, turned, usable) = RopeKeys::of_type(fields, "full_attention", max_position)?.rope("rope_theta", dim)?;
    let local = RopeKeys::of_type(fields, "sliding_attention", max_position)?.rope("rope_local_base_freq", dim)?.0;
    Ok(Turning { rope, local: Some(local), turned, usable })
}

/// The embedding, the elements of a head that turn, and the tokens that it is meant for; `base` is the key beside that has its base.
fn resolved(keys: &RopeKeys<'_>, base: &'static str, dim: usize) -> Result<(Rope, usize, usize), ModelError> {
    let (fields, max_position) = (keys.fields, keys.max_position);
    let theta = match keys.keys.get("rope_theta") {
        Some(theta) => positive(keys.name(name!("rope_theta")), theta)?,
        None => fields.positive(base)?,
    };
    let turned = match (fields.family.partial_rotation, keys.share()?) {
        (true, share) => (dim as f64 * share) as usize,
        (false, _) => dim,
    };
    if turned == 0 || !turned.is_multiple_of(2) {
        return Err(refused("partial_rotary_factor", turned, format!("an even part of {dim} elements turns")));
    }
    let scaling = keys.scaling(theta, turned)?;
    let times = |tokens: f64, factor: f64| (tokens * factor).min(1e9) as usize;
    let usable = match &scaling {
        RopeScaling::Linear { factor } => times(max_position as f64, f64::from(*factor)),
        RopeScaling::Dynamic { factor, .. } => times(max_position as f64, *factor),
        RopeScaling::Yarn(yarn) => times(yarn.original, yarn.factor),
        _ => max_position,
    };
    Ok((Rope { theta, scaling }, turned, usable.max(max_position)))
}

/// A base that the file has where it is not read: it was there before `rope_scaling` was added.
pub(super) fn note(fields: &Fields) -> Option<String> {
    let keys = fields.value("rope_scaling").as_object().filter(|keys| !keys.is_empty())?;
    let base = fields.value("rope_parameters").get("rope_theta")?;
    let lost = !keys.contains_key("rope_theta") && !fields.has("rope_theta");
    lost.then(|| {
        format!(
            "config.json: rope_parameters.rope_theta = {base} is not read where there is rope_scaling, as in transformers: \
             the base is 10000 unless rope_scaling has a rope_theta"
        )
    })
}

impl<'a> RopeKeys<'a> {
    /// `rope_scaling` counts alone where both stand there, as the cards of models tell users to add it.
    fn of(fields: &'a Fields, max_position: usize) -> Result<Self, ModelError> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let dictionary = |name: &'static str| match fields.value(name) {
            Value::Null => Ok(None),
            Value::Object(keys) if keys.is_empty() => Ok(None),
            Value::Object(keys) => match keys.values().find(|value| value.is_object()) {
                Some(_) => Err(refused(name, "a dictionary for each type of layer", "one for all layers is supported")),
                None => Ok(Some(keys)),
            },
            other => Err(refused(name, described(other), "expected a dictionary, or null")),
        };
        let (old, new) = (dictionary("rope_scaling")?, dictionary("rope_parameters")?);
        Ok(Self { fields, keys: Cow::Borrowed(old.or(new).unwrap_or(&NONE)), old: old.is_some(), max_position })
    }

    /// Of layers of a type, where each has a dictionary of its own; `rope_scaling` is that of layers without a window.
    fn of_type(fields: &'a Fields, kind: &'static str, max_position: usize) -> Result<Self, ModelError> {
        let nested = match fields.value("rope_parameters") {
            Value::Null => None,
            Value::Object(types) if types.values().all(|value| value.is_object() || value.is_null()) => types.get(kind),
            other => {
                return Err(refused(
                    "rope_parameters",
                    described(other),
                    "expected a dictionary for each type of layer",
                ));
            }
        };
        let mut keys = nested.and_then(Value::as_object).cloned().unwrap_or_default();
        let old = match fields.value("rope_scaling") {
            Value::Object(old) if kind == "full_attention" => {
                keys.extend(old.clone());
                true
            }
            Value::Null | Value::Object(_) => false,
            other => return Err(refused("rope_scaling", described(other), "expected a dictionary, or null")),
        };
        Ok(Self { fields, keys: Cow::Owned(keys), old, max_position })
    }

    fn rope(&self, base: &'static str, dim: usize) -> Result<(Rope, usize, usize), ModelError> {
        resolved(self, base, dim)
    }

    fn name(&self, name: &RopeKeyName) -> &'static str {
        if self.old { name.scaling } else { name.parameters }
    }

    fn scaling(&self, theta: f64, dim: usize) -> Result<RopeScaling, ModelError> {
        let kind = match self.keys.get("rope_type").or(self.keys.get("type")) {
            None => "default",
            Some(Value::String(kind)) => kind.as_str(),
            Some(other) => return Err(refused(self.name(name!("rope_type")), described(other), "expected a name")),
        };
        let share = self.share()?;
        if let Some(types) = self.fields.family.rope_types.filter(|types| !types.contains(&kind)) {
            return Err(refused(self.name(name!("rope_type")), kind, format!("this family has {}", types.join(", "))));
        }
        let kind = if self.fields.family.rope_types.is_some() && kind != "default" { "longrope" } else { kind };
        if share != 1.0 && kind != "proportional" && !self.fields.family.partial_rotation {
            return Err(refused("partial_rotary_factor", share, "the whole head is rotated"));
        }
        match kind {
            "default" => Ok(RopeScaling::Plain),
            "linear" => Ok(RopeScaling::Linear { factor: self.needed(name!("factor"))? as f32 }),
            "dynamic" if dim <= 2 => Err(refused("head_dim", dim, "dynamic scaling needs more than 2")),
            "dynamic" => {
                Ok(RopeScaling::Dynamic { factor: self.needed(name!("factor"))?, original: self.max_position as u32 })
            }
            "yarn" => self.yarn(theta).map(RopeScaling::Yarn),
            "longrope" => self.longrope(dim),
            "llama3" => self.llama3(),
            "proportional" => {
                let factor = self.optional(name!("factor"))?.unwrap_or(1.0) as f32;
                Ok(RopeScaling::Proportional { factor, share })
            }
            other => {
                let known = "default, linear, dynamic, yarn, longrope, llama3 and proportional are supported";
                Err(refused(self.name(name!("rope_type")), other, known))
            }
        }
    }

    /// Of the head, what turns.
    fn share(&self) -> Result<f64, ModelError> {
        let share = match self.keys.get("partial_rotary_factor") {
            Some(share) => positive(self.name(name!("partial_rotary_factor")), share)?,
            None if *self.fields.value("partial_rotary_factor") == Value::Null => 1.0,
            None => self.fields.positive("partial_rotary_factor")?,
        };
        match share {
            share if share <= 1.0 => Ok(share),
            share => Err(refused("partial_rotary_factor", share, "expected at most 1")),
        }
    }

    fn yarn(&self, theta: f64) -> Result<Yarn, ModelError> {
        let original = self.original()?;
        let factor = self.factor(original)?;
        if theta == 1.0 {
            return Err(refused("rope_theta", theta, "yarn needs another base than 1"));
        }
        let [mscale, all_dim] = [self.or_zero(name!("mscale"))?, self.or_zero(name!("mscale_all_dim"))?];
        let mscales = mscale.zip(all_dim).map(|(mscale, all_dim)| [mscale, all_dim]);
        let attention_factor = match self.optional(name!("attention_factor"))? {
            Some(attention_factor) => attention_factor,
            None => Yarn::attention_factor(factor, mscales),
        };
        Ok(Yarn {
            factor,
            beta_fast: self.or_zero(name!("beta_fast"))?.unwrap_or(32.0),
            beta_slow: self.or_zero(name!("beta_slow"))?.unwrap_or(1.0),
            original,
            truncate: match self.keys.get("truncate") {
                None => true,
                Some(Value::Null) => false,
                Some(Value::Bool(truncate)) => *truncate,
                Some(other) => {
                    return Err(refused(self.name(name!("truncate")), described(other), "expected true or false"));
                }
            },
            attention_factor: attention_factor as f32,
        })
    }

    fn longrope(&self, dim: usize) -> Result<RopeScaling, ModelError> {
        let original = self.original()?;
        let attention_factor = match (self.optional(name!("attention_factor"))?, self.ratio(original)?) {
            (Some(attention_factor), _) => attention_factor,
            (None, factor) if factor <= 1.0 => 1.0,
            (None, factor) => (1.0 + factor.ln() / original.ln()).sqrt(),
        };
        Ok(RopeScaling::LongRope {
            short: self.divisors(name!("short_factor"), dim / 2)?,
            long: self.divisors(name!("long_factor"), dim / 2)?,
            original: original as u32,
            attention_factor: match attention_factor as f32 {
                finite if finite.is_finite() => finite,
                other => return Err(refused(self.name(name!("attention_factor")), other, "give it as a number")),
            },
        })
    }

    fn llama3(&self) -> Result<RopeScaling, ModelError> {
        let [low, high] = [self.needed(name!("low_freq_factor"))?, self.needed(name!("high_freq_factor"))?];
        if low >= high {
            let expected = format!("expected more than low_freq_factor = {low}");
            return Err(refused(self.name(name!("high_freq_factor")), high, expected));
        }
        Ok(RopeScaling::Llama3 {
            factor: self.needed(name!("factor"))? as f32,
            low: low as f32,
            high: high as f32,
            original: self.original()? as f32,
        })
    }

    /// Positions of the pre-training: beside the dictionary, in it, or those of the model.
    fn original(&self) -> Result<f64, ModelError> {
        let key = name!("original_max_position_embeddings");
        if self.fields.has(key.plain) || !self.fields.value(key.plain).is_null() {
            return self.fields.positive(key.plain);
        }
        let given = self.keys.get(key.plain).map(|given| positive(self.name(key), given)).transpose()?;
        Ok(given.unwrap_or(self.max_position as f64))
    }

    /// Of YaRN: null stands for the ratio of the positions, absent for nothing.
    fn factor(&self, original: f64) -> Result<f64, ModelError> {
        match self.keys.get("factor") {
            Some(Value::Null) => self.ratio(original),
            _ => self.needed(name!("factor")),
        }
    }

    fn ratio(&self, original: f64) -> Result<f64, ModelError> {
        Ok(self.optional(name!("factor"))?.unwrap_or(self.max_position as f64 / original))
    }

    fn divisors(&self, key: &RopeKeyName, pairs: usize) -> Result<Vec<f32>, ModelError> {
        let wrong = |got: String| refused(self.name(key), got, format!("expected {pairs} numbers above 0, one a pair"));
        let given = self.keys.get(key.plain).and_then(Value::as_array).ok_or_else(|| wrong("no list".into()))?;
        if given.len() != pairs {
            return Err(wrong(format!("a list of {}", given.len())));
        }
        given.iter().map(|divisor| Ok(positive(self.name(key), divisor)? as f32)).collect()
    }

    fn needed(&self, key: &RopeKeyName) -> Result<f64, ModelError> {
        let given = self.keys.get(key.plain);
        given
            .map(|given| positive(self.name(key), given))
            .unwrap_or_else(|| Err(refused(self.name(key), "(none)", "this rope_type needs it")))
    }

    fn optional(&self, key: &RopeKeyName) -> Result<Option<f64>, ModelError> {
        let given = self.keys.get(key.plain).filter(|given| !given.is_null());
        given.map(|given| positive(self.name(key), given)).transpose()
    }

    /// [`RopeKeys::optional`], where 0 stands for none, too.
    fn or_zero(&self, key: &RopeKeyName) -> Result<Option<f64>, ModelError> {
        match self.keys.get(key.plain).and_then(Value::as_f64) {
            Some(0.0) => Ok(None),
            _ => self.optional(key),
        }
    }
}
