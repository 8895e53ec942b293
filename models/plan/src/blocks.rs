//! Cutting a context into blocks and dealing blocks to hosts. Knows no method.

use std::ops::Range;

use crate::PlanError;

/// A smaller block is taken for a forgotten unit.
const SMALLEST_BLOCK_TOKENS: usize = 16;

/// Tokens of a block: as typed, or the context spread evenly, one block a host.
///
/// # Errors
/// [`PlanError::ZeroBlock`].
pub fn block_tokens(typed: Option<usize>, context: usize, hosts: usize) -> Result<usize, PlanError> {
    match typed {
        Some(0) => Err(PlanError::ZeroBlock { least: SMALLEST_BLOCK_TOKENS }),
        Some(block) => Ok(block),
        None => Ok(context.div_ceil(hosts)),
    }
}

/// Refuses a block so small that its unit was probably forgotten.
///
/// # Errors
/// [`PlanError::BlockTooSmall`].
pub fn review_block(typed: Option<usize>, context: usize) -> Result<(), PlanError> {
    match typed {
        Some(0) => Err(PlanError::ZeroBlock { least: SMALLEST_BLOCK_TOKENS }),
        Some(block) if block < SMALLEST_BLOCK_TOKENS && block < context => {
            Err(PlanError::BlockTooSmall { block, context, least: SMALLEST_BLOCK_TOKENS })
        }
        _ => Ok(()),
    }
}

/// What a block costs behind the blocks before it.
pub type Work<'a> = dyn Fn(&[Range<usize>], Range<usize>) -> u64 + 'a;

/// One block a host, unequal so that the host with the most work has as little as can be. `work(blocks before, range)` is
/// what a block costs, more for a longer one. Long blocks but the last are whole tiles of rows ([`grain`]).
pub fn balanced_blocks(tokens: usize, hosts: usize, work: &Work) -> Vec<Range<usize>> {
    assert!(hosts > 0, "methods refuse a cluster without context hosts before they cut");
    let grain = grain(tokens / hosts);
    // The longest blocks within a limit, in order.
    let cut = |limit: u64| {
        let mut start = 0;
        let mut blocks = Vec::with_capacity(hosts);
        while start < tokens && blocks.len() < hosts {
            let fits = |end: &usize| work(&blocks, start..*end) <= limit;
            let longest = partition_point(start + 1, tokens + 1, fits) - 1;
            let end = if longest < tokens { start + (longest - start) / grain * grain } else { tokens };
            if end == start {
                break;
            }
            blocks.push(start..end);
            start = end;
        }
        blocks
    };
    let covers = |blocks: &[Range<usize>]| blocks.last().is_some_and(|last| last.end == tokens);
    let (mut low, mut high) = (0, work(&[], 0..tokens));
    while low < high {
        let middle = low + (high - low) / 2;
        match covers(&cut(middle)) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    cut(low)
}

/// What long blocks are multiples of, where they have so many tokens each: a 32nd of that, as a power of two, since kernels take rows
/// by tiles; 1 where that is smaller than a tile.
fn grain(each: usize) -> usize {
    match (each / 32).checked_ilog2() {
        Some(log) if log >= 6 => 1 << log,
        _ => 1,
    }
}

/// First value of `low..high` that `fits` does not hold for.
fn partition_point(mut low: usize, mut high: usize, fits: impl Fn(&usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        match fits(&middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

/// Contiguous blocks of `size` tokens over `0..tokens`; the last may be shorter, nothing is padded.
pub fn split_blocks(tokens: usize, size: usize) -> Vec<Range<usize>> {
    assert!(size > 0, "methods refuse an empty block before they cut");
    (0..tokens).step_by(size).map(|start| start..tokens.min(start + size)).collect()
}

/// The host of each block: contiguous runs, the first `blocks % hosts` hosts taking one more.
pub fn host_of_blocks(blocks: usize, hosts: usize) -> Vec<usize> {
    assert!(hosts > 0, "methods refuse a cluster without context hosts before they deal");
    let (each, more) = (blocks / hosts, blocks % hosts);
    (0..hosts).flat_map(|host| std::iter::repeat_n(host, each + usize::from(host < more))).collect()
}

/// A run of tokens a host, as long as the others' but for the last, in blocks of `size` of which the last has what is left; and
/// the host of each block. So all blocks but one a host are alike, whatever the context's length.
pub fn runs_of_blocks(tokens: usize, hosts: usize, size: usize) -> (Vec<Range<usize>>, Vec<usize>) {
    assert!(hosts > 0, "methods refuse a cluster without context hosts before they cut");
    let runs = split_blocks(tokens, tokens.div_ceil(hosts)).into_iter().enumerate();
    let cut = |run: Range<usize>| {
        let of_run = split_blocks(run.len(), size).into_iter();
        of_run.map(move |block| run.start + block.start..run.start + block.end)
    };
    runs.flat_map(|(host, run)| cut(run).map(move |block| (block, host))).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_is_shorter() {
        assert_eq!(split_blocks(7, 3), [0..3, 3..6, 6..7]);
        assert_eq!(split_blocks(6, 3), [0..3, 3..6]);
        assert_eq!(split_blocks(2, 3), [0..2; 1]);
        assert!(split_blocks(0, 3).is_empty());
    }

    #[test]
    fn the_first_hosts_take_one_more() {
        assert_eq!(host_of_blocks(6, 4), [0, 0, 1, 1, 2, 3]);
        assert_eq!(host_of_blocks(3, 5), [0, 1, 2]);
        assert_eq!(host_of_blocks(4, 1), [0, 0, 0, 0]);
    }

    #[test]
    fn all_blocks_but_one_a_host_are_alike() {
        assert_eq!(runs_of_blocks(10, 1, 4), (vec![0..4, 4..8, 8..10], vec![0, 0, 0]));
        assert_eq!(runs_of_blocks(13, 2, 4), (vec![0..4, 4..7, 7..11, 11..13], vec![0, 0, 1, 1]));
        assert_eq!(runs_of_blocks(16, 2, 4), (vec![0..4, 4..8, 8..12, 12..16], vec![0, 0, 1, 1]));
        assert_eq!(runs_of_blocks(6, 4, 4), (vec![0..2, 2..4, 4..6], vec![0, 1, 2]), "a host may be left idle");
    }

    #[test]
    fn balanced_blocks_leave_the_busiest_host_the_least() {
        // Every block but the first stands behind 100 more tokens.
        let work = |before: &[Range<usize>], range: Range<usize>| {
            (range.len() + if before.is_empty() { 0 } else { 100 }) as u64
        };
        let blocks = balanced_blocks(1000, 4, &work);
        assert_eq!(blocks, [0..325, 325..550, 550..775, 775..1000]);
        assert_eq!(balanced_blocks(2, 4, &work), [0..2; 1]);
        assert_eq!(balanced_blocks(1000, 1, &work), [0..1000; 1]);
        let square = |_: &[Range<usize>], range: Range<usize>| (range.len() * range.len()) as u64;
        assert_eq!(balanced_blocks(9, 3, &square), [0..3, 3..6, 6..9]);
        let long = balanced_blocks(100_001, 4, &work);
        assert_eq!(long, [0..25_088, 25_088..50_176, 50_176..75_264, 75_264..100_001], "multiples of 512");
    }
}
