//! What goes wrong between two peers, and what becomes of one frame. Draws from a seed; knows no clock and no task.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

use super::Draw;
use crate::{
    Frame, FrameError,
    frame::{
        HEADER_BYTES,
        codec::{self, FrameDecoder},
    },
};

/// A packet is not lost more often than this in a row.
const MOST_LOSSES: u32 = 6;

/// What goes wrong between two peers. Chances are of one frame, from 0 to 1. The default is a network without faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// How long a frame is under way.
    pub delay: RangeInclusive<Duration>,
    /// Chance that its packet is lost, and that the repeated one is lost again.
    pub drop: f64,
    /// Wait before a lost packet is repeated; it doubles with each loss of the same packet.
    pub retransmit_after: Duration,
    /// Chance that its packet comes twice, each copy with a delay of its own. The earlier one counts.
    pub duplicate: f64,
    /// Chance that it is overtaken by frames of other channels.
    pub reorder: f64,
    /// How far back an overtaken frame falls.
    pub reorder_by: Duration,
    /// Chance that a bit of its header flips. If the frame decoder would not notice, the packet's checksum does, and the
    /// packet counts as lost.
    pub corrupt: f64,
    /// Chance that its link is cut in its place.
    pub cut: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO..=Duration::ZERO,
            drop: 0.0,
            retransmit_after: Duration::from_millis(20),
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(10),
            corrupt: 0.0,
            cut: 0.0,
        }
    }
}

/// One thing that went wrong with one frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Who sent the frame.
    pub from: SocketAddr,
    /// Whom it was for.
    pub to: SocketAddr,
    /// Place of the link among those that its connecting side made to the other.
    pub link: u64,
    /// Whether the sender connected the link.
    pub sender_connected: bool,
    /// Whether the sender opened the channel.
    pub sender_opened: bool,
    /// Place of the channel among those that its opener opened on the link.
    pub channel: u64,
    /// Place of the frame among those of its direction of the channel.
    pub frame: u64,
    /// What went wrong.
    pub kind: FaultKind,
}

/// How a frame's journey can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Lost and repeated.
    Dropped,
    /// Came twice.
    Duplicated,
    /// Overtaken.
    Reordered,
    /// Damaged, noticed by the checksum, and repeated.
    Damaged,
    /// Damaged and refused by the frame decoder: the channel ended.
    Refused,
    /// The link was cut.
    Cut,
}

/// Where a frame goes, and which one it is.
pub(super) struct Course {
    pub seed: u64,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub link: u64,
    pub sender_connected: bool,
    pub sender_opened: bool,
    pub channel: u64,
}

impl Course {
    pub(super) fn fault(&self, frame: u64, kind: FaultKind) -> Fault {
        let &Self { from, to, link, sender_connected, sender_opened, channel, .. } = self;
        Fault { from, to, link, sender_connected, sender_opened, channel, frame, kind }
    }

    fn draw(&self, frame: u64) -> Draw {
        let sides = u64::from(self.sender_connected) << 1 | u64::from(self.sender_opened);
        let [from, to] = [self.from, self.to].map(number);
        let parts = [from[0], from[1], from[2], to[0], to[1], to[2], self.link, sides, self.channel, frame];
        Draw::new(parts.into_iter().fold(self.seed, |key, part| Draw::new(key ^ part).number()))
    }
}

fn number(address: SocketAddr) -> [u64; 3] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    [(ip >> 64) as u64, ip as u64, u64::from(address.port())]
}

/// What becomes of one frame.
pub(super) struct Fate {
    /// How long it takes.
    pub delay: Duration,
    pub end: FrameEnd,
    pub faults: Vec<FaultKind>,
}

/// How a frame's journey ends.
pub(super) enum FrameEnd {
    Arrives,
    /// The decoder refuses it.
    Refused(FrameError),
    /// The link ends in its place.
    Cut,
}

impl Faults {
    /// What becomes of `frame`, the `place`th of `course`.
    pub(super) fn fate(&self, course: &Course, place: u64, frame: &Frame) -> Fate {
        let mut draw = course.draw(place);
        // Every number is drawn whatever the chances are, so that one chance changes none of the others' outcomes.
        let (delay, copy) = (draw.within(&self.delay), draw.within(&self.delay));
        let [cut, corrupt, duplicate, reorder] =
            [self.cut, self.corrupt, self.duplicate, self.reorder].map(|chance| draw.happens(chance));
        let bit = draw.below(8 * HEADER_BYTES);
        let mut fate = Fate { delay, end: FrameEnd::Arrives, faults: Vec::new() };
        if cut {
            fate.faults.push(FaultKind::Cut);
            fate.end = FrameEnd::Cut;
            return fate;
        }
        if reorder {
            fate.faults.push(FaultKind::Reordered);
            fate.delay += self.reorder_by;
        }
        if corrupt {
            match refusal(frame, bit) {
                Some(error) => {
                    fate.faults.push(FaultKind::Refused);
                    fate.end = FrameEnd::Refused(error);
                    return fate;
                }
                None => {
                    fate.faults.push(FaultKind::Damaged);
                    fate.delay += self.retransmit_after;
                }
            }
        }
        let losses = (0..MOST_LOSSES).take_while(|_| draw.happens(self.drop)).count() as u32;
        if losses > 0 {
            fate.faults.push(FaultKind::Dropped);
            fate.delay += self.retransmit_after * ((1 << losses) - 1);
        }
        if duplicate {
            fate.faults.push(FaultKind::Duplicated);
            fate.delay = fate.delay.min(copy);
        }
        fate
    }
}

/// Why the decoder refuses `frame` with one bit of its header flipped; `None` if it does not notice.
fn refusal(frame: &Frame, bit: usize) -> Option<FrameError> {
    let mut wire = codec::encode(frame.clone()).ok()?.concat();
    wire[bit / 8] ^= 1 << (bit % 8);
    let mut rest = bytes::Bytes::from(wire);
    let mut decoder = FrameDecoder::new();
    loop {
        match decoder.decode(&mut rest) {
            Err(error) => return Some(error),
            Ok(None) if decoder.is_between_frames() => return None,
            Ok(None) => return Some(FrameError::Truncated),
            Ok(Some(_)) if rest.is_empty() => return None,
            Ok(Some(_)) => {}
        }
    }
}

/// What a simulated network is like.
#[derive(Clone, Debug, PartialEq)]
pub struct SimConfig {
    /// Decides every draw.
    pub seed: u64,
    /// What goes wrong between peers that have no faults of their own.
    pub faults: Faults,
    /// A partition that lasts this long ends the links across it.
    pub idle_timeout: Duration,
    /// Longest wait for `connect`.
    pub connect_timeout: Duration,
}

impl SimConfig {
    /// A network without faults, as patient as QUIC is by default.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            faults: Faults::default(),
            idle_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use rkyv::util::AlignedVec;

    use super::*;

    fn course(seed: u64) -> Course {
        let [from, to] = ["10.0.0.1:1", "10.0.0.2:2"].map(|address| address.parse().expect("an address"));
        Course { seed, from, to, link: 0, sender_connected: true, sender_opened: true, channel: 0 }
    }

    fn share(faults: &Faults, kind: FaultKind) -> f64 {
        let frame = Frame::control(AlignedVec::new());
        let fates = (0..10_000).map(|place| faults.fate(&course(7), place, &frame));
        fates.filter(|fate| fate.faults.contains(&kind)).count() as f64 / 10_000.0
    }

    #[test]
    fn chances_are_kept() {
        let faults = Faults { drop: 0.3, duplicate: 0.2, reorder: 0.1, cut: 0.05, ..Faults::default() };
        let kinds = [FaultKind::Dropped, FaultKind::Duplicated, FaultKind::Reordered];
        for (kind, chance) in kinds.into_iter().zip([0.3, 0.2, 0.1]) {
            assert!((share(&faults, kind) - chance * 0.95).abs() < 0.02, "{kind:?}");
        }
        assert!((share(&faults, FaultKind::Cut) - 0.05).abs() < 0.01);
        assert_eq!(share(&Faults::default(), FaultKind::Cut), 0.0);
        assert_eq!(share(&Faults { cut: 1.0, ..Faults::default() }, FaultKind::Cut), 1.0);
    }

    #[test]
    fn a_flipped_bit_of_the_header_is_refused_or_beyond_the_decoder() {
        let mut frame = Frame::control(AlignedVec::new());
        frame.meta.extend_from_slice(&[7; 20]);
        let code = |bit| refusal(&frame, bit).map(|error| error.code());
        assert_eq!(code(0), Some("frame_magic"));
        assert_eq!(code(8 * 4), Some("frame_version"));
        assert_eq!(code(8 * 8), None, "a correlation may be any");
        assert_eq!(code(8 * 16), Some("frame_truncated"), "a longer meta waits for more");
        assert_eq!(code(8 * 16 + 2), Some("frame_truncated"), "after a shorter meta no frame follows");
        assert_eq!(code(8 * 39), Some("frame_not_zero"));
    }
}
