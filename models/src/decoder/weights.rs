//! A decoder's weights on a device. Decoders of one process that compute alike on one device share them: each part is uploaded by
//! the first that needs it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use asterism_kernels::{Backend, DType, HostTensor};

use super::stored::{borrowed, cut, expert, permuted, with_offset};
use crate::{
    Checkpoint, DecoderParts, ModelConfig, ModelError, Weight,
    family::{Experts, FeedForward, LinearSpec, NormSpec},
};

/// What every decoder has.
pub(super) struct Body<B: Backend> {
    pub table: B::Tensor,
    pub layers: Vec<LayerWeights<B>>,
}

pub(super) struct LayerWeights<B: Backend> {
    /// Before attention and before what follows it.
    pub norms_before: Option<[B::Tensor; 2]>,
    /// Behind both.
    pub norms_behind: Option<[B::Tensor; 2]>,
    pub qkv: B::Linear,
    /// Of queries, and of keys.
    pub head_norms: Option<[B::Tensor; 2]>,
    pub output: B::Linear,
    /// Of each query head.
    pub sinks: Option<Vec<f32>>,
    pub feed_forward: FeedForwardWeights<B>,
}

pub(super) enum FeedForwardWeights<B: Backend> {
    /// Gate and up, and down.
    Gated([B::Linear; 2]),
    /// The same of each expert, and what chooses them.
    Experts { router: B::Linear, experts: Vec<[B::Linear; 2]> },
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

/// What one decoder computes with.
pub(super) struct Uploaded<B: Backend> {
    pub body: Arc<Body<B>>,
    pub head: Option<Arc<Head<B>>>,
}

/// Weights that nobody else adds to now.
pub struct Loading<'a, B: Backend>(MutexGuard<'a, Loaded<B>>);

impl<B: Backend> Loading<'_, B> {
    /// What is on the device already.
    pub fn loaded(&self) -> Option<DecoderParts> {
        match (&self.0.body, &self.0.head) {
            (None, _) => None,
            (Some(_), None) => Some(DecoderParts::Context),
            (Some(_), Some(_)) => Some(DecoderParts::All),
        }
    }

    /// What `parts` needs. Uploads what is not there yet.
    pub(super) fn upload(
        &mut self,
        backend: &B,
        checkpoint: &Checkpoint,
        parts: DecoderParts,
    ) -> Result<Uploaded<B>, ModelError> {
        let loader = Loader { backend, checkpoint, config: checkpoint.config() };
        let had = self.loaded();
        let body = match &self.0.body {
            Some(body) => Arc::clone(body),
            None => Arc::clone(self.0.body.insert(Arc::new(loader.body()?))),
        };
        let head = match parts {
            DecoderParts::Context => None,
            DecoderParts::Query | DecoderParts::All => Some(self.loaded_head(&loader)?),
        };
        if self.loaded() != had {
            // Others read it in the order of their own work.
            backend.finish()?;
        }
        Ok(Uploaded { body, head })
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
    let &ModelConfig { vocab, hidden, ref layer, .. } = checkpoint.config();
    checkpoint.finite_tensor(checkpoint.head(), &[vocab, hidden])?;
    checkpoint.leave(checkpoint.head());
    checkpoint.finite_tensor(&format!("{}.weight", layer.names.norm), &[hidden]).map(drop)
}

/// Reads tensors by their names in the checkpoint, with the shapes that config.json implies.
struct Loader<'a, B> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
}

impl<'a, B: Backend> Loader<'a, B> {
    fn body(&self) -> Result<Body<B>, ModelError> {
        let table = self.backend.weight(self.table_weight(self.checkpoint.table())?.host())?;
        self.checkpoint.leave(self.checkpoint.table());
        let layers = (0..self.config.layers).map(|layer| self.layer(layer)).collect::<Result<_, _>>()?;
        Ok(Body { table, layers })
    }

    fn layer(&self, layer: usize) -> Result<LayerWeights<B>, ModelError> {
        let &ModelConfig { hidden, heads, layer: ref spec, .. } = self.config;
        let norm = |(name, width): NormSpec| self.norm(&spec.name(layer, name), width);
        let norms = |both: Option<[NormSpec; 2]>| match both {
            Some([one, other]) => Ok::<_, ModelError>(Some([norm(one)?, norm(other)?])),
            None => Ok(None),
        };
        let linear = |linear: &LinearSpec| self.linear(|name| spec.name(layer, name), linear, 0);
        let pair = |[one, other]: [LinearSpec; 2]| Ok::<_, ModelError>([linear(&one)?, linear(&other)?]);
        let turning = heads.query + heads.kv;
        Ok(LayerWeights {
            norms_before: norms(spec.norms_before(hidden))?,
            norms_behind: norms(spec.norms_behind(hidden))?,
            qkv: self.linear(|name| spec.name(layer, name), &spec.qkv(hidden, heads), turning)?,
            head_norms: norms(spec.norms_of_heads(heads))?,
            output: linear(&spec.output(hidden, heads))?,
            sinks: match spec.sinks {
                true => Some(self.sinks(&spec.name(layer, spec.names.sinks))?),
                false => None,
            },
            feed_forward: match spec.feed_forward {
                FeedForward::Gated { .. } => FeedForwardWeights::Gated(pair(spec.mlp(hidden))?),
                FeedForward::Experts(experts) => FeedForwardWeights::Experts {
                    router: linear(&spec.router(hidden, experts))?,
                    experts: match experts.joint {
                        true => self.joint_experts(layer, experts)?,
                        false => {
                            (0..experts.count).map(|at| pair(spec.expert(hidden, at))).collect::<Result<_, _>>()?
                        }
                    },
                },
            },
        })
    }

    fn sinks(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        Ok(self.checkpoint.finite_tensor(name, &[self.config.heads.query])?.host().values())
    }

    /// Experts that are stored together.
    fn joint_experts(
        &self,
        layer: usize,
        Experts { count, intermediate, .. }: Experts,
    ) -> Result<Vec<[B::Linear; 2]>, ModelError> {
        let (hidden, spec) = (self.config.hidden, &self.config.layer);
        let name = |part: &str| spec.name(layer, &format!("{}.{part}", spec.names.experts));
        let tensor = |part: &str, shape: &[usize]| self.checkpoint.finite_tensor(&name(part), shape);
        let gate_up = tensor("gate_up_proj", &[count, hidden, 2 * intermediate])?;
        let gate_up_bias = tensor("gate_up_proj_bias", &[count, 2 * intermediate])?;
        let down = tensor("down_proj", &[count, intermediate, hidden])?;
        let down_bias = tensor("down_proj_bias", &[count, hidden])?;
        let linear = |weight: &Weight, bias: &Weight, at, interleaved| -> Result<B::Linear, ModelError> {
            let [weight, bias] = [weight, bias].map(|stored| [expert(&stored.host(), at, interleaved)]);
            Ok(self.backend.linear_weight(&borrowed(&weight), &borrowed(&bias))?)
        };
        let both = |at| Ok([linear(&gate_up, &gate_up_bias, at, true)?, linear(&down, &down_bias, at, false)?]);
        let experts = (0..count).map(both).collect();
        ["gate_up_proj", "down_proj"].iter().for_each(|part| self.checkpoint.leave(&name(part)));
        experts
    }

    fn head(&self) -> Result<Head<B>, ModelError> {
        let linear = self.backend.head_weight(self.table_weight(self.checkpoint.head())?.host())?;
        self.checkpoint.leave(self.checkpoint.head());
        Ok(Head { norm: self.norm(self.config.layer.names.norm, self.config.hidden)?, linear })
    }

    fn table_weight(&self, name: &str) -> Result<Weight<'a>, ModelError> {
        self.checkpoint.finite_tensor(name, &[self.config.vocab, self.config.hidden])
    }

    fn norm(&self, name: &str, width: usize) -> Result<B::Tensor, ModelError> {
        let (weight, offset) =
            (self.checkpoint.finite_tensor(&format!("{name}.weight"), &[width])?, self.config.layer.norm_offset);
        if offset == 0.0 {
            return Ok(self.backend.weight(weight.host())?);
        }
        let bytes = with_offset(&weight.host(), offset);
        Ok(self.backend.weight(HostTensor { stored: DType::F32.into(), shape: &[width], bytes: &bytes })?)
    }

    /// Linear layers that share their input `(t, k)`, fused into one with their outputs side by side. The first `turning` heads of the
    /// outputs are laid out as they are rotated, where a part of each turns.
    fn linear(
        &self,
        named: impl Fn(&str) -> String,
        spec: &LinearSpec,
        turning: usize,
    ) -> Result<B::Linear, ModelError> {
        let parts: Vec<(String, usize)> = spec.parts.iter().map(|(name, outputs)| (named(name), *outputs)).collect();
        let tensor = |suffix: &str, name: &str, shape: &[usize]| {
            self.checkpoint.finite_tensor(&format!("{name}.{suffix}"), shape)
        };
        let weight = |(name, outputs): &(String, usize)| tensor("weight", name, &[*outputs, spec.inputs]);
        let weights: Vec<_> = parts.iter().map(weight).collect::<Result<_, _>>()?;
        let biases: Vec<_> = match spec.biased {
            true => parts.iter().map(|(name, n)| tensor("bias", name, &[*n])).collect::<Result<_, _>>()?,
            false => Vec::new(),
        };
        let [weights, biases] = [&weights, &biases].map(|all| all.iter().map(Weight::host).collect::<Vec<_>>());
        // However they are stored, layers that are joined are known to the device as such.
        let shapes = |inputs: Option<usize>| -> Vec<Vec<usize>> {
            spec.widths.iter().map(|width| [*width].into_iter().chain(inputs).collect()).collect()
        };
        let (shapes, bias_shapes) = (shapes(Some(spec.inputs)), shapes(None));
        let (weights, biases) = (cut(&weights, &shapes), cut(&biases, &bias_shapes));
        let (dim, turned) = (self.config.heads.dim, self.config.turned);
        let linear = match turning {
            heads if heads > 0 && turned < dim => {
                let (weights, biases) =
                    (permuted(&weights, heads, [dim, turned]), permuted(&biases, heads, [dim, turned]));
                self.backend.linear_weight(&borrowed(&weights), &borrowed(&biases))?
            }
            _ => self.backend.linear_weight(&weights, &biases)?,
        };
        // The backend has a copy laid out as it computes.
        parts.iter().for_each(|(name, _)| self.checkpoint.leave(&format!("{name}.weight")));
        Ok(linear)
    }
}
