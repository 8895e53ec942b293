//! A tensor on all devices of a group, whole or dealt out, and how it comes from one layout to another.

use std::ops::Range;
use std::sync::Arc;

use super::arriving::Arriving;
use super::layout::{Layout, Segment, Split};
use super::members::DeviceGroup;
use crate::KernelError;
use crate::backend::{Backend, PendingFill};

/// A tensor on all devices of a group: whole on each, or dealt out along an axis.
pub struct GroupTensor<B: Backend> {
    /// Read by way of [`GroupTensor::parts`], which waits for what is on its way.
    parts: Arc<[B::Tensor]>,
    pub(super) layout: Layout,
    arriving: Option<Arc<Arriving>>,
}

impl<B: Backend> Clone for GroupTensor<B> {
    fn clone(&self) -> Self {
        Self { parts: Arc::clone(&self.parts), layout: self.layout.clone(), arriving: self.arriving.clone() }
    }
}

impl<B: Backend> GroupTensor<B> {
    pub(super) fn of(parts: Vec<B::Tensor>, layout: Layout) -> Self {
        Self { parts: parts.into(), layout, arriving: None }
    }

    /// Whole on each, but for rows that are on their way while the devices do what else they are asked.
    pub(super) fn arriving(wholes: Vec<B::Tensor>, pieces: Vec<(Range<usize>, PendingFill)>) -> Self {
        Self { arriving: Some(Arc::new(Arriving::of(pieces))), ..Self::of(wholes, None) }
    }

    /// What each device has, once its queue waits for what is on its way.
    pub(super) fn parts(&self) -> Result<&[B::Tensor], KernelError> {
        self.parts_of_rows(&(0..usize::MAX))
    }

    /// The same of a device.
    pub(super) fn part(&self, member: usize) -> Result<&B::Tensor, KernelError> {
        Ok(&self.parts()?[member])
    }

    /// What each device has, of which nothing but these rows is read.
    pub(super) fn parts_of_rows(&self, rows: &Range<usize>) -> Result<&[B::Tensor], KernelError> {
        self.arriving.iter().try_for_each(|arriving| arriving.wait_for(rows))?;
        Ok(&self.parts)
    }

    /// Of which nothing but its shape is read.
    pub(super) fn like(&self) -> &B::Tensor {
        &self.parts[0]
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
        Ok(GroupTensor::of(self.each_of(x.like(), work)?, layout))
    }

    /// The same tensor whole on each.
    pub(super) fn whole(&self, x: &GroupTensor<B>) -> Result<GroupTensor<B>, KernelError> {
        let Some(split) = &x.layout else { return Ok(x.clone()) };
        let whole = match &split.segments[..] {
            [segment] => self.segment_whole(x.parts()?, *segment, split.axis)?,
            segments => self.segments_whole(x, segments, split)?,
        };
        Ok(GroupTensor::of(whole, None))
    }

    /// How many elements along which axis each has, where none of them is another's, too.
    pub(super) fn portions(&self, x: &GroupTensor<B>) -> Option<(Vec<usize>, usize)> {
        self.portions_of(x.layout.as_deref()?)
    }

    /// The same of what is dealt out so.
    pub(super) fn portions_of(&self, split: &Split) -> Option<(Vec<usize>, usize)> {
        let members = self.members.len();
        match split.segments[..] {
            [segment] if segment.copies == 1 => {
                Some(((0..members).map(|member| segment.range(member, members).len()).collect(), split.axis))
            }
            _ => None,
        }
    }

    /// [`DeviceGroup::whole`] on its way while the devices do what else they are asked.
    pub(super) fn beside(&self, x: &GroupTensor<B>) -> Result<GroupTensor<B>, KernelError> {
        let Some((sizes, axis)) = self.portions(x) else { return self.whole(x) };
        let (wholes, coming) = self.gather().gather_beside(x.parts()?, &sizes, axis)?;
        Ok(GroupTensor::arriving(wholes, vec![(0..usize::MAX, coming)]))
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
                member.narrow(x.part(at)?, split.axis, begun[at], begun[at] + own)
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
        if x.layout == *layout {
            return Ok(x.clone());
        }
        let whole = self.whole(x)?;
        let Some(split) = layout else { return Ok(whole) };
        let shape = self.first().shape(whole.like());
        if shape.get(split.axis) != Some(&split.size()) {
            let expected = format!("{} elements along axis {}", split.size(), split.axis);
            return Err(KernelError::shape("device_group", expected, &[&shape]));
        }
        self.spread(layout.clone(), |at, member| {
            let part = whole.part(at)?;
            let narrow = |range: &Range<usize>| member.narrow(part, split.axis, range.start, range.end);
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
