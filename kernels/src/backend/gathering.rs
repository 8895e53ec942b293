//! Tensors, one of each of several devices, put together on all of them. A thread for each device takes part, and all take part in
//! the same exchanges in the same order.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Backend, Lent};
use crate::KernelError;

/// What puts tensors together.
pub trait AllGather<B: Backend>: Send + Sync {
    /// The tensors of all members one after the other along `axis`, on `member`, whose own is `part`. Their sizes along it are
    /// `sizes`; all else of them is alike.
    ///
    /// # Errors
    /// [`KernelError::Abandoned`] once a member takes part no more; what the devices report.
    fn gather(&self, member: usize, part: &B::Tensor, sizes: &[usize], axis: usize) -> Result<B::Tensor, KernelError>;

    /// A member takes part no more: whoever waits for it, on the host or a device, need not.
    fn abandon(&self);
}

/// Gathers by lending: whoever has come waits for the others, on the host.
pub struct Meeting<B: Backend> {
    members: Vec<Arc<B>>,
    board: Mutex<Board<B>>,
    news: Condvar,
}

/// Of each member.
type Brought<B> = Vec<Option<Arc<Lent<B>>>>;

struct Board<B: Backend> {
    /// Exchanges that each member has come to.
    come: Vec<u64>,
    /// What was brought to an exchange, and how many have yet to take it.
    brought: HashMap<u64, (Brought<B>, usize)>,
    abandoned: bool,
}

impl<B: Backend> Meeting<B> {
    /// Of these devices.
    pub fn new(members: &[Arc<B>]) -> Self {
        let board = Board { come: vec![0; members.len()], brought: HashMap::new(), abandoned: false };
        Self { members: members.to_vec(), board: Mutex::new(board), news: Condvar::new() }
    }

    fn board(&self) -> MutexGuard<'_, Board<B>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings a member's part, and waits until all are there.
    fn meet(&self, member: usize, part: Arc<Lent<B>>) -> Result<Vec<Arc<Lent<B>>>, KernelError> {
        let (all, mut board) = (self.members.len(), self.board());
        let exchange = board.come[member];
        board.come[member] += 1;
        let (brought, _) = board.brought.entry(exchange).or_insert_with(|| (vec![None; all], all));
        brought[member] = Some(part);
        self.news.notify_all();
        loop {
            if board.abandoned {
                return Err(KernelError::Abandoned);
            }
            let (brought, left) = board.brought.get_mut(&exchange).expect("who has come takes all before it goes");
            if let Some(parts) = brought.iter().cloned().collect::<Option<Vec<_>>>() {
                *left -= 1;
                if *left == 0 {
                    board.brought.remove(&exchange);
                }
                return Ok(parts);
            }
            board = self.news.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<B: Backend> AllGather<B> for Meeting<B> {
    fn gather(&self, member: usize, part: &B::Tensor, _: &[usize], axis: usize) -> Result<B::Tensor, KernelError> {
        let to = &self.members[member];
        let lent = self.meet(member, Arc::new(to.lend(vec![part.clone()])?))?;
        let parts = lent.iter().map(|lent| Ok(lent(to)?.swap_remove(0))).collect::<Result<Vec<_>, KernelError>>()?;
        to.concat(&parts, axis)
    }

    fn abandon(&self) {
        self.board().abandoned = true;
        self.news.notify_all();
    }
}
