//! Partials as they travel: for each row `output (query heads, dim)`, then `lse (query heads)`, f32, row after row. Rows of one
//! job lie side by side, so that a frame, a batch and a merge take ranges and copy nothing. What a device does not do by
//! itself is done here in terms of what it does.

use std::ops::Range;

use half::bf16;

use crate::{Backend, DType, Heads, KernelError, Mask, Partial};

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

impl Heads {
    /// f32 values of one packed row.
    pub fn packed_row(self) -> usize {
        self.query * (self.dim + 1)
    }
}

/// `x (heads, t, dim)` as `(t, heads dim)`.
pub fn row_major<B: Backend>(backend: &B, x: &B::Tensor) -> Result<B::Tensor, KernelError> {
    let [heads, t, dim] = cube("row_major", backend.shape(x))?;
    let values = backend.download(x)?;
    let mut rows = vec![0.0; values.len()];
    for head in 0..heads {
        for row in 0..t {
            rows[(row * heads + head) * dim..][..dim].copy_from_slice(&values[(head * t + row) * dim..][..dim]);
        }
    }
    backend.cast(&backend.upload(&[t, heads * dim], &rows)?)
}

/// As [`Backend::raw`].
pub fn raw<B: Backend>(backend: &B, tensors: &[B::Tensor]) -> Result<Vec<u8>, KernelError> {
    let mut bytes = Vec::new();
    for tensor in tensors {
        let values = backend.download(tensor)?;
        match backend.dtype() {
            DType::F32 => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
            _ => values.iter().for_each(|value| bytes.extend(bf16::from_f32(*value).to_le_bytes())),
        }
    }
    Ok(bytes)
}

/// As [`Backend::upload_raw`].
pub fn from_raw<B: Backend>(backend: &B, shape: &[usize], pieces: &[&[u8]]) -> Result<B::Tensor, KernelError> {
    let mut values: Vec<f32> = Vec::with_capacity(shape.iter().product());
    for piece in pieces {
        match backend.dtype() {
            DType::F32 => values.extend(piece.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value))),
            _ => values.extend(piece.as_chunks::<2>().0.iter().map(|value| bf16::from_le_bytes(*value).to_f32())),
        }
    }
    backend.cast(&backend.upload(shape, &values)?)
}

/// As [`Backend::attend_many`], one ask after the other. All are handed to the device before the first result is waited for.
pub fn attend_each<B: Backend>(
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

/// As [`Backend::attend_rows`], by way of the host.
pub fn attend_rows<B: Backend>(
    backend: &B,
    heads: Heads,
    q: &B::Tensor,
    asks: (&[Ask<'_, B::Kv>], &[usize]),
) -> Result<B::Tensor, KernelError> {
    let (mut packed, row) = (Vec::new(), heads.packed_row());
    backend.attend_merged(heads, q, asks, &mut packed)?;
    backend.upload(&[packed.len() / row, row], &packed)
}

/// Attention of every row over the keys that are left, copied range by range.
fn attend_around<B: Backend>(
    backend: &B,
    q: &B::Tensor,
    kv: &B::Kv,
    holes: &[Range<usize>],
) -> Result<Partial<B::Tensor>, KernelError> {
    let left = around(holes, backend.kv_len(kv));
    let attend = |keys: Range<usize>| backend.attention(q, &backend.kv_rows(kv, keys.start, keys.end)?, Mask::None);
    backend.merge(&left.into_iter().map(attend).collect::<Result<Vec<_>, _>>()?)
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

/// As [`Backend::attend_merged`]: attention first, then the merge of every group, unless none has two.
pub fn attend_then_merge<B: Backend>(
    backend: &B,
    heads: Heads,
    q: &B::Tensor,
    (asks, groups): (&[Ask<'_, B::Kv>], &[usize]),
    packed: &mut Vec<f32>,
) -> Result<(), KernelError> {
    check_groups(asks, groups)?;
    if groups.iter().all(|asks| *asks == 1) {
        return backend.attend_many(heads, q, asks, packed);
    }
    let mut partials = Vec::new();
    backend.attend_many(heads, q, asks, &mut partials)?;
    let (mut rest, mut asks) = (&partials[..], asks.iter());
    let mut next = |ask: &Ask<'_, B::Kv>| {
        let (partial, after) = rest.split_at(ask.rows.len() * heads.packed_row());
        rest = after;
        partial
    };
    let parts: Vec<Vec<&[f32]>> =
        groups.iter().map(|group| asks.by_ref().take(*group).map(&mut next).collect()).collect();
    backend.merge_rows(heads, &parts, packed)
}

/// As [`Backend::merge_packed`], on the host: partials come from there.
pub fn merge_on_host<B: Backend>(backend: &B, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<B::Tensor, KernelError> {
    let mut packed = Vec::new();
    merge_rows_on_host(heads, parts, &mut packed)?;
    let width = heads.query * heads.dim;
    let outputs: Vec<f32> =
        packed.chunks_exact(heads.packed_row()).flat_map(|row| row[..width].iter().copied()).collect();
    backend.cast(&backend.upload(&[outputs.len() / width, width], &outputs)?)
}

/// As [`Backend::merge_rows`], on the host.
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

/// As [`Backend::merge_packed`], one part after the other.
pub fn merge_each<B: Backend>(backend: &B, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<B::Tensor, KernelError> {
    check_parts(heads, parts)?;
    let merge = |partials: &Vec<&[f32]>| backend.join_heads(&merge_part(backend, heads, partials)?.output);
    let merged = parts.iter().map(merge).collect::<Result<Vec<_>, _>>()?;
    backend.concat(&merged, 0)
}

/// As [`Backend::merge_rows`], one part after the other.
pub fn merge_each_row<B: Backend>(
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

fn merge_part<B: Backend>(backend: &B, heads: Heads, partials: &[&[f32]]) -> Result<Partial<B::Tensor>, KernelError> {
    let unpack = |packed: &&[f32]| {
        let (output, lse) = unpack(heads, packed);
        let t = lse.len() / heads.query;
        let output = backend.upload(&[heads.query, t, heads.dim], &output)?;
        Ok(Partial { output, lse: backend.upload(&[heads.query, t], &lse)? })
    };
    let partials = partials.iter().map(unpack).collect::<Result<Vec<_>, KernelError>>()?;
    backend.merge(&partials)
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
fn pack(heads: Heads, output: &[f32], lse: &[f32], packed: &mut Vec<f32>) {
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

fn unpack(heads: Heads, packed: &[f32]) -> (Vec<f32>, Vec<f32>) {
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

/// Whether there is a list of rows for each of `heads` heads, all equally long, of rows below `t`: how long.
pub(crate) fn check_lists(rows: &[Vec<u32>], heads: usize, t: usize) -> Result<usize, KernelError> {
    let count = rows.first().map_or(0, Vec::len);
    if rows.len() != heads || rows.iter().any(|rows| rows.len() != count) {
        let got: Vec<usize> = rows.iter().map(Vec::len).collect();
        return Err(KernelError::shape("gather", format!("{heads} lists, equally long"), &[&got]));
    }
    match rows.iter().flatten().find(|row| **row as usize >= t) {
        Some(row) => {
            let (expected, got) = (format!("rows below {t}"), row.to_string());
            Err(KernelError::Shape { operation: "gather", expected, got })
        }
        None => Ok(count),
    }
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
    Err(KernelError::shape("attend_merged", expected, &[groups]))
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

fn cube(operation: &'static str, shape: Vec<usize>) -> Result<[usize; 3], KernelError> {
    shape[..].try_into().map_err(|_| KernelError::shape(operation, "(heads, tokens, head dim)", &[&shape]))
}
