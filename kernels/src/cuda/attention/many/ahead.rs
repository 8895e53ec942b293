//! The step behind one that is under way, laid out while the device works on that one: of the same sequences, with a row more each. A
//! step that is another is laid out when it comes. Lays none out.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::super::kv::tails::OwnRun;
use super::layout::{KeptPlace, Laid, LaidAsk};
use crate::{Heads, Mask, Merging};

/// All that a step's table follows from: steps of equal keys have equal tables.
#[derive(PartialEq)]
pub struct StepKey {
    heads: Heads,
    asks: Vec<AskKey>,
    owns: Vec<OwnRun>,
    merging: Arc<Merging>,
}

#[derive(PartialEq)]
struct AskKey {
    rows: Range<usize>,
    mask: Mask,
    keys: usize,
    /// Where the first layer's keys and values are, and the maps of all layers.
    places: [u64; 3],
}

impl StepKey {
    /// Of a step that asks so, whose sequences' own keys lie there.
    pub fn of(
        heads: Heads,
        (asks, kept, owns): (&[LaidAsk<'_>], &[KeptPlace], &[OwnRun]),
        merging: &Arc<Merging>,
    ) -> Self {
        let key = |(ask, (maps, _)): (&LaidAsk<'_>, &KeptPlace)| {
            let [k, v] = ask.layers[0].begin();
            AskKey { rows: ask.rows.clone(), mask: ask.mask, keys: ask.keys, places: [k, v, *maps] }
        };
        let asks = asks.iter().zip(kept).map(key).collect();
        Self { heads, asks, owns: owns.to_vec(), merging: Arc::clone(merging) }
    }
}

/// The step that a backend has laid out ahead.
#[derive(Default)]
pub struct StepAhead(Mutex<Option<(StepKey, Laid)>>);

impl StepAhead {
    /// It, where it is the one of this key. It is not kept any longer in any case.
    pub(super) fn take(&self, key: &StepKey) -> Option<Laid> {
        self.lock().take().filter(|(ahead, _)| ahead == key).map(|(_, laid)| laid)
    }

    pub(super) fn put(&self, key: StepKey, laid: Laid) {
        *self.lock() = Some((key, laid));
    }

    fn lock(&self) -> MutexGuard<'_, Option<(StepKey, Laid)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
