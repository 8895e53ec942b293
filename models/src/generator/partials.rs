//! The partials of a layer, wherever they are, and their merge: on the host where all of them are there, else on the device.
//! Which are merged with which is not decided here.

use std::{ops::Range, sync::Arc};

use asterism_kernels::{Ask, Backend, Exported, Heads, Merging};

use super::answers::PackedRows;
use crate::ModelError;

/// The partial of some rows: their output over some keys with its log-sum-exp.
pub(super) enum Partial<'a, B: Backend> {
    /// To be computed: the keys are on this device.
    Keys(Ask<'a, B::Kv>),
    /// On this device, packed rows `(rows, packed row)`.
    Device(B::Tensor),
    /// On another device of this process, or on its way from there: some rows of a exported tensor.
    Exported(Arc<Exported<B>>, Range<usize>),
    /// In memory of the host.
    Host(PackedRows),
}

impl<'a, B: Backend> Partial<'a, B> {
    fn ask(&self) -> Option<Ask<'a, B::Kv>> {
        match self {
            Self::Keys(ask) => Some(ask.clone()),
            Self::Device(_) | Self::Exported(..) | Self::Host(_) => None,
        }
    }

    fn on_host(&self) -> Option<PackedRows> {
        match self {
            Self::Host(rows) => Some(rows.clone()),
            Self::Keys(_) | Self::Device(_) | Self::Exported(..) => None,
        }
    }
}

/// Partials of the rows of `q (t, query heads dim)`, by the numbers that a [`Merging`] has for them.
pub(super) struct Partials<'a, B: Backend> {
    pub heads: Heads,
    pub all: Vec<Partial<'a, B>>,
}

impl<B: Backend> Partials<'_, B> {
    /// Merged outputs `(t, query heads dim)` in compute type.
    pub fn merge(self, backend: &B, q: &B::Tensor, merging: &Merging) -> Result<B::Tensor, ModelError> {
        let heads = self.heads;
        if let Some(rows) = self.all.iter().map(Partial::on_host).collect::<Option<Vec<_>>>() {
            return merge_on_host(backend, heads, &rows, merging);
        }
        let asks: Vec<_> = self.all.iter().filter_map(Partial::ask).collect();
        if asks.len() == self.all.len() {
            return Ok(backend.attend_tree(heads, q, (&asks, &[]), merging)?);
        }
        let attended = attend_on_device(backend, (heads, q), &asks)?;
        let given = self.on_device(backend, attended)?;
        Ok(backend.attend_tree(heads, q, (&[], &given), merging)?)
    }

    /// All of them as rows on this device; `attended` are those of the keys. Rows from elsewhere are waited for behind these.
    fn on_device(self, backend: &B, attended: Vec<B::Tensor>) -> Result<Vec<B::Tensor>, ModelError> {
        let (mut attended, row) = (attended.into_iter(), self.heads.packed_row());
        let (mut fetched, mut given) = (Vec::<(Arc<Exported<B>>, _)>::new(), Vec::with_capacity(self.all.len()));
        for partial in self.all {
            match partial {
                Partial::Keys(_) => given.extend(attended.next()),
                Partial::Device(rows) => given.push(rows),
                Partial::Exported(exported, rows) => {
                    let known = fetched.iter().position(|(of, _)| Arc::ptr_eq(of, &exported));
                    let at = known.unwrap_or(fetched.len());
                    if known.is_none() {
                        let all = exported(backend)?.swap_remove(0);
                        fetched.push((exported, all));
                    }
                    given.push(backend.rows(&fetched[at].1, rows.start, rows.end)?);
                }
                Partial::Host(rows) => {
                    let values = rows.values();
                    given.push(backend.upload(&[values.len() / row, row], values)?);
                }
            }
        }
        Ok(given)
    }
}

/// The packed rows of each ask, on the device.
pub(super) fn attend_on_device<B: Backend>(
    backend: &B,
    (heads, q): (Heads, &B::Tensor),
    asks: &[Ask<'_, B::Kv>],
) -> Result<Vec<B::Tensor>, ModelError> {
    if asks.is_empty() {
        return Ok(Vec::new());
    }
    let rows = backend.attend_rows(heads, q, (asks, &vec![1; asks.len()]))?;
    let (mut start, mut attended) = (0, Vec::with_capacity(asks.len()));
    for ask in asks {
        attended.push(backend.rows(&rows, start, start + ask.rows.len())?);
        start += ask.rows.len();
    }
    Ok(attended)
}

/// The packed rows of each ask, on the host; `packed` is kept for its memory.
pub(super) fn attend_on_host<B: Backend>(
    backend: &B,
    (heads, q): (Heads, &B::Tensor),
    asks: &[Ask<'_, B::Kv>],
    packed: &mut Arc<Vec<f32>>,
) -> Result<Vec<PackedRows>, ModelError> {
    let values = Arc::make_mut(packed);
    values.clear();
    backend.attend_many(heads, q, asks, values)?;
    let mut start = 0;
    let rows = |ask: &Ask<'_, B::Kv>| {
        let range = start..start + ask.rows.len() * heads.packed_row();
        start = range.end;
        PackedRows::new(packed.clone(), range)
    };
    Ok(asks.iter().map(rows).collect())
}

fn merge_on_host<B: Backend>(
    backend: &B,
    heads: Heads,
    partials: &[PackedRows],
    merging: &Merging,
) -> Result<B::Tensor, ModelError> {
    let (mut places, mut levels) = (Vec::<(usize, Range<usize>)>::new(), Vec::<Vec<f32>>::new());
    for level in &merging.levels {
        let inputs = inputs_of(level, partials, &places, &levels);
        let sizes: Vec<usize> = inputs.iter().map(|rows| rows.first().map_or(0, |rows| rows.len())).collect();
        let mut values = Vec::new();
        backend.merge_rows(heads, &inputs, &mut values)?;
        let mut start = 0;
        for size in sizes {
            places.push((levels.len(), start..start + size));
            start += size;
        }
        levels.push(values);
    }
    Ok(backend.merge_packed(heads, &inputs_of(&merging.tops, partials, &places, &levels))?)
}

/// The packed rows that each merge takes; those of a partial that was merged here lie in `levels`, at its place.
fn inputs_of<'a>(
    merges: &[Vec<usize>],
    partials: &'a [PackedRows],
    places: &[(usize, Range<usize>)],
    levels: &'a [Vec<f32>],
) -> Vec<Vec<&'a [f32]>> {
    let rows = |partial: &usize| match partials.get(*partial) {
        Some(rows) => rows.values(),
        None => {
            let (level, range) = &places[*partial - partials.len()];
            &levels[*level][range.clone()]
        }
    };
    merges.iter().map(|inputs| inputs.iter().map(rows).collect()).collect()
}
