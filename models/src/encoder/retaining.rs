//! APB's retaining heads (Locret, Huang et al., 2025): a small trained MLP a layer that says what a token's key is worth.

use std::{fs, path::Path};

use asterism_kernels::{Backend, DType, HostTensor};
use safetensors::{Dtype, SafeTensors};

use crate::{ModelConfig, ModelError};

/// The heads of all layers on a device.
pub struct RetainingHeads<B: Backend> {
    layers: Vec<Mlp<B>>,
}

struct Mlp<B: Backend> {
    fc1: B::Linear,
    fc2: B::Linear,
}

impl<B: Backend> RetainingHeads<B> {
    /// Reads `model.layers.{l}.self_attn.fc1.weight (r, (query + 2 kv) dim)` and `fc2.weight (kv, r)` of every layer.
    ///
    /// # Errors
    /// [`ModelError::RetainingHeads`] when the file cannot be read or was made for a model of another shape.
    pub fn load(backend: &B, path: &Path, config: &ModelConfig) -> Result<Self, ModelError> {
        read(path, config, |fc1, fc2| Ok((backend.linear_weight(&[fc1], &[])?, backend.linear_weight(&[fc2], &[])?)))
            .map(Self::of)
    }

    /// Heads from the two weights of each layer, `fc1 (r, (query + 2 kv) dim)` and `fc2 (kv, r)`.
    pub fn of(layers: Vec<(B::Linear, B::Linear)>) -> Self {
        Self { layers: layers.into_iter().map(|(fc1, fc2)| Mlp { fc1, fc2 }).collect() }
    }

    /// What each token is worth to each KV head, of `raw (t, (query + 2 kv) dim)`, queries, keys and values before rotation.
    pub fn scores(&self, backend: &B, layer: usize, raw: &B::Tensor) -> Result<Vec<Vec<f32>>, ModelError> {
        let Mlp { fc1, fc2 } = &self.layers[layer];
        let inner = backend.silu(&backend.linear(raw, fc1)?)?;
        let scores = backend.linear(&inner, fc2)?;
        let (values, heads) = (backend.download(&scores)?, backend.shape(&scores)[1]);
        Ok((0..heads).map(|head| values.iter().skip(head).step_by(heads).copied().collect()).collect())
    }
}

/// Refuses a file that [`RetainingHeads::load`] would refuse, without a device.
///
/// # Errors
/// As there.
pub fn check_retaining_heads(path: &Path, config: &ModelConfig) -> Result<(), ModelError> {
    read(path, config, |_, _| Ok(())).map(drop)
}

/// Far beyond the heads of any model.
const LARGEST_HEADS_FILE: u64 = 4 << 30;

fn read<T>(
    path: &Path,
    config: &ModelConfig,
    each: impl Fn(HostTensor<'_>, HostTensor<'_>) -> Result<T, ModelError>,
) -> Result<Vec<T>, ModelError> {
    let wrong = |cause: String| ModelError::RetainingHeads { path: path.to_owned(), cause };
    let about = fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !about.is_file() || about.len() > LARGEST_HEADS_FILE {
        return Err(wrong(format!("it is no file of at most {LARGEST_HEADS_FILE} bytes")));
    }
    let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| wrong(error.to_string()))?;
    let heads = config.heads;
    let width = (heads.query + 2 * heads.kv) * heads.dim;
    let tensor = |layer: usize, name: &str, expected: [Option<usize>; 2]| {
        let name = format!("model.layers.{layer}.self_attn.{name}.weight");
        let view = file
            .tensor(&name)
            .map_err(|_| wrong(format!("it has no {name}; the model has {} layers", config.layers)))?;
        let fits = view.shape().len() == 2
            && view.shape().iter().zip(expected).all(|(got, want)| want.is_none_or(|want| want == *got));
        let [rows, columns] = expected.map(|size| size.map_or("any".to_owned(), |size| size.to_string()));
        match fits {
            true => Ok(view),
            false => Err(wrong(format!("{name} is {:?}, the model needs ({rows}, {columns})", view.shape()))),
        }
    };
    let mut layers = Vec::with_capacity(config.layers);
    for layer in 0..config.layers {
        let fc1 = tensor(layer, "fc1", [None, Some(width)])?;
        let fc2 = tensor(layer, "fc2", [Some(heads.kv), Some(fc1.shape()[0])])?;
        let dtype = |dtype| match dtype {
            Dtype::F32 => Ok(DType::F32),
            Dtype::BF16 => Ok(DType::Bf16),
            Dtype::F16 => Ok(DType::F16),
            other => Err(wrong(format!("weights are {other:?}; f32, bf16 and f16 are supported"))),
        };
        layers.push(each(
            HostTensor { stored: dtype(fc1.dtype())?.into(), shape: fc1.shape(), bytes: fc1.data() },
            HostTensor { stored: dtype(fc2.dtype())?.into(), shape: fc2.shape(), bytes: fc2.data() },
        )?);
    }
    Ok(layers)
}
