//! What a group is as a device, and its tensors' moves.

use std::sync::Arc;
use std::time::Duration;

use super::layout::Split;
use super::members::DeviceGroup;
use super::spread::GroupTensor;
use crate::backend::{Backend, Collectives, ComputeDevice, Exported, Mark, TensorOps, WorkQueue};
use crate::{DType, KernelError, PriorityGuard, Rank};

impl<B: Backend> ComputeDevice for DeviceGroup<B> {
    fn dtype(&self) -> DType {
        self.first().dtype()
    }

    fn numerics(&self) -> String {
        let (one, devices) = (self.first().numerics(), self.members.len());
        match self.first().parts_keep_bits() {
            true => one,
            false => format!("{one} tensor parallel {devices}"),
        }
    }

    fn health(&self) -> Result<(), KernelError> {
        self.members.iter().try_for_each(|member| member.health())
    }

    fn is_beside(&self, other: &Self) -> bool {
        self.members.len() == other.members.len()
            && self.members.iter().zip(&other.members).all(|(one, other)| one.is_beside(other))
    }

    fn another(&self) -> Result<Option<Self>, KernelError> {
        let others = self.members.iter().map(|member| member.another()).collect::<Result<Option<Vec<_>>, _>>()?;
        others.map(|others| Self::new(others.into_iter().map(Arc::new).collect(), self.heads)).transpose()
    }
}

impl<B: Backend> WorkQueue for DeviceGroup<B> {
    fn queues(&self) -> bool {
        self.first().queues()
    }

    fn finish(&self) -> Result<(), KernelError> {
        self.members.iter().try_for_each(|member| member.finish())
    }

    fn mark(&self) -> Result<Mark, KernelError> {
        let marks = self.members.iter().map(|member| member.mark()).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(|| marks.into_iter().try_for_each(|mark| mark())))
    }

    fn priority(&self, rank: Rank) -> PriorityGuard {
        self.begin(rank)
    }

    fn await_turn(&self, interval: Duration) {
        self.members.iter().for_each(|member| member.await_turn(interval));
    }
}

impl<B: Backend> TensorOps for DeviceGroup<B> {
    type Tensor = GroupTensor<B>;

    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<GroupTensor<B>, KernelError> {
        self.spread(None, |_, member| member.upload(shape, values))
    }

    fn download(&self, tensor: &GroupTensor<B>) -> Result<Vec<f32>, KernelError> {
        let Some(split) = &tensor.layout else { return self.first().download(tensor.part(0)?) };
        let (shape, parts) = (self.shape(tensor), self.each(|at, member| member.download(tensor.part(at)?))?);
        let inner = shape[split.axis + 1..].iter().product();
        Ok(split.whole((shape[..split.axis].iter().product(), inner), &parts))
    }

    fn shape(&self, tensor: &GroupTensor<B>) -> Vec<usize> {
        let mut shape = self.first().shape(tensor.like());
        if let Some(split) = &tensor.layout {
            shape[split.axis] = split.size();
        }
        shape
    }

    fn cast(&self, tensor: &GroupTensor<B>) -> Result<GroupTensor<B>, KernelError> {
        self.spread(tensor.layout.clone(), |at, member| member.cast(tensor.part(at)?))
    }

    fn rows(&self, x: &GroupTensor<B>, start: usize, end: usize) -> Result<GroupTensor<B>, KernelError> {
        let x = if x.is_split_along(0) { self.whole(x)? } else { x.clone() };
        let parts = x.parts_of_rows(&(start..end))?;
        self.spread(x.layout.clone(), |at, member| member.rows(&parts[at], start, end))
    }

    fn narrow(&self, x: &GroupTensor<B>, axis: usize, start: usize, end: usize) -> Result<GroupTensor<B>, KernelError> {
        let x = if x.is_split_along(axis) { self.whole(x)? } else { x.clone() };
        self.spread(x.layout.clone(), |at, member| member.narrow(x.part(at)?, axis, start, end))
    }

    fn concat(&self, parts: &[GroupTensor<B>], axis: usize) -> Result<GroupTensor<B>, KernelError> {
        let one_by_one = |parts: &[GroupTensor<B>], layout| {
            self.spread(layout, |at, member| {
                let own = parts.iter().map(|part| part.part(at).cloned()).collect::<Result<Vec<_>, _>>()?;
                member.concat(&own, axis)
            })
        };
        if parts.iter().any(|part| part.is_split_along(axis)) {
            if !parts.iter().all(|part| part.is_split_along(axis)) {
                let whole = parts.iter().map(|part| self.whole(part)).collect::<Result<Vec<_>, _>>()?;
                return one_by_one(&whole, None);
            }
            // Each has its part of one behind its part of another.
            let segments = parts.iter().flat_map(|part| &part.layout).flat_map(|split| split.segments.clone());
            return one_by_one(parts, Split::layout(axis, segments.collect(), self.members.len()));
        }
        let aligned = self.aligned(&parts.iter().collect::<Vec<_>>())?;
        let layout = aligned.first().and_then(|part| part.layout.clone());
        one_by_one(&aligned, layout)
    }

    fn extended(&self, pairs: [[&GroupTensor<B>; 2]; 2]) -> Result<[GroupTensor<B>; 2], KernelError> {
        let pairs = pairs.as_flattened();
        if pairs.iter().any(|tensor| tensor.is_split_along(1)) {
            let [x, more, y, others] = [0, 1, 2, 3].map(|at| pairs[at].clone());
            return Ok([self.concat(&[x, more], 1)?, self.concat(&[y, others], 1)?]);
        }
        let aligned = self.aligned(pairs)?;
        let part = |of: usize, at: usize| aligned[of].part(at);
        let extended =
            self.each(|at, member| member.extended([[part(0, at)?, part(1, at)?], [part(2, at)?, part(3, at)?]]))?;
        let (one, other) = extended.into_iter().map(|[one, other]| (one, other)).unzip();
        let layout = &aligned[0].layout;
        Ok([GroupTensor::of(one, layout.clone()), GroupTensor::of(other, layout.clone())])
    }

    fn gather(&self, x: &GroupTensor<B>, rows: &[Vec<u32>]) -> Result<GroupTensor<B>, KernelError> {
        let x = match &x.layout {
            Some(split) if split.axis == 0 && split.size() == rows.len() => x.clone(),
            _ => self.whole(x)?,
        };
        let Some(split) = &x.layout else {
            return self.spread(None, |at, member| member.gather(x.part(at)?, rows));
        };
        self.spread(x.layout.clone(), |at, member| {
            let own: Vec<Vec<u32>> = split.ranges(at).into_iter().flat_map(|range| rows[range].to_vec()).collect();
            member.gather(x.part(at)?, &own)
        })
    }
}

impl<B: Backend> Collectives for DeviceGroup<B> {
    /// They share every step.
    fn shared_rows(&self) -> usize {
        0
    }

    fn put_together(&self, parts: &[GroupTensor<B>]) -> Result<GroupTensor<B>, KernelError> {
        match (self.on_their_way(parts)?, parts) {
            (Some(whole), _) => Ok(whole),
            (None, [part]) => Ok(part.clone()),
            (None, _) => self.concat(parts, 0),
        }
    }

    fn export(&self, tensors: Vec<GroupTensor<B>>) -> Result<Exported<Self>, KernelError> {
        let parts =
            |at: usize| tensors.iter().map(|tensor| tensor.part(at).cloned()).collect::<Result<Vec<_>, KernelError>>();
        let exported = self
            .members
            .iter()
            .enumerate()
            .map(|(at, member)| member.export(parts(at)?))
            .collect::<Result<Vec<_>, _>>()?;
        let layouts: Vec<_> = tensors.iter().map(|tensor| tensor.layout.clone()).collect();
        Ok(Box::new(move |to: &Self| {
            if to.members.len() != exported.len() {
                let expected = format!("a group of {} devices", exported.len());
                return Err(KernelError::shape("export", expected, &[&[to.members.len()]]));
            }
            let mut parts: Vec<Vec<B::Tensor>> = layouts.iter().map(|_| Vec::new()).collect();
            for (exported, member) in exported.iter().zip(&to.members) {
                parts.iter_mut().zip(exported(member)?).for_each(|(parts, part)| parts.push(part));
            }
            Ok(parts.into_iter().zip(&layouts).map(|(parts, layout)| GroupTensor::of(parts, layout.clone())).collect())
        }))
    }
}
