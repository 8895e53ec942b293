//! Whether there is room where the cluster keeps its journal, logs and files. Frees none.

use std::path::Path;

use super::Judgment;
use crate::cluster::{Cluster, size::bytes};

/// Bytes below which what is left of a disk is soon too little, and below which changes are refused at any moment.
const LEFT: (u64, u64) = (1 << 30, 64 << 20);

pub fn look(cluster: &Cluster) -> Vec<Judgment> {
    // Until a cluster has begun, its folder is where its parent is.
    let there = cluster.data_dir.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    let found = rustix::fs::statvfs(there).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    vec![match found {
        Ok(free) => judge(there, free),
        Err(error) => {
            let remedy = "see whether data_dir's disk is mounted, and may be read";
            Judgment::error("disk", format!("{}: {error}", there.display()), remedy)
        }
    }]
}

fn judge(there: &Path, free: u64) -> Judgment {
    let found = format!("{} free for data_dir at {}", bytes(free), there.display());
    let remedy = "make room there, or move data_dir: what is new is refused with disk_full when there is none";
    match LEFT {
        (fine, _) if free >= fine => Judgment::ok("disk", found),
        (_, least) if free >= least => Judgment::warning("disk", found, remedy),
        _ => Judgment::error("disk", found, remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::checks::Verdict;

    #[test]
    fn a_disk_that_is_nearly_full_is_told_before_it_is() {
        let judged = |free| judge(Path::new("/var/lib/asterism"), free).verdict;
        assert_eq!([judged(5 << 30), judged(500 << 20), judged(0)], [Verdict::Ok, Verdict::Warning, Verdict::Error]);
        let found = judge(Path::new("/data"), 3 << 20);
        assert_eq!(found.found, "3.0 MiB free for data_dir at /data");
    }
}
