//! From the rows of projections to heads and back, each device its own.

use super::heads::HeadSegments;
use super::layout::{Segment, Split};
use super::members::DeviceGroup;
use super::spread::GroupTensor;
use crate::backend::{Backend, HeadOps, Rotary};
use crate::{Heads, KernelError};

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
        let layout = rows(self.first().shape(x.like()).get(2).copied().unwrap_or(1));
        self.spread(layout, |at, member| join(member, x.part(at)?))
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
        let split = self.each_of(qkv.like(), |at, member| {
            member.split_rotate(qkv.part(at)?, segments.local(at, members, heads.dim), positions, rotary)
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
