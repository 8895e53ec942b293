//! Attention with log-sum-exp: which kernel takes a call. Prefill goes to cuDNN where it is there, else to the own kernel, or where 8-bit
//! floats were asked for to the kernel of these; few rows to the own kernel that cuts the keys in pieces; f32 and odd head sizes to the
//! plain one.

use std::sync::Mutex;

use super::super::device::{Device, QUANTUM_OPERATIONS, SPLIT_KEY_ROWS};
use super::call::CudaAttentionCall;
use super::fused::{Fused, Shape};
use super::parts::{CallPart, ROUNDED, first_run, pairs, parts};
use crate::{DType, KernelError, Mask};

/// What is left of the keys that all rows of a causal call see goes to cuDNN with the others, but for the first few, which leave a
/// multiple of this.
const REST: usize = 64;
/// Rows up to which the kernel of 8-bit floats, whose tiles have 192, is no faster than that of few.
const FEW_BESIDE_FLOAT8: usize = 128;

/// The attention of a device: cuDNN's plans, where cuDNN is there.
pub struct Attender {
    fused: Option<Mutex<Fused>>,
    /// Whether attention of many rows is computed in 8-bit floats, where there is a kernel for it.
    float8: bool,
}

impl Attender {
    /// Opens cuDNN; without it the own kernel does all.
    pub fn new(device: &Device, float8: bool) -> Result<Self, KernelError> {
        Ok(Self { fused: Fused::open(device)?.map(Mutex::new), float8 })
    }

    /// Whether cuDNN was found.
    pub fn has_library(&self) -> bool {
        self.fused.is_some()
    }

    /// Whether what attends to many rows writes bf16.
    pub fn rounds(&self) -> bool {
        self.has_library() || self.float8
    }

    /// Most rows that go by what attends to few, of those that are always asked together.
    pub fn few_together(&self) -> usize {
        if self.float8 { FEW_BESIDE_FLOAT8 } else { SPLIT_KEY_ROWS }
    }

    /// Attention by whatever suits it.
    pub fn attend(&self, device: &Device, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        self.attend_but_few(device, call, SPLIT_KEY_ROWS)
    }

    /// The same, where more than so `few` rows, up to [`SPLIT_KEY_ROWS`] of them, may depend on each other.
    pub fn attend_but_few(&self, device: &Device, call: CudaAttentionCall<'_>, few: usize) -> Result<(), KernelError> {
        call.check()?;
        match call.q.rows {
            0 => Ok(()),
            rows if rows > few && self.float8 && call.suits_float8() => device.attend_float8(&call),
            1..=SPLIT_KEY_ROWS => self.attend_part(device, call),
            _ => self.attend_long(device, call),
        }
    }

    /// A call of many rows, in parts.
    fn attend_long(&self, device: &Device, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        let CudaAttentionCall { q, k, v, out, lse, mask } = call;
        let group = q.heads / k.heads;
        let each = 4.0 * (q.dim * group) as f64;
        let operations = |kv: usize, rows, keys| kv as f64 * each * pairs(rows, keys, mask);
        let quanta = operations(k.heads, q.rows, k.rows) / QUANTUM_OPERATIONS;
        for CallPart { heads, rows } in parts(k.heads, (q.rows, k.rows), mask, quanta) {
            let query = heads.start * group..heads.end * group;
            let seen = if mask == Mask::Causal && k.rows >= q.rows { k.rows - (q.rows - rows.end) } else { k.rows };
            let of_heads = lse.rows(query.start, query.end)?;
            let own = match rows.len() == q.rows {
                true => of_heads.clone(),
                false => device.empty(&[query.len(), rows.len()], DType::F32)?,
            };
            let [asking, to] = [q, out].map(|x| x.of_heads(query.clone()).part(rows.start, rows.end));
            let [k, v] = [k, v].map(|x| x.of_heads(heads.clone()).part(0, seen));
            self.attend_part(device, CudaAttentionCall { q: asking, k, v, mask, out: to, lse: &own })?;
            if rows.len() < q.rows {
                let (from, pitch) = ((own.pointer(), 4 * rows.len()), 4 * q.rows);
                device.copy_2d(
                    from,
                    (of_heads.pointer() + 4 * rows.start as u64, pitch),
                    4 * rows.len(),
                    query.len(),
                )?;
            }
            device.queued(rows.len(), operations(heads.len(), rows.len(), seen))?;
        }
        Ok(())
    }

    fn attend_part(&self, device: &Device, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        match call {
            call if !call.tiled() => device.attend_plain(call, None),
            call if call.q.rows <= SPLIT_KEY_ROWS => device.attend_rows(call),
            call => self.prefill(device, call),
        }
    }

    /// Attention of many rows.
    fn prefill(&self, device: &Device, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        let (rows, keys) = (call.q.rows, call.k.rows);
        let (split, whole) = match call.mask {
            _ if self.fused.is_none() || call.out.dtype != DType::Bf16 => (0, false),
            Mask::None => (keys / ROUNDED * ROUNDED, keys.is_multiple_of(ROUNDED)),
            // Rows that see no key are not cuDNN's.
            Mask::Causal if keys >= rows => {
                let before = keys - rows;
                match before % REST {
                    0 => (before - before % ROUNDED, before < ROUNDED),
                    odd => (odd, false),
                }
            }
            _ => (0, false),
        };
        match split {
            _ if whole => match first_run(rows, keys).filter(|_| call.mask == Mask::None) {
                Some(run) => self.in_two(device, call, run),
                None => self.fused(device, call),
            },
            0 => device.attend_whole(call),
            split => self.in_two(device, call, split),
        }
    }

    /// Keys before `split`, which every row sees, and those from there on: two partials, merged.
    fn in_two(&self, device: &Device, call: CudaAttentionCall<'_>, split: usize) -> Result<(), KernelError> {
        let CudaAttentionCall { q, k, v, out, lse, .. } = call;
        self.prefill(device, CudaAttentionCall { k: k.part(split, k.rows), v: v.part(split, v.rows), ..call })?;
        if split < REST {
            let (k, v) = (k.part(0, split), v.part(0, split));
            return device.attend_into(CudaAttentionCall { k, v, mask: Mask::None, ..call });
        }
        let before = device.empty_by_rows([q.heads, q.rows, q.dim], DType::Bf16)?;
        let before_lse = device.empty(&lse.shape, DType::F32)?;
        let (k, v, to) = (k.part(0, split), v.part(0, split), before.heads_first()?);
        self.prefill(device, CudaAttentionCall { q, k, v, mask: Mask::None, out: to, lse: &before_lse })?;
        device.merge_into((out, lse, 0), (to, &before_lse, 0))
    }

    /// By cuDNN, but for the rows beyond a multiple of [`ROUNDED`], which are few; all by the own kernel where cuDNN is missing or refuses.
    fn fused(&self, device: &Device, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        let (rows, keys) = (call.q.rows, call.k.rows);
        let rounded = rows / ROUNDED * ROUNDED;
        let lead = if call.mask == Mask::Causal { keys - rows + rounded } else { keys };
        let Some(fused) = self.fused.as_ref().filter(|_| lead > 0 && call.out.dtype == DType::Bf16) else {
            return device.attend_whole(call);
        };
        if !self.rounded(device, fused, call, (rounded, lead))? {
            return device.attend_whole(call);
        }
        if rounded < rows { device.attend_last(call, rounded) } else { Ok(()) }
    }

    /// The first rows of a call over its first keys by cuDNN, if it takes them. Log-sum-exps of a row of heads are then as many as
    /// these rows, so that calls of other lengths find the same plan.
    fn rounded(
        &self,
        device: &Device,
        fused: &Mutex<Fused>,
        call: CudaAttentionCall<'_>,
        (rows, keys): (usize, usize),
    ) -> Result<bool, KernelError> {
        let heads = call.q.heads;
        let own = if call.lse.shape[1] == rows { None } else { Some(device.empty(&[heads, rows], DType::F32)?) };
        let asked = CudaAttentionCall { lse: own.as_ref().unwrap_or(call.lse), ..call };
        let taken = fused.lock().expect("no panic holds it").run(device, Shape::of(&asked, rows, keys), &asked)?;
        if let (true, Some(own)) = (taken, &own) {
            let (from, to) = ((own.pointer(), 4 * rows), (call.lse.pointer(), 4 * call.lse.shape[1]));
            device.copy_2d(from, to, 4 * rows, heads)?;
        }
        Ok(taken)
    }
}

impl Device {
    /// Attention by the own kernel for many rows: the fallback without cuDNN, and what cuDNN is checked against.
    pub fn attend_own(&self, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        call.check()?;
        if call.tiled() { self.attend_whole(call) } else { self.attend_plain(call, None) }
    }

    /// Rows from `from` on, which are few, by the kernel that cuts the keys in pieces: those of a mask see the last key, too.
    fn attend_last(&self, call: CudaAttentionCall<'_>, from: usize) -> Result<(), KernelError> {
        let CudaAttentionCall { q, out, lse, .. } = call;
        let (rows, all) = (q.rows - from, lse.shape[1]);
        let own = self.empty(&[q.heads, rows], DType::F32)?;
        let [q, out] = [q, out].map(|x| x.part(from, x.rows));
        self.attend_rows(CudaAttentionCall { q, out, lse: &own, ..call })?;
        self.copy_2d((own.pointer(), 4 * rows), (lse.pointer() + 4 * from as u64, 4 * all), 4 * rows, q.heads)
    }

    /// Attention by the kernel that cuts the keys in pieces, whatever the rows.
    pub fn attend_few(&self, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        call.check()?;
        if call.tiled() { self.attend_rows(call) } else { self.attend_plain(call, None) }
    }
}
