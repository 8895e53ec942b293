//! How the partials of asks are merged level by level: a step whose context is in its own process. Merges nothing itself.

use super::packed::Ask;
use crate::KernelError;

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
        self.rows_of(asks.iter().map(|ask| ask.rows.len()).chain(given).collect())
    }

    /// The same, of the rows of what is not merged yet.
    ///
    /// # Errors
    /// As [`Merging::rows`].
    pub(crate) fn rows_of(&self, mut rows: Vec<usize>) -> Result<Vec<usize>, KernelError> {
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

/// Packed rows of slots.
#[derive(Default)]
pub(crate) struct PackedSlots {
    /// Values of each slot, of those to come too.
    sizes: Vec<usize>,
    /// Which of `values` a slot is in, and where it starts.
    places: Vec<(usize, usize)>,
    values: Vec<Vec<f32>>,
}

impl PackedSlots {
    /// None yet, of so many values each.
    pub fn of_sizes(sizes: Vec<usize>) -> Self {
        Self { sizes, ..Self::default() }
    }

    /// Takes the next `count` slots, which lie in `values` one behind the other.
    pub fn hold(&mut self, values: Vec<f32>, count: usize) {
        let (of, mut start) = (self.values.len(), 0);
        for slot in self.places.len()..self.places.len() + count {
            self.places.push((of, start));
            start += self.sizes[slot];
        }
        self.values.push(values);
    }

    /// Those that each merge takes.
    pub fn of(&self, merges: &[Vec<usize>]) -> Vec<Vec<&[f32]>> {
        let slot = |slot: &usize| {
            let (of, start) = self.places[*slot];
            &self.values[of][start..start + self.sizes[*slot]]
        };
        merges.iter().map(|slots| slots.iter().map(slot).collect()).collect()
    }
}
