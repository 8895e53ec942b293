//! Which host encoded a shard last, by what the shard is: it may hold it still. A wrong guess costs an encode, no answer.

use std::collections::{HashMap, VecDeque};

use asterism_models::ShardIdentity;

/// Shards that are remembered.
const REMEMBERED: usize = 1 << 16;

/// Which host encoded a shard last, by what the shard is.
#[derive(Debug, Default)]
pub struct RecentEncoders {
    hosts: HashMap<ShardIdentity, usize>,
    order: VecDeque<ShardIdentity>,
}

impl RecentEncoders {
    /// A host holds a shard.
    pub fn note(&mut self, identity: ShardIdentity, host: usize) {
        if self.hosts.insert(identity, host).is_none() {
            self.order.push_back(identity);
        }
        while self.order.len() > REMEMBERED {
            let oldest = self.order.pop_front().expect("there are many");
            self.hosts.remove(&oldest);
        }
    }

    /// Whether each of some shards was encoded last by the host beside it.
    pub fn were_all(&self, identities: &[ShardIdentity], hosts: &[usize]) -> bool {
        let same = |(identity, host): (&ShardIdentity, &usize)| self.find(identity) == Some(*host);
        !hosts.is_empty() && identities.len() == hosts.len() && identities.iter().zip(hosts).all(same)
    }

    /// The host that encoded it last.
    pub fn find(&self, identity: &ShardIdentity) -> Option<usize> {
        self.hosts.get(identity).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_longest_ago_is_forgotten() {
        let mut lately = RecentEncoders::default();
        let identity = |number: usize| std::array::from_fn(|at| (number >> (8 * at.min(3))) as u8);
        (0..REMEMBERED + 2).for_each(|number| lately.note(identity(number), number % 3));
        lately.note(identity(7), 5);
        assert_eq!([0, 1, 2, 7].map(|number| lately.find(&identity(number))), [None, None, Some(2), Some(5)]);
        assert_eq!((lately.order.len(), lately.hosts.len()), (REMEMBERED, REMEMBERED));
    }
}
