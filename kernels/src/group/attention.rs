//! Keys and values by KV heads, and attention of each device's heads.

use std::ops::Range;

use super::heads::HeadSegments;
use super::layout::{Layout, Segment};
use super::members::DeviceGroup;
use super::spread::GroupTensor;
use crate::backend::{AttentionOps, Backend, KvOps, Partial, SelectionOps, Sparse, TensorOps};
use crate::{KernelError, KeySets, Mask, Selection, Selector};

/// Keys and values of one layer, by KV heads.
pub struct GroupKv<B: Backend> {
    pub(super) parts: Vec<B::Kv>,
    heads: usize,
    layout: Layout,
}

impl<B: Backend> Clone for GroupKv<B> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), heads: self.heads, layout: self.layout.clone() }
    }
}

impl<B: Backend> DeviceGroup<B> {
    fn heads_of(&self, x: &GroupTensor<B>) -> usize {
        self.shape(x).first().copied().unwrap_or(0)
    }

    /// Queries as their keys lie.
    fn queries(&self, q: &GroupTensor<B>, kv: usize) -> Result<GroupTensor<B>, KernelError> {
        let segments = self.segments(self.heads_of(q), kv);
        self.dealt(q, &segments.queries(self.members.len()))
    }

    /// What each has of attention of queries that lie so.
    fn partial(of: Vec<Partial<B::Tensor>>, layout: &Layout) -> Partial<GroupTensor<B>> {
        let (output, lse) = of.into_iter().map(|Partial { output, lse }| (output, lse)).unzip();
        Partial { output: GroupTensor::of(output, layout.clone()), lse: GroupTensor::of(lse, layout.clone()) }
    }
}

impl<B: Backend> KvOps for DeviceGroup<B> {
    type Kv = GroupKv<B>;

    fn kv(&self, k: &GroupTensor<B>, v: &GroupTensor<B>) -> Result<GroupKv<B>, KernelError> {
        let heads = self.heads_of(k);
        let layout = self.segments(self.heads.query, heads).keys(self.members.len());
        let (k, v) = (self.dealt(k, &layout)?, self.dealt(v, &layout)?);
        let parts = match layout {
            None => self.alike(|at, member| member.kv(k.part(at)?, v.part(at)?))?,
            Some(_) => self.each(|at, member| member.kv(k.part(at)?, v.part(at)?))?,
        };
        Ok(GroupKv { parts, heads, layout })
    }

    fn kv_append(&self, kv: &mut GroupKv<B>, k: &GroupTensor<B>, v: &GroupTensor<B>) -> Result<(), KernelError> {
        let (k, v) = (self.dealt(k, &kv.layout)?, self.dealt(v, &kv.layout)?);
        for (at, (part, member)) in kv.parts.iter_mut().zip(&self.members).enumerate() {
            member.kv_append(part, k.part(at)?, v.part(at)?)?;
        }
        Ok(())
    }

    fn kv_append_each(
        &self,
        caches: Vec<(&mut GroupKv<B>, Range<usize>)>,
        k: &GroupTensor<B>,
        v: &GroupTensor<B>,
    ) -> Result<(), KernelError> {
        let Some((first, _)) = caches.first() else { return Ok(()) };
        let (k, v) = (self.dealt(k, &first.layout)?, self.dealt(v, &first.layout)?);
        let mut of_members: Vec<Vec<_>> = self.members.iter().map(|_| Vec::with_capacity(caches.len())).collect();
        for (kv, rows) in caches {
            let parts = of_members.iter_mut().zip(&mut kv.parts);
            parts.for_each(|(of_member, part)| of_member.push((part, rows.clone())));
        }
        for ((member, own), (k, v)) in self.members.iter().zip(of_members).zip(k.parts()?.iter().zip(v.parts()?)) {
            member.kv_append_each(own, k, v)?;
        }
        Ok(())
    }

    fn kv_extend(&self, kv: &mut GroupKv<B>, more: &GroupKv<B>) -> Result<(), KernelError> {
        if (kv.heads, &kv.layout) != (more.heads, &more.layout) {
            let expected = format!("a cache of {} KV heads, dealt alike", kv.heads);
            return Err(KernelError::shape("kv_extend", expected, &[&[more.heads]]));
        }
        for ((part, more), member) in kv.parts.iter_mut().zip(&more.parts).zip(&self.members) {
            member.kv_extend(part, more)?;
        }
        Ok(())
    }

    fn kv_joined(&self, first: &GroupKv<B>, others: &[&GroupKv<B>], more: usize) -> Result<GroupKv<B>, KernelError> {
        if let Some(other) = others.iter().find(|other| (other.heads, &other.layout) != (first.heads, &first.layout)) {
            let expected = format!("caches of {} KV heads, dealt alike", first.heads);
            return Err(KernelError::shape("kv_joined", expected, &[&[other.heads]]));
        }
        let parts = self.each(|at, member| {
            let others: Vec<&B::Kv> = others.iter().map(|other| &other.parts[at]).collect();
            member.kv_joined(&first.parts[at], &others, more)
        })?;
        Ok(GroupKv { parts, ..first.clone() })
    }

    fn kv_truncate(&self, kv: &mut GroupKv<B>, len: usize) -> Result<(), KernelError> {
        let mut parts = kv.parts.iter_mut().zip(&self.members);
        parts.try_for_each(|(part, member)| member.kv_truncate(part, len))
    }

    fn kv_rows(&self, kv: &GroupKv<B>, start: usize, end: usize) -> Result<GroupKv<B>, KernelError> {
        let parts = self.each(|at, member| member.kv_rows(&kv.parts[at], start, end))?;
        Ok(GroupKv { parts, ..kv.clone() })
    }

    fn kv_tensors(&self, kv: &GroupKv<B>) -> Result<[GroupTensor<B>; 2], KernelError> {
        let both = self.members.iter().zip(&kv.parts).map(|(member, part)| member.kv_tensors(part));
        let (keys, values) = both.map(|both| both.map(|[k, v]| (k, v))).collect::<Result<(Vec<_>, Vec<_>), _>>()?;
        Ok([keys, values].map(|parts| GroupTensor::of(parts, kv.layout.clone())))
    }

    fn kv_len(&self, kv: &GroupKv<B>) -> usize {
        self.first().kv_len(&kv.parts[0])
    }

    fn kv_bytes(&self, kv: &GroupKv<B>) -> usize {
        self.members.iter().zip(&kv.parts).map(|(member, part)| member.kv_bytes(part)).sum()
    }
}

impl<B: Backend> DeviceGroup<B> {
    /// What each member makes of its queries and keys.
    fn attended(
        &self,
        q: &GroupTensor<B>,
        kv: &GroupKv<B>,
        attend: impl Fn(&B, &B::Tensor, &B::Kv) -> Result<Partial<B::Tensor>, KernelError> + Sync,
    ) -> Result<Partial<GroupTensor<B>>, KernelError> {
        let q = self.queries(q, kv.heads)?;
        let each = self.each_of(q.like(), |at, member| attend(member, q.part(at)?, &kv.parts[at]))?;
        Ok(Self::partial(each, &q.layout))
    }
}

impl<B: Backend> AttentionOps for DeviceGroup<B> {
    fn independent_rows(&self) -> usize {
        self.first().independent_rows()
    }

    fn attention(
        &self,
        q: &GroupTensor<B>,
        kv: &GroupKv<B>,
        mask: Mask,
    ) -> Result<Partial<GroupTensor<B>>, KernelError> {
        self.attended(q, kv, |member, q, kv| member.attention(q, kv, mask))
    }

    fn attention_together(
        &self,
        q: &GroupTensor<B>,
        kv: &GroupKv<B>,
        mask: Mask,
    ) -> Result<Partial<GroupTensor<B>>, KernelError> {
        self.attended(q, kv, |member, q, kv| member.attention_together(q, kv, mask))
    }

    fn attention_each(&self, calls: &[(GroupTensor<B>, GroupKv<B>, Mask)]) -> Result<Vec<GroupTensor<B>>, KernelError> {
        let queries = calls.iter().map(|(q, kv, _)| self.queries(q, kv.heads)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = queries.first() else { return Ok(Vec::new()) };
        let each = self.each_of(first.like(), |at, member| {
            let own = queries.iter().zip(calls);
            let own = own.map(|(q, (_, kv, mask))| Ok((q.part(at)?.clone(), kv.parts[at].clone(), *mask)));
            member.attention_each(&own.collect::<Result<Vec<_>, KernelError>>()?)
        })?;
        let mut outputs: Vec<Vec<B::Tensor>> = queries.iter().map(|_| Vec::new()).collect();
        for of_member in each {
            outputs.iter_mut().zip(of_member).for_each(|(outputs, output)| outputs.push(output));
        }
        Ok(outputs.into_iter().zip(queries).map(|(parts, q)| GroupTensor::of(parts, q.layout)).collect())
    }

    fn merge(&self, partials: &[Partial<GroupTensor<B>>]) -> Result<Partial<GroupTensor<B>>, KernelError> {
        let outputs = self.aligned(&partials.iter().map(|partial| &partial.output).collect::<Vec<_>>())?;
        let layout = outputs.first().and_then(|output| output.layout.clone());
        let lses = partials.iter().map(|partial| self.dealt(&partial.lse, &layout)).collect::<Result<Vec<_>, _>>()?;
        let each = self.each(|at, member| {
            let own = outputs.iter().zip(&lses);
            let own =
                own.map(|(output, lse)| Ok(Partial { output: output.part(at)?.clone(), lse: lse.part(at)?.clone() }));
            member.merge(&own.collect::<Result<Vec<_>, KernelError>>()?)
        })?;
        Ok(Self::partial(each, &layout))
    }
}

impl<B: Backend> SelectionOps for DeviceGroup<B> {
    fn key_scores(&self, q: &GroupTensor<B>, k: &GroupTensor<B>) -> Result<Vec<f32>, KernelError> {
        let (members, segments) = (self.members.len(), self.segments(self.heads_of(q), self.heads_of(k)));
        // A key's score is the mean over all query heads of its own: whoever has it has these.
        let queries = HeadSegments { query: Segment { copies: segments.kv.copies, ..segments.query }, ..segments };
        let (q, k) = (self.dealt(q, &queries.queries(members))?, self.dealt(k, &segments.keys(members))?);
        let mut scores = self.each(|at, member| member.key_scores(q.part(at)?, k.part(at)?))?;
        let Some(split) = &k.layout else { return Ok(scores.swap_remove(0)) };
        let keys = self.shape(&k).get(1).copied().unwrap_or(0);
        Ok(split.whole((1, keys), &scores))
    }

    fn attention_selected(
        &self,
        q: &GroupTensor<B>,
        kv: &GroupKv<B>,
        keys: &KeySets,
    ) -> Result<Partial<GroupTensor<B>>, KernelError> {
        let q = self.queries(q, kv.heads)?;
        let each = match q.layout.as_ref().filter(|split| split.size() == keys.heads()) {
            None => self.each(|at, member| member.attention_selected(q.part(at)?, &kv.parts[at], keys))?,
            Some(split) => self.each(|at, member| {
                let own = keys.of_heads(split.ranges(at).swap_remove(0));
                member.attention_selected(q.part(at)?, &kv.parts[at], &own)
            })?,
        };
        Ok(Self::partial(each, &q.layout))
    }

    fn attention_by(&self, q: &GroupTensor<B>, kv: &GroupKv<B>, selector: Selector) -> Sparse<'_, Self> {
        let q = self.queries(q, kv.heads)?;
        let (mut partials, mut selections) = (Vec::new(), Vec::new());
        // One after the other: what they selected stays where it is, and is no thread's to hand on.
        for ((member, q), kv) in self.members.iter().zip(q.parts()?).zip(&kv.parts) {
            let (partial, selection) = member.attention_by(q, kv, selector)?;
            partials.push(partial);
            selections.push(selection);
        }
        let is_own = |at: usize| q.layout.as_ref().map_or(at == 0, |split| split.is_source(at));
        let own = selections.into_iter().enumerate().filter(|(at, _)| is_own(*at)).map(|(_, own)| own);
        Ok((Self::partial(partials, &q.layout), Selection::joined(own.collect())))
    }
}
