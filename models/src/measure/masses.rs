//! What phase 2 looks at in a context: the share of attention that goes to each of some stretches of it. For measuring what a
//! choice of stretches loses; no cluster asks for it.

use std::ops::Range;

use asterism_kernels::{Ask, Backend, Mask};

use crate::{Answers, ContextAttention, EncodedShard, LayerQueries, LocalContext, ModelError, PartAsk};

/// A context of one shard that notes, while it answers, where the attention of all rows, heads and layers goes.
pub struct WatchedContext<'a, B: Backend> {
    context: LocalContext<'a, B>,
    backend: &'a B,
    /// For each layer, the keys of each stretch.
    stretches: Vec<Vec<B::Kv>>,
    /// Of each stretch, over all that was asked.
    masses: Vec<f64>,
}

impl<'a, B: Backend> WatchedContext<'a, B> {
    /// Answers from `shard`, of whose keys `stretches` are ranges.
    ///
    /// # Errors
    /// What the kernels report, for a range beyond the keys among it.
    pub fn new(backend: &'a B, shard: &'a EncodedShard<B>, stretches: &[Range<usize>]) -> Result<Self, ModelError> {
        let cut = |kv: &B::Kv| stretches.iter().map(|keys| backend.kv_rows(kv, keys.start, keys.end)).collect();
        let layers = shard.layers.iter().map(cut).collect::<Result<_, _>>()?;
        let context = LocalContext::new(backend, std::slice::from_ref(shard));
        Ok(Self { context, backend, stretches: layers, masses: vec![0.0; stretches.len()] })
    }

    /// The mass of each stretch: a row's attention to all of them is 1 a head and layer.
    pub fn masses(&self) -> &[f64] {
        &self.masses
    }

    /// The log-sum-exp of a stretch tells its mass: its share of the sum of all exponentials.
    fn note(&mut self, queries: &LayerQueries<'_, B>, rows: &Range<usize>) -> Result<(), ModelError> {
        let heads = queries.heads;
        let ask = |kv| Ask { kv, rows: rows.clone(), mask: Mask::None, holes: &[] };
        let asks: Vec<_> = self.stretches[queries.layer].iter().map(ask).collect();
        let mut packed = Vec::new();
        self.backend.attend_many(heads, queries.q, &asks, &mut packed)?;
        let (row, outputs) = (heads.packed_row(), heads.query * heads.dim);
        for at in (0..rows.len()).flat_map(|of_rows| (0..heads.query).map(move |head| of_rows * row + outputs + head)) {
            let lse = |stretch: usize| f64::from(packed[stretch * rows.len() * row + at]);
            let highest = (0..self.masses.len()).map(lse).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = (0..self.masses.len()).map(|stretch| (lse(stretch) - highest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            self.masses.iter_mut().zip(weights).for_each(|(mass, weight)| *mass += weight / sum);
        }
        Ok(())
    }
}

impl<B: Backend> ContextAttention<B> for WatchedContext<'_, B> {
    fn ask(&mut self, queries: LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Answers<'_, B>, ModelError> {
        asks.iter().try_for_each(|ask| self.note(&queries, &ask.rows))?;
        self.context.ask(queries, asks)
    }
}
