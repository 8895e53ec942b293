//! Partials of asks merged level by level where they are: a step whose context is in its own process. In terms of what a device
//! does anyway, unless it does this too.

use crate::{Ask, Backend, Heads, KernelError};

/// What is merged of what. Slots are numbered: first the asks, then what is given, then what is merged, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merging {
    /// Slots that are merged to a new one each, in the order given. Those of a level need none of the same level.
    pub levels: Vec<Vec<Vec<usize>>>,
    /// Slots of which each part of the result is merged.
    pub tops: Vec<Vec<usize>>,
}

impl Merging {
    /// Rows of every slot.
    ///
    /// # Errors
    /// [`KernelError::Shape`] where something is merged of nothing, of slots of unlike rows, or of those that come after it.
    pub(crate) fn rows<K>(
        &self,
        asks: &[Ask<'_, K>],
        given: impl Iterator<Item = usize>,
    ) -> Result<Vec<usize>, KernelError> {
        let mut rows: Vec<usize> = asks.iter().map(|ask| ask.rows.len()).chain(given).collect();
        for level in &self.levels {
            let merged = level.iter().map(|slots| even(&rows, slots)).collect::<Result<Vec<_>, _>>()?;
            rows.extend(merged);
        }
        match self.tops.is_empty() {
            true => Err(even(&rows, &[]).expect_err("nothing has no rows")),
            false => self.tops.iter().try_for_each(|slots| even(&rows, slots).map(drop)).map(|()| rows),
        }
    }
}

/// Rows of each of some slots.
fn even(rows: &[usize], slots: &[usize]) -> Result<usize, KernelError> {
    let of = |slot: &usize| rows.get(*slot).copied();
    match slots.first().and_then(of) {
        Some(first) if slots.iter().all(|slot| of(slot) == Some(first)) => Ok(first),
        _ => {
            let expected = format!("some of {} slots, equally many rows in each", rows.len());
            Err(KernelError::shape("attend_tree", expected, &[slots]))
        }
    }
}

/// As [`Backend::attend_tree`], by way of the host.
pub fn attend_tree<B: Backend>(
    backend: &B,
    heads: Heads,
    q: &B::Tensor,
    (asks, given): (&[Ask<'_, B::Kv>], &[B::Tensor]),
    merging: &Merging,
) -> Result<B::Tensor, KernelError> {
    let given_rows = given.iter().map(|rows| backend.shape(rows).first().copied().unwrap_or(0));
    let rows = merging.rows(asks, given_rows)?;
    let mut slots = Slots { sizes: rows.iter().map(|rows| rows * heads.packed_row()).collect(), ..Slots::default() };
    let mut packed = Vec::new();
    backend.attend_many(heads, q, asks, &mut packed)?;
    slots.hold(packed, asks.len());
    for rows in given {
        slots.hold(backend.download(rows)?, 1);
    }
    for level in merging.levels.iter().filter(|level| !level.is_empty()) {
        let mut merged = Vec::new();
        backend.merge_rows(heads, &slots.of(level), &mut merged)?;
        slots.hold(merged, level.len());
    }
    backend.merge_packed(heads, &slots.of(&merging.tops))
}

/// Packed rows of slots.
#[derive(Default)]
struct Slots {
    /// Values of each slot, of those to come too.
    sizes: Vec<usize>,
    /// Which of `values` a slot is in, and where it starts.
    places: Vec<(usize, usize)>,
    values: Vec<Vec<f32>>,
}

impl Slots {
    /// Takes the next `count` slots, which lie in `values` one behind the other.
    fn hold(&mut self, values: Vec<f32>, count: usize) {
        let (of, mut start) = (self.values.len(), 0);
        for slot in self.places.len()..self.places.len() + count {
            self.places.push((of, start));
            start += self.sizes[slot];
        }
        self.values.push(values);
    }

    fn of(&self, merges: &[Vec<usize>]) -> Vec<Vec<&[f32]>> {
        let slot = |slot: &usize| {
            let (of, start) = self.places[*slot];
            &self.values[of][start..start + self.sizes[*slot]]
        };
        merges.iter().map(|slots| slots.iter().map(slot).collect()).collect()
    }
}
