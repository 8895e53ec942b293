//! What a shard is: two passes of one identity keep the same keys and values, to the last bit, on hosts of equal numerics. A
//! cryptographic checksum, so that nothing that a client sends is taken for something else.

use std::mem;

use asterism_plan::{Exchange, Plan, Shard, TokenIds};

/// The identity of a shard: of all that its pass reads and sees, and of whom it is for.
pub type ShardIdentity = [u8; 32];

/// The identities of a plan's shards, as each is encoded alone; none of a plan whose shards are encoded only together. `scope`: whom
/// the context is for; nothing of one scope is anything of another's.
pub fn shard_identities(plan: &Plan, ids: &[u32], scope: Option<&str>) -> Vec<ShardIdentity> {
    if !matches!(plan.exchange, Exchange::None | Exchange::SharedPrefix { .. }) {
        return Vec::new();
    }
    let mut before = blake3::Hasher::new();
    before.update(&[u8::from(scope.is_some())]);
    text(&mut before, scope.unwrap_or_default());
    let own = before.clone();
    let identities = (0..plan.shards.len()).map_while(|block| {
        let shard = plan.alone(block);
        let mut hasher = if shard.behind > 0 { before.clone() } else { own.clone() };
        add(&mut hasher, &shard, ids)?;
        let identity = *hasher.finalize().as_bytes();
        before.update(&identity);
        Some(identity)
    });
    identities.collect()
}

/// Adds what a pass reads; none of a shard of other ids.
fn add(hasher: &mut blake3::Hasher, shard: &Shard, ids: &(impl TokenIds + ?Sized)) -> Option<()> {
    // What stands behind it in a chain are shards, whose identities the hasher has.
    let input = Shard { behind: 0, ..shard.clone() }.input(ids).ok()?;
    for number in [shard.block, shard.prefix_rows(), shard.rows(), shard.keep_from(), shard.apart_rows, shard.behind] {
        hasher.update(&(number as u64).to_le_bytes());
    }
    hasher.update(&shard.rope_length.to_le_bytes());
    text(hasher, &format!("{:?}", shard.attention));
    let mut bytes = Vec::with_capacity(mem::size_of::<u32>() * 2 * input.ids.len());
    bytes.extend(input.ids.iter().chain(&input.positions).flat_map(|word| word.to_le_bytes()));
    hasher.update(&bytes);
    Some(())
}

fn text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use asterism_plan::{MethodConfig, ModelShape, PlanRequest};

    use super::*;

    fn identities(method: &str, context: &[u32], scope: Option<&str>) -> Vec<ShardIdentity> {
        let method: MethodConfig = method.parse().unwrap();
        let shape = &ModelShape::TINY;
        let request = PlanRequest { context, query: &[7], hosts: 2, one_device: true, shape, speeds: None };
        let plan = method.reusable(&request).unwrap();
        shard_identities(&plan, &plan.numbered_ids(context), scope)
    }

    #[test]
    fn a_block_is_the_same_behind_the_same_and_for_the_same() {
        let ids: Vec<u32> = (0..3000).collect();
        let longer: Vec<u32> = (0..3500).collect();
        let late = [&ids[..2500], &[9; 500]].concat();
        let early = [&[9], &ids[1..]].concat();
        for (method, after_early) in [("dense", 0), ("pulsar", 0)] {
            let first = identities(method, &ids, None);
            let common = |other: &[u32], scope| {
                let both = identities(method, other, scope);
                first.iter().zip(&both).filter(|(one, other)| one == other).count()
            };
            assert_eq!((first.len(), common(&longer, None), common(&late, None)), (3, 2, 2), "{method}");
            // The first token is seen by every block, as the sink or as a key.
            assert_eq!(common(&early, None), after_early, "{method}");
            assert_eq!((common(&ids, Some("")), common(&ids, Some("a"))), (0, 0), "{method}");
        }
        // In the middle a chained block knows what was before it, and one behind the sink does not.
        let middle = [&ids[..1500], &[9], &ids[1501..]].concat();
        let same = |method| {
            let (first, other) = (identities(method, &ids, None), identities(method, &middle, None));
            first.iter().zip(&other).map(|(one, other)| one == other).collect::<Vec<_>>()
        };
        assert_eq!((same("dense"), same("pulsar")), (vec![true, false, false], vec![true, false, true]));
        assert!(identities("ring", &ids, None).is_empty());
    }
}
