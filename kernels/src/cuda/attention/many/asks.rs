//! Asks as calls: range by range of the keys that their holes leave, and whether the kernels that cut keys take them.

use std::ops::Range;

use super::super::super::device::{Device, SPLIT_KEY_ROWS};
use super::super::super::kv::CudaKv;
use super::super::super::tensor::{Tensor, View};
use super::rounds::{AskedRows, ResultAddress};
use crate::operands::packed::around;
use crate::{Ask, DType, Heads, KernelError, KvFormat, KvType};

impl Device {
    /// Whether the kernels that cut keys take all asks: how the keys of all are kept.
    pub(super) fn cuts(&self, heads: Heads, q: &Tensor, asks: &[Ask<'_, CudaKv>]) -> Option<KvFormat> {
        let kept = asks.first().map_or(KvFormat::Computed, |ask| ask.kv.of().1.kept);
        let suits = |ask: &Ask<'_, CudaKv>| {
            let (of_heads, of) = ask.kv.of();
            ask.rows.len() <= SPLIT_KEY_ROWS
                && of_heads == [heads.kv, heads.dim]
                && of == KvType { computed: q.dtype, kept }
        };
        let tiled = q.dtype() == DType::Bf16 && matches!(heads.dim, 64 | 128) && q.pointer().is_multiple_of(16);
        (tiled && asks.iter().all(suits)).then_some(kept)
    }

    /// Queries `(t, query heads dim)` as keys that are kept so are asked.
    pub(super) fn asking(&self, heads: Heads, q: &Tensor, kept: KvFormat) -> Result<Tensor, KernelError> {
        match kept {
            KvFormat::Computed => Ok(q.clone()),
            KvFormat::Q8 => self.turned(q.token_major(heads.query)?),
        }
    }
}

/// An ask, and a range of its keys.
pub type AskedKeys<'a, 'b> = (&'a Ask<'b, CudaKv>, Range<usize>);

/// What holes leave of the keys of each ask, range by range.
pub fn parts_of<'a, 'b>(asks: &'a [Ask<'b, CudaKv>]) -> Vec<AskedKeys<'a, 'b>> {
    let mut parts = Vec::with_capacity(asks.len());
    asks.iter().for_each(|ask| add_parts(ask, &mut parts));
    parts
}

/// Adds those of an ask.
pub fn add_parts<'a, 'b>(ask: &'a Ask<'b, CudaKv>, parts: &mut Vec<AskedKeys<'a, 'b>>) {
    match ask.holes {
        [] => parts.push((ask, 0..ask.kv.len())),
        holes => parts.extend(around(holes, ask.kv.len()).into_iter().map(|keys| (ask, keys))),
    }
}

/// Each part of asks about rows of `q`, packed to its place.
pub fn asked_of<'a, 'b: 'a>(
    heads: Heads,
    q: View<'a>,
    parts: impl Iterator<Item = &'a AskedKeys<'a, 'b>>,
    places: impl Iterator<Item = u64>,
) -> impl Iterator<Item = AskedRows<'a>> {
    parts.zip(places).map(move |((ask, keys), out)| AskedRows {
        q: q.part(ask.rows.start, ask.rows.end),
        keys: ask.kv.keys(keys.start, keys.end),
        mask: ask.mask,
        place: ResultAddress::packed(heads, out),
    })
}

/// The asks of each group.
pub fn grouped<'a, 'b>(
    asks: &'a [Ask<'b, CudaKv>],
    groups: &'a [usize],
) -> impl Iterator<Item = &'a [Ask<'b, CudaKv>]> {
    let mut rest = asks;
    groups.iter().map(move |group| {
        let (of_group, after) = rest.split_at(*group);
        rest = after;
        of_group
    })
}
