//! The tickets of the contexts that the supervisor ordered here, and those who wait until theirs is known. Reads no frame.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use tokio::sync::Notify;

use crate::ticket::Ticket;

/// Tickets by context.
#[derive(Default)]
pub struct Tickets {
    known: Mutex<HashMap<u64, Ticket>>,
    changed: Notify,
}

impl Tickets {
    /// A context was ordered here.
    pub fn keep(&self, context: u64, ticket: Ticket) {
        self.lock().insert(context, ticket);
        self.changed.notify_waiters();
    }

    /// Nobody has business with a context here any more.
    pub fn forget(&self, context: u64) {
        self.lock().remove(&context);
    }

    /// The ticket of a context, if it was ordered here.
    pub fn find(&self, context: u64) -> Option<Ticket> {
        self.lock().get(&context).copied()
    }

    /// The ticket of a context, as soon as it is ordered here.
    pub async fn wait(&self, context: u64) -> Ticket {
        loop {
            let changed = self.changed.notified();
            if let Some(ticket) = self.find(context) {
                return ticket;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Ticket>> {
        self.known.lock().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::ticket::Secret;

    #[test]
    fn whoever_waits_for_a_ticket_gets_it_with_the_order() {
        let (tickets, ticket) = (Tickets::default(), Secret::new([3; 32]).ticket(1));
        let mut waiting = Box::pin(tickets.wait(1));
        assert_eq!(waiting.as_mut().now_or_never(), None);
        tickets.keep(2, ticket);
        assert_eq!(waiting.as_mut().now_or_never(), None);
        tickets.keep(1, ticket);
        assert_eq!(waiting.now_or_never(), Some(ticket));
        tickets.forget(1);
        assert_eq!(tickets.find(1), None);
    }
}
