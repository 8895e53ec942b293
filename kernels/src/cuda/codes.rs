//! Codes in 8-bit floats that a cache keeps beside its keys and values, for whoever attends to it. Makes none.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::DeviceBuffer;

/// Codes of the keys and values of a cache, which its first call makes and later ones go on with. A block's codes are those of the keys
/// in it and of the first keys of all.
pub struct CachedCodes {
    /// Tokens that the cache has room for.
    pub tokens: usize,
    made: Mutex<Option<KeyCodes>>,
}

/// Keys and values as codes, with room for `blocks` of 128 of them.
pub struct KeyCodes {
    /// `(kv heads, 128)` f32.
    pub means: DeviceBuffer,
    /// Of keys, then of values, `(kv heads, blocks)` f32.
    pub scales: DeviceBuffer,
    pub k: DeviceBuffer,
    pub v: DeviceBuffer,
    pub blocks: usize,
    /// Whose codes these are.
    pub keys: usize,
}

impl CachedCodes {
    /// None yet, of a cache with room for so many tokens.
    pub fn of(tokens: usize) -> Self {
        Self { tokens, made: Mutex::new(None) }
    }

    /// What was made, for one call at a time.
    pub fn made(&self) -> MutexGuard<'_, Option<KeyCodes>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Others are written from this token on.
    pub fn forget_from(&self, token: usize) {
        if let Some(codes) = &mut *self.made() {
            codes.keys = codes.keys.min(token);
        }
    }
}
