//! A step of sequences whose keys are all on this device, laid out once for all its layers, and the next one with it.

use std::ops::Range;
use std::sync::Arc;

use super::super::super::device::{Device, SPLIT_KEY_ROWS};
use super::super::super::kv::CudaKv;
use super::super::super::kv::tails::{OwnRun, make_room};
use super::super::super::tensor::Tensor;
use super::ahead::{StepAhead, StepKey};
use super::layout::{KeptPlace, Laid, LaidAsk};
use crate::{DType, Heads, KernelError, KvFormat, KvType, Mask, Merging, StepSequence};

/// A step whose layers' attention is laid out.
pub struct LaidStep<'a> {
    device: &'a Device,
    ahead: &'a StepAhead,
    keys: StepKeys<'a>,
    merging: Arc<Merging>,
    layers: usize,
    /// Layers that were attended to.
    done: usize,
    laid: Laid,
}

/// The keys of a step's sequences.
struct StepKeys<'a> {
    /// The own keys of each sequence, a cache a layer, and where they lie.
    owns: Vec<(Vec<&'a mut CudaKv>, OwnRun)>,
    others: Vec<OtherKeys<'a>>,
}

/// What a sequence has besides: its rows of the step, the shards that they ask, and the mask of its own keys.
struct OtherKeys<'a> {
    rows: Range<usize>,
    shards: Vec<(Vec<&'a CudaKv>, Mask)>,
    own_mask: Mask,
}

/// A step that was not taken to its end leaves no keys that nobody wrote.
impl Drop for LaidStep<'_> {
    fn drop(&mut self) {
        if self.done < self.layers {
            self.keys.forget();
        }
    }
}

impl LaidStep<'_> {
    /// As `StepLayers::attend`.
    pub fn attend(&mut self, layer: usize, [q, k, v]: [&Tensor; 3]) -> Result<Tensor, KernelError> {
        let Self { device, keys, layers, done, laid, .. } = self;
        let Heads { query, kv, dim } = laid.heads;
        let rows = laid.q.shape[0];
        let fits = layer == *done && layer < *layers && q.shape == laid.q.shape;
        if !fits || [k, v].iter().any(|x| x.shape != [kv, rows, dim]) {
            let expected = format!("layer {done}, q ({rows}, {}), k and v ({kv}, {rows}, {dim})", query * dim);
            return Err(KernelError::shape("attend_step", expected, &[&[layer], &q.shape, &k.shape, &v.shape]));
        }
        if let Some(wrong) = [q, k, v].into_iter().find(|x| x.dtype != DType::Bf16) {
            return Err(KernelError::DType { operation: "attend_step", got: wrong.dtype });
        }
        keys.owns.iter_mut().try_for_each(|(own, run)| run.extend(layer, &mut *own[layer]))?;
        laid.place(device, layer, [q, &device.by_rows(k)?, &device.by_rows(v)?])?;
        let outputs = laid.attend(device, layer)?;
        *done += 1;
        if done == layers {
            // What keeps it from being laid out now is told when it comes.
            let _ = self.lay_next();
        }
        Ok(outputs)
    }

    /// Lays the next step out while the device works on this one, where each sequence decodes.
    fn lay_next(&mut self) -> Result<(), KernelError> {
        let Self { device, ahead, keys, merging, laid, .. } = self;
        let heads = laid.heads;
        if keys.owns.iter().any(|(_, run)| run.rows() > 1) || !keys.go_on(device, heads)? {
            return Ok(());
        }
        let next = keys.with_asks(|asks| {
            let Some(kept) = device.kept_places(asks.0)? else { return Ok(None) };
            let laid = device.lay(heads, (asks.0, &kept, asks.1), merging)?;
            Ok(laid.map(|laid| (StepKey::of(heads, (asks.0, &kept, asks.1), merging), laid)))
        });
        if let Some((key, laid)) = next? {
            ahead.put(key, laid);
        }
        Ok(())
    }
}

impl StepKeys<'_> {
    /// Has every sequence's own keys begin anew behind this step, with room for one row; whether all of them can.
    fn go_on(&mut self, device: &Device, heads: Heads) -> Result<bool, KernelError> {
        for (own, run) in &mut self.owns {
            match make_room(device, own, (heads, run.kept()), (run.tokens(), 1))? {
                Some(next) => *run = next,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// What the step asks of which keys, those of shards first, and where own keys lie.
    fn with_asks<T>(&self, uses: impl FnOnce((&[LaidAsk<'_>], &[OwnRun])) -> T) -> T {
        let of_shards = self.others.iter().flat_map(|OtherKeys { rows, shards, .. }| {
            shards.iter().map(|(layers, mask)| LaidAsk {
                layers,
                keys: layers[0].len(),
                rows: rows.clone(),
                mask: *mask,
            })
        });
        let caches: Vec<Vec<&CudaKv>> = self.owns.iter().map(|(own, _)| own.iter().map(|kv| &**kv).collect()).collect();
        let runs: Vec<OwnRun> = self.owns.iter().map(|(_, run)| *run).collect();
        let of_owns = caches.iter().zip(&runs).zip(&self.others).map(|((own, run), other)| LaidAsk {
            layers: own,
            keys: run.tokens(),
            rows: other.rows.clone(),
            mask: other.own_mask,
        });
        uses((&of_shards.chain(of_owns).collect::<Vec<_>>(), &runs))
    }

    /// Takes back the rows of a step that was not taken.
    fn forget(&mut self) {
        self.owns.iter_mut().for_each(|(own, run)| own.iter_mut().for_each(|kv| kv.truncate(run.before())));
    }
}

impl Device {
    /// As `BatchAttention::lay_step`; takes what was laid out ahead where that is this step.
    pub(in super::super::super) fn lay_step<'a>(
        &'a self,
        ahead: &'a StepAhead,
        (heads, layers): (Heads, usize),
        sequences: Vec<StepSequence<'a, CudaKv>>,
        merging: &Merging,
    ) -> Result<Option<LaidStep<'a>>, KernelError> {
        let first = sequences.first().and_then(|sequence| sequence.own.first());
        let kept = first.map_or(KvFormat::Computed, |own| own.of().1.kept);
        let suits = |sequence: &StepSequence<'_, CudaKv>| suits((heads, kept), layers, sequence);
        if !self.is_hopper() || layers == 0 || !sequences.iter().all(suits) {
            return Ok(None);
        }
        let (mut owns, mut others) = (Vec::with_capacity(sequences.len()), Vec::with_capacity(sequences.len()));
        for StepSequence { rows, shards, mut own, own_keys, own_mask } in sequences {
            let Some(run) = make_room(self, &mut own, (heads, kept), (own_keys, rows.len()))? else { return Ok(None) };
            owns.push((own, run));
            others.push(OtherKeys { rows, shards, own_mask });
        }
        let (keys, merging) = (StepKeys { owns, others }, Arc::new(merging.clone()));
        let laid = keys.with_asks(|asks| {
            let Some(kept) = self.kept_places(asks.0)? else { return Ok(None) };
            match ahead.take(&StepKey::of(heads, (asks.0, &kept, asks.1), &merging)) {
                Some(laid) => Ok(Some(laid)),
                None => self.lay(heads, (asks.0, &kept, asks.1), &merging),
            }
        });
        let laid: Option<Laid> = laid?;
        Ok(laid.map(|laid| LaidStep { device: self, ahead, keys, merging, layers, done: 0, laid }))
    }

    /// Keeps the maps of all that is asked; where they are, unless they are not kept for this device.
    fn kept_places(&self, asks: &[LaidAsk<'_>]) -> Result<Option<Vec<KeptPlace>>, KernelError> {
        self.keep_maps(asks.iter().map(|ask| ask.layers))?;
        Ok(asks.iter().map(|ask| self.kept_maps(ask.layers)).collect())
    }
}

/// Whether the kernels take a sequence, whose keys are kept so.
fn suits((heads, kept): (Heads, KvFormat), layers: usize, sequence: &StepSequence<'_, CudaKv>) -> bool {
    let of_shard = |kv: &CudaKv| kv.of() == ([heads.kv, heads.dim], KvType { computed: DType::Bf16, kept });
    let is_kept_so = |own: &&mut CudaKv| own.of().1.kept == kept;
    // Layers are alike.
    let of_layers = |shard: &[&CudaKv]| shard.len() == layers && shard.first().is_none_or(|kv| of_shard(kv));
    let own = sequence.own.len() == layers && sequence.own.first().is_none_or(is_kept_so);
    let shards = own && sequence.shards.iter().all(|(shard, _)| of_layers(shard));
    (1..=SPLIT_KEY_ROWS).contains(&sequence.rows.len()) && matches!(heads.dim, 64 | 128) && shards
}
