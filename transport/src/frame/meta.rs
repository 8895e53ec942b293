//! Memory of a frame's meta, aligned as archives are; what came from a peer is used again once its frame is dropped. Reads
//! nothing.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex},
};

use rkyv::util::AlignedVec;

use crate::signal::lock;

/// Metas kept at most for frames to come.
const KEPT_METAS: usize = 64;
/// Bytes of each of them, however few are in it; larger ones are not kept.
pub(crate) const META_KEPT_BYTES: usize = 2 << 10;

/// A frame's meta: an aligned vector that goes back to where it came from.
#[derive(Default)]
pub struct Meta {
    bytes: AlignedVec,
    home: Option<Arc<Metas>>,
}

/// Metas of one transport that came back.
#[derive(Default)]
pub(crate) struct Metas {
    kept: Mutex<Vec<AlignedVec>>,
}

impl Metas {
    /// An empty meta with room for `bytes`, if so few are kept.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<Meta> {
        if bytes == 0 || bytes > META_KEPT_BYTES {
            return None;
        }
        let kept = lock(&self.kept).pop();
        let bytes = kept.unwrap_or_else(|| AlignedVec::with_capacity(META_KEPT_BYTES));
        Some(Meta { bytes, home: Some(self.clone()) })
    }

    fn keep(&self, mut bytes: AlignedVec) {
        let mut kept = lock(&self.kept);
        if kept.len() < KEPT_METAS && bytes.capacity() <= META_KEPT_BYTES {
            bytes.clear();
            kept.push(bytes);
        }
    }
}

impl Drop for Meta {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.keep(std::mem::take(&mut self.bytes));
        }
    }
}

impl From<AlignedVec> for Meta {
    fn from(bytes: AlignedVec) -> Self {
        Self { bytes, home: None }
    }
}

impl Clone for Meta {
    fn clone(&self) -> Self {
        self.bytes.clone().into()
    }
}

impl fmt::Debug for Meta {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.fmt(formatter)
    }
}

impl Deref for Meta {
    type Target = AlignedVec;

    fn deref(&self) -> &AlignedVec {
        &self.bytes
    }
}

impl DerefMut for Meta {
    fn deref_mut(&mut self) -> &mut AlignedVec {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Meta {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_comes_back_empty_and_no_more_are_kept_than_said() {
        let metas = Arc::new(Metas::default());
        let mut first = metas.take(100).expect("it is small");
        first.extend_from_slice(&[7; 100]);
        let (address, copy) = (first.as_ptr(), first.clone());
        drop(first);
        let again = metas.take(100).expect("it is small");
        assert_eq!((again.as_ptr(), again.len()), (address, 0));
        drop((again, copy));
        assert_eq!(lock(&metas.kept).len(), 1, "a copy is of nobody");
        assert!(metas.take(0).is_none() && metas.take(META_KEPT_BYTES + 1).is_none());
        let many: Vec<_> = (0..2 * KEPT_METAS).map(|_| metas.take(META_KEPT_BYTES).expect("it is small")).collect();
        let mut grown = metas.take(1).expect("it is small");
        grown.resize(META_KEPT_BYTES + 1, 7);
        drop((grown, many));
        let kept = lock(&metas.kept);
        assert!(kept.len() == KEPT_METAS && kept.iter().all(|meta| meta.capacity() <= META_KEPT_BYTES));
    }
}
