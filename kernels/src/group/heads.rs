//! Which heads each device of a group has: whole groups of query heads with their KV head, or a part of one group, whose KV head
//! several devices then have. Holds no tensor.

use super::layout::{Layout, Segment, Split};
use crate::{Heads, KernelError};

/// Whether so many devices can share a model's heads, each with as many query heads.
///
/// # Errors
/// [`KernelError::UnevenHeads`] says which degrees there are.
pub fn check_heads(heads: Heads, devices: usize) -> Result<(), KernelError> {
    let Heads { query, kv, .. } = heads;
    let even =
        |devices: usize| query.is_multiple_of(devices) && (kv.is_multiple_of(devices) || devices.is_multiple_of(kv));
    if devices > 0 && even(devices) {
        return Ok(());
    }
    let fit = (1..=query).filter(|devices| even(*devices)).collect();
    Err(KernelError::UnevenHeads { devices, query, kv, fit })
}

/// How heads of queries and of keys and values are dealt out.
#[derive(Clone, Copy)]
pub(super) struct HeadSegments {
    pub query: Segment,
    pub kv: Segment,
}

impl HeadSegments {
    /// Of such heads, which may be others than the model's: a share of them, say. Where they do not come out even all devices have all.
    pub fn of(query: usize, kv: usize, members: usize) -> Self {
        let even = members.is_multiple_of(kv.max(1));
        let copies = match () {
            () if kv.is_multiple_of(members) => 1,
            () if even => members / kv.max(1),
            () => members,
        };
        let alone = copies == 1 || even && query.is_multiple_of(members);
        let segment = |units, copies| Segment { units, width: 1, copies };
        Self { query: segment(query, if alone { 1 } else { copies }), kv: segment(kv, copies) }
    }

    /// Rows of queries, keys and values side by side.
    pub fn qkv(self, dim: usize, members: usize) -> Layout {
        let Self { query, kv } = self;
        Split::layout(1, [query, kv, kv].map(|heads| Segment { width: dim, ..heads }).into(), members)
    }

    /// Heads of queries, whatever each has.
    pub fn queries(self, members: usize) -> Layout {
        Split::layout(0, vec![self.query], members)
    }

    /// Heads of keys and values.
    pub fn keys(self, members: usize) -> Layout {
        Split::layout(0, vec![self.kv], members)
    }

    /// Rows of queries, or of what attention gives for them.
    pub fn rows(self, dim: usize, members: usize) -> Layout {
        Split::layout(1, vec![Segment { width: dim, ..self.query }], members)
    }

    /// Packed rows: outputs of all heads, then their log-sum-exps.
    pub fn packed(self, dim: usize, members: usize) -> Layout {
        Split::layout(1, vec![Segment { width: dim, ..self.query }, self.query], members)
    }

    /// What a member has of them.
    pub fn local(self, member: usize, members: usize, dim: usize) -> Heads {
        let of = |segment: Segment| segment.range(member, members).len();
        Heads { query: of(self.query), kv: of(self.kv), dim }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_that_share_the_heads_evenly_are_named() {
        let heads = |query, kv| Heads { query, kv, dim: 64 };
        for (of, devices) in [((32, 8), 2), ((32, 8), 8), ((32, 8), 16), ((64, 8), 64), ((28, 4), 4), ((9, 3), 3)] {
            check_heads(heads(of.0, of.1), devices).unwrap();
        }
        for (of, devices) in [((32, 8), 3), ((28, 4), 8), ((9, 3), 2), ((32, 8), 0), ((40, 8), 16)] {
            assert_eq!(check_heads(heads(of.0, of.1), devices).unwrap_err().code(), "kernel_uneven_heads");
        }
        let message = check_heads(heads(28, 4), 8).unwrap_err().to_string();
        assert!(message.contains("28 query heads") && message.contains("1, 2, 4, 28"), "{message}");
    }

    #[test]
    fn heads_that_do_not_come_out_even_are_everybodys() {
        let segments = HeadSegments::of(3, 1, 2);
        assert_eq!((segments.queries(2), segments.keys(2)), (None, None));
        let segments = HeadSegments::of(6, 2, 4);
        assert_eq!((segments.query.copies, segments.kv.copies), (2, 2), "a KV head with all its query heads");
        let segments = HeadSegments::of(8, 2, 4);
        assert_eq!((segments.query.copies, segments.kv.copies), (1, 2));
        assert_eq!(segments.local(3, 4, 64), Heads { query: 2, kv: 1, dim: 64 });
        assert_eq!(HeadSegments::of(9, 3, 2).keys(2), None);
    }
}
