//! The devices of a group, and how they are given their work. Knows no operation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::heads::check_heads;
use crate::backend::{AllGather, Backend};
use crate::{Heads, KernelError, PriorityGuard, Rank};

/// Elements of a device's part of a tensor from which on work on it may fill the device's queue.
const LARGE_TENSOR: usize = 1 << 22;

/// Several devices that compute as one.
pub struct DeviceGroup<B: Backend> {
    pub(super) members: Vec<Arc<B>>,
    /// The model's.
    pub(super) heads: Heads,
    /// One exchange after the other: all members come to them in the same order.
    pub(super) gather: Mutex<Box<dyn AllGather<B>>>,
    /// A thread for each device but the first, whose thread is the caller's. Where work stands in queues they are for what waits
    /// until there is room in one: one thread would wait for a full queue while another device's runs empty.
    crew: Option<rayon::ThreadPool>,
}

impl<B: Backend> DeviceGroup<B> {
    /// Of these devices, alike, for a model of such heads.
    ///
    /// # Errors
    /// [`KernelError::UnevenHeads`] where they cannot share the heads; what the devices report.
    pub fn new(members: Vec<Arc<B>>, heads: Heads) -> Result<Self, KernelError> {
        check_heads(heads, members.len())?;
        let (gather, threads) = (B::all_gather(&members)?, members.len() - 1);
        let start = || {
            let crew = rayon::ThreadPoolBuilder::new().num_threads(threads);
            crew.thread_name(|at| format!("device-{}", at + 1)).build()
        };
        let crew = (threads > 0).then(start).transpose();
        let crew = crew.map_err(|cause| KernelError::Threads { threads, cause: cause.to_string() })?;
        Ok(Self { members, heads, gather: Mutex::new(gather), crew })
    }

    /// The devices, in order.
    pub fn members(&self) -> &[Arc<B>] {
        &self.members
    }

    /// The first of them, which has what all have.
    pub(super) fn first(&self) -> &B {
        &self.members[0]
    }

    /// What each makes of its own.
    pub(super) fn each<T: Send>(
        &self,
        work: impl Fn(usize, &B) -> Result<T, KernelError> + Sync,
    ) -> Result<Vec<T>, KernelError> {
        if self.first().queues() {
            // Handing work on takes longer than queueing it.
            return self.members.iter().enumerate().map(|(at, member)| work(at, member)).collect();
        }
        self.at_once(work)
    }

    /// The same, each by a thread of its own: work that a device with a queue may keep waiting.
    pub(super) fn at_once<T: Send>(
        &self,
        work: impl Fn(usize, &B) -> Result<T, KernelError> + Sync,
    ) -> Result<Vec<T>, KernelError> {
        let Some(crew) = &self.crew else { return Ok(vec![work(0, self.first())?]) };
        let mut made: Vec<_> = self.members.iter().map(|_| None).collect();
        let (first, others) = made.split_first_mut().expect("a group has a device");
        let work = &work;
        crew.in_place_scope(|scope| {
            for ((at, member), to) in self.members.iter().enumerate().skip(1).zip(others) {
                scope.spawn(move |_| *to = Some(work(at, member)));
            }
            *first = Some(work(0, self.first()));
        });
        made.into_iter().map(|made| made.expect("the scope ends when all have worked")).collect()
    }

    /// [`DeviceGroup::each`] of a tensor, at once where it is large: no device's queue runs empty while another's is full.
    pub(super) fn each_of<T: Send>(
        &self,
        x: &B::Tensor,
        work: impl Fn(usize, &B) -> Result<T, KernelError> + Sync,
    ) -> Result<Vec<T>, KernelError> {
        let elements: usize = self.first().shape(x).iter().product();
        if elements >= LARGE_TENSOR { self.at_once(work) } else { self.each(work) }
    }

    /// [`DeviceGroup::each`] of what is each one's to take.
    pub(super) fn each_with<S: Send, T: Send>(
        &self,
        own: Vec<S>,
        work: impl Fn(usize, &B, S) -> Result<T, KernelError> + Sync,
    ) -> Result<Vec<T>, KernelError> {
        let own: Vec<Mutex<Option<S>>> = own.into_iter().map(|own| Mutex::new(Some(own))).collect();
        let taken = |at: usize| own[at].lock().expect("nobody else takes it").take().expect("each is asked once");
        self.each(|at, member| work(at, member, taken(at)))
    }

    /// A step begins, on whichever of the group's threads its work is queued.
    pub(super) fn begin(&self, rank: Rank) -> PriorityGuard {
        let begin = || PriorityGuard::joined(self.members.iter().map(|member| member.priority(rank)));
        let crew = self.crew.iter().filter(|_| self.first().queues());
        let others = crew.flat_map(|crew| crew.broadcast(|_| begin()));
        PriorityGuard::joined(others.chain([begin()]))
    }

    /// What all make alike of what all have: once, where they compute in the same memory, which devices with queues do not.
    pub(super) fn alike<T: Clone + Send>(
        &self,
        work: impl Fn(usize, &B) -> Result<T, KernelError> + Sync,
    ) -> Result<Vec<T>, KernelError> {
        if self.first().queues() {
            return self.each(work);
        }
        Ok(vec![work(0, self.first())?; self.members.len()])
    }

    /// The parts of all, one after the other along `axis`, on each.
    pub(super) fn gathered(
        &self,
        parts: &[B::Tensor],
        sizes: &[usize],
        axis: usize,
    ) -> Result<Vec<B::Tensor>, KernelError> {
        self.gather().gather_all(parts, sizes, axis)
    }

    /// What puts tensors together, for one exchange.
    pub(super) fn gather(&self) -> MutexGuard<'_, Box<dyn AllGather<B>>> {
        self.gather.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
