//! Parts of a matrix, one of each of several GPUs, put together on all of them. GPUs that are linked write to each other's memory and
//! wait for what the others write, by one kernel each; elsewhere parts are lent.

use std::sync::Mutex;

use super::Cuda;
use super::device::{Buffer, Spread, device_error, launch};
use super::lending;
use super::tensor::Tensor;
use crate::{AllGather, Backend, KernelError};

/// Most GPUs, as the kernel has it.
const MEMBERS: usize = 8;
/// Most bytes of a part that go by the kernel.
const MOST: usize = 4 << 20;
/// Bytes that are written at a time, and those of them that are not the exchange's number.
const PACKET: usize = 16;
const CARRIED: usize = 8;
/// Threads of a block, and most blocks: all of them run at the same time.
const THREADS: usize = 256;
const MOST_BLOCKS: usize = 64;

/// As `exchange.cu` declares it.
#[repr(C)]
struct Gathering {
    own: u64,
    out: u64,
    to: [u64; MEMBERS],
    from: [u64; MEMBERS],
    widths: [i32; MEMBERS],
    at: [i32; MEMBERS],
    rows: i32,
    pitch: i32,
    member: i32,
    members: i32,
    number: u32,
    unused: i32,
}

/// As `Backend::all_gather`.
pub(super) fn all_gather<'a>(members: &[&'a Cuda]) -> Result<AllGather<'a, Cuda>, KernelError> {
    through(members, if are_linked(members) { Some(Inboxes::of(members)?) } else { None })
}

impl Cuda {
    /// As `Backend::all_gather`, by the kernel that waits for the others' even where all are on one GPU: for whoever runs nothing
    /// else there that could keep them from running at the same time.
    ///
    /// # Errors
    /// What the devices report.
    pub fn all_gather_at_once<'a>(members: &[&'a Self]) -> Result<AllGather<'a, Self>, KernelError> {
        through(members, Some(Inboxes::of(members)?))
    }
}

fn through<'a>(members: &[&'a Cuda], inboxes: Option<Inboxes>) -> Result<AllGather<'a, Cuda>, KernelError> {
    let members = members.to_vec();
    Ok(Box::new(move |parts, axis| match (&inboxes, Layout::of(parts, axis)) {
        (Some(inboxes), Some(layout)) if parts.len() == members.len() => inboxes.gather(&members, parts, &layout),
        _ => by_lending(&members, parts, axis),
    }))
}

/// Whether each reads and writes the memory of each other.
fn are_linked(members: &[&Cuda]) -> bool {
    let linked = |(at, one): (usize, &&Cuda)| {
        let open = |of: &Cuda| lending::open(of.device.shared_context(), one.device.shared_context());
        members.iter().enumerate().all(|(other, of)| other == at || open(of))
    };
    (2..=MEMBERS).contains(&members.len()) && members.iter().enumerate().all(linked)
}

/// Each member gets all parts from their owners.
fn by_lending(members: &[&Cuda], parts: &[Tensor], axis: usize) -> Result<Vec<Tensor>, KernelError> {
    let lend = |(member, part): (&&Cuda, &Tensor)| member.lend(vec![part.clone()]);
    let lent = members.iter().zip(parts).map(lend).collect::<Result<Vec<_>, _>>()?;
    let gather = |to: &&Cuda| {
        let parts = lent.iter().map(|lent| Ok(lent(to)?.swap_remove(0))).collect::<Result<Vec<_>, KernelError>>()?;
        to.concat(&parts, axis)
    };
    members.iter().map(gather).collect()
}

/// How parts lie in the whole, in steps of [`CARRIED`] bytes.
struct Layout {
    rows: usize,
    widths: Vec<usize>,
    shape: [usize; 2],
}

impl Layout {
    /// Of matrices that the kernel takes.
    fn of(parts: &[Tensor], axis: usize) -> Option<Self> {
        let [rows, columns] = parts.first()?.shape[..] else { return None };
        let fits = |part: &Tensor| {
            let suits = part.dtype == parts[0].dtype && part.shape.len() == 2 && part.pointer().is_multiple_of(8);
            suits && part.shape[1 - axis] == parts[0].shape[1 - axis] && (1..=MOST).contains(&part.bytes())
        };
        if axis > 1 || !parts.iter().all(fits) {
            return None;
        }
        let all = parts.iter().map(|part| part.shape[axis]).sum();
        let (shape, lines) = if axis == 0 { ([all, columns], 1) } else { ([rows, all], rows) };
        let even = parts.iter().all(|part| (part.bytes() / lines).is_multiple_of(CARRIED));
        let widths = parts.iter().map(|part| part.bytes() / lines / CARRIED).collect();
        even.then_some(Self { rows: lines, widths, shape })
    }
}

/// Where each member gets the parts of the others: two places for each, which take turns.
struct Inboxes {
    each: Vec<Buffer>,
    /// Of the last exchange.
    number: Mutex<u32>,
}

impl Inboxes {
    fn of(members: &[&Cuda]) -> Result<Self, KernelError> {
        let inbox = |member: &&Cuda| {
            let device = &member.device;
            let inbox = device.alloc(2 * members.len() * PACKET / CARRIED * MOST)?;
            device.clear(&inbox)?;
            // Nobody writes there before it is done.
            device.synchronize()?;
            Ok(inbox)
        };
        let each = members.iter().map(inbox).collect::<Result<Vec<_>, KernelError>>()?;
        Ok(Self { each, number: Mutex::new(0) })
    }

    /// Where `receiver` gets what `sender` sends by exchange `number`.
    fn place(&self, receiver: usize, sender: usize, number: u32) -> u64 {
        let place = number as usize % 2 * self.each.len() + sender;
        self.each[receiver].pointer + (place * PACKET / CARRIED * MOST) as u64
    }

    fn gather(&self, members: &[&Cuda], parts: &[Tensor], layout: &Layout) -> Result<Vec<Tensor>, KernelError> {
        let place = |member: &&Cuda| member.device.empty(&layout.shape, parts[0].dtype);
        let outs = members.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        // Kernels of one exchange stand before those of the next on every GPU.
        let mut number = self.number.lock().map_err(|error| device_error("all_gather", error))?;
        *number = if *number == u32::MAX { 2 } else { *number + 1 };
        let most = layout.rows * layout.widths.iter().copied().max().unwrap_or(0);
        let spread = Spread::new(most.div_ceil(THREADS).clamp(1, MOST_BLOCKS), THREADS as u32);
        for (at, (member, out)) in members.iter().zip(&outs).enumerate() {
            let gathering = self.gathering((at, *number), (&parts[at], out), layout);
            launch!(member.device, "all_gather", spread, gathering)?;
        }
        Ok(outs)
    }

    fn gathering(&self, (member, number): (usize, u32), (part, out): (&Tensor, &Tensor), layout: &Layout) -> Gathering {
        let members = self.each.len();
        let mut gathering = Gathering {
            own: part.pointer(),
            out: out.pointer(),
            to: [0; MEMBERS],
            from: [0; MEMBERS],
            widths: [0; MEMBERS],
            at: [0; MEMBERS],
            rows: layout.rows as i32,
            pitch: layout.widths.iter().sum::<usize>() as i32,
            member: member as i32,
            members: members as i32,
            number,
            unused: 0,
        };
        let mut at = 0;
        for other in 0..members {
            gathering.to[other] = self.place(other, member, number);
            gathering.from[other] = self.place(member, other, number);
            gathering.widths[other] = layout.widths[other] as i32;
            gathering.at[other] = at;
            at += gathering.widths[other];
        }
        gathering
    }
}
