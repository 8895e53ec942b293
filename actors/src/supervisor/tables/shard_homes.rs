//! Which host encoded a shard last, by what the shard reads: it may hold it still. A wrong guess costs an encode, no answer.

use std::collections::{HashMap, VecDeque};

/// Shards that are remembered.
const REMEMBERED: usize = 1 << 16;

/// Which host encoded a shard last, by the checksum of what it read.
#[derive(Debug, Default)]
pub struct RecentEncoders {
    hosts: HashMap<u64, usize>,
    order: VecDeque<u64>,
}

impl RecentEncoders {
    /// A host holds a shard.
    pub fn note(&mut self, digest: u64, host: usize) {
        if self.hosts.insert(digest, host).is_none() {
            self.order.push_back(digest);
        }
        while self.order.len() > REMEMBERED {
            let oldest = self.order.pop_front().expect("there are many");
            self.hosts.remove(&oldest);
        }
    }

    /// The host that encoded it last.
    pub fn find(&self, digest: u64) -> Option<usize> {
        self.hosts.get(&digest).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_longest_ago_is_forgotten() {
        let mut lately = RecentEncoders::default();
        (0..REMEMBERED as u64 + 2).for_each(|digest| lately.note(digest, digest as usize % 3));
        lately.note(7, 5);
        assert_eq!([0, 1, 2, 7].map(|digest| lately.find(digest)), [None, None, Some(2), Some(5)]);
        assert_eq!((lately.order.len(), lately.hosts.len()), (REMEMBERED, REMEMBERED));
    }
}
