//! Keys and values on the CPU, laid out for whichever kernels attend to them.

use std::sync::Arc;

use candle_core::Tensor;
use half::bf16;

use super::attention::Attention;
use super::cache::Cache;
use super::compute::Compute;
use super::lanes::Element;
use super::tensor::{cube, elements, tensor};
use crate::reference::AttentionShape;
use crate::{DType, Heads, KernelError, Mask, Partial};

/// Keys and values of one layer. A clone shares them until one of the two grows.
#[derive(Clone)]
pub struct Kv(Store);

#[derive(Clone)]
enum Store {
    F32(Arc<Cache<f32>>),
    Bf16(Arc<Cache<bf16>>),
}

/// Evaluates an expression with `$cache` as whatever a [`Kv`] holds.
macro_rules! with_cache {
    ($kv:expr, $cache:ident => $result:expr) => {
        match $kv {
            Store::F32($cache) => $result,
            Store::Bf16($cache) => $result,
        }
    };
}

impl Kv {
    /// Wraps `k, v (kv heads, t, dim)`.
    pub(super) fn new(k: &Tensor, v: &Tensor, dtype: DType, compute: &Compute) -> Result<Self, KernelError> {
        let (heads, _, dim) = cube("kv", k)?;
        if heads == 0 || dim == 0 {
            return Err(KernelError::shape("kv", "at least one head of one element", &[k.dims()]));
        }
        let mut kv = Self(match dtype {
            DType::F32 => Store::F32(Arc::new(Cache::new(heads, dim))),
            _ => Store::Bf16(Arc::new(Cache::new(heads, dim))),
        });
        kv.append(k, v, compute)?;
        Ok(kv)
    }

    /// Appends rows; copies first when a clone still shares them.
    pub(super) fn append(&mut self, k: &Tensor, v: &Tensor, compute: &Compute) -> Result<(), KernelError> {
        with_cache!(&mut self.0, cache => append(cache, k, v, compute))
    }

    /// A copy of rows `start..end`.
    pub(super) fn rows(&self, start: usize, end: usize) -> Result<Self, KernelError> {
        let len = self.len();
        if start > end || end > len {
            return Err(KernelError::shape("kv_rows", format!("a range within {len} rows"), &[&[start, end]]));
        }
        Ok(Self(match &self.0 {
            Store::F32(cache) => Store::F32(Arc::new(cache.rows(start, end))),
            Store::Bf16(cache) => Store::Bf16(Arc::new(cache.rows(start, end))),
        }))
    }

    pub(super) fn len(&self) -> usize {
        with_cache!(&self.0, cache => cache.len)
    }

    pub(super) fn bytes(&self) -> usize {
        with_cache!(&self.0, cache => cache.bytes())
    }

    /// As `Backend::attention`.
    pub(super) fn attend(&self, q: &Tensor, mask: Mask, compute: &Compute) -> Result<Partial<Tensor>, KernelError> {
        with_cache!(&self.0, cache => attend(cache, q, mask, compute))
    }
}

fn append<E: Element>(cache: &mut Arc<Cache<E>>, k: &Tensor, v: &Tensor, compute: &Compute) -> Result<(), KernelError> {
    let (heads, tokens, dim) = cube("kv", k)?;
    if k.dims() != v.dims() || heads != cache.heads.len() || dim != cache.dim {
        let expected = format!("k, v ({}, t, {})", cache.heads.len(), cache.dim);
        return Err(KernelError::shape("kv", expected, &[k.dims(), v.dims()]));
    }
    let (k, v) = (elements::<E>("kv", k)?, elements::<E>("kv", v)?);
    Arc::make_mut(cache).append(&k, &v, tokens, &compute.pool);
    Ok(())
}

fn attend<E: Element>(
    cache: &Cache<E>,
    q: &Tensor,
    mask: Mask,
    compute: &Compute,
) -> Result<Partial<Tensor>, KernelError> {
    let (query, queries, dim) = cube("attention", q)?;
    let kv = cache.heads.len();
    if dim != cache.dim || query == 0 || !query.is_multiple_of(kv) {
        let expected = format!("q (a multiple of {kv}, t, {})", cache.dim);
        return Err(KernelError::shape("attention", expected, &[q.dims()]));
    }
    let shape = AttentionShape { heads: Heads { query, kv, dim }, queries, keys: cache.len, mask };
    let q = elements::<E>("attention", q)?;
    let (output, lse) = Attention { q: &q, cache, shape }.run(compute);
    Ok(Partial { output: tensor(&[query, queries, dim], output)?, lse: tensor(&[query, queries], lse)? })
}
