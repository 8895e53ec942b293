//! Attention of a step's batch, each device for its heads of every row.

use super::attention::GroupKv;
use super::heads::HeadSegments;
use super::layout::Layout;
use super::members::DeviceGroup;
use super::spread::GroupTensor;
use crate::backend::{Backend, BatchAttention, StepLayers};
use crate::{Ask, Heads, KernelError, Merging, StepSequence};

/// What a member is asked of what the group is.
fn own<'a, B: Backend>(asks: &'a [Ask<'_, GroupKv<B>>], member: usize) -> Vec<Ask<'a, B::Kv>> {
    let own = |ask: &'a Ask<'_, GroupKv<B>>| Ask {
        kv: &ask.kv.parts[member],
        rows: ask.rows.clone(),
        mask: ask.mask,
        holes: ask.holes,
    };
    asks.iter().map(own).collect()
}

impl<B: Backend> DeviceGroup<B> {
    /// Rows of queries as their heads' keys lie, and how.
    fn query_rows(&self, heads: Heads, q: &GroupTensor<B>) -> Result<(GroupTensor<B>, HeadSegments), KernelError> {
        let segments = self.segments(heads.query, heads.kv);
        Ok((self.dealt(q, &segments.rows(heads.dim, self.members.len()))?, segments))
    }

    fn packed_layout(&self, heads: Heads, segments: HeadSegments) -> Layout {
        segments.packed(heads.dim, self.members.len())
    }
}

/// A step that each device has laid out for its heads.
struct GroupLayers<'a, B: Backend> {
    group: &'a DeviceGroup<B>,
    each: Vec<Box<dyn StepLayers<B> + 'a>>,
    heads: Heads,
    segments: HeadSegments,
}

impl<B: Backend> StepLayers<DeviceGroup<B>> for GroupLayers<'_, B> {
    fn attend(&mut self, layer: usize, [q, k, v]: [&GroupTensor<B>; 3]) -> Result<GroupTensor<B>, KernelError> {
        let (group, members) = (self.group, self.group.members.len());
        let rows = self.segments.rows(self.heads.dim, members);
        let (q, keys) = (group.dealt(q, &rows)?, self.segments.keys(members));
        let (k, v) = (group.dealt(k, &keys)?, group.dealt(v, &keys)?);
        let steps = self.each.iter_mut().collect();
        let parts = group.each_with(steps, |at, _, step: &mut Box<dyn StepLayers<B> + '_>| {
            step.attend(layer, [q.part(at)?, k.part(at)?, v.part(at)?])
        })?;
        Ok(GroupTensor::of(parts, rows))
    }
}

/// What each member has of the sequences.
fn of_members<'a, B: Backend>(
    members: usize,
    sequences: Vec<StepSequence<'a, GroupKv<B>>>,
) -> Vec<Vec<StepSequence<'a, B::Kv>>> {
    let mut each: Vec<Vec<_>> = (0..members).map(|_| Vec::with_capacity(sequences.len())).collect();
    for StepSequence { rows, shards, own, own_keys, own_mask } in sequences {
        let mut owns: Vec<Vec<&mut B::Kv>> = (0..members).map(|_| Vec::with_capacity(own.len())).collect();
        for kv in own {
            owns.iter_mut().zip(&mut kv.parts).for_each(|(own, part)| own.push(part));
        }
        for (at, (each, own)) in each.iter_mut().zip(owns).enumerate() {
            let parts = |layers: &Vec<&'a GroupKv<B>>| layers.iter().map(|kv| &kv.parts[at]).collect();
            let shards = shards.iter().map(|(layers, mask)| (parts(layers), *mask)).collect();
            each.push(StepSequence { rows: rows.clone(), shards, own, own_keys, own_mask });
        }
    }
    each
}

impl<B: Backend> BatchAttention for DeviceGroup<B> {
    fn lays_steps(&self, rows: usize) -> bool {
        self.first().lays_steps(rows)
    }

    fn lay_step<'a>(
        &'a self,
        heads: Heads,
        layers: usize,
        sequences: Vec<StepSequence<'a, GroupKv<B>>>,
        merging: &Merging,
    ) -> Result<Option<Box<dyn StepLayers<Self> + 'a>>, KernelError> {
        let (segments, members) = (self.segments(heads.query, heads.kv), self.members.len());
        let each = self.each_with(of_members(members, sequences), |at, _, sequences| {
            let heads = segments.local(at, members, heads.dim);
            self.members[at].lay_step(heads, layers, sequences, merging)
        })?;
        let each: Option<Vec<_>> = each.into_iter().collect();
        Ok(each.map(|each| -> Box<dyn StepLayers<Self> + 'a> {
            Box::new(GroupLayers { group: self, each, heads, segments })
        }))
    }

    fn attend_many(
        &self,
        heads: Heads,
        q: &GroupTensor<B>,
        asks: &[Ask<'_, GroupKv<B>>],
        packed: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        let (q, segments) = self.query_rows(heads, q)?;
        let each = self.each(|at, member| {
            let mut packed = Vec::new();
            let heads = segments.local(at, self.members.len(), heads.dim);
            member.attend_many(heads, q.part(at)?, &own(asks, at), &mut packed)?;
            Ok(packed)
        })?;
        match self.packed_layout(heads, segments) {
            None => packed.extend_from_slice(&each[0]),
            Some(split) => {
                let rows = each[0].len() / split.local(0);
                packed.append(&mut split.whole((rows, 1), &each));
            }
        }
        Ok(())
    }

    fn attend_rows(
        &self,
        heads: Heads,
        q: &GroupTensor<B>,
        (asks, groups): (&[Ask<'_, GroupKv<B>>], &[usize]),
    ) -> Result<GroupTensor<B>, KernelError> {
        let (q, segments) = self.query_rows(heads, q)?;
        self.spread(self.packed_layout(heads, segments), |at, member| {
            let heads = segments.local(at, self.members.len(), heads.dim);
            member.attend_rows(heads, q.part(at)?, (&own(asks, at), groups))
        })
    }

    fn attend_tree(
        &self,
        heads: Heads,
        q: &GroupTensor<B>,
        (asks, given): (&[Ask<'_, GroupKv<B>>], &[GroupTensor<B>]),
        merging: &Merging,
    ) -> Result<GroupTensor<B>, KernelError> {
        let (q, segments) = self.query_rows(heads, q)?;
        let packed = self.packed_layout(heads, segments);
        let given = given.iter().map(|rows| self.dealt(rows, &packed)).collect::<Result<Vec<_>, _>>()?;
        self.spread(segments.rows(heads.dim, self.members.len()), |at, member| {
            let given = given.iter().map(|rows| rows.part(at).cloned()).collect::<Result<Vec<_>, _>>()?;
            let heads = segments.local(at, self.members.len(), heads.dim);
            member.attend_tree(heads, q.part(at)?, (&own(asks, at), &given), merging)
        })
    }

    /// They are on the host: all of them on each.
    fn merge_packed(&self, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<GroupTensor<B>, KernelError> {
        self.spread(None, |_, member| member.merge_packed(heads, parts))
    }

    fn merge_rows(&self, heads: Heads, parts: &[Vec<&[f32]>], packed: &mut Vec<f32>) -> Result<(), KernelError> {
        self.first().merge_rows(heads, parts, packed)
    }
}
