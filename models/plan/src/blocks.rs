//! Cutting a context into blocks and dealing blocks to hosts. Knows no method.

use std::ops::Range;

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
}
