//! A decoder's weights on a device. Decoders of one process that compute alike on one device share them: each part is uploaded by
//! the first that needs it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use asterism_kernels::{Backend, HostTensor};

use super::{Decoder, Parts, head::HeadOf};
use crate::{Checkpoint, ModelConfig, ModelError};

/// What every decoder has.
pub(super) struct Body<B: Backend> {
    pub table: B::Tensor,
    pub layers: Vec<Layer<B>>,
}

pub(super) struct Layer<B: Backend> {
    pub attention_norm: B::Tensor,
    pub qkv: B::Linear,
    pub output: B::Linear,
    pub mlp_norm: B::Tensor,
    pub gate_up: B::Linear,
    pub down: B::Linear,
}

pub(super) struct Head<B: Backend> {
    pub norm: B::Tensor,
    pub linear: B::Linear,
}

/// Weights of one checkpoint on one device, as far as decoders of this process have wanted them. They are kept as long as this or
/// one of the decoders.
pub struct SharedWeights<B: Backend>(Mutex<Loaded<B>>);

struct Loaded<B: Backend> {
    body: Option<Arc<Body<B>>>,
    head: Option<Arc<Head<B>>>,
}

impl<B: Backend> Default for SharedWeights<B> {
    fn default() -> Self {
        Self(Mutex::new(Loaded { body: None, head: None }))
    }
}

impl<B: Backend> SharedWeights<B> {
    /// Waits for whoever loads, and loads.
    pub fn loading(&self) -> Loading<'_, B> {
        // What is there is whole, whoever failed to add to it.
        Loading(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Weights that nobody else adds to now.
pub struct Loading<'a, B: Backend>(MutexGuard<'a, Loaded<B>>);

impl<B: Backend> Loading<'_, B> {
    /// What is on the device already.
    pub fn loaded(&self) -> Option<Parts> {
        match (&self.0.body, &self.0.head) {
            (None, _) => None,
            (Some(_), None) => Some(Parts::Context),
            (Some(_), Some(_)) => Some(Parts::All),
        }
    }

    /// A decoder on `backend`, which is of this device and has the numerics of those before. Uploads what is not there yet of what
    /// `parts` needs.
    pub fn decoder(
        &mut self,
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        parts: Parts,
    ) -> Result<Decoder<B>, ModelError> {
        let config = checkpoint.config().clone();
        let loader = Loader { backend: &*backend, checkpoint, config: &config };
        let had = self.loaded();
        let body = match &self.0.body {
            Some(body) => Arc::clone(body),
            None => Arc::clone(self.0.body.insert(Arc::new(loader.body()?))),
        };
        let head = match parts {
            Parts::Context => HeadOf::None,
            Parts::Query | Parts::All => HeadOf::Loaded(self.loaded_head(&loader)?),
        };
        if self.loaded() != had {
            // Others read it in the order of their own work.
            backend.finish()?;
        }
        let decoder = Decoder { inv_freq: config.inv_freq(0), body, head, config, backend };
        if decoder.backend.queues() {
            decoder.rehearse_where_there_is_room()?;
        }
        Ok(decoder)
    }

    /// The head, which is loaded if it is not there yet.
    pub(super) fn head(&mut self, backend: &B, checkpoint: &Checkpoint) -> Result<Arc<Head<B>>, ModelError> {
        let loader = Loader { backend, checkpoint, config: checkpoint.config() };
        let head = self.loaded_head(&loader)?;
        backend.finish()?;
        Ok(head)
    }

    fn loaded_head(&mut self, loader: &Loader<'_, B>) -> Result<Arc<Head<B>>, ModelError> {
        Ok(match &self.0.head {
            Some(head) => Arc::clone(head),
            None => Arc::clone(self.0.head.insert(Arc::new(loader.head()?))),
        })
    }
}

/// Whether a checkpoint has a head that can be loaded.
pub(super) fn check_head(checkpoint: &Checkpoint) -> Result<(), ModelError> {
    let &ModelConfig { vocab, hidden, .. } = checkpoint.config();
    checkpoint.finite_tensor(checkpoint.head(), &[vocab, hidden])?;
    checkpoint.leave(checkpoint.head());
    checkpoint.finite_tensor(&format!("{NORM}.weight"), &[hidden]).map(drop)
}

/// Reads tensors by their names in the checkpoint, with the shapes that config.json implies.
struct Loader<'a, B> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
}

impl<'a, B: Backend> Loader<'a, B> {
    fn body(&self) -> Result<Body<B>, ModelError> {
        let table = self.backend.weight(self.table_weight(self.checkpoint.table())?)?;
        self.checkpoint.leave(self.checkpoint.table());
        let layers = (0..self.config.layers).map(|layer| self.layer(layer)).collect::<Result<_, _>>()?;
        Ok(Body { table, layers })
    }

    fn layer(&self, layer: usize) -> Result<Layer<B>, ModelError> {
        let &ModelConfig { hidden, intermediate, heads, biases, .. } = self.config;
        let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let attention = |name: &str| format!("model.layers.{layer}.self_attn.{name}_proj");
        let mlp = |name: &str| format!("model.layers.{layer}.mlp.{name}_proj");
        let qkv = [(attention("q"), q), (attention("k"), kv), (attention("v"), kv)];
        let gate_up = [(mlp("gate"), intermediate), (mlp("up"), intermediate)];
        Ok(Layer {
            attention_norm: self.norm(&format!("model.layers.{layer}.input_layernorm"))?,
            qkv: self.linear(&qkv, hidden, biases.qkv)?,
            output: self.linear(&[(attention("o"), hidden)], q, biases.output)?,
            mlp_norm: self.norm(&format!("model.layers.{layer}.post_attention_layernorm"))?,
            gate_up: self.linear(&gate_up, hidden, biases.mlp)?,
            down: self.linear(&[(mlp("down"), hidden)], intermediate, biases.mlp)?,
        })
    }

    fn head(&self) -> Result<Head<B>, ModelError> {
        let linear = self.backend.head_weight(self.table_weight(self.checkpoint.head())?)?;
        self.checkpoint.leave(self.checkpoint.head());
        Ok(Head { norm: self.norm(NORM)?, linear })
    }

    fn table_weight(&self, name: &str) -> Result<HostTensor<'a>, ModelError> {
        self.checkpoint.finite_tensor(name, &[self.config.vocab, self.config.hidden])
    }

    fn norm(&self, name: &str) -> Result<B::Tensor, ModelError> {
        Ok(self.backend.weight(self.checkpoint.finite_tensor(&format!("{name}.weight"), &[self.config.hidden])?)?)
    }

    /// Linear layers that share their input `(t, k)`, fused into one with their outputs side by side.
    fn linear(&self, parts: &[(String, usize)], k: usize, biased: bool) -> Result<B::Linear, ModelError> {
        let tensor = |suffix: &str, name: &str, shape: &[usize]| {
            self.checkpoint.finite_tensor(&format!("{name}.{suffix}"), shape)
        };
        let weights: Vec<_> =
            parts.iter().map(|(name, n)| tensor("weight", name, &[*n, k])).collect::<Result<_, _>>()?;
        let biases: Vec<_> = match biased {
            true => parts.iter().map(|(name, n)| tensor("bias", name, &[*n])).collect::<Result<_, _>>()?,
            false => Vec::new(),
        };
        let linear = self.backend.linear_weight(&weights, &biases)?;
        // The backend has a copy laid out as it computes.
        parts.iter().for_each(|(name, _)| self.checkpoint.leave(&format!("{name}.weight")));
        Ok(linear)
    }
}

const NORM: &str = "model.norm";
