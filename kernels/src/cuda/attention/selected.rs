//! Attention over lists of keys: in tiles for bf16 and the head sizes of most models, plain for all else.

use super::super::device::{Buffer, Device, Spread, launch};
use super::super::tensor::Tensor;
use super::Attention;
use crate::{KernelError, KeySets};

/// Rows of a block of threads, and keys of a block, as the kernel has them.
const TILE: usize = 64;
const KEYS: usize = 64;

/// As `selected.cu` declares it.
#[repr(C)]
struct Selected {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    lse: u64,
    offsets: u64,
    ranges: u64,
    maxima: u64,
    q_head: i64,
    q_row: i64,
    kv_head: i64,
    kv_row: i64,
    out_head: i64,
    out_row: i64,
    tokens: i32,
    group: i32,
    rows: i32,
    groups: i32,
    scale: f32,
    unused: i32,
}

impl Device {
    /// Attention of `q` over listed keys: row `i` of head `h` sees the keys of `(h, i / rows)` that do not come after it. The rows'
    /// highest scores go to `maxima (heads, rows)` f32, if it is there.
    pub fn attend_selected(
        &self,
        call: Attention<'_>,
        keys: &KeySets,
        maxima: Option<&Tensor>,
    ) -> Result<(), KernelError> {
        call.check()?;
        let (heads, tokens) = (call.q.heads, call.q.rows);
        let groups = tokens.div_ceil(keys.rows());
        if call.k.rows != tokens || keys.heads() != heads || keys.groups() != groups || keys.end() > tokens {
            let expected = format!("{heads} heads of {groups} groups, {tokens} keys, lists below {tokens}");
            let got = format!("{} heads of {} groups, keys below {}", keys.heads(), keys.groups(), keys.end());
            return Err(KernelError::Shape { operation: "attention_selected", expected, got });
        }
        let wide = call.out.dtype == crate::DType::F32;
        if tokens > 0 && wide && call.tiled() {
            self.attend_lists(call, keys, maxima)
        } else {
            self.attend_plain(call, Some((keys, maxima)))
        }
    }

    fn attend_lists(&self, call: Attention<'_>, keys: &KeySets, maxima: Option<&Tensor>) -> Result<(), KernelError> {
        let Attention { q, k, v, out, lse, .. } = call;
        let [offsets, ranges] = self.counted(keys)?;
        let argument = Selected {
            q: q.pointer,
            k: k.pointer,
            v: v.pointer,
            out: out.pointer,
            lse: lse.pointer(),
            offsets: offsets.pointer,
            ranges: ranges.pointer,
            maxima: maxima.map_or(0, Tensor::pointer),
            q_head: q.at.head,
            q_row: q.at.row,
            kv_head: k.at.head,
            kv_row: k.at.row,
            out_head: out.at.head,
            out_row: out.at.row,
            tokens: q.rows as i32,
            group: (q.heads / k.heads) as i32,
            rows: keys.rows().min(q.rows) as i32,
            groups: keys.groups() as i32,
            scale: std::f32::consts::LOG2_E / (q.dim as f32).sqrt(),
            unused: 0,
        };
        let tiles = keys.rows().min(q.rows).div_ceil(TILE);
        let shared = 4 * KEYS * q.dim * 2 + 3 * KEYS * 4;
        let spread = Spread { blocks: (keys.groups() * tiles, q.heads), threads: 128, shared };
        launch!(self, &format!("attend_selected_{}", q.dim), spread, argument)
    }

    /// Offsets of lists, and their ranges with how many keys of the list come before each.
    fn counted(&self, keys: &KeySets) -> Result<[Buffer; 2], KernelError> {
        let (mut offsets, mut ranges, mut count) = (vec![0; 8], Vec::new(), 0u64);
        for (head, group) in (0..keys.heads()).flat_map(|head| (0..keys.groups()).map(move |group| (head, group))) {
            let mut before = 0;
            for range in keys.ranges(head, group) {
                ranges.extend([range.start, range.end, before].into_iter().flat_map(u32::to_le_bytes));
                before += range.end - range.start;
                count += 1;
            }
            offsets.extend(count.to_le_bytes());
        }
        Ok([self.upload_bytes(&offsets)?, self.upload_bytes(&ranges)?])
    }
}
