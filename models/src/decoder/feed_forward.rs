//! What stands behind attention in a layer: a gated product, or a mixture of experts. Stores no weights.

use asterism_kernels::Backend;

use super::{
    Decoder,
    weights::{FeedForwardWeights, LayerWeights},
};
use crate::{
    ModelError,
    family::{Experts, FeedForward},
};

impl<B: Backend> Decoder<B> {
    /// `x (t, e)` plus what stands behind attention makes of it.
    pub(super) fn feed_forward(&self, layer: usize, x: &B::Tensor) -> Result<B::Tensor, ModelError> {
        let (backend, eps) = (&self.backend, self.config.eps);
        let LayerWeights { norms_before, norms_behind, feed_forward, .. } = &self.body.layers[layer];
        if let (FeedForwardWeights::Gated([gate_up, down]), Some([_, norm]), true) =
            (feed_forward, norms_before, self.config.layer.ends_plainly())
        {
            return Ok(backend.norm_mlp(x, (norm, eps), [gate_up, down])?);
        }
        let input = match norms_before {
            Some([_, norm]) => backend.rms_norm(x, norm, eps)?,
            None => x.clone(),
        };
        let made = match feed_forward {
            FeedForwardWeights::Gated(products) => self.gated(&input, products)?,
            FeedForwardWeights::Experts { router, experts } => self.mixed(&input, router, experts)?,
        };
        Ok(match norms_behind {
            Some([_, norm]) => backend.sum(x, &backend.rms_norm(&made, norm, eps)?)?,
            None => backend.sum(x, &made)?,
        })
    }

    fn gated(&self, x: &B::Tensor, [gate_up, down]: &[B::Linear; 2]) -> Result<B::Tensor, ModelError> {
        let backend = &self.backend;
        let gated = backend.gated(&backend.linear(x, gate_up)?, self.config.layer.activation)?;
        Ok(backend.linear(&gated, down)?)
    }

    /// Each row by the experts that the router chooses for it; an expert takes all of its rows together.
    fn mixed(&self, x: &B::Tensor, router: &B::Linear, experts: &[[B::Linear; 2]]) -> Result<B::Tensor, ModelError> {
        let (backend, shape) = (&self.backend, self.backend.shape(x));
        let FeedForward::Experts(spec) = self.config.layer.feed_forward else {
            unreachable!("weights of experts are loaded for a mixture of them")
        };
        let scores = backend.download(&backend.linear(x, router)?)?;
        let mut mixed = backend.cast(&backend.upload(&shape, &vec![0.0; shape.iter().product()])?)?;
        for (Dealt { rows, shares }, expert) in dealt(&scores, spec).into_iter().zip(experts) {
            if !rows.is_empty() {
                let made = self.gated(&backend.embed(x, &rows)?, expert)?;
                mixed = backend.add_rows(&mixed, (&rows, &shares), &made)?;
            }
        }
        Ok(mixed)
    }
}

/// The rows of an expert, ascending, and its share of each.
#[derive(Clone, Debug, Default, PartialEq)]
struct Dealt {
    rows: Vec<u32>,
    shares: Vec<f32>,
}

/// What each expert gets, by the router's scores `(t, experts)`.
fn dealt(scores: &[f32], Experts { count, used, shares_add_up, .. }: Experts) -> Vec<Dealt> {
    let mut dealt = vec![Dealt::default(); count];
    for (row, scores) in scores.chunks_exact(count).enumerate() {
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
        let all: f32 = powers.iter().sum();
        let mut order: Vec<usize> = (0..count).collect();
        // Of equal scores the first goes first.
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(used);
        let whole = if shares_add_up { order.iter().map(|expert| powers[*expert]).sum() } else { all };
        for expert in order {
            dealt[expert].rows.push(row as u32);
            dealt[expert].shares.push(powers[expert] / whole);
        }
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_to_the_experts_with_the_highest_scores() {
        let spec = |shares_add_up| Experts { count: 3, used: 2, intermediate: 1, shares_add_up, joint: false };
        let scores = [0.0, 2.0f32.ln(), 1.0f32.ln(), -1.0, f32::NEG_INFINITY, 0.0];
        let whole = dealt(&scores, spec(true));
        assert_eq!(whole.iter().map(|dealt| dealt.rows.clone()).collect::<Vec<_>>(), [vec![0, 1], vec![0], vec![1]]);
        assert!((whole[1].shares[0] - 2.0 / 3.0).abs() < 1e-6);
        let parts = dealt(&scores, spec(false));
        assert!((parts[1].shares[0] - 0.5).abs() < 1e-6, "of all three");
        let sum = |dealt: &[Dealt], row: u32| -> f32 {
            let of = |dealt: &Dealt| {
                dealt.rows.iter().zip(&dealt.shares).filter(|(r, _)| **r == row).map(|(_, s)| *s).sum::<f32>()
            };
            dealt.iter().map(of).sum()
        };
        assert!((sum(&whole, 0) - 1.0).abs() < 1e-6 && (sum(&parts, 0) - 0.75).abs() < 1e-6);
    }
}
