//! The links of a transport, and which of them a message is for.

pub(crate) mod failing;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use subtle::ConstantTimeEq;

use super::{
    core::Core,
    message::{self, Addressee, LinkToken},
    worker::{Arrival, Handler},
};
use crate::{Observer, signal::lock};

/// The links of a transport, by the numbers that peers address them with.
#[derive(Default)]
pub(super) struct Table {
    links: Mutex<BTreeMap<u32, Entry>>,
    next: AtomicU32,
    strangers: OnceLock<Arc<dyn Observer>>,
}

struct Entry {
    token: LinkToken,
    core: Weak<Core>,
}

impl Table {
    /// A table without links, whose `observer` hears of messages for none.
    pub fn new(observer: Arc<dyn Observer>) -> Arc<Self> {
        let table = Self::default();
        let _ = table.strangers.set(observer);
        Arc::new(table)
    }

    /// A number that no other link has.
    pub fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub fn insert(&self, own: Addressee, core: &Arc<Core>) {
        lock(&self.links).insert(own.link, Entry { token: own.token, core: Arc::downgrade(core) });
    }

    pub fn remove(&self, link: u32) {
        lock(&self.links).remove(&link);
    }

    /// The links that are held, as their peers address them.
    pub fn held(&self) -> Vec<(Arc<Core>, Addressee)> {
        let held = |(link, entry): (&u32, &Entry)| {
            Some((entry.core.upgrade()?, Addressee { token: entry.token, link: *link }))
        };
        lock(&self.links).iter().filter_map(held).collect()
    }
}

impl Handler for Arc<Table> {
    fn arrived(&self, header: &[u8], body: Arrival<'_>) -> bool {
        let core = message::read(header).and_then(|(to, message, piece)| {
            let links = lock(&self.links);
            let is_its_own = |entry: &&Entry| message::halves(&entry.token).ct_eq(&message::halves(&to.token)).into();
            let entry = links.get(&to.link).filter(is_its_own)?;
            Some((entry.core.upgrade()?, message, piece))
        });
        if let Some((core, message, piece)) = core {
            return core.arrived(message, piece, body);
        }
        // A late message of a link that is gone looks the same.
        self.strangers.get().into_iter().for_each(|observer| observer.rejected("ucx_token"));
        false
    }
}
