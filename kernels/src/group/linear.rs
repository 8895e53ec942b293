//! Weights that are dealt out by outputs as they are loaded, and the products of which each device makes its own.

use std::iter;
use std::ops::Range;

use super::layout::{Layout, Segment, Split};
use super::members::DeviceGroup;
use super::spread::GroupTensor;
use crate::backend::{Backend, ElementwiseOps, GatheredLayer, HostTensor, LinearOps, TensorOps};
use crate::{DType, KernelError, RowChoice, RowToken, Stored};

/// A linear layer of which each device has some outputs.
pub struct GroupLinear<B: Backend> {
    parts: Vec<B::Linear>,
    /// Of what it gives, `(t, n)`.
    outputs: Layout,
}

/// Fewest and most rows of a piece, where devices which work off queues exchange one beside the products of others: of so few, products
/// keep them busy, though each device has but some of the columns; of more, nothing is gained.
const EXCHANGED_ROWS: [usize; 2] = [4096, 16_384];

/// Rows of a product's input, and what gives them when their turn comes.
type Piece<'a, B> = (Range<usize>, Box<dyn FnOnce() -> Result<GroupTensor<B>, KernelError> + 'a>);

/// So many rows in two or more pieces of so many at most, about as long: none of many is so short that it is computed otherwise.
fn pieces(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let each = rows.div_ceil(rows.div_ceil(most).max(2)).next_multiple_of(64).min(most);
    (0..rows).step_by(each.max(1)).map(move |start| start..rows.min(start + each))
}

/// What a member has of rows of a tensor that a checkpoint stores: no byte of another row is looked at.
fn rows<'a>(tensor: &HostTensor<'a>, rows: &Range<usize>) -> &'a [u8] {
    let row = tensor.bytes.len() / tensor.shape[0].max(1);
    &tensor.bytes[rows.start * row..rows.end * row]
}

/// How gates are dealt out, where what they open is dealt out alike: each device has both of an output.
fn pair(gate_up: &Layout) -> Option<Segment> {
    match gate_up.as_ref().map(|split| (split.axis, &split.segments[..])) {
        Some((1, [gate, up])) if gate == up => Some(*gate),
        _ => None,
    }
}

impl<B: Backend> DeviceGroup<B> {
    /// How the outputs of fused layers are dealt out: by heads where they are as wide as the model's.
    fn outputs(&self, parts: &[HostTensor<'_>]) -> Layout {
        let (members, widths) = (self.members.len(), parts.iter().map(|part| part.shape[0]).collect::<Vec<_>>());
        let heads = self.heads;
        if widths[..] == [heads.query, heads.kv, heads.kv].map(|count| count * heads.dim) {
            return self.segments(heads.query, heads.kv).qkv(heads.dim, members);
        }
        Split::layout(1, widths.into_iter().map(|width| Segment::columns(width, members)).collect(), members)
    }

    /// What each member makes of its rows of some tensors.
    fn by_rows<'a>(
        &self,
        parts: &[HostTensor<'a>],
        biases: &[HostTensor<'a>],
        prepare: impl Fn(&B, &[HostTensor<'_>], &[HostTensor<'_>]) -> Result<B::Linear, KernelError> + Sync,
    ) -> Result<GroupLinear<B>, KernelError> {
        let fits = biases.is_empty() || biases.len() == parts.len();
        if let Some(part) = parts.iter().find(|part| part.shape.len() != 2 || !fits) {
            let expected = "parts (n, k), and a bias (n) for each or none";
            return Err(KernelError::shape("linear_weight", expected, &[part.shape]));
        }
        let outputs = self.outputs(parts);
        let whole = || parts.iter().map(|part| 0..part.shape[0]).collect::<Vec<_>>();
        let members = self.members.len();
        let prepared = self.each(|at, member| {
            let ranges: Vec<Range<usize>> = match &outputs {
                None => whole(),
                Some(split) => split.segments.iter().map(|segment| segment.range(at, members)).collect(),
            };
            let shapes: Vec<[usize; 2]> =
                parts.iter().zip(&ranges).map(|(part, range)| [range.len(), part.shape[1]]).collect();
            let own: Vec<HostTensor<'_>> = parts
                .iter()
                .zip(&ranges)
                .zip(&shapes)
                .map(|((part, range), shape)| HostTensor { stored: part.stored, shape, bytes: rows(part, range) })
                .collect();
            let own_biases: Vec<HostTensor<'_>> = biases
                .iter()
                .zip(&ranges)
                .zip(&shapes)
                .map(|((bias, range), shape)| HostTensor {
                    stored: bias.stored,
                    shape: &shape[..1],
                    bytes: rows(bias, range),
                })
                .collect();
            prepare(member, &own, &own_biases)
        })?;
        Ok(GroupLinear { parts: prepared, outputs })
    }

    /// Whether so many rows are exchanged piece by piece.
    fn is_in_pieces(&self, rows: usize) -> bool {
        self.first().queues() && rows >= 2 * EXCHANGED_ROWS[0]
    }

    /// `residual (t, n)` plus the layer's outputs for `inputs`, which take turns at it: what it makes of one goes to all devices beside
    /// the next.
    fn added_by_pieces<'a>(
        &self,
        inputs: Vec<Piece<'a, B>>,
        weight: &GroupLinear<B>,
        residual: &GroupTensor<B>,
    ) -> Result<GroupTensor<B>, KernelError> {
        if let Some(sizes) = self.adds_in_place(weight, residual) {
            return self.added_in_place((inputs, &sizes), weight, residual);
        }
        let mut sums = Vec::with_capacity(inputs.len());
        for (rows, input) in inputs {
            let residual = self.rows(residual, rows.start, rows.end)?;
            sums.push(self.beside(&self.sum(&input()?, weight, &residual)?)?);
        }
        self.concat(&sums, 0)
    }

    /// Rows of `x (t, k)` in pieces of so many at most: those of all devices that each has some columns of are on their way at once.
    fn taken_by_pieces<'a>(&'a self, x: &'a GroupTensor<B>, piece: usize) -> Result<Vec<Piece<'a, B>>, KernelError> {
        let input = |rows: Range<usize>| -> Result<Piece<'a, B>, KernelError> {
            let of = rows.clone();
            if x.layout.is_none() {
                return Ok((of, Box::new(move || self.rows(x, rows.start, rows.end))));
            }
            let coming = self.beside(&self.rows(x, rows.start, rows.end)?)?;
            Ok((of, Box::new(move || Ok(coming))))
        };
        pieces(self.shape(x)[0], piece).map(input).collect()
    }

    /// Outputs of each device, where they can be written to where they belong, and the residual is whole.
    fn adds_in_place(&self, weight: &GroupLinear<B>, residual: &GroupTensor<B>) -> Option<Vec<usize>> {
        let (sizes, axis) = self.portions_of(weight.outputs.as_deref()?)?;
        let each = self.members.iter().zip(&weight.parts).all(|(member, part)| member.adds_into(part));
        (axis == 1 && each && residual.layout.is_none() && self.gather().fills()).then_some(sizes)
    }

    /// Each device's outputs of a piece in their place of the whole, and those of the others on their way.
    fn added_in_place<'a>(
        &self,
        (inputs, sizes): (Vec<Piece<'a, B>>, &[usize]),
        weight: &GroupLinear<B>,
        residual: &GroupTensor<B>,
    ) -> Result<GroupTensor<B>, KernelError> {
        let rows = self.shape(residual)[0];
        let to = self.each(|_, member| member.unfilled(rows, sizes.iter().sum()))?;
        let mut coming = Vec::with_capacity(inputs.len());
        for (rows, input) in inputs {
            let (x, residual) = (self.whole(&input()?)?, self.rows(residual, rows.start, rows.end)?);
            let wholes = self.each_of(x.like(), |at, member| {
                let (to, first) = (member.rows(&to[at], rows.start, rows.end)?, sizes[..at].iter().sum());
                member.linear_add_into(x.part(at)?, &weight.parts[at], [residual.part(at)?, &to], first)?;
                Ok(to)
            })?;
            coming.push((rows, self.gather().fill_beside(&wholes, sizes)?));
        }
        Ok(GroupTensor::arriving(to, coming))
    }

    /// `gated_silu` of the norm's product on its way to all: where each device's part can be written to its place, the others' come there.
    fn gated_beside(
        &self,
        x: &GroupTensor<B>,
        norm: (&GroupTensor<B>, f32),
        gate_up: &GroupLinear<B>,
    ) -> Result<GroupTensor<B>, KernelError> {
        let outputs = pair(&gate_up.outputs).and_then(|segment| Split::layout(1, vec![segment], self.members.len()));
        let sizes = outputs.as_deref().and_then(|split| self.portions_of(split)).filter(|_| self.gather().fills());
        let Some((sizes, _)) = sizes else { return self.beside(&self.norm_gated(x, norm, gate_up)?) };
        let product = self.norm_linear(x, norm, gate_up)?;
        self.filled(&sizes, iter::once(0..self.shape(x)[0]), product.like(), |at, member, to, first| {
            member.gated_silu_into(product.part(at)?, to, first)
        })
    }

    /// Columns that each device writes to their place of `(rows, all sizes)`, and those of the others on their way, piece by piece.
    fn filled(
        &self,
        sizes: &[usize],
        pieces: impl IntoIterator<Item = Range<usize>>,
        like: &B::Tensor,
        write: impl Fn(usize, &B, &B::Tensor, usize) -> Result<(), KernelError> + Sync,
    ) -> Result<GroupTensor<B>, KernelError> {
        let pieces: Vec<Range<usize>> = pieces.into_iter().collect();
        let rows = pieces.last().map_or(0, |last| last.end);
        let wholes = self.each_of(like, |at, member| {
            let to = member.unfilled(rows, sizes.iter().sum())?;
            write(at, member, &to, sizes[..at].iter().sum())?;
            Ok(to)
        })?;
        let coming = pieces.into_iter().map(|rows| {
            let piece = self.each(|at, member| member.rows(&wholes[at], rows.start, rows.end))?;
            Ok((rows, self.gather().fill_beside(&piece, sizes)?))
        });
        let coming = coming.collect::<Result<Vec<_>, KernelError>>()?;
        Ok(GroupTensor::arriving(wholes, coming))
    }

    /// Matrices one below the other, whose columns are dealt out alike, on their way to all devices; `None` where that is no help.
    pub(super) fn on_their_way(&self, parts: &[GroupTensor<B>]) -> Result<Option<GroupTensor<B>>, KernelError> {
        let rows = parts.iter().map(|part| self.shape(part)[0]).sum();
        let sizes = parts.first().and_then(|first| self.portions(first)).filter(|(_, axis)| *axis == 1);
        let alike = parts.iter().all(|part| part.layout == parts[0].layout);
        let (Some((sizes, _)), true, true) = (sizes, alike, self.is_in_pieces(rows)) else { return Ok(None) };
        if !self.gather().fills() {
            return Ok(None);
        }
        let write = |at: usize, member: &B, to: &B::Tensor, first: usize| {
            let own = parts.iter().map(|part| part.part(at).cloned()).collect::<Result<Vec<_>, _>>()?;
            member.rows_into(&own, to, first)
        };
        self.filled(&sizes, pieces(rows, EXCHANGED_ROWS[1]), parts[0].like(), write).map(Some)
    }

    /// What each device's layer makes of rows whose columns are dealt out, where there is a shorter way than to put them together first.
    fn of_columns<'a>(
        &self,
        x: &GroupTensor<B>,
        outputs: &Layout,
        layer: impl Fn(usize) -> GatheredLayer<'a, B>,
    ) -> Result<Option<GroupTensor<B>>, KernelError> {
        let Some((sizes, 1)) = self.portions(x) else { return Ok(None) };
        let layers: Vec<_> = (0..self.members.len()).map(layer).collect();
        let made = self.gather().gather_linear(x.parts()?, &sizes, &layers)?;
        Ok(made.map(|parts| GroupTensor::of(parts, outputs.clone())))
    }

    /// Each device's outputs for `x`, and their part of the residual.
    fn sum(
        &self,
        x: &GroupTensor<B>,
        weight: &GroupLinear<B>,
        residual: &GroupTensor<B>,
    ) -> Result<GroupTensor<B>, KernelError> {
        let residual = self.dealt(residual, &weight.outputs)?;
        let residuals = residual.parts()?;
        let added = |at: usize| GatheredLayer::LinearAdd(&weight.parts[at], residuals[at].clone());
        if let Some(sum) = self.of_columns(x, &weight.outputs, added)? {
            return Ok(sum);
        }
        let x = self.whole(x)?;
        self.spread_of(&x, weight.outputs.clone(), |at, member| {
            member.linear_add(x.part(at)?, &weight.parts[at], residuals[at].clone())
        })
    }

    /// Columns of a table `(rows, e)` that each member has: of every row some elements.
    fn by_columns(&self, table: &HostTensor<'_>, layout: &Layout) -> Result<GroupTensor<B>, KernelError> {
        let Some(split) = layout else { return self.spread(None, |_, member| member.weight(*table)) };
        let widened: Vec<u8>;
        let (dtype, all) = match table.stored {
            Stored::Plain(dtype) => (dtype, table.bytes),
            Stored::Blocks(_) => {
                widened = table.values().iter().flat_map(|value| value.to_le_bytes()).collect();
                (DType::F32, &widened[..])
            }
        };
        let ([count, width], element) = ([table.shape[0], table.shape[1]], dtype.size());
        self.spread(layout.clone(), |at, member| {
            let own = split.ranges(at).swap_remove(0);
            let mut bytes = Vec::with_capacity(count * own.len() * element);
            for row in all.chunks_exact(width * element) {
                bytes.extend_from_slice(&row[own.start * element..own.end * element]);
            }
            member.weight(HostTensor { stored: dtype.into(), shape: &[count, own.len()], bytes: &bytes })
        })
    }
}

impl<B: Backend> ElementwiseOps for DeviceGroup<B> {
    fn embed(&self, table: &GroupTensor<B>, ids: &[u32]) -> Result<GroupTensor<B>, KernelError> {
        self.spread(table.layout.clone(), |at, member| member.embed(table.part(at)?, ids))
    }

    fn rms_norm(&self, x: &GroupTensor<B>, weight: &GroupTensor<B>, eps: f32) -> Result<GroupTensor<B>, KernelError> {
        let last = self.shape(x).len().saturating_sub(1);
        let x = if x.is_split_along(last) { self.whole(x)? } else { x.clone() };
        self.spread(x.layout.clone(), |at, member| member.rms_norm(x.part(at)?, weight.part(at)?, eps))
    }

    fn gated_silu(&self, gate_up: &GroupTensor<B>) -> Result<GroupTensor<B>, KernelError> {
        let layout = match (&gate_up.layout, pair(&gate_up.layout)) {
            (None, _) => None,
            (_, Some(segment)) => Split::layout(1, vec![segment], self.members.len()),
            (Some(_), None) => return self.gated_silu(&self.whole(gate_up)?),
        };
        self.spread_of(gate_up, layout, |at, member| member.gated_silu(gate_up.part(at)?))
    }

    fn silu(&self, x: &GroupTensor<B>) -> Result<GroupTensor<B>, KernelError> {
        self.spread(x.layout.clone(), |at, member| member.silu(x.part(at)?))
    }

    fn choose_tokens(&self, logits: &GroupTensor<B>, choices: &[RowChoice]) -> Result<Vec<RowToken>, KernelError> {
        self.first().choose_tokens(self.whole(logits)?.part(0)?, choices)
    }
}

impl<B: Backend> LinearOps for DeviceGroup<B> {
    type Linear = GroupLinear<B>;

    fn linear_rows(&self) -> usize {
        // What comes first and last of so many is exchanged beside nothing.
        if self.first().queues() { 2 * EXCHANGED_ROWS[1] } else { self.first().linear_rows() }
    }

    fn weight(&self, tensor: HostTensor<'_>) -> Result<GroupTensor<B>, KernelError> {
        let members = self.members.len();
        let layout = match *tensor.shape {
            [_, e] => Split::layout(1, vec![Segment::columns(e, members)], members),
            _ => None,
        };
        self.by_columns(&tensor, &layout)
    }

    fn linear_weight(
        &self,
        parts: &[HostTensor<'_>],
        biases: &[HostTensor<'_>],
    ) -> Result<GroupLinear<B>, KernelError> {
        self.by_rows(parts, biases, |member, parts, biases| member.linear_weight(parts, biases))
    }

    fn head_weight(&self, weight: HostTensor<'_>) -> Result<GroupLinear<B>, KernelError> {
        self.by_rows(&[weight], &[], |member, parts, _| member.head_weight(parts[0]))
    }

    fn linear(&self, x: &GroupTensor<B>, weight: &GroupLinear<B>) -> Result<GroupTensor<B>, KernelError> {
        let x = self.whole(x)?;
        self.spread_of(&x, weight.outputs.clone(), |at, member| member.linear(x.part(at)?, &weight.parts[at]))
    }

    fn linear_add(
        &self,
        x: &GroupTensor<B>,
        weight: &GroupLinear<B>,
        residual: GroupTensor<B>,
    ) -> Result<GroupTensor<B>, KernelError> {
        let rows = self.shape(x).first().copied().unwrap_or(0);
        match self.is_in_pieces(rows) {
            true => self.added_by_pieces(self.taken_by_pieces(x, EXCHANGED_ROWS[1])?, weight, &residual),
            false => self.sum(x, weight, &residual),
        }
    }

    fn norm_linear(
        &self,
        x: &GroupTensor<B>,
        (norm, eps): (&GroupTensor<B>, f32),
        weight: &GroupLinear<B>,
    ) -> Result<GroupTensor<B>, KernelError> {
        let norms = norm.parts()?;
        let layer = |at: usize| GatheredLayer::NormLinear((&norms[at], eps), &weight.parts[at]);
        if let Some(made) = self.of_columns(x, &weight.outputs, layer)? {
            return Ok(made);
        }
        let x = self.whole(x)?;
        self.spread_of(&x, weight.outputs.clone(), |at, member| {
            member.norm_linear(x.part(at)?, (&norms[at], eps), &weight.parts[at])
        })
    }

    fn norm_gated(
        &self,
        x: &GroupTensor<B>,
        (norm, eps): (&GroupTensor<B>, f32),
        gate_up: &GroupLinear<B>,
    ) -> Result<GroupTensor<B>, KernelError> {
        let Some(segment) = pair(&gate_up.outputs) else {
            return self.gated_silu(&self.norm_linear(x, (norm, eps), gate_up)?);
        };
        let outputs = Split::layout(1, vec![segment], self.members.len());
        let norms = norm.parts()?;
        let layer = |at: usize| GatheredLayer::NormGated((&norms[at], eps), &gate_up.parts[at]);
        if let Some(made) = self.of_columns(x, &outputs, layer)? {
            return Ok(made);
        }
        let x = self.whole(x)?;
        self.spread_of(&x, outputs, |at, member| member.norm_gated(x.part(at)?, (&norms[at], eps), &gate_up.parts[at]))
    }

    fn norm_mlp(
        &self,
        x: &GroupTensor<B>,
        norm: (&GroupTensor<B>, f32),
        [gate_up, down]: [&GroupLinear<B>; 2],
    ) -> Result<GroupTensor<B>, KernelError> {
        let rows = self.shape(x).first().copied().unwrap_or(0);
        if !self.is_in_pieces(rows) {
            return self.sum(&self.norm_gated(x, norm, gate_up)?, down, x);
        }
        let x = self.whole(x)?;
        let gated = |rows: Range<usize>| -> Result<Piece<'_, B>, KernelError> {
            let coming = self.gated_beside(&self.rows(&x, rows.start, rows.end)?, norm, gate_up)?;
            Ok((rows, Box::new(move || Ok(coming))))
        };
        let gated = pieces(rows, EXCHANGED_ROWS[1]).map(gated).collect::<Result<Vec<_>, _>>()?;
        self.added_by_pieces(gated, down, &x)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::backend::{AllGather, Rendezvous};
    use crate::{Cpu, CpuOptions, DType, Heads};

    fn group_of_two() -> DeviceGroup<Cpu> {
        let cpu = || Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        DeviceGroup::new(vec![Arc::new(cpu()), Arc::new(cpu())], Heads { query: 2, kv: 1, dim: 16 }).unwrap()
    }

    fn values(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn layer(group: &DeviceGroup<Cpu>, parts: &[[usize; 2]]) -> GroupLinear<Cpu> {
        let bytes: Vec<Vec<u8>> =
            parts.iter().map(|[n, k]| values(n * k).iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
        let tensors: Vec<_> = parts
            .iter()
            .zip(&bytes)
            .map(|(shape, bytes)| HostTensor { stored: DType::F32.into(), shape, bytes })
            .collect();
        group.linear_weight(&tensors, &[]).unwrap()
    }

    type CpuTensor = <Cpu as TensorOps>::Tensor;

    /// What takes rows on their way to a layer, and how often it did.
    struct Shorter {
        cpu: Arc<Cpu>,
        meeting: Rendezvous<Cpu>,
        taken: Arc<AtomicUsize>,
    }

    impl AllGather<Cpu> for Shorter {
        fn gather(
            &self,
            member: usize,
            part: &CpuTensor,
            sizes: &[usize],
            axis: usize,
        ) -> Result<CpuTensor, KernelError> {
            self.meeting.gather(member, part, sizes, axis)
        }

        fn gather_all(&self, parts: &[CpuTensor], sizes: &[usize], axis: usize) -> Result<Vec<CpuTensor>, KernelError> {
            self.meeting.gather_all(parts, sizes, axis)
        }

        fn gather_linear(
            &self,
            parts: &[CpuTensor],
            sizes: &[usize],
            layers: &[GatheredLayer<'_, Cpu>],
        ) -> Result<Option<Vec<CpuTensor>>, KernelError> {
            self.taken.fetch_add(1, Ordering::Relaxed);
            let whole = self.gather_all(parts, sizes, 1)?;
            let made = |(x, layer): (&_, &GatheredLayer<'_, Cpu>)| match layer {
                GatheredLayer::NormLinear(norm, weight) => self.cpu.norm_linear(x, *norm, weight),
                GatheredLayer::NormGated(norm, weight) => self.cpu.norm_gated(x, *norm, weight),
                GatheredLayer::LinearAdd(weight, residual) => self.cpu.linear_add(x, weight, residual.clone()),
            };
            whole.iter().zip(layers).map(made).collect::<Result<_, _>>().map(Some)
        }

        fn abandon(&self) {}
    }

    #[test]
    fn rows_that_are_dealt_out_may_take_a_shorter_way_to_a_layer() {
        let mut group = group_of_two();
        let norm = group.upload(&[32], &values(32)).unwrap();
        let (qkv, gate_up, down) =
            (layer(&group, &[[48, 32]]), layer(&group, &[[64, 32], [64, 32]]), layer(&group, &[[32, 64]]));
        let table: Vec<u8> = values(9 * 32).iter().flat_map(|value| value.to_le_bytes()).collect();
        let table = HostTensor { stored: DType::F32.into(), shape: &[9, 32], bytes: &table };
        let table = group.weight(table).unwrap();
        let made = |group: &DeviceGroup<Cpu>| {
            let x = group.embed(&table, &[3, 8, 1]).unwrap();
            let y = group.norm_mlp(&x, (&norm, 1e-5), [&gate_up, &down]).unwrap();
            let z = group.norm_linear(&y, (&norm, 1e-5), &qkv).unwrap();
            [x, y, z].map(|x| group.download(&x).unwrap())
        };
        let (expected, taken) = (made(&group), Arc::new(AtomicUsize::new(0)));
        let shorter = Shorter {
            cpu: Arc::clone(&group.members[0]),
            meeting: Rendezvous::new(&group.members),
            taken: Arc::clone(&taken),
        };
        group.gather = Mutex::new(Box::new(shorter));
        assert_eq!(made(&group), expected);
        assert_eq!(taken.load(Ordering::Relaxed), 3, "of gates, of what they open, of queries and keys");
    }

    #[test]
    fn rows_that_are_exchanged_piece_by_piece_are_what_they_are_at_once() {
        let group = group_of_two();
        let weight = layer(&group, &[[48, 32]]);
        let (x, residual) =
            (group.upload(&[11, 32], &values(11 * 32)).unwrap(), group.upload(&[11, 48], &values(11 * 48)).unwrap());
        let split = Split::layout(1, vec![Segment::columns(32, 2)], 2);
        let expected = group.download(&group.linear_add(&x, &weight, residual.clone()).unwrap()).unwrap();
        for x in [&x, &group.dealt(&x, &split).unwrap()] {
            for piece in [1, 3, 4, 11, 20] {
                let rows = group.taken_by_pieces(x, piece).unwrap();
                let got = group.added_by_pieces(rows, &weight, &residual).unwrap();
                assert_eq!(group.download(&got).unwrap(), expected, "{piece} rows at a time");
            }
        }
    }
}
