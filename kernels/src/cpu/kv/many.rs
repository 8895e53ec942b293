//! Attention of many asks in one call: of rows of several jobs over several shards each. Asks are dealt to threads, and each
//! is what it would be alone.

use std::sync::{Mutex, PoisonError};

use super::super::compute::Compute;
use super::super::lanes::Element;
use super::super::pool::{DisjointBuffer, Tasks};
use super::super::tensor::{CpuTensor, elements, tensor};
use super::store::CpuKv;
use crate::operands::packed::{check_asks, heads_first, pack_into};
use crate::{Ask, Heads, KernelError};

/// As `BatchAttention::attend_many`.
pub(in super::super) fn attend_many<E: Element>(
    heads: Heads,
    q: &CpuTensor,
    asks: &[Ask<'_, CpuKv>],
    packed: &mut Vec<f32>,
    compute: &Compute,
) -> Result<(), KernelError> {
    check_asks(heads, q.dims(), asks, |ask| ask.kv.len())?;
    let Heads { query, dim, .. } = heads;
    let values = elements::<E>("attend_many", q)?;
    let attend = |ask: &Ask<'_, CpuKv>, to: &mut [f32]| {
        let q = tensor(&[query, ask.rows.len(), dim], heads_first(heads, values, ask.rows.clone()))?;
        let partial = ask.kv.attend_around(&q, ask.mask, ask.holes, compute)?;
        let (output, lse) = (elements("attend_many", &partial.output)?, elements("attend_many", &partial.lse)?);
        pack_into(heads, output, lse, to);
        Ok(())
    };
    let start = packed.len();
    let mut ends = Vec::with_capacity(asks.len());
    let mut cost = 0;
    for ask in asks {
        ends.push(ends.last().copied().unwrap_or(0) + ask.rows.len() * heads.packed_row());
        cost += 2 * ask.rows.len() * query * dim * ask.kv.len();
    }
    packed.resize(start + ends.last().copied().unwrap_or(0), 0.0);
    let to = DisjointBuffer::new(&mut packed[start..]);
    let failed = Mutex::new(None);
    compute.pool.each(Tasks { count: asks.len(), cost }, |at| {
        let (ask, begin) = (&asks[at], at.checked_sub(1).map_or(0, |before| ends[before]));
        // SAFETY: the values between two ends are this task's.
        let to = unsafe { std::slice::from_raw_parts_mut(to.at(begin), ends[at] - begin) };
        if let Err(error) = attend(ask, to) {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
