//! A tensor on all devices of a group, whole or dealt out, and how it comes from one layout to another.

use std::sync::Arc;

use super::layout::{Layout, Segment, Split};
use super::members::DeviceGroup;
use crate::KernelError;
use crate::backend::Backend;

/// Most elements of a whole tensor whose parts are kept beside it: those of a step's rows, not of a context's.
const KEPT_ELEMENTS: usize = 1 << 20;

/// A tensor on all devices of a group: whole on each, or dealt out along an axis.
pub struct GroupTensor<B: Backend> {
    pub(super) parts: Arc<[B::Tensor]>,
    pub(super) layout: Layout,
    /// What it was put together from, where that is still at hand.
    before: Option<Box<GroupTensor<B>>>,
}

/// What gives a tensor that is on its way.
pub(super) type Coming<B> = Box<dyn FnOnce() -> Result<GroupTensor<B>, KernelError>>;

impl<B: Backend> Clone for GroupTensor<B> {
    fn clone(&self) -> Self {
        Self { parts: Arc::clone(&self.parts), layout: self.layout.clone(), before: self.before.clone() }
    }
}

impl<B: Backend> GroupTensor<B> {
    pub(super) fn of(parts: Vec<B::Tensor>, layout: Layout) -> Self {
        Self { parts: parts.into(), layout, before: None }
    }

    /// Whether it is dealt out along this axis.
    pub(super) fn is_split_along(&self, axis: usize) -> bool {
        self.layout.as_ref().is_some_and(|split| split.axis == axis)
    }
}

impl<B: Backend> DeviceGroup<B> {
    /// What each makes of its own parts, which lies as `layout` says.
    pub(super) fn spread(
        &self,
        layout: Layout,
        work: impl Fn(usize, &B) -> Result<B::Tensor, KernelError> + Sync,
    ) -> Result<GroupTensor<B>, KernelError> {
        let parts = if layout.is_none() { self.alike(work)? } else { self.each(work)? };
        Ok(GroupTensor::of(parts, layout))
    }

    /// The same of a tensor that may be large.
    pub(super) fn spread_of(
        &self,
        x: &GroupTensor<B>,
        layout: Layout,
        work: impl Fn(usize, &B) -> Result<B::Tensor, KernelError> + Sync,
    ) -> Result<GroupTensor<B>, KernelError> {
        if layout.is_none() {
            return self.spread(layout, work);
        }
        Ok(GroupTensor::of(self.each_of(&x.parts[0], work)?, layout))
    }

    /// The same tensor whole on each.
    pub(super) fn whole(&self, x: &GroupTensor<B>) -> Result<GroupTensor<B>, KernelError> {
        let Some(split) = &x.layout else { return Ok(x.clone()) };
        let whole = match &split.segments[..] {
            [segment] => self.segment_whole(&x.parts, *segment, split.axis)?,
            segments => self.segments_whole(x, segments, split)?,
        };
        let small = self.first().shape(&whole[0]).iter().product::<usize>() <= KEPT_ELEMENTS;
        Ok(GroupTensor { before: small.then(|| Box::new(x.clone())), ..GroupTensor::of(whole, None) })
    }

    /// The same, on its way while the devices do what else they are asked, until it is taken.
    pub(super) fn beside(&self, x: GroupTensor<B>) -> Result<Coming<B>, KernelError> {
        let members = self.members.len();
        let columns = x.layout.as_deref().and_then(|split| match split.segments[..] {
            [segment] if segment.copies == 1 => Some((segment, split.axis)),
            _ => None,
        });
        let Some((segment, axis)) = columns else {
            let whole = self.whole(&x)?;
            return Ok(Box::new(move || Ok(whole)));
        };
        let sizes: Vec<usize> = (0..members).map(|member| segment.range(member, members).len()).collect();
        let coming = self.gather().gather_beside(&x.parts, &sizes, axis)?;
        Ok(Box::new(|| Ok(GroupTensor::of(coming()?, None))))
    }

    /// Each segment put together, then all of them.
    fn segments_whole(
        &self,
        x: &GroupTensor<B>,
        segments: &[Segment],
        split: &Split,
    ) -> Result<Vec<B::Tensor>, KernelError> {
        let (members, mut begun) = (self.members.len(), vec![0; self.members.len()]);
        let mut all: Vec<Vec<B::Tensor>> = vec![Vec::new(); members];
        for segment in segments {
            let parts = self.each(|at, member| {
                let own = segment.range(at, members).len();
                member.narrow(&x.parts[at], split.axis, begun[at], begun[at] + own)
            })?;
            begun.iter_mut().enumerate().for_each(|(at, begun)| *begun += segment.range(at, members).len());
            let whole = self.segment_whole(&parts, *segment, split.axis)?;
            all.iter_mut().zip(whole).for_each(|(all, whole)| all.push(whole));
        }
        self.alike(|at, member| member.concat(&all[at], split.axis))
    }

    fn segment_whole(&self, parts: &[B::Tensor], segment: Segment, axis: usize) -> Result<Vec<B::Tensor>, KernelError> {
        let members = self.members.len();
        if segment.copies == members {
            return Ok(parts.to_vec());
        }
        let sizes: Vec<usize> = (0..members).map(|member| segment.range(member, members).len()).collect();
        let gathered = self.gathered(parts, &sizes, axis)?;
        if segment.copies == 1 {
            return Ok(gathered);
        }
        // Of those that have the same, the first.
        self.alike(|at, member| {
            let mut start = 0;
            let mut once = Vec::new();
            for (of, size) in sizes.iter().enumerate() {
                if of % segment.copies == 0 {
                    once.push(member.narrow(&gathered[at], axis, start, start + size)?);
                }
                start += size;
            }
            member.concat(&once, axis)
        })
    }

    /// The same tensor as `layout` says.
    pub(super) fn dealt(&self, x: &GroupTensor<B>, layout: &Layout) -> Result<GroupTensor<B>, KernelError> {
        if let Some(same) = [Some(x), x.before.as_deref()].into_iter().flatten().find(|x| x.layout == *layout) {
            return Ok(same.clone());
        }
        let whole = self.whole(x)?;
        let Some(split) = layout else { return Ok(whole) };
        let shape = self.first().shape(&whole.parts[0]);
        if shape.get(split.axis) != Some(&split.size()) {
            let expected = format!("{} elements along axis {}", split.size(), split.axis);
            return Err(KernelError::shape("device_group", expected, &[&shape]));
        }
        self.spread(layout.clone(), |at, member| {
            let narrow =
                |range: &std::ops::Range<usize>| member.narrow(&whole.parts[at], split.axis, range.start, range.end);
            let mut parts = split.ranges(at).iter().map(narrow).collect::<Result<Vec<_>, _>>()?;
            if parts.len() == 1 { Ok(parts.remove(0)) } else { member.concat(&parts, split.axis) }
        })
    }

    /// Several tensors, all as the first of them that is dealt out.
    pub(super) fn aligned(&self, tensors: &[&GroupTensor<B>]) -> Result<Vec<GroupTensor<B>>, KernelError> {
        let layout = tensors.iter().find_map(|tensor| tensor.layout.clone());
        tensors.iter().map(|tensor| self.dealt(tensor, &layout)).collect()
    }
}
