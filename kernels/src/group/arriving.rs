//! Rows whose other devices' columns are on their way, and when a device's queue waits for them: not before something reads them, so that
//! what is asked of the devices in between runs beside the exchange.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::KernelError;
use crate::backend::PendingFill;

/// Of one tensor, in pieces of some rows.
pub(super) struct Arriving(Mutex<Vec<(Range<usize>, Piece)>>);

enum Piece {
    Coming(PendingFill),
    There,
    /// The devices said so.
    Lost,
}

impl Arriving {
    pub fn of(pieces: Vec<(Range<usize>, PendingFill)>) -> Self {
        Self(Mutex::new(pieces.into_iter().map(|(rows, coming)| (rows, Piece::Coming(coming))).collect()))
    }

    /// Returns once the devices' queues wait for all pieces that have some of these rows.
    ///
    /// # Errors
    /// What the devices report, to whoever comes first; [`KernelError::Abandoned`] to others.
    pub fn wait_for(&self, rows: &Range<usize>) -> Result<(), KernelError> {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let read = pieces.iter_mut().filter(|(of, _)| of.start < rows.end && rows.start < of.end);
        for (_, piece) in read {
            match std::mem::replace(piece, Piece::Lost) {
                Piece::Coming(coming) => coming()?,
                Piece::There => {}
                Piece::Lost => return Err(KernelError::Abandoned),
            }
            *piece = Piece::There;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_piece_is_waited_for_once_and_by_whoever_reads_it() {
        let waits = Arc::new(AtomicUsize::new(0));
        let piece = |rows: Range<usize>, is_lost: bool| -> (Range<usize>, PendingFill) {
            let waits = Arc::clone(&waits);
            let wait = move || {
                if is_lost {
                    return Err(KernelError::NoKernel { operation: "copies", device: "cuda:1".to_owned() });
                }
                waits.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            (rows, Box::new(wait))
        };
        let arriving = Arriving::of(vec![piece(0..4, false), piece(4..8, false), piece(8..9, true)]);
        for (rows, waited) in [(4..5, 1), (5..8, 1), (3..5, 2), (0..8, 2)] {
            arriving.wait_for(&rows).unwrap();
            assert_eq!(waits.load(Ordering::Relaxed), waited, "{rows:?}");
        }
        assert!(matches!(arriving.wait_for(&(0..usize::MAX)), Err(KernelError::NoKernel { .. })));
        assert!(matches!(arriving.wait_for(&(8..9)), Err(KernelError::Abandoned)), "what is lost stays so");
    }
}
