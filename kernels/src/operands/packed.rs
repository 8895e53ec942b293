//! Partials as they travel: for each row `output (query heads, dim)`, then `lse (query heads)`, f32, row after row. Rows of one
//! job lie side by side, so that a frame, a batch and a merge take ranges and copy nothing. Asks no device.

use std::ops::Range;

use super::heads::Heads;
use super::mask::Mask;
use crate::KernelError;

/// Rows of a query tensor that ask one shard's keys.
#[derive(Clone, Debug)]
pub struct Ask<'a, K> {
    /// The keys.
    pub kv: &'a K,
    /// Rows of the query tensor.
    pub rows: Range<usize>,
    /// Which keys they see; its row 0 is `rows.start`.
    pub mask: Mask,
    /// Keys that none of them sees: ranges of the keys, ascending and apart. With [`Mask::None`] only.
    pub holes: &'a [Range<usize>],
}

/// What holes leave of so many keys, in ranges; an empty one when that is nothing.
pub(crate) fn around(holes: &[Range<usize>], keys: usize) -> Vec<Range<usize>> {
    let starts = [0].into_iter().chain(holes.iter().map(|hole| hole.end));
    let ends = holes.iter().map(|hole| hole.start).chain([keys]);
    let mut left: Vec<Range<usize>> = starts.zip(ends).map(|(start, end)| start..end).collect();
    left.retain(|range| !range.is_empty());
    if left.is_empty() {
        left.push(0..0);
    }
    left
}

/// Merges packed partials, those of each part in the order given, and appends the packed rows of each part.
pub fn merge_rows_on_host(heads: Heads, parts: &[Vec<&[f32]>], packed: &mut Vec<f32>) -> Result<(), KernelError> {
    check_parts(heads, parts)?;
    let (Heads { query, dim, .. }, row) = (heads, heads.packed_row());
    for partials in parts {
        let start = packed.len();
        packed.resize(start + partials[0].len(), 0.0);
        for (at, to) in packed[start..].chunks_exact_mut(row).enumerate() {
            let (outputs, logs) = to.split_at_mut(query * dim);
            for (head, (output, log)) in outputs.chunks_exact_mut(dim).zip(logs).enumerate() {
                *log = merge_row(
                    partials.iter().map(|partial| {
                        let row = &partial[at * row..][..row];
                        (&row[head * dim..][..dim], row[query * dim + head])
                    }),
                    output,
                );
            }
        }
    }
    Ok(())
}

/// Merges one row of one head into `output`, which is zero. Returns the log-sum-exp of all.
fn merge_row<'a>(partials: impl Iterator<Item = (&'a [f32], f32)> + Clone, output: &mut [f32]) -> f32 {
    let max = partials.clone().map(|(_, lse)| lse).fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return max;
    }
    let sum: f32 = partials.clone().map(|(_, lse)| (lse - max).exp()).sum();
    for (partial, lse) in partials {
        let weight = (lse - max).exp() / sum;
        output.iter_mut().zip(partial).for_each(|(to, from)| *to += weight * from);
    }
    max + sum.ln()
}

/// Rows of `q (t, query heads dim)` as `(query heads, rows, dim)`.
pub(crate) fn heads_first<E: Copy>(heads: Heads, q: &[E], rows: Range<usize>) -> Vec<E> {
    let Heads { query, dim, .. } = heads;
    let mut values = Vec::with_capacity(rows.len() * query * dim);
    for head in 0..query {
        rows.clone().for_each(|row| values.extend_from_slice(&q[(row * query + head) * dim..][..dim]));
    }
    values
}

/// Appends `output (query heads, t, dim)` and `lse (query heads, t)` as packed rows.
pub(crate) fn pack(heads: Heads, output: &[f32], lse: &[f32], packed: &mut Vec<f32>) {
    let start = packed.len();
    packed.resize(start + output.len() + lse.len(), 0.0);
    pack_into(heads, output, lse, &mut packed[start..]);
}

/// Writes `output (query heads, t, dim)` and `lse (query heads, t)` as packed rows.
pub(crate) fn pack_into(heads: Heads, output: &[f32], lse: &[f32], packed: &mut [f32]) {
    let Heads { query, dim, .. } = heads;
    let t = lse.len() / query;
    for (row, to) in packed.chunks_exact_mut(heads.packed_row()).enumerate() {
        let (outputs, logs) = to.split_at_mut(query * dim);
        for head in 0..query {
            outputs[head * dim..][..dim].copy_from_slice(&output[(head * t + row) * dim..][..dim]);
            logs[head] = lse[head * t + row];
        }
    }
}

/// Output `(query heads, t, dim)` and log-sum-exp `(query heads, t)` of packed rows.
pub(crate) fn unpack(heads: Heads, packed: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let Heads { query, dim, .. } = heads;
    let rows = packed.len() / heads.packed_row();
    let (mut output, mut lse) = (Vec::with_capacity(rows * query * dim), Vec::with_capacity(rows * query));
    for head in 0..query {
        for row in packed.chunks_exact(heads.packed_row()) {
            output.extend_from_slice(&row[head * dim..][..dim]);
            lse.push(row[query * dim + head]);
        }
    }
    (output, lse)
}

/// Whether `q (t, query heads dim)` has the rows that are asked about, and the keys the holes.
pub(crate) fn check_asks<'a, K>(
    heads: Heads,
    q: &[usize],
    asks: &[Ask<'a, K>],
    keys: impl Fn(&Ask<'a, K>) -> usize,
) -> Result<(), KernelError> {
    let width = heads.query * heads.dim;
    let within = |rows: &Range<usize>, end: usize| rows.start <= rows.end && rows.end <= end;
    match q {
        [t, n] if *n == width && asks.iter().all(|ask| within(&ask.rows, *t)) => {}
        _ => return Err(KernelError::shape("attend_many", format!("q (t, {width}) and asks of its rows"), &[q])),
    }
    for ask in asks.iter().filter(|ask| !ask.holes.is_empty()) {
        let (end, apart) = (keys(ask), ask.holes.windows(2).all(|two| two[0].end <= two[1].start));
        if ask.mask != Mask::None || !apart || !ask.holes.iter().all(|hole| within(hole, end)) {
            let expected = format!("holes within {end} keys, ascending, and no other mask");
            let sizes: Vec<usize> = ask.holes.iter().flat_map(|hole| [hole.start, hole.end]).collect();
            return Err(KernelError::shape("attend_many", expected, &[&sizes]));
        }
    }
    Ok(())
}

/// Whether every ask is in a group, and those of a group are of equally many rows.
pub(crate) fn check_groups<K>(asks: &[Ask<'_, K>], groups: &[usize]) -> Result<(), KernelError> {
    let mut rest = asks;
    let even = groups.iter().all(|&group| {
        let Some((of_group, after)) = rest.split_at_checked(group) else { return false };
        rest = after;
        of_group.first().is_some_and(|first| of_group.iter().all(|ask| ask.rows.len() == first.rows.len()))
    });
    if even && rest.is_empty() {
        return Ok(());
    }
    let expected = format!("groups of {} asks, equally many rows in each", asks.len());
    Err(KernelError::shape("attend_rows", expected, &[groups]))
}

/// Whether each part has partials, all of as many whole rows.
pub(crate) fn check_parts(heads: Heads, parts: &[Vec<&[f32]>]) -> Result<(), KernelError> {
    let whole = |len: usize| len.is_multiple_of(heads.packed_row());
    let fits = |part: &&Vec<&[f32]>| {
        part.first().is_some_and(|first| whole(first.len()) && part.iter().all(|other| other.len() == first.len()))
    };
    match parts.iter().find(|part| !fits(part)) {
        None if !parts.is_empty() => Ok(()),
        wrong => {
            let lengths: Vec<usize> = wrong.into_iter().flatten().map(|partial| partial.len()).collect();
            let expected = format!("parts of partials of equally many rows of {} values", heads.packed_row());
            Err(KernelError::shape("merge_packed", expected, &[&lengths]))
        }
    }
}
