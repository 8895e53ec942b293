//! How what lies along an axis is dealt out to the devices of a group. Holds no tensor.

use std::ops::Range;
use std::sync::Arc;

/// Units of `width` elements, dealt out in order. So many devices in a row have the same as there are `copies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub units: usize,
    pub width: usize,
    pub copies: usize,
}

/// Segments one after the other along an axis; a device has its part of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub axis: usize,
    pub segments: Vec<Segment>,
    members: usize,
}

/// How a tensor lies on the devices: whole on each, or dealt out.
pub(super) type Layout = Option<Arc<Split>>;

/// Outputs of a linear layer are dealt out so many at a time where there are enough: kernels like that.
const COLUMNS: usize = 16;

impl Segment {
    /// Outputs of a linear layer.
    pub fn columns(outputs: usize, members: usize) -> Self {
        let width = if outputs.is_multiple_of(COLUMNS) && outputs >= COLUMNS * members { COLUMNS } else { 1 };
        Self { units: outputs / width, width, copies: if outputs < members { members } else { 1 } }
    }

    pub fn size(self) -> usize {
        self.units * self.width
    }

    fn portions(self, members: usize) -> usize {
        members / self.copies
    }

    fn portion(self, portion: usize, portions: usize) -> Range<usize> {
        let bound = |portion: usize| self.units * portion / portions * self.width;
        bound(portion)..bound(portion + 1)
    }

    /// Which elements a member has.
    pub fn range(self, member: usize, members: usize) -> Range<usize> {
        self.portion(member / self.copies, self.portions(members))
    }
}

impl Split {
    /// How `segments` lie along `axis` of a tensor on so many devices.
    pub fn layout(axis: usize, segments: Vec<Segment>, members: usize) -> Layout {
        let whole = segments.iter().all(|segment| segment.portions(members) == 1);
        (!whole).then(|| Arc::new(Self { axis, segments, members }))
    }

    /// Elements along the axis.
    pub fn size(&self) -> usize {
        self.segments.iter().map(|segment| segment.size()).sum()
    }

    /// Those that a member has.
    pub fn local(&self, member: usize) -> usize {
        self.ranges(member).iter().map(Range::len).sum()
    }

    /// Which ones, segment by segment.
    pub fn ranges(&self, member: usize) -> Vec<Range<usize>> {
        let mut start = 0;
        let of_segment = |segment: &Segment| {
            let Range { start: from, end } = segment.range(member, self.members);
            let range = start + from..start + end;
            start += segment.size();
            range
        };
        self.segments.iter().map(of_segment).collect()
    }

    /// Where the whole is taken from: a member, where it has it, and how much, in order.
    pub fn sources(&self) -> Vec<(usize, Range<usize>)> {
        let mut begun = vec![0; self.members];
        let mut sources = Vec::new();
        for segment in &self.segments {
            for (member, begun) in begun.iter_mut().enumerate() {
                let length = segment.range(member, self.members).len();
                if member % segment.copies == 0 {
                    sources.push((member, *begun..*begun + length));
                }
                *begun += length;
            }
        }
        sources
    }

    /// Whether a member is the first that has what it has of the first segment.
    pub fn is_source(&self, member: usize) -> bool {
        member.is_multiple_of(self.segments[0].copies)
    }

    /// The whole `(outer, axis, inner)` of the parts of all.
    pub fn whole<T: Copy>(&self, (outer, inner): (usize, usize), parts: &[Vec<T>]) -> Vec<T> {
        let sources = self.sources();
        let mut whole = Vec::with_capacity(outer * self.size() * inner);
        for row in 0..outer {
            for (member, range) in &sources {
                let start = row * self.local(*member) + range.start;
                whole.extend_from_slice(&parts[*member][start * inner..][..range.len() * inner]);
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dealt_out_is_put_together_again() {
        let segments = |members| {
            vec![
                Segment { units: 8, width: 2, copies: 1 },
                Segment { units: 2, width: 2, copies: members / 2 },
                Segment::columns(5, members),
            ]
        };
        for members in [2, 4] {
            let split = Split::layout(1, segments(members), members).unwrap();
            assert_eq!(split.size(), 25);
            let whole: Vec<usize> = (0..3 * 25 * 2).collect();
            let part = |member: usize| {
                let mut part = Vec::new();
                for row in 0..3 {
                    for range in split.ranges(member) {
                        part.extend_from_slice(&whole[(row * 25 + range.start) * 2..(row * 25 + range.end) * 2]);
                    }
                }
                assert_eq!(part.len(), 3 * split.local(member) * 2);
                part
            };
            let parts: Vec<_> = (0..members).map(part).collect();
            assert_eq!(split.whole((3, 2), &parts), whole, "{members} members");
        }
    }

    #[test]
    fn what_all_have_is_whole() {
        assert_eq!(Split::layout(0, vec![Segment { units: 3, width: 1, copies: 2 }], 2), None);
        assert_eq!(Segment::columns(3, 4).copies, 4, "too few outputs for all");
        assert_eq!(Segment::columns(64, 4), Segment { units: 4, width: 16, copies: 1 });
        assert_eq!(Segment::columns(64, 8), Segment { units: 64, width: 1, copies: 1 });
        let ranges: Vec<_> = (0..3).map(|member| Segment::columns(160, 3).range(member, 3)).collect();
        assert_eq!(ranges, [0..48, 48..96, 96..160]);
    }
}
