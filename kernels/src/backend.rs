//! What a device must offer: the operations of a decoder and of the attention methods over an associated tensor type. No
//! device is named here.

mod answers;
mod gathering;
mod operands;

use std::ops::Range;
use std::sync::Arc;

pub use answers::{Lent, Mark, Partial, RawBytes, Sparse};
pub use gathering::{AllGather, Meeting};
pub use operands::{DType, Heads, HostTensor, Mask, Rotary};

use crate::{
    Ahead, Ask, FlexRule, KernelError, KeySets, Merging, Rank, StripeRule, VerticalSlashRule, merging, packed,
};

/// The build of the kernels: sources, compiler and target, as eight hexadecimal digits.
pub(crate) const BUILD: &str = env!("ASTERISM_KERNELS_BUILD");

/// One device. Shapes are row-major and written heads-first; `t` is tokens, `e` the hidden size.
/// A result never depends on the number of threads, and a row never on the other rows of its call.
pub trait Backend: Sized + Send + Sync + 'static {
    /// A tensor on the device; clones share storage.
    type Tensor: Clone + Send + Sync + 'static;
    /// The weights of `y = x W^T + b`, prepared once for this device.
    type Linear: Send + Sync + 'static;
    /// Keys and values of one layer, `(kv heads, tokens, head dim)` each, in compute type; grows by `kv_append`.
    type Kv: Clone + Send + Sync + 'static;

    /// Type of activations and cached keys and values: `F32` or `Bf16`.
    fn dtype(&self) -> DType;

    /// What decides the bits of its results, in a few words: device, kernels and libraries, compute type, build. Two of equal
    /// words compute the same from the same.
    fn numerics(&self) -> String;

    /// Rows that linear layers like to get at once: shards are stacked up to it, and more rows taken in turns, which bounds what
    /// lies between the layers. 0: as they come.
    fn linear_rows(&self) -> usize {
        0
    }

    /// Most rows of an attention call whose bits do not depend on how many there are; 0: those of none do.
    fn independent_rows(&self) -> usize {
        0
    }

    /// Waits until all that was asked of the device is done, and gives back memory that it held for it. A device that computes
    /// as it is asked has nothing to wait for.
    fn finish(&self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Whether it still computes. One that failed for good says so here, at once, and can only be opened anew, by another process.
    fn health(&self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Whether values on the host have to be waited for, so that nobody asks for them who can do without.
    fn queues(&self) -> bool {
        false
    }

    /// What waits until all is done that was asked of the device before.
    fn mark(&self) -> Result<Mark, KernelError> {
        Ok(Box::new(|| Ok(())))
    }

    /// A step, which somebody waits for, begins on this thread: what others of this process queue on the device waits between its
    /// parts until it ends, if it is of a later rank.
    fn ahead(&self, rank: Rank) -> Ahead {
        let _ = rank;
        Ahead::default()
    }

    /// Whether both compute in the same memory.
    fn is_beside(&self, other: &Self) -> bool {
        let _ = other;
        true
    }

    /// A backend of this device that computes alike and has a queue of its own; none where work does not stand in queues.
    fn another(&self) -> Result<Option<Self>, KernelError> {
        Ok(None)
    }

    /// Lends tensors to other backends of its kind. Memory of the host is everybody's.
    fn lend(&self, tensors: Vec<Self::Tensor>) -> Result<Lent<Self>, KernelError> {
        Ok(Box::new(move |_| Ok(tensors.clone())))
    }

    /// What puts matrices of these devices of one process together.
    fn all_gather(members: &[Arc<Self>]) -> Result<Box<dyn AllGather<Self>>, KernelError> {
        Ok(Box::new(Meeting::new(members)))
    }
    /// Most rows of which devices of one process gain by sharing linear layers, each with some of the outputs.
    fn shared_rows(&self) -> usize {
        usize::MAX
    }
    /// Uploads f32 values as an f32 tensor (a query off the wire, a partial off the wire, a test's input).
    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Self::Tensor, KernelError>;
    /// Downloads any tensor as f32, row-major.
    fn download(&self, tensor: &Self::Tensor) -> Result<Vec<f32>, KernelError>;
    /// Tensors as they travel, one after the other: in compute type, row-major, little-endian. Read piece by piece, so that the
    /// first travel while others are on the device still.
    fn raw(&self, tensors: &[Self::Tensor]) -> Result<Box<dyn RawBytes + '_>, KernelError> {
        Ok(Box::new(packed::raw(self, tensors)?))
    }
    /// A tensor of compute type as it travelled: the bytes of all `pieces`, of whole elements each.
    fn upload_raw(&self, shape: &[usize], pieces: &[&[u8]]) -> Result<Self::Tensor, KernelError> {
        packed::from_raw(self, shape, pieces)
    }
    /// Shape of a tensor.
    fn shape(&self, tensor: &Self::Tensor) -> Vec<usize>;
    /// Converts to compute type (a no-op when it is that already).
    fn cast(&self, tensor: &Self::Tensor) -> Result<Self::Tensor, KernelError>;

    /// Uploads one weight (embedding table, norm) in compute type.
    fn weight(&self, tensor: HostTensor<'_>) -> Result<Self::Tensor, KernelError>;
    /// Prepares a linear layer whose output is the outputs of `parts` (each `(n_i, k)`) side by side. `biases` is empty
    /// or has one `(n_i)` for each part.
    fn linear_weight(&self, parts: &[HostTensor<'_>], biases: &[HostTensor<'_>]) -> Result<Self::Linear, KernelError>;
    /// The same of the output head `(vocab, e)`, whose small differences choose tokens: never in fewer bits than compute type.
    fn head_weight(&self, weight: HostTensor<'_>) -> Result<Self::Linear, KernelError> {
        self.linear_weight(&[weight], &[])
    }

    /// Rows of `table (vocab, e)`: `(t, e)`.
    fn embed(&self, table: &Self::Tensor, ids: &[u32]) -> Result<Self::Tensor, KernelError>;
    /// Root-mean-square norm of each row of `x (.., e)`, times `weight (e)`, accumulated in f32.
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Tensor, eps: f32) -> Result<Self::Tensor, KernelError>;
    /// `x (t, k) -> (t, n)`.
    fn linear(&self, x: &Self::Tensor, weight: &Self::Linear) -> Result<Self::Tensor, KernelError>;
    /// `residual (t, n) + linear(x)`. Takes the residual by value: the storage may be reused.
    fn linear_add(
        &self,
        x: &Self::Tensor,
        weight: &Self::Linear,
        residual: Self::Tensor,
    ) -> Result<Self::Tensor, KernelError>;
    /// `silu(gate) * up` of `gate_up (t, 2 f)`, gate first: `(t, f)`.
    fn gated_silu(&self, gate_up: &Self::Tensor) -> Result<Self::Tensor, KernelError>;
    /// [`Backend::linear`] of [`Backend::rms_norm`].
    fn norm_linear(
        &self,
        x: &Self::Tensor,
        (norm, eps): (&Self::Tensor, f32),
        weight: &Self::Linear,
    ) -> Result<Self::Tensor, KernelError> {
        self.linear(&self.rms_norm(x, norm, eps)?, weight)
    }
    /// [`Backend::linear_add`] of [`Backend::gated_silu`].
    fn gated_linear_add(
        &self,
        gate_up: &Self::Tensor,
        weight: &Self::Linear,
        residual: Self::Tensor,
    ) -> Result<Self::Tensor, KernelError> {
        self.linear_add(&self.gated_silu(gate_up)?, weight, residual)
    }
    /// [`Backend::gated_linear_add`] of [`Backend::norm_linear`], to `x` itself: what a decoder's layer ends with.
    fn norm_mlp(
        &self,
        x: &Self::Tensor,
        norm: (&Self::Tensor, f32),
        [gate_up, down]: [&Self::Linear; 2],
    ) -> Result<Self::Tensor, KernelError> {
        self.gated_linear_add(&self.norm_linear(x, norm, gate_up)?, down, x.clone())
    }
    /// Columns `outputs` of [`Backend::linear_add`], to the last bit: a device's part where several share a linear layer.
    fn linear_add_part(
        &self,
        x: &Self::Tensor,
        (weight, residual): (&Self::Linear, &Self::Tensor),
        outputs: Range<usize>,
    ) -> Result<Self::Tensor, KernelError> {
        self.narrow(&self.linear_add(x, weight, residual.clone())?, 1, outputs.start, outputs.end)
    }
    /// Columns `outputs` of [`Backend::gated_silu`] of [`Backend::norm_linear`], likewise.
    fn norm_gated_part(
        &self,
        x: &Self::Tensor,
        norm: (&Self::Tensor, f32),
        gate_up: &Self::Linear,
        outputs: Range<usize>,
    ) -> Result<Self::Tensor, KernelError> {
        let gated = self.gated_silu(&self.norm_linear(x, norm, gate_up)?)?;
        self.narrow(&gated, 1, outputs.start, outputs.end)
    }
    /// `silu(x)` of each element: the activation of a retaining head.
    fn silu(&self, x: &Self::Tensor) -> Result<Self::Tensor, KernelError>;
    /// Rows `start..end` of `x (t, e)`.
    fn rows(&self, x: &Self::Tensor, start: usize, end: usize) -> Result<Self::Tensor, KernelError>;

    /// A copy of `start..end` along `axis`.
    fn narrow(&self, x: &Self::Tensor, axis: usize, start: usize, end: usize) -> Result<Self::Tensor, KernelError>;
    /// A copy of `parts` one after the other along `axis`; their other sizes and their types are equal.
    fn concat(&self, parts: &[Self::Tensor], axis: usize) -> Result<Self::Tensor, KernelError>;
    /// Of both pairs `x (heads, t, dim)`, then `more (heads, n, dim)`: as `concat`, but a device may write `more` behind `x` where it
    /// lies.
    fn extended(&self, [one, other]: [[&Self::Tensor; 2]; 2]) -> Result<[Self::Tensor; 2], KernelError> {
        Ok([self.concat(&one.map(Clone::clone), 1)?, self.concat(&other.map(Clone::clone), 1)?])
    }

    /// Rows `rows[head]` of each head of `x (heads, t, dim)`, in the order given, as many for one head as for another:
    /// `(heads, n, dim)`.
    fn gather(&self, x: &Self::Tensor, rows: &[Vec<u32>]) -> Result<Self::Tensor, KernelError>;

    /// Splits `qkv (t, (query + 2 kv) dim)` into heads and rotates queries and keys (half-split convention) by
    /// `positions[i] * rotary.inv_freq[j]`, angles in f32: `q (query, t, dim)`, `k, v (kv, t, dim)`.
    #[allow(clippy::type_complexity)]
    fn split_rotate(
        &self,
        qkv: &Self::Tensor,
        heads: Heads,
        positions: &[u32],
        rotary: Rotary<'_>,
    ) -> Result<(Self::Tensor, Self::Tensor, Self::Tensor), KernelError>;

    /// Wraps `k, v (kv heads, t, dim)`.
    fn kv(&self, k: &Self::Tensor, v: &Self::Tensor) -> Result<Self::Kv, KernelError>;
    /// Appends rows in place, growing geometrically.
    fn kv_append(&self, kv: &mut Self::Kv, k: &Self::Tensor, v: &Self::Tensor) -> Result<(), KernelError>;
    /// A copy of rows `start..end`, so that the rest can be freed.
    fn kv_rows(&self, kv: &Self::Kv, start: usize, end: usize) -> Result<Self::Kv, KernelError>;
    /// Cached tokens.
    fn kv_len(&self, kv: &Self::Kv) -> usize;
    /// Bytes held, capacity included.
    fn kv_bytes(&self, kv: &Self::Kv) -> usize;

    /// Attention of `q (query heads, t, dim)` in compute type over one shard of keys, scaled by `1 / sqrt(dim)`. Memory is
    /// linear in `t` and in the keys; KV heads are shared by their query heads, never copied.
    fn attention(&self, q: &Self::Tensor, kv: &Self::Kv, mask: Mask) -> Result<Partial<Self::Tensor>, KernelError>;
    /// Outputs of [`Backend::attention`] of each call, to the last bit: few rows of many shards.
    fn attention_each(&self, calls: &[(Self::Tensor, Self::Kv, Mask)]) -> Result<Vec<Self::Tensor>, KernelError> {
        calls.iter().map(|(q, kv, mask)| Ok(self.attention(q, kv, *mask)?.output)).collect()
    }
    /// `q.k` of each key of `k (kv heads, t, dim)`, averaged over the rows of `q (query heads, m, dim)` and the query heads
    /// that share the KV head, not scaled: `(kv heads, t)`, row-major.
    fn key_scores(&self, q: &Self::Tensor, k: &Self::Tensor) -> Result<Vec<f32>, KernelError>;
    /// Attention of `q (query heads, t, dim)` over the listed keys of `t`: row `i` of head `h` sees the keys of
    /// `(h, i / rows)` that do not come after it.
    fn attention_selected(
        &self,
        q: &Self::Tensor,
        kv: &Self::Kv,
        keys: &KeySets,
    ) -> Result<Partial<Self::Tensor>, KernelError>;
    /// AnchorAttention (algorithms 1 to 3) of `q (query heads, t, dim)` over `t` keys, and the stripes it selected: one
    /// group for `step` query blocks, its anchor region not among them.
    fn stripe_attention(&self, q: &Self::Tensor, kv: &Self::Kv, rule: StripeRule) -> Sparse<'_, Self>;
    /// [`Backend::attention_selected`] over the keys that MInference's vertical-slash estimate selects, and these.
    fn vertical_slash(&self, q: &Self::Tensor, kv: &Self::Kv, rule: VerticalSlashRule) -> Sparse<'_, Self>;
    /// [`Backend::attention_selected`] over the keys that FlexPrefill selects, and these.
    fn flex_prefill(&self, q: &Self::Tensor, kv: &Self::Kv, rule: FlexRule) -> Sparse<'_, Self>;
    /// Exact merge of partials over disjoint keys, in the order given (Star Attention, algorithm 2, in its max form).
    fn merge(&self, partials: &[Partial<Self::Tensor>]) -> Result<Partial<Self::Tensor>, KernelError>;
    /// `x (heads, t, dim)` as `(t, heads dim)`, in the type it has: a query as it travels.
    fn row_major(&self, x: &Self::Tensor) -> Result<Self::Tensor, KernelError> {
        packed::row_major(self, x)
    }
    /// Attention of each ask's rows of `q (t, query heads dim)` in compute type, as [`Backend::attention`] of these rows alone
    /// to the last bit. Appends the packed rows of each ask, in order.
    fn attend_many(
        &self,
        heads: Heads,
        q: &Self::Tensor,
        asks: &[Ask<'_, Self::Kv>],
        packed: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        packed::attend_each(self, heads, q, asks, packed)
    }
    /// [`Backend::attend_many`], and [`Backend::merge_rows`] of each group: as many asks, one after the other, as it says, all
    /// of equally many rows.
    fn attend_merged(
        &self,
        heads: Heads,
        q: &Self::Tensor,
        (asks, groups): (&[Ask<'_, Self::Kv>], &[usize]),
        packed: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        packed::attend_then_merge(self, heads, q, (asks, groups), packed)
    }
    /// What [`Backend::attend_merged`] appends, f32 `(rows, packed row)`, where it is.
    fn attend_rows(
        &self,
        heads: Heads,
        q: &Self::Tensor,
        asks: (&[Ask<'_, Self::Kv>], &[usize]),
    ) -> Result<Self::Tensor, KernelError> {
        packed::attend_rows(self, heads, q, asks)
    }
    /// [`Backend::attend_many`] of the asks, beside rows that are given, [`Backend::merge_rows`] of each level,
    /// [`Backend::merge_packed`] of the tops: all that attention is to a step, queued at once where the device can.
    fn attend_tree(
        &self,
        heads: Heads,
        q: &Self::Tensor,
        asks: (&[Ask<'_, Self::Kv>], &[Self::Tensor]),
        merging: &Merging,
    ) -> Result<Self::Tensor, KernelError> {
        merging::attend_tree(self, heads, q, asks, merging)
    }
    /// [`Backend::merge`] of packed partials, those of each part in the order given, then [`Backend::join_heads`]: the rows of
    /// all parts `(t, query heads dim)` in compute type.
    fn merge_packed(&self, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<Self::Tensor, KernelError> {
        packed::merge_on_host(self, heads, parts)
    }
    /// [`Backend::merge`] of packed partials, those of each part in the order given: appends the packed rows of each part.
    fn merge_rows(&self, heads: Heads, parts: &[Vec<&[f32]>], packed: &mut Vec<f32>) -> Result<(), KernelError> {
        packed::merge_rows_on_host(heads, parts, packed)
    }
    /// `(heads, t, dim)`, f32 or in compute type -> `(t, heads dim)` in compute type, ready for the output projection.
    fn join_heads(&self, output: &Self::Tensor) -> Result<Self::Tensor, KernelError>;
}
