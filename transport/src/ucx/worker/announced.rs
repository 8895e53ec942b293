//! A body that the peer only announced: where UCX has it. Fetches nothing.

use std::{ffi::c_void, marker::PhantomData};

/// A body that waits at the peer.
pub(crate) struct AnnouncedBody<'a> {
    pub(super) descriptor: *mut c_void,
    pub length: usize,
    /// The descriptor is only known to be valid while the handler runs.
    handler: PhantomData<&'a ()>,
}

impl AnnouncedBody<'_> {
    pub(crate) fn new(descriptor: *mut c_void, length: usize) -> Self {
        Self { descriptor, length, handler: PhantomData }
    }
}
