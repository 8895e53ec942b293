//! Attention of many asks in one call, of rows of several jobs over several shards each, and merges of what comes of it, by packed
//! rows. What a device does not do by itself is done here in terms of what it does.

use std::ops::Range;

use super::attention::{AttentionOps, Partial};
use super::heads::HeadOps;
use super::tensors::TensorOps;
use crate::operands::merging::PackedSlots;
use crate::operands::packed::{
    around, check_asks, check_groups, check_parts, heads_first, merge_rows_on_host, pack, unpack,
};
use crate::{Ask, Heads, KernelError, Mask, Merging, StepSequence};

/// Attention of a step's batch.
pub trait BatchAttention: AttentionOps + HeadOps {
    /// Attention of each ask's rows of `q (t, query heads dim)` in compute type, as [`AttentionOps::attention`] of these rows alone
    /// to the last bit. Appends the packed rows of each ask, in order.
    fn attend_many(
        &self,
        heads: Heads,
        q: &Self::Tensor,
        asks: &[Ask<'_, Self::Kv>],
        packed: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        attend_each(self, heads, q, asks, packed)
    }
    /// [`BatchAttention::attend_many`], and [`BatchAttention::merge_rows`] of each group: as many asks, one after the other, as it
    /// says, all of equally many rows. The packed rows of the groups, f32 `(rows, packed row)`, on the device.
    fn attend_rows(
        &self,
        heads: Heads,
        q: &Self::Tensor,
        asks: (&[Ask<'_, Self::Kv>], &[usize]),
    ) -> Result<Self::Tensor, KernelError> {
        attend_rows(self, heads, q, asks)
    }
    /// The rows of [`BatchAttention::attend_rows`], to the last bit, on the host.
    fn attend_packed(
        &self,
        heads: Heads,
        q: &Self::Tensor,
        asks: (&[Ask<'_, Self::Kv>], &[usize]),
    ) -> Result<Vec<f32>, KernelError> {
        self.download(&self.attend_rows(heads, q, asks)?)
    }
    /// [`BatchAttention::attend_many`] of the asks, beside rows that are given, [`BatchAttention::merge_rows`] of each level,
    /// [`BatchAttention::merge_packed`] of the tops: all that attention is to a step, queued at once where the device can.
    fn attend_tree(
        &self,
        heads: Heads,
        q: &Self::Tensor,
        asks: (&[Ask<'_, Self::Kv>], &[Self::Tensor]),
        merging: &Merging,
    ) -> Result<Self::Tensor, KernelError> {
        attend_tree(self, heads, q, asks, merging)
    }
    /// Whether the device may gain by [`BatchAttention::lay_step`] of so many rows.
    fn lays_steps(&self, rows: usize) -> bool {
        let _ = rows;
        false
    }
    /// Lays out once what all layers of a step have in common, where all keys are on this device and it gains by it. Slots of
    /// `merging` are the shards of all sequences, one sequence after the other, then the own keys of each. Every layer has the bits
    /// of [`BatchAttention::attend_tree`].
    ///
    /// # Errors
    /// What the device reports.
    fn lay_step<'a>(
        &'a self,
        heads: Heads,
        layers: usize,
        sequences: Vec<StepSequence<'a, Self::Kv>>,
        merging: &Merging,
    ) -> Result<Option<Box<dyn StepLayers<Self> + 'a>>, KernelError>
    where
        Self: Sized,
    {
        let _ = (heads, layers, sequences, merging);
        Ok(None)
    }
    /// [`AttentionOps::merge`] of packed partials, those of each part in the order given, then [`HeadOps::join_heads`]: the rows of
    /// all parts `(t, query heads dim)` in compute type.
    fn merge_packed(&self, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<Self::Tensor, KernelError> {
        merge_on_host(self, heads, parts)
    }
    /// [`AttentionOps::merge`] of packed partials, those of each part in the order given: appends the packed rows of each part.
    fn merge_rows(&self, heads: Heads, parts: &[Vec<&[f32]>], packed: &mut Vec<f32>) -> Result<(), KernelError> {
        merge_rows_on_host(heads, parts, packed)
    }
}

/// A step whose layers' attention is laid out.
pub trait StepLayers<B: TensorOps>: Send {
    /// The next layer: appends its rows' `k, v (kv, t, dim)` to the own keys of each sequence, and attends. `q (t, query heads dim)` in
    /// compute type, and so are the outputs. A step that does not come to its last layer is taken again with the same rows.
    ///
    /// # Errors
    /// What the device reports.
    fn attend(&mut self, layer: usize, qkv: [&B::Tensor; 3]) -> Result<B::Tensor, KernelError>;
}

/// As [`BatchAttention::lay_step`], layer by layer as they come.
pub fn lay_by_layer<'a, B: BatchAttention>(
    backend: &'a B,
    heads: Heads,
    sequences: Vec<StepSequence<'a, B::Kv>>,
    merging: &Merging,
) -> Box<dyn StepLayers<B> + 'a> {
    Box::new(ByLayer { backend, heads, sequences, merging: merging.clone() })
}

/// A step whose layers are asked for one after the other.
struct ByLayer<'a, B: BatchAttention> {
    backend: &'a B,
    heads: Heads,
    sequences: Vec<StepSequence<'a, B::Kv>>,
    merging: Merging,
}

impl<B: BatchAttention> StepLayers<B> for ByLayer<'_, B> {
    fn attend(&mut self, layer: usize, [q, k, v]: [&B::Tensor; 3]) -> Result<B::Tensor, KernelError> {
        let (backend, mut caches) = (self.backend, Vec::with_capacity(self.sequences.len()));
        for StepSequence { rows, own, own_keys, .. } in &mut self.sequences {
            // Else those of an earlier try are there.
            if backend.kv_len(own[layer]) <= *own_keys {
                caches.push((&mut *own[layer], rows.clone()));
            }
        }
        backend.kv_append_each(caches, k, v)?;
        let sequences = &self.sequences;
        let ask = |kv, rows: &Range<usize>, mask| Ask { kv, rows: rows.clone(), mask, holes: &[] };
        let of_shards = sequences.iter().flat_map(|sequence| {
            sequence.shards.iter().map(|(layers, mask)| ask(layers[layer], &sequence.rows, *mask))
        });
        let of_owns = sequences.iter().map(|sequence| ask(&*sequence.own[layer], &sequence.rows, sequence.own_mask));
        let asks: Vec<Ask<'_, B::Kv>> = of_shards.chain(of_owns).collect();
        backend.attend_tree(self.heads, q, (&asks, &[]), &self.merging)
    }
}

/// As [`BatchAttention::attend_many`], one ask after the other. All are handed to the device before the first result is waited for.
pub fn attend_each<B: AttentionOps>(
    backend: &B,
    heads: Heads,
    q: &B::Tensor,
    asks: &[Ask<'_, B::Kv>],
    packed: &mut Vec<f32>,
) -> Result<(), KernelError> {
    check_asks(heads, &backend.shape(q), asks, |ask| backend.kv_len(ask.kv))?;
    let values = backend.download(q)?;
    let mut last: Option<(&Range<usize>, B::Tensor)> = None;
    let mut partials = Vec::with_capacity(asks.len());
    for Ask { kv, rows, mask, holes } in asks {
        // Shards of one job are asked one after the other.
        let (_, q) = match last.take_if(|(of, _)| *of == rows) {
            Some(same) => last.insert(same),
            None => {
                let of_ask = heads_first(heads, &values, rows.clone());
                let q = backend.upload(&[heads.query, rows.len(), heads.dim], &of_ask)?;
                last.insert((rows, backend.cast(&q)?))
            }
        };
        partials.push(match holes {
            [] => backend.attention(q, kv, *mask)?,
            holes => attend_around(backend, q, kv, holes)?,
        });
    }
    for Partial { output, lse } in partials {
        pack(heads, &backend.download(&output)?, &backend.download(&lse)?, packed);
    }
    Ok(())
}

/// Attention of every row over the keys that are left, copied range by range.
fn attend_around<B: AttentionOps>(
    backend: &B,
    q: &B::Tensor,
    kv: &B::Kv,
    holes: &[Range<usize>],
) -> Result<Partial<B::Tensor>, KernelError> {
    let left = around(holes, backend.kv_len(kv));
    let attend = |keys: Range<usize>| backend.attention(q, &backend.kv_rows(kv, keys.start, keys.end)?, Mask::None);
    backend.merge(&left.into_iter().map(attend).collect::<Result<Vec<_>, _>>()?)
}

/// As [`BatchAttention::attend_rows`], by way of the host.
pub fn attend_rows<B: BatchAttention>(
    backend: &B,
    heads: Heads,
    q: &B::Tensor,
    asks: (&[Ask<'_, B::Kv>], &[usize]),
) -> Result<B::Tensor, KernelError> {
    let (packed, row) = (attend_packed(backend, heads, q, asks)?, heads.packed_row());
    backend.upload(&[packed.len() / row, row], &packed)
}

/// As [`BatchAttention::attend_packed`]: attention first, then the merge of every group, unless none has two.
pub fn attend_packed<B: BatchAttention>(
    backend: &B,
    heads: Heads,
    q: &B::Tensor,
    (asks, groups): (&[Ask<'_, B::Kv>], &[usize]),
) -> Result<Vec<f32>, KernelError> {
    check_groups(asks, groups)?;
    let row = heads.packed_row();
    let mut partials = Vec::new();
    backend.attend_many(heads, q, asks, &mut partials)?;
    if groups.iter().all(|asks| *asks == 1) {
        return Ok(partials);
    }
    let (mut rest, mut asks) = (&partials[..], asks.iter());
    let mut next = |ask: &Ask<'_, B::Kv>| {
        let (partial, after) = rest.split_at(ask.rows.len() * row);
        rest = after;
        partial
    };
    let parts: Vec<Vec<&[f32]>> =
        groups.iter().map(|group| asks.by_ref().take(*group).map(&mut next).collect()).collect();
    let mut packed = Vec::new();
    backend.merge_rows(heads, &parts, &mut packed)?;
    Ok(packed)
}

/// As [`BatchAttention::attend_tree`], by way of the host.
pub fn attend_tree<B: BatchAttention>(
    backend: &B,
    heads: Heads,
    q: &B::Tensor,
    (asks, given): (&[Ask<'_, B::Kv>], &[B::Tensor]),
    merging: &Merging,
) -> Result<B::Tensor, KernelError> {
    let given_rows = given.iter().map(|rows| backend.shape(rows).first().copied().unwrap_or(0));
    let rows = merging.rows(asks, given_rows)?;
    let mut slots = PackedSlots::of_sizes(rows.iter().map(|rows| rows * heads.packed_row()).collect());
    let mut packed = Vec::new();
    backend.attend_many(heads, q, asks, &mut packed)?;
    slots.hold(packed, asks.len());
    for rows in given {
        slots.hold(backend.download(rows)?, 1);
    }
    for level in merging.levels.iter().filter(|level| !level.is_empty()) {
        let mut merged = Vec::new();
        backend.merge_rows(heads, &slots.of(level), &mut merged)?;
        slots.hold(merged, level.len());
    }
    backend.merge_packed(heads, &slots.of(&merging.tops))
}

/// As [`BatchAttention::merge_packed`], on the host: partials come from there.
pub fn merge_on_host<B: TensorOps>(backend: &B, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<B::Tensor, KernelError> {
    let mut packed = Vec::new();
    merge_rows_on_host(heads, parts, &mut packed)?;
    let width = heads.query * heads.dim;
    let outputs: Vec<f32> =
        packed.chunks_exact(heads.packed_row()).flat_map(|row| row[..width].iter().copied()).collect();
    backend.cast(&backend.upload(&[outputs.len() / width, width], &outputs)?)
}

/// As [`BatchAttention::merge_packed`], one part after the other.
pub fn merge_each<B: AttentionOps + HeadOps>(
    backend: &B,
    heads: Heads,
    parts: &[Vec<&[f32]>],
) -> Result<B::Tensor, KernelError> {
    check_parts(heads, parts)?;
    let merge = |partials: &Vec<&[f32]>| backend.join_heads(&merge_part(backend, heads, partials)?.output);
    let merged = parts.iter().map(merge).collect::<Result<Vec<_>, _>>()?;
    backend.concat(&merged, 0)
}

/// As [`BatchAttention::merge_rows`], one part after the other.
pub fn merge_each_row<B: AttentionOps>(
    backend: &B,
    heads: Heads,
    parts: &[Vec<&[f32]>],
    packed: &mut Vec<f32>,
) -> Result<(), KernelError> {
    check_parts(heads, parts)?;
    for partials in parts {
        let Partial { output, lse } = merge_part(backend, heads, partials)?;
        pack(heads, &backend.download(&output)?, &backend.download(&lse)?, packed);
    }
    Ok(())
}

fn merge_part<B: AttentionOps>(
    backend: &B,
    heads: Heads,
    partials: &[&[f32]],
) -> Result<Partial<B::Tensor>, KernelError> {
    let unpack = |packed: &&[f32]| {
        let (output, lse) = unpack(heads, packed);
        let t = lse.len() / heads.query;
        let output = backend.upload(&[heads.query, t, heads.dim], &output)?;
        Ok(Partial { output, lse: backend.upload(&[heads.query, t], &lse)? })
    };
    let partials = partials.iter().map(unpack).collect::<Result<Vec<_>, KernelError>>()?;
    backend.merge(&partials)
}
