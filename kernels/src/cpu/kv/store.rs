//! Keys and values on the CPU, laid out for whichever kernels attend to them.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;

use super::super::amx;
use super::super::attention::{CpuAttentionCall, PanelCache};
use super::super::choice::KernelSet;
use super::super::compute::Compute;
use super::super::lanes::Element;
use super::super::pool::{DisjointBuffer, Tasks};
use super::super::tensor::{CpuTensor, cube, elements, tensor};
use crate::reference::AttentionShape;
use crate::{DType, Heads, KernelError, KvFormat, KvType, Mask, Partial};

/// Keys and values of one layer. A clone shares them until one of the two grows.
#[derive(Clone)]
pub struct CpuKv(Store);

#[derive(Clone)]
enum Store {
    F32(Arc<PanelCache<f32>>),
    Bf16(Arc<PanelCache<bf16>>),
    Tiles(Arc<amx::AmxCache>),
    /// In 8 bits, beside the type that they were computed in.
    Eight(Arc<PanelCache<i8>>, DType),
}

/// A cache in panels.
pub(in super::super) enum Panels {
    F32(Arc<PanelCache<f32>>),
    Bf16(Arc<PanelCache<bf16>>),
}

impl CpuKv {
    /// Wraps `k, v (kv heads, t, dim)`.
    pub(in super::super) fn new(
        k: &CpuTensor,
        v: &CpuTensor,
        dtype: DType,
        compute: &Compute,
    ) -> Result<Self, KernelError> {
        let [heads, dim] = heads_of(k)?;
        let mut kv = Self(match dtype {
            DType::F32 => Store::F32(Arc::new(PanelCache::new(heads, dim))),
            _ if compute.set == KernelSet::Amx && dim.is_multiple_of(16) => {
                Store::Tiles(Arc::new(amx::AmxCache::new(heads, dim)))
            }
            _ => Store::Bf16(Arc::new(PanelCache::new(heads, dim))),
        });
        kv.append(k, v, compute)?;
        Ok(kv)
    }

    /// The same as they are kept.
    pub(in super::super) fn kept(
        k: &CpuTensor,
        v: &CpuTensor,
        of: KvType,
        compute: &Compute,
    ) -> Result<Self, KernelError> {
        if of.kept == KvFormat::Computed {
            return Self::new(k, v, of.computed, compute);
        }
        let [heads, dim] = heads_of(k)?;
        let mut kv = Self(Store::Eight(Arc::new(PanelCache::new(heads, dim)), of.computed));
        kv.append(k, v, compute)?;
        Ok(kv)
    }

    /// A cache of `(kv heads, t, dim)` in 8 bits, of bytes as [`CpuKv::raw`] gives them.
    pub(in super::super) fn of_raw(
        shape: [usize; 3],
        raw: [&[&[u8]]; 2],
        computed: DType,
    ) -> Result<Self, KernelError> {
        let [keys, values] = raw.map(|pieces| pieces.concat());
        let cache = PanelCache::of_raw(shape, [&keys, &values]).ok_or_else(|| {
            let bytes = KvType { computed, kept: KvFormat::Q8 }.row_bytes(shape[2]) * shape[0] * shape[1];
            KernelError::shape("upload_kept", format!("{bytes} bytes each"), &[&[keys.len()], &[values.len()]])
        })?;
        Ok(Self(Store::Eight(Arc::new(cache), computed)))
    }

    /// Keys, then values, as they lie, where they are in 8 bits.
    pub(in super::super) fn raw(&self) -> Option<Vec<u8>> {
        match &self.0 {
            Store::Eight(cache, _) => Some(cache.raw()),
            _ => None,
        }
    }

    /// In compute type, as attention reads them.
    pub(in super::super) fn widened(&self, compute: &Compute) -> Result<Self, KernelError> {
        let Store::Eight(cache, computed) = &self.0 else { return Ok(self.clone()) };
        let [k, v] = self.tensors(compute)?;
        let wide = Self::new(&k, &v, *computed, compute)?;
        Ok(match cache.cap {
            Some(cap) => wide.capped(cap, compute),
            None => wide,
        })
    }

    /// The same with bounded scores, in panels: tile products have no bound.
    pub(in super::super) fn capped(mut self, cap: f32, compute: &Compute) -> Self {
        if let Store::Eight(cache, _) = &mut self.0 {
            Arc::make_mut(cache).cap = Some(cap);
            return self;
        }
        let panels = self.panels(compute);
        drop(self);
        Self(match panels {
            Panels::F32(mut cache) => {
                Arc::make_mut(&mut cache).cap = Some(cap);
                Store::F32(cache)
            }
            Panels::Bf16(mut cache) => {
                Arc::make_mut(&mut cache).cap = Some(cap);
                Store::Bf16(cache)
            }
        })
    }

    /// Appends rows; copies first when a clone still shares them.
    pub(in super::super) fn append(
        &mut self,
        k: &CpuTensor,
        v: &CpuTensor,
        compute: &Compute,
    ) -> Result<(), KernelError> {
        let (kv_heads, kv_dim) = (self.heads(), self.dim());
        let (heads, tokens, dim) = cube("kv", k)?;
        if k.dims() != v.dims() || heads != kv_heads || dim != kv_dim {
            let expected = format!("k, v ({kv_heads}, t, {kv_dim})");
            return Err(KernelError::shape("kv", expected, &[k.dims(), v.dims()]));
        }
        match &mut self.0 {
            Store::F32(cache) => append(cache, k, v, compute),
            Store::Bf16(cache) => append(cache, k, v, compute),
            Store::Eight(cache, DType::F32) => keep::<f32>(cache, k, v, compute),
            Store::Eight(cache, _) => keep::<bf16>(cache, k, v, compute),
            Store::Tiles(cache) => {
                let (k, v) = (elements::<bf16>("kv", k)?, elements::<bf16>("kv", v)?);
                let run = |count: usize, work: &(dyn Fn(usize) + Sync)| {
                    compute.pool.each(Tasks { count, cost: 2 * heads * tokens * dim }, work);
                };
                Arc::make_mut(cache).append(k, v, &run);
                Ok(())
            }
        }
    }

    /// Appends the rows of another cache, which is kept alike, or in 8 bits where this is in compute type.
    pub(in super::super) fn extend(&mut self, more: &Self, compute: &Compute) -> Result<(), KernelError> {
        let (expected, got) = ([self.heads(), self.dim()], [more.heads(), more.dim()]);
        match (&mut self.0, &more.0) {
            (Store::F32(cache), Store::F32(more)) if expected == got => Arc::make_mut(cache).extend(more),
            (Store::Bf16(cache), Store::Bf16(more)) if expected == got => Arc::make_mut(cache).extend(more),
            (Store::Tiles(cache), Store::Tiles(more)) if expected == got => Arc::make_mut(cache).extend(more),
            (Store::Eight(cache, _), Store::Eight(more, _)) if expected == got => Arc::make_mut(cache).extend(more),
            (Store::F32(_), Store::Eight(_, DType::F32))
            | (Store::Bf16(_) | Store::Tiles(_), Store::Eight(_, DType::Bf16))
                if expected == got =>
            {
                let [k, v] = more.tensors(compute)?;
                self.append(&k, &v, compute)?;
            }
            _ => {
                let [heads, dim] = expected;
                let expected = format!("a cache of the same type of ({heads}, t, {dim})");
                return Err(KernelError::shape("kv_extend", expected, &[&got]));
            }
        }
        Ok(())
    }

    /// Forgets all but the first `len` rows; copies first when a clone still shares them.
    pub(in super::super) fn truncate(&mut self, len: usize) -> Result<(), KernelError> {
        let rows = self.len();
        if len > rows {
            return Err(KernelError::shape("kv_truncate", format!("at most {rows} rows"), &[&[len]]));
        }
        match &mut self.0 {
            _ if len == rows => {}
            // Whatever lies beyond means nothing.
            Store::F32(cache) => Arc::make_mut(cache).len = len,
            Store::Bf16(cache) => Arc::make_mut(cache).len = len,
            Store::Tiles(cache) => Arc::make_mut(cache).truncate(len),
            Store::Eight(cache, _) => Arc::make_mut(cache).len = len,
        }
        Ok(())
    }

    /// A copy of rows `start..end`.
    pub(in super::super) fn rows(&self, start: usize, end: usize) -> Result<Self, KernelError> {
        let len = self.len();
        if start > end || end > len {
            return Err(KernelError::shape("kv_rows", format!("a range within {len} rows"), &[&[start, end]]));
        }
        Ok(Self(match &self.0 {
            Store::F32(cache) => Store::F32(Arc::new(cache.rows(start, end))),
            Store::Bf16(cache) => Store::Bf16(Arc::new(cache.rows(start, end))),
            Store::Tiles(cache) => Store::Tiles(Arc::new(cache.rows(start, end))),
            Store::Eight(cache, computed) => Store::Eight(Arc::new(cache.rows(start, end)), *computed),
        }))
    }

    /// Keys, then values, `(kv heads, t, dim)` in compute type.
    pub(in super::super) fn tensors(&self, compute: &Compute) -> Result<[CpuTensor; 2], KernelError> {
        let shape = [self.heads(), self.len(), self.dim()];
        match &self.0 {
            Store::F32(cache) => row_by_row(shape, cache.unpack()),
            Store::Bf16(cache) => row_by_row(shape, cache.unpack()),
            Store::Tiles(cache) => {
                let heads: Vec<_> = (0..cache.heads()).map(|head| cache.unpack(head)).collect();
                row_by_row(shape, joined(&heads))
            }
            Store::Eight(cache, DType::F32) => row_by_row(shape, cache.widened::<f32>(compute)),
            Store::Eight(cache, _) => row_by_row(shape, cache.widened::<bf16>(compute)),
        }
    }

    pub(in super::super) fn len(&self) -> usize {
        match &self.0 {
            Store::F32(cache) => cache.len,
            Store::Bf16(cache) => cache.len,
            Store::Tiles(cache) => cache.len(),
            Store::Eight(cache, _) => cache.len,
        }
    }

    pub(in super::super) fn bytes(&self) -> usize {
        match &self.0 {
            Store::F32(cache) => cache.bytes(),
            Store::Bf16(cache) => cache.bytes(),
            Store::Tiles(cache) => cache.bytes(),
            Store::Eight(cache, _) => cache.bytes(),
        }
    }

    /// Checks that queries fit the cache: heads and queries.
    pub(in super::super) fn check(
        &self,
        operation: &'static str,
        q: &CpuTensor,
    ) -> Result<(Heads, usize), KernelError> {
        let (query, queries, dim) = cube(operation, q)?;
        let kv = self.heads();
        if dim != self.dim() || query == 0 || !query.is_multiple_of(kv) {
            let expected = format!("q (a multiple of {kv}, t, {})", self.dim());
            return Err(KernelError::shape(operation, expected, &[q.dims()]));
        }
        Ok((Heads { query, kv, dim }, queries))
    }

    /// As `AttentionOps::attention`.
    pub(in super::super) fn attend(
        &self,
        q: &CpuTensor,
        mask: Mask,
        compute: &Compute,
    ) -> Result<Partial<CpuTensor>, KernelError> {
        self.attend_around(q, mask, &[], compute)
    }

    /// The same where no row sees the keys of some ranges, ascending.
    pub(in super::super) fn attend_around(
        &self,
        q: &CpuTensor,
        mask: Mask,
        holes: &[Range<usize>],
        compute: &Compute,
    ) -> Result<Partial<CpuTensor>, KernelError> {
        let (heads @ Heads { query, dim, .. }, queries) = self.check("attention", q)?;
        let shape = AttentionShape { heads, queries, keys: self.len(), mask };
        let (output, lse) = match &self.0 {
            Store::F32(cache) => {
                CpuAttentionCall { q: elements::<f32>("attention", q)?, cache, shape, holes }.run(compute)
            }
            Store::Bf16(cache) => {
                CpuAttentionCall { q: elements::<bf16>("attention", q)?, cache, shape, holes }.run(compute)
            }
            Store::Eight(cache, DType::F32) => {
                CpuAttentionCall { q: elements::<f32>("attention", q)?, cache, shape, holes }.run(compute)
            }
            Store::Eight(cache, _) => {
                CpuAttentionCall { q: elements::<bf16>("attention", q)?, cache, shape, holes }.run(compute)
            }
            Store::Tiles(cache) => {
                let (mut output, mut lse) = (vec![0.0; query * queries * dim], vec![0.0; query * queries]);
                let rows = elements::<bf16>("attention", q)?;
                let call = amx::Query { rows, heads: query, tokens: queries, mask, holes };
                // Tile products are some ten times as fast as what costs are counted in.
                let cost = shape.flops() as usize / 20;
                let run = |count: usize, work: &(dyn Fn(usize) + Sync)| compute.pool.each(Tasks { count, cost }, work);
                amx::attention(&call, cache, &mut output, &mut lse, &run);
                (output, lse)
            }
        };
        Ok(Partial { output: tensor(&[query, queries, dim], output)?, lse: tensor(&[query, queries], lse)? })
    }

    /// The cache as the vector kernels read it; repacked where tile products do.
    pub(in super::super) fn panels(&self, compute: &Compute) -> Panels {
        match &self.0 {
            Store::F32(cache) => Panels::F32(cache.clone()),
            Store::Bf16(cache) => Panels::Bf16(cache.clone()),
            Store::Tiles(tiles) => {
                let (heads, tokens, dim) = (tiles.heads(), tiles.len(), tiles.dim());
                let mut unpacked = vec![[Vec::new(), Vec::new()]; heads];
                let shared = DisjointBuffer::new(&mut unpacked);
                compute.pool.each(Tasks { count: heads, cost: 4 * heads * tokens * dim }, |head| {
                    // SAFETY: each task has its own head.
                    unsafe { *shared.at(head) = tiles.unpack(head) };
                });
                let [k, v] = joined(&unpacked);
                let mut cache = PanelCache::new(heads, dim);
                cache.append(&k, &v, tokens, &compute.pool);
                Panels::Bf16(Arc::new(cache))
            }
            Store::Eight(cache, computed) => {
                let (cap, heads, tokens) = (cache.cap, cache.heads.len(), cache.len);
                match computed {
                    DType::F32 => Panels::F32(laid(cache.widened(compute), [heads, tokens, cache.dim], cap, compute)),
                    _ => Panels::Bf16(laid(cache.widened(compute), [heads, tokens, cache.dim], cap, compute)),
                }
            }
        }
    }

    /// The cache as tile products read it, if they do.
    pub(in super::super) fn tiles(&self) -> Option<&amx::AmxCache> {
        match &self.0 {
            Store::Tiles(tiles) => Some(tiles),
            _ => None,
        }
    }

    fn heads(&self) -> usize {
        match &self.0 {
            Store::F32(cache) => cache.heads.len(),
            Store::Bf16(cache) => cache.heads.len(),
            Store::Tiles(cache) => cache.heads(),
            Store::Eight(cache, _) => cache.heads.len(),
        }
    }

    fn dim(&self) -> usize {
        match &self.0 {
            Store::F32(cache) => cache.dim,
            Store::Bf16(cache) => cache.dim,
            Store::Tiles(cache) => cache.dim(),
            Store::Eight(cache, _) => cache.dim,
        }
    }
}

fn row_by_row<E: Element>(shape: [usize; 3], [k, v]: [Vec<E>; 2]) -> Result<[CpuTensor; 2], KernelError> {
    Ok([tensor(&shape, k)?, tensor(&shape, v)?])
}

/// Keys, then values, of all heads.
fn joined(heads: &[[Vec<bf16>; 2]]) -> [Vec<bf16>; 2] {
    [0, 1].map(|which| heads.iter().map(|head| &head[which][..]).collect::<Vec<_>>().concat())
}

/// Heads, and elements of one, of keys `(kv heads, t, dim)`.
fn heads_of(k: &CpuTensor) -> Result<[usize; 2], KernelError> {
    let (heads, _, dim) = cube("kv", k)?;
    if heads == 0 || dim == 0 {
        return Err(KernelError::shape("kv", "at least one head of one element", &[k.dims()]));
    }
    Ok([heads, dim])
}

/// Keys and values `(heads, tokens, dim)` in panels.
fn laid<E: Element>(
    [k, v]: [Vec<E>; 2],
    [heads, tokens, dim]: [usize; 3],
    cap: Option<f32>,
    compute: &Compute,
) -> Arc<PanelCache<E>> {
    let mut cache = PanelCache::new(heads, dim);
    cache.append(&k, &v, tokens, &compute.pool);
    cache.cap = cap;
    Arc::new(cache)
}

fn keep<E: Element>(
    cache: &mut Arc<PanelCache<i8>>,
    k: &CpuTensor,
    v: &CpuTensor,
    compute: &Compute,
) -> Result<(), KernelError> {
    let (k_values, v_values) = (elements::<E>("kv", k)?, elements::<E>("kv", v)?);
    Arc::make_mut(cache).keep(k_values, v_values, k.dims()[1], compute);
    Ok(())
}

fn append<E: Element>(
    cache: &mut Arc<PanelCache<E>>,
    k: &CpuTensor,
    v: &CpuTensor,
    compute: &Compute,
) -> Result<(), KernelError> {
    let tokens = k.dims()[1];
    let (k, v) = (elements::<E>("kv", k)?, elements::<E>("kv", v)?);
    Arc::make_mut(cache).append(k, v, tokens, &compute.pool);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kv::{attention_by, attention_selected};
    use crate::cpu::pool::ThreadPool;
    use crate::cpu::tensor::moves::narrow;
    use crate::{KeySets, Selector, StripeRule};

    /// The tile caches run anywhere, slowly; so what joins them to tensors is tested anywhere.
    #[test]
    fn tiles_hold_and_attend_to_what_panels_do() {
        let compute = Compute { set: KernelSet::Portable, pool: ThreadPool::new(Some(2)).unwrap() };
        let draw = |heads: usize, tokens: usize, salt: usize| {
            let value = |i: usize| bf16::from_f32(((i + salt) * 37 % 101) as f32 / 50.0 - 1.0);
            tensor(&[heads, tokens, 32], (0..heads * tokens * 32).map(value).collect()).unwrap()
        };
        let (k, v, q) = (draw(2, 70, 1), draw(2, 70, 2), draw(4, 9, 3));
        let panels = CpuKv::new(&k, &v, DType::Bf16, &compute).unwrap();
        let mut tiles = CpuKv(Store::Tiles(Arc::new(amx::AmxCache::new(2, 32))));
        for (from, count) in [(0, 33), (33, 37)] {
            let part = |x: &CpuTensor| narrow::<bf16>(x, 1, from..from + count).unwrap();
            tiles.append(&part(&k), &part(&v), &compute).unwrap();
        }
        for (start, end, mask) in [(0, 70, Mask::Causal), (5, 66, Mask::From { row: 2 }), (7, 7, Mask::None)] {
            let [a, b] = [&panels, &tiles].map(|kv| {
                let rows = kv.rows(start, end).unwrap();
                assert_eq!(rows.len(), end - start);
                let partial = rows.attend(&q, mask, &compute).unwrap();
                let values = |t: &CpuTensor| elements::<f32>("test", t).unwrap().to_vec();
                [values(&partial.output), values(&partial.lse)].concat()
            });
            let close = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= 1e-2 + 1e-2 * a.abs();
            assert!(a.iter().zip(&b).all(close), "rows {start}..{end}");
        }
        let q = draw(4, 70, 5);
        let mut selected = Vec::new();
        for theta in [1.0, 2.0, 3.0, f32::INFINITY] {
            let selector = Selector::Stripes(StripeRule { theta, step: 2, block_q: 8, block_kv: 5 });
            let [a, b] = [&panels, &tiles].map(|kv| {
                let (partial, keys) = attention_by(&q, kv, selector, &compute).unwrap();
                (elements::<f32>("test", &partial.output).unwrap().to_vec(), keys.lists().unwrap())
            });
            assert_eq!(a.1, b.1);
            assert!(a.0.iter().zip(&b.0).all(|(a, b)| (a - b).abs() <= 1e-2 + 1e-2 * a.abs()));
            selected.push(a.1.pairs(70));
        }
        assert!(0 < selected[0] && selected[0] < selected[3], "thresholds that tell nothing apart: {selected:?}");
        let keys: Vec<Vec<u32>> = (0..12).map(|list| (list..70).step_by(1 + list as usize % 4).collect()).collect();
        let keys = KeySets::from_keys(4, 30, &keys).unwrap();
        let [a, b] = [&panels, &tiles].map(|kv| {
            let partial = attention_selected(&q, kv, &keys, &compute).unwrap();
            let values = |t: &CpuTensor| elements::<f32>("test", t).unwrap().to_vec();
            [values(&partial.output), values(&partial.lse)].concat()
        });
        assert!(a.iter().zip(&b).all(|(a, b)| a == b || (a - b).abs() <= 1e-2 + 1e-2 * a.abs()));
    }
}
