//! Which heads each device of a group has: whole groups of query heads with their KV head, or a part of one group, whose KV head
//! several devices then have.

use super::DeviceGroup;
use super::layout::{Layout, Segment, Split};
use super::spread::GroupTensor;
use crate::backend::{Backend, HeadOps, Rotary};
use crate::{Heads, KernelError};

/// Whether so many devices can share a model's heads, each with as many query heads.
///
/// # Errors
/// [`KernelError::UnevenHeads`] says which degrees there are.
pub fn check_heads(heads: Heads, devices: usize) -> Result<(), KernelError> {
    let Heads { query, kv, .. } = heads;
    let even =
        |devices: usize| query.is_multiple_of(devices) && (kv.is_multiple_of(devices) || devices.is_multiple_of(kv));
    if devices > 0 && even(devices) {
        return Ok(());
    }
    let fit = (1..=query).filter(|devices| even(*devices)).collect();
    Err(KernelError::UnevenHeads { devices, query, kv, fit })
}

/// How heads of queries and of keys and values are dealt out.
#[derive(Clone, Copy)]
pub(super) struct HeadSegments {
    pub query: Segment,
    pub kv: Segment,
}

impl HeadSegments {
    /// Of such heads, which may be others than the model's: a share of them, say. Where they do not come out even all devices have all.
    pub fn of(query: usize, kv: usize, members: usize) -> Self {
        let even = members.is_multiple_of(kv.max(1));
        let copies = match () {
            () if kv.is_multiple_of(members) => 1,
            () if even => members / kv.max(1),
            () => members,
        };
        let alone = copies == 1 || even && query.is_multiple_of(members);
        let segment = |units, copies| Segment { units, width: 1, copies };
        Self { query: segment(query, if alone { 1 } else { copies }), kv: segment(kv, copies) }
    }

    /// Rows of queries, keys and values side by side.
    pub fn qkv(self, dim: usize, members: usize) -> Layout {
        let Self { query, kv } = self;
        Split::layout(1, [query, kv, kv].map(|heads| Segment { width: dim, ..heads }).into(), members)
    }

    /// Heads of queries, whatever each has.
    pub fn queries(self, members: usize) -> Layout {
        Split::layout(0, vec![self.query], members)
    }

    /// Heads of keys and values.
    pub fn keys(self, members: usize) -> Layout {
        Split::layout(0, vec![self.kv], members)
    }

    /// Rows of queries, or of what attention gives for them.
    pub fn rows(self, dim: usize, members: usize) -> Layout {
        Split::layout(1, vec![Segment { width: dim, ..self.query }], members)
    }

    /// Packed rows: outputs of all heads, then their log-sum-exps.
    pub fn packed(self, dim: usize, members: usize) -> Layout {
        Split::layout(1, vec![Segment { width: dim, ..self.query }, self.query], members)
    }

    /// What a member has of them.
    pub fn local(self, member: usize, members: usize, dim: usize) -> Heads {
        let of = |segment: Segment| segment.range(member, members).len();
        Heads { query: of(self.query), kv: of(self.kv), dim }
    }
}

impl<B: Backend> DeviceGroup<B> {
    pub(super) fn segments(&self, query: usize, kv: usize) -> HeadSegments {
        HeadSegments::of(query, kv, self.members.len())
    }

    /// `(heads, t, dim)` as `(t, heads dim)`, each its own heads.
    fn joined(
        &self,
        x: &GroupTensor<B>,
        join: impl Fn(&B, &B::Tensor) -> Result<B::Tensor, KernelError> + Sync,
    ) -> Result<GroupTensor<B>, KernelError> {
        let rows = |dim: usize| match &x.layout {
            Some(split) if split.axis == 0 => {
                let segments = split.segments.iter().map(|heads| Segment { width: heads.width * dim, ..*heads });
                Split::layout(1, segments.collect(), self.members.len())
            }
            _ => None,
        };
        let by_heads = x.layout.as_ref().is_none_or(|split| split.axis == 0);
        let x = if by_heads { x.clone() } else { self.whole(x)? };
        let layout = rows(self.first().shape(&x.parts[0]).get(2).copied().unwrap_or(1));
        self.spread(layout, |at, member| join(member, &x.parts[at]))
    }
}

impl<B: Backend> HeadOps for DeviceGroup<B> {
    fn split_rotate(
        &self,
        qkv: &GroupTensor<B>,
        heads: Heads,
        positions: &[u32],
        rotary: Rotary<'_>,
    ) -> Result<(GroupTensor<B>, GroupTensor<B>, GroupTensor<B>), KernelError> {
        let (segments, members) = (self.segments(heads.query, heads.kv), self.members.len());
        let qkv = self.dealt(qkv, &segments.qkv(heads.dim, members))?;
        let split = self.each(|at, member| {
            member.split_rotate(&qkv.parts[at], segments.local(at, members, heads.dim), positions, rotary)
        })?;
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        for (of_q, of_k, of_v) in split {
            q.push(of_q);
            k.push(of_k);
            v.push(of_v);
        }
        let keys = segments.keys(members);
        Ok((GroupTensor::of(q, segments.queries(members)), GroupTensor::of(k, keys.clone()), GroupTensor::of(v, keys)))
    }

    fn join_heads(&self, output: &GroupTensor<B>) -> Result<GroupTensor<B>, KernelError> {
        self.joined(output, |member, part| member.join_heads(part))
    }

    fn row_major(&self, x: &GroupTensor<B>) -> Result<GroupTensor<B>, KernelError> {
        self.joined(x, |member, part| member.row_major(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_that_share_the_heads_evenly_are_named() {
        let heads = |query, kv| Heads { query, kv, dim: 64 };
        for (of, devices) in [((32, 8), 2), ((32, 8), 8), ((32, 8), 16), ((64, 8), 64), ((28, 4), 4), ((9, 3), 3)] {
            check_heads(heads(of.0, of.1), devices).unwrap();
        }
        for (of, devices) in [((32, 8), 3), ((28, 4), 8), ((9, 3), 2), ((32, 8), 0), ((40, 8), 16)] {
            assert_eq!(check_heads(heads(of.0, of.1), devices).unwrap_err().code(), "kernel_uneven_heads");
        }
        let message = check_heads(heads(28, 4), 8).unwrap_err().to_string();
        assert!(message.contains("28 query heads") && message.contains("1, 2, 4, 28"), "{message}");
    }

    #[test]
    fn heads_that_do_not_come_out_even_are_everybodys() {
        let segments = HeadSegments::of(3, 1, 2);
        assert_eq!((segments.queries(2), segments.keys(2)), (None, None));
        let segments = HeadSegments::of(6, 2, 4);
        assert_eq!((segments.query.copies, segments.kv.copies), (2, 2), "a KV head with all its query heads");
        let segments = HeadSegments::of(8, 2, 4);
        assert_eq!((segments.query.copies, segments.kv.copies), (1, 2));
        assert_eq!(segments.local(3, 4, 64), Heads { query: 2, kv: 1, dim: 64 });
        assert_eq!(HeadSegments::of(9, 3, 2).keys(2), None);
    }
}
