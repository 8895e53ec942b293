//! Tensors of a group as they travel: read from whichever device has the piece, as if one device had all.

use super::members::DeviceGroup;
use super::spread::GroupTensor;
use crate::KernelError;
use crate::backend::{Backend, ComputeDevice, RawBytes, TensorOps, WireOps};

/// Where bytes are read: `len` of them, which begin at `start` of the whole, from `from` on of those of a member.
struct Run {
    start: usize,
    len: usize,
    member: usize,
    from: usize,
}

struct GroupRaw<'a> {
    members: Vec<Box<dyn RawBytes + 'a>>,
    /// In order, without gaps.
    runs: Vec<Run>,
}

impl RawBytes for GroupRaw<'_> {
    fn size(&self) -> usize {
        self.runs.last().map_or(0, |run| run.start + run.len)
    }

    fn read(&self, start: usize, to: &mut [u8]) -> Result<(), KernelError> {
        let first = self.runs.partition_point(|run| run.start + run.len <= start);
        let (mut at, mut left) = (start, to);
        for run in &self.runs[first..] {
            if left.is_empty() {
                break;
            }
            let within = at - run.start;
            let (piece, rest) = left.split_at_mut(left.len().min(run.len - within));
            self.members[run.member].read(run.from + within, piece)?;
            at += piece.len();
            left = rest;
        }
        Ok(())
    }
}

/// Those bytes of `pieces`, one behind the other, that lie in a range of them all.
fn cut<'a>(pieces: &[&'a [u8]], start: usize, end: usize) -> Vec<&'a [u8]> {
    let mut at = 0;
    let within = |piece: &&'a [u8]| {
        let (from, to) = (start.clamp(at, at + piece.len()) - at, end.clamp(at, at + piece.len()) - at);
        at += piece.len();
        (from < to).then(|| &piece[from..to])
    };
    pieces.iter().filter_map(within).collect()
}

/// Whether a member's part of a tensor is read.
fn is_read<B: Backend>(tensor: &GroupTensor<B>, member: usize) -> bool {
    match &tensor.layout {
        None => member == 0,
        Some(split) => split.sources().iter().any(|(of, _)| *of == member),
    }
}

impl<B: Backend> DeviceGroup<B> {
    /// How the bytes of some tensors lie on the members.
    fn runs(&self, tensors: &[GroupTensor<B>]) -> Vec<Run> {
        let (element, mut start) = (self.dtype().size(), 0);
        let (mut begun, mut runs) = (vec![0; self.members.len()], Vec::new());
        for tensor in tensors {
            let shape = self.shape(tensor);
            let bytes = |sizes: &[usize]| element * sizes.iter().product::<usize>();
            let mut run = |member: usize, from: usize, len: usize| {
                if len > 0 {
                    runs.push(Run { start, len, member, from });
                    start += len;
                }
            };
            let Some(split) = &tensor.layout else {
                run(0, begun[0], bytes(&shape));
                begun[0] += bytes(&shape);
                continue;
            };
            let (outer, inner) = (shape[..split.axis].iter().product(), bytes(&shape[split.axis + 1..]));
            let sources = split.sources();
            for row in 0..outer {
                for (member, range) in &sources {
                    let from = begun[*member] + (row * split.local(*member) + range.start) * inner;
                    run(*member, from, range.len() * inner);
                }
            }
            for (member, begun) in begun.iter_mut().enumerate().filter(|(member, _)| is_read(tensor, *member)) {
                *begun += outer * split.local(member) * inner;
            }
        }
        runs
    }
}

impl<B: Backend> WireOps for DeviceGroup<B> {
    fn raw(&self, tensors: &[GroupTensor<B>]) -> Result<Box<dyn RawBytes + '_>, KernelError> {
        let mut members = Vec::with_capacity(self.members.len());
        for (at, member) in self.members.iter().enumerate() {
            let read = tensors.iter().filter(|tensor| is_read(tensor, at));
            let parts = read.map(|tensor| tensor.part(at).cloned()).collect::<Result<Vec<B::Tensor>, _>>()?;
            members.push(member.raw(&parts)?);
        }
        Ok(Box::new(GroupRaw { members, runs: self.runs(tensors) }))
    }

    fn upload_raw(&self, shape: &[usize], pieces: &[&[u8]]) -> Result<GroupTensor<B>, KernelError> {
        let layout = match shape {
            [heads, _, _] if *heads == self.heads.kv => {
                self.segments(self.heads.query, *heads).keys(self.members.len())
            }
            _ => None,
        };
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        let Some(split) = layout.clone().filter(|_| all.is_multiple_of(shape[0])) else {
            return self.spread(None, |_, member| member.upload_raw(shape, pieces));
        };
        let head = all / shape[0];
        self.spread(layout, |at, member| {
            let own = split.ranges(at).swap_remove(0);
            member.upload_raw(&[own.len(), shape[1], shape[2]], &cut(pieces, own.start * head, own.end * head))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::{HeadOps, Rotary};
    use crate::{Cpu, CpuOptions, DType, Heads};

    fn group(heads: Heads, devices: usize) -> DeviceGroup<Cpu> {
        let cpu = |_| {
            let options = CpuOptions { dtype: DType::Bf16, threads: Some(1), ..CpuOptions::default() };
            Arc::new(Cpu::new(options).unwrap())
        };
        DeviceGroup::new((0..devices).map(cpu).collect(), heads).unwrap()
    }

    /// What travels is what one device sends, whatever each of several has, and comes back as each needs it.
    #[test]
    fn tensors_travel_as_those_of_one_device() {
        let heads = Heads { query: 8, kv: 2, dim: 4 };
        let values = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 64.0 - 0.5).collect::<Vec<_>>();
        let one = group(heads, 1);
        let of = |group: &DeviceGroup<Cpu>| {
            let qkv = group.cast(&group.upload(&[3, 48], &values(3 * 48)).unwrap()).unwrap();
            let (q, k, v) = group.split_rotate(&qkv, heads, &[5, 6, 7], Rotary::plain(&[0.5, 0.1])).unwrap();
            let rows = group.row_major(&q).unwrap();
            [k, rows, qkv, v]
        };
        let expected = one.raw(&of(&one)).unwrap().whole().unwrap();
        for devices in [2, 4, 8] {
            let group = group(heads, devices);
            let tensors = of(&group);
            let raw = group.raw(&tensors).unwrap();
            assert_eq!(raw.whole().unwrap(), expected, "{devices} devices");
            for (start, length) in [(0, 1), (7, 100), (expected.len() - 5, 5)] {
                let mut piece = vec![0; length];
                raw.read(start, &mut piece).unwrap();
                assert_eq!(piece, expected[start..start + length], "{devices} devices");
            }
            let bytes = group.raw(&tensors[..1]).unwrap().whole().unwrap();
            let come = group.upload_raw(&[2, 3, 4], &[&bytes[..14], &bytes[14..]]).unwrap();
            assert_eq!(come.layout, tensors[0].layout, "each has its own heads");
            assert_eq!(group.download(&come).unwrap(), group.download(&tensors[0]).unwrap());
        }
    }

    #[test]
    fn pieces_are_cut_where_they_lie() {
        let pieces: [&[u8]; 3] = [&[0, 1, 2], &[], &[3, 4, 5, 6]];
        assert_eq!(cut(&pieces, 2, 5), [&[2][..], &[3, 4]]);
        assert_eq!(cut(&pieces, 0, 7).concat(), [0, 1, 2, 3, 4, 5, 6]);
        assert!(cut(&pieces, 3, 3).is_empty());
    }
}
