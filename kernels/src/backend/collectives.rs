//! Tensors from device to device of one process: exported, or one of each put together on all of them. A thread for each device takes
//! part, and all take part in the same exchanges in the same order. Sends nothing to another process.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::linear::LinearOps;
use super::queue::WorkQueue;
use super::tensors::TensorOps;
use crate::KernelError;

/// Tensors that a backend exported: what another of its kind, of this process, gets of them is its own. They are kept as long as this.
pub type Exported<B> = Box<dyn Fn(&B) -> Result<Vec<<B as TensorOps>::Tensor>, KernelError> + Send + Sync>;

/// Several devices of one process at one piece of work.
pub trait Collectives: LinearOps + WorkQueue {
    /// Most rows of which devices of one process gain by sharing linear layers, each with some of the outputs.
    fn shared_rows(&self) -> usize {
        usize::MAX
    }

    /// Whether what several devices make of parts of a linear layer has the bits of what one makes of all of it.
    fn parts_keep_bits(&self) -> bool {
        true
    }

    /// Lends tensors to other backends of its kind. Memory of the host is everybody's.
    fn export(&self, tensors: Vec<Self::Tensor>) -> Result<Exported<Self>, KernelError> {
        Ok(Box::new(move |_| Ok(tensors.clone())))
    }

    /// Whether [`Collectives::linear_add_into`] takes this layer.
    fn adds_into(&self, weight: &Self::Linear) -> bool {
        let _ = weight;
        false
    }

    /// A matrix `(rows, columns)` whose elements are not set: several devices write its columns.
    fn unfilled(&self, rows: usize, columns: usize) -> Result<Self::Tensor, KernelError> {
        let _ = (rows, columns);
        Err(KernelError::NoKernel { operation: "columns in place", device: self.numerics() })
    }

    /// [`LinearOps::linear_add`] of many rows: columns from `first` on of `residual (t, N)` and of `to (t, N)`.
    fn linear_add_into(
        &self,
        x: &Self::Tensor,
        weight: &Self::Linear,
        [residual, to]: [&Self::Tensor; 2],
        first: usize,
    ) -> Result<(), KernelError> {
        let _ = (x, weight, residual, to, first);
        Err(KernelError::NoKernel { operation: "columns in place", device: self.numerics() })
    }

    /// `gated_silu` into columns from `first` on of `to (t, N)`.
    fn gated_silu_into(&self, gate_up: &Self::Tensor, to: &Self::Tensor, first: usize) -> Result<(), KernelError> {
        let _ = (gate_up, to, first);
        Err(KernelError::NoKernel { operation: "columns in place", device: self.numerics() })
    }

    /// Rows of matrices, one below the other, into columns from `first` on of `to (t, N)`.
    fn rows_into(&self, parts: &[Self::Tensor], to: &Self::Tensor, first: usize) -> Result<(), KernelError> {
        let _ = (parts, to, first);
        Err(KernelError::NoKernel { operation: "columns in place", device: self.numerics() })
    }

    /// Matrices one below the other, which a product takes: where several devices each have some columns, they go to all of them beside
    /// what is asked of the devices until somebody reads them.
    fn put_together(&self, parts: &[Self::Tensor]) -> Result<Self::Tensor, KernelError> {
        match parts {
            [part] => Ok(part.clone()),
            _ => self.concat(parts, 0),
        }
    }

    /// What puts matrices of these devices of one process together.
    fn all_gather(members: &[Arc<Self>]) -> Result<Box<dyn AllGather<Self>>, KernelError> {
        Ok(Box::new(Rendezvous::new(members)))
    }
}

/// What returns once each member's device waits for the columns of the others.
pub type PendingFill = Box<dyn FnOnce() -> Result<(), KernelError> + Send>;

/// What a device makes of rows that lie on several by columns, once it has all of them.
pub enum GatheredLayer<'a, B: LinearOps> {
    /// [`LinearOps::norm_linear`].
    NormLinear((&'a B::Tensor, f32), &'a B::Linear),
    /// [`LinearOps::norm_gated`].
    NormGated((&'a B::Tensor, f32), &'a B::Linear),
    /// [`LinearOps::linear_add`].
    LinearAdd(&'a B::Linear, B::Tensor),
}

/// What puts tensors together.
pub trait AllGather<B: LinearOps>: Send + Sync {
    /// The tensors of all members one after the other along `axis`, on `member`, whose own is `part`. Their sizes along it are
    /// `sizes`; all else of them is alike.
    ///
    /// # Errors
    /// [`KernelError::Abandoned`] once a member takes part no more; what the devices report.
    fn gather(&self, member: usize, part: &B::Tensor, sizes: &[usize], axis: usize) -> Result<B::Tensor, KernelError>;

    /// [`AllGather::gather`] of all members' parts by one thread, which hands each device its work in turn: all alike.
    ///
    /// # Errors
    /// What the devices report.
    fn gather_all(&self, parts: &[B::Tensor], sizes: &[usize], axis: usize) -> Result<Vec<B::Tensor>, KernelError>;

    /// [`AllGather::gather_all`] of what is large, beside what is asked of the devices until it is waited for.
    ///
    /// # Errors
    /// What the devices report.
    fn gather_beside(
        &self,
        parts: &[B::Tensor],
        sizes: &[usize],
        axis: usize,
    ) -> Result<(Vec<B::Tensor>, PendingFill), KernelError> {
        Ok((self.gather_all(parts, sizes, axis)?, Box::new(|| Ok(()))))
    }

    /// [`AllGather::gather_all`] of columns, and what each member's layer makes of the rows, to the last bit, where there is a shorter way
    /// to it than one after the other.
    ///
    /// # Errors
    /// As [`AllGather::gather_all`], and what the layers report.
    fn gather_linear(
        &self,
        parts: &[B::Tensor],
        sizes: &[usize],
        layers: &[GatheredLayer<'_, B>],
    ) -> Result<Option<Vec<B::Tensor>>, KernelError> {
        let _ = (parts, sizes, layers);
        Ok(None)
    }

    /// Whether [`AllGather::fill_beside`] is there.
    fn fills(&self) -> bool {
        false
    }

    /// Brings to each member's matrix `(t, N)` the columns that the others wrote to theirs, `sizes` of each one after the other, beside
    /// what is asked of the devices until it is taken.
    ///
    /// # Errors
    /// What the devices report.
    fn fill_beside(&self, wholes: &[B::Tensor], sizes: &[usize]) -> Result<PendingFill, KernelError> {
        let _ = (wholes, sizes);
        Err(KernelError::Abandoned)
    }

    /// A member takes part no more: whoever waits for it, on the host or a device, need not.
    fn abandon(&self);
}

/// Gathers by lending: whoever has come waits for the others, on the host.
pub struct Rendezvous<B: Collectives> {
    members: Vec<Arc<B>>,
    board: Mutex<Board<B>>,
    changed: Condvar,
}

/// Of each member.
type Brought<B> = Vec<Option<Arc<Exported<B>>>>;

struct Board<B: Collectives> {
    /// Exchanges that each member has come to.
    come: Vec<u64>,
    /// What was brought to an exchange, and how many have yet to take it.
    brought: HashMap<u64, (Brought<B>, usize)>,
    abandoned: bool,
}

impl<B: Collectives> Rendezvous<B> {
    /// Of these devices.
    pub fn new(members: &[Arc<B>]) -> Self {
        let board = Board { come: vec![0; members.len()], brought: HashMap::new(), abandoned: false };
        Self { members: members.to_vec(), board: Mutex::new(board), changed: Condvar::new() }
    }

    fn board(&self) -> MutexGuard<'_, Board<B>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings a member's part, and waits until all are there.
    fn meet(&self, member: usize, part: Arc<Exported<B>>) -> Result<Vec<Arc<Exported<B>>>, KernelError> {
        let (all, mut board) = (self.members.len(), self.board());
        let exchange = board.come[member];
        board.come[member] += 1;
        let (brought, _) = board.brought.entry(exchange).or_insert_with(|| (vec![None; all], all));
        brought[member] = Some(part);
        self.changed.notify_all();
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
            board = self.changed.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<B: Collectives> AllGather<B> for Rendezvous<B> {
    fn gather(&self, member: usize, part: &B::Tensor, _: &[usize], axis: usize) -> Result<B::Tensor, KernelError> {
        let to = &self.members[member];
        let exported = self.meet(member, Arc::new(to.export(vec![part.clone()])?))?;
        let parts = exported
            .iter()
            .map(|exported| Ok(exported(to)?.swap_remove(0)))
            .collect::<Result<Vec<_>, KernelError>>()?;
        to.concat(&parts, axis)
    }

    fn gather_all(&self, parts: &[B::Tensor], _: &[usize], axis: usize) -> Result<Vec<B::Tensor>, KernelError> {
        // Memory of the host is everybody's.
        if !self.members[0].queues() {
            return Ok(vec![self.members[0].concat(parts, axis)?; self.members.len()]);
        }
        let exported = self.members.iter().zip(parts);
        let exported =
            exported.map(|(member, part)| member.export(vec![part.clone()])).collect::<Result<Vec<_>, _>>()?;
        let put_together = |to: &Arc<B>| {
            let parts = exported.iter().map(|exported| Ok(exported(to)?.swap_remove(0)));
            to.concat(&parts.collect::<Result<Vec<_>, KernelError>>()?, axis)
        };
        self.members.iter().map(put_together).collect()
    }

    fn abandon(&self) {
        self.board().abandoned = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{Cpu, CpuOptions};

    /// What each member has of an exchange, or why it has nothing.
    fn exchange(meeting: &Rendezvous<Cpu>, shapes: &[[usize; 2]], axis: usize) -> Vec<Result<Vec<f32>, KernelError>> {
        let sizes: Vec<usize> = shapes.iter().map(|shape| shape[axis]).collect();
        let take = |member: usize| {
            let (cpu, shape) = (&meeting.members[member], shapes[member]);
            let values = vec![member as f32; shape[0] * shape[1]];
            let part = cpu.upload(&shape, &values)?;
            cpu.download(&meeting.gather(member, &part, &sizes, axis)?)
        };
        thread::scope(|scope| {
            let members: Vec<_> = (0..shapes.len()).map(|member| scope.spawn(move || take(member))).collect();
            members.into_iter().map(|member| member.join().unwrap()).collect()
        })
    }

    fn meeting(members: usize) -> Rendezvous<Cpu> {
        let cpu = |_| Arc::new(Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap());
        Rendezvous::new(&(0..members).map(cpu).collect::<Vec<_>>())
    }

    #[test]
    fn all_have_the_parts_of_all_in_order_exchange_by_exchange() {
        let meeting = meeting(3);
        for _ in 0..20 {
            for whole in exchange(&meeting, &[[2, 1], [2, 2], [2, 1]], 1) {
                assert_eq!(whole.unwrap(), [0.0, 1.0, 1.0, 2.0, 0.0, 1.0, 1.0, 2.0]);
            }
            for whole in exchange(&meeting, &[[1, 2], [0, 2], [2, 2]], 0) {
                assert_eq!(whole.unwrap(), [0.0, 0.0, 2.0, 2.0, 2.0, 2.0]);
            }
        }
        assert!(meeting.board().brought.is_empty(), "nothing is kept of what is over");
    }

    #[test]
    fn whoever_leaves_keeps_nobody_waiting() {
        let meeting = meeting(2);
        let part = meeting.members[0].upload(&[1, 1], &[0.0]).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| meeting.gather(0, &part, &[1, 1], 0).map(drop));
            meeting.abandon();
            assert!(matches!(waits.join().unwrap(), Err(KernelError::Abandoned)));
        });
        assert!(matches!(meeting.gather(1, &part, &[1, 1], 0), Err(KernelError::Abandoned)), "and stays away");
    }
}
