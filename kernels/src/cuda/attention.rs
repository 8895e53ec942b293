//! Attention with log-sum-exp: which kernel takes a call. Prefill goes to cuDNN where it is there, else to the own kernel; few
//! rows to the own kernel that cuts the keys in pieces; f32 and odd head sizes to the plain one.

mod blocks;
mod estimates;
mod fused;
mod lists;
mod mapped;
mod own;
mod parts;
mod selected;
mod stripes;

use std::sync::Mutex;

use fused::{Fused, Shape};
pub(super) use lists::Lists;
pub(super) use mapped::{Laid, Map, Mapped, Maps};
pub use own::PIECE;
pub(super) use own::{CHUNK, Pieces, Tiled, Tiling, combining};

use super::device::Device;
use super::gpu::Cuda;
use super::kv::Kv;
use super::tensor::{Tensor, View};
use crate::{DType, KernelError, Mask, Partial};

/// Rows up to which a call goes through the kernel that cuts the keys: below, a row's bits do not depend on its company.
pub const FEW_ROWS: usize = 512;
/// Prefill rows, and keys that all of them see, go to cuDNN in multiples of this, so that lengths share plans; the own kernel
/// takes the rest.
const ROUNDED: usize = 512;
/// What is left of the keys that all rows of a causal call see goes to cuDNN with the others, but for the first few, which leave a
/// multiple of this.
const REST: usize = 64;

/// What attention of `q` over `k, v` is given. Views are of one type; `lse` is `(query heads, rows)` f32.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// `(query heads, rows, dim)`.
    pub q: View<'a>,
    /// `(kv heads, keys, dim)`.
    pub k: View<'a>,
    /// As `k`, and lying as `k` does.
    pub v: View<'a>,
    /// Which keys a row sees.
    pub mask: Mask,
    /// `(query heads, rows, dim)`, f32 or, from bf16, bf16: written.
    pub out: View<'a>,
    /// Written.
    pub lse: &'a Tensor,
}

impl Attention<'_> {
    fn check(&self) -> Result<(), KernelError> {
        let Self { q, k, v, out, lse, .. } = self;
        let fits = k.heads > 0
            && q.heads.is_multiple_of(k.heads)
            && (k.heads, k.rows, k.dim, k.at) == (v.heads, v.rows, v.dim, v.at)
            && q.dim == k.dim
            && (q.heads, q.rows, q.dim) == (out.heads, out.rows, out.dim)
            && lse.shape == [q.heads, q.rows];
        if !fits {
            let expected = "q and out (a multiple of kv heads, t, dim), k and v (kv heads, keys, dim), lse (heads, t)";
            let got: [&[usize]; 3] =
                [&[q.heads, q.rows, q.dim], &[k.heads, k.rows, k.dim], &[out.heads, out.rows, out.dim]];
            return Err(KernelError::shape("attention", expected, &got));
        }
        let types = [k.dtype, v.dtype] == [q.dtype; 2] && lse.dtype == DType::F32;
        if !types || (out.dtype != DType::F32 && out.dtype != q.dtype) {
            return Err(KernelError::DType { operation: "attention", got: k.dtype });
        }
        Ok(())
    }

    /// Whether the matrix kernels take it.
    fn tiled(&self) -> bool {
        let aligned = [self.q, self.k, self.v, self.out].iter().all(|x| x.pointer.is_multiple_of(16));
        let strides = [self.q.at, self.k.at, self.out.at].iter().all(|at| at.row % 8 == 0 && at.head % 8 == 0);
        self.q.dtype == DType::Bf16 && matches!(self.q.dim, 64 | 128) && aligned && strides
    }
}

/// The attention of a device: cuDNN's plans, where cuDNN is there.
pub struct Attender {
    fused: Option<Mutex<Fused>>,
}

impl Attender {
    /// Opens cuDNN; without it the own kernel does all.
    pub fn new(device: &Device) -> Result<Self, KernelError> {
        Ok(Self { fused: Fused::open(device)?.map(Mutex::new) })
    }

    /// Whether cuDNN was found.
    pub fn has_library(&self) -> bool {
        self.fused.is_some()
    }

    /// Attention by whatever suits it.
    pub fn attend(&self, device: &Device, call: Attention<'_>) -> Result<(), KernelError> {
        call.check()?;
        if call.q.rows == 0 {
            return Ok(());
        }
        match call.q.rows {
            0..=FEW_ROWS => self.attend_part(device, call),
            _ => self.attend_long(device, call),
        }
    }

    fn attend_part(&self, device: &Device, call: Attention<'_>) -> Result<(), KernelError> {
        match call {
            call if !call.tiled() => device.attend_plain(call, None),
            call if call.q.rows <= FEW_ROWS => device.attend_rows(call),
            call => self.prefill(device, call),
        }
    }

    /// Attention of many rows.
    fn prefill(&self, device: &Device, call: Attention<'_>) -> Result<(), KernelError> {
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
            _ if whole => self.fused(device, call),
            0 => device.attend_whole(call, 0),
            split => self.in_two(device, call, split),
        }
    }

    /// Keys before `split`, which every row sees, and those from there on: two partials, merged.
    fn in_two(&self, device: &Device, call: Attention<'_>, split: usize) -> Result<(), KernelError> {
        let Attention { q, k, v, out, lse, .. } = call;
        self.prefill(device, Attention { k: k.part(split, k.rows), v: v.part(split, v.rows), ..call })?;
        if split < REST {
            let (k, v) = (k.part(0, split), v.part(0, split));
            return device.attend_into(Attention { k, v, mask: Mask::None, ..call });
        }
        let before = device.empty_by_rows([q.heads, q.rows, q.dim], DType::Bf16)?;
        let before_lse = device.empty(&lse.shape, DType::F32)?;
        let (k, v, to) = (k.part(0, split), v.part(0, split), before.heads_first()?);
        self.prefill(device, Attention { q, k, v, mask: Mask::None, out: to, lse: &before_lse })?;
        device.merge_into((out, lse, 0), (to, &before_lse, 0))
    }

    /// By cuDNN, but for the rows beyond a multiple of [`ROUNDED`]; all by the own kernel where cuDNN is missing or refuses.
    fn fused(&self, device: &Device, call: Attention<'_>) -> Result<(), KernelError> {
        let (rows, keys) = (call.q.rows, call.k.rows);
        let rounded = rows / ROUNDED * ROUNDED;
        let lead = if call.mask == Mask::Causal { keys - rows + rounded } else { keys };
        let Some(fused) = self.fused.as_ref().filter(|_| lead > 0 && call.out.dtype == DType::Bf16) else {
            return device.attend_whole(call, 0);
        };
        if !self.rounded(device, fused, call, (rounded, lead))? {
            return device.attend_whole(call, 0);
        }
        if rounded < rows { device.attend_whole(call, rounded) } else { Ok(()) }
    }

    /// The first rows of a call over its first keys by cuDNN, if it takes them. Log-sum-exps of a row of heads are then as many as
    /// these rows, so that calls of other lengths find the same plan.
    fn rounded(
        &self,
        device: &Device,
        fused: &Mutex<Fused>,
        call: Attention<'_>,
        (rows, keys): (usize, usize),
    ) -> Result<bool, KernelError> {
        let heads = call.q.heads;
        let own = if call.lse.shape[1] == rows { None } else { Some(device.empty(&[heads, rows], DType::F32)?) };
        let asked = Attention { lse: own.as_ref().unwrap_or(call.lse), ..call };
        let taken = fused.lock().expect("no panic holds it").run(device, Shape::of(&asked, rows, keys), &asked)?;
        if let (true, Some(own)) = (taken, &own) {
            let (from, to) = ((own.pointer(), 4 * rows), (call.lse.pointer(), 4 * call.lse.shape[1]));
            device.copy_2d(from, to, 4 * rows, heads)?;
        }
        Ok(taken)
    }
}

impl Cuda {
    /// An unset partial for `q`.
    pub(super) fn partial(&self, q: &Tensor, dtype: DType) -> Result<Partial<Tensor>, KernelError> {
        let (heads, t, dim) = q.cube("attention")?;
        let lse = self.device.empty(&[heads, t], DType::F32)?;
        Ok(Partial { output: self.device.empty_by_rows([heads, t, dim], dtype)?, lse })
    }
}

impl Device {
    /// Attention by the own kernel for many rows: the fallback without cuDNN, and what cuDNN is checked against.
    pub fn attend_own(&self, call: Attention<'_>) -> Result<(), KernelError> {
        call.check()?;
        if call.tiled() { self.attend_whole(call, 0) } else { self.attend_plain(call, None) }
    }

    /// Attention by the kernel that cuts the keys in pieces, whatever the rows.
    pub fn attend_few(&self, call: Attention<'_>) -> Result<(), KernelError> {
        call.check()?;
        if call.tiled() { self.attend_rows(call) } else { self.attend_plain(call, None) }
    }
}
