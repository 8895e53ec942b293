//! What this process takes of its machine, as /proc tells.

use std::fs;

use crate::readings::ProcessReading;

/// Ticks of a second in what Linux tells programs, on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// What it takes now; zeros where the system tells nothing.
pub(super) fn reading() -> ProcessReading {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    parsed(&read("status"), &read("stat"))
}

fn parsed(status: &str, stat: &str) -> ProcessReading {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    // The name in parentheses may hold spaces: user and system time are the 12th and 13th field behind it.
    let times = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
    let ticks: u64 = times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ProcessReading {
        resident_bytes: field("VmRSS").saturating_mul(1024),
        cpu_s: ticks as f64 / TICKS_PER_SECOND,
        threads: field("Threads"),
        computing: 0,
        gpu: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_itself() {
        let status = "Name:\ta) b\nVmRSS:\t    2048 kB\nThreads:\t7\n";
        let stat = "12 (a) b) S 1 12 12 0 -1 4194560 100 0 3 0 250 50 0 0 20 0 7 0 100 4096 512";
        assert_eq!(
            parsed(status, stat),
            ProcessReading { resident_bytes: 2 << 20, cpu_s: 3.0, threads: 7, computing: 0, gpu: None }
        );
        assert_eq!(parsed("", ""), ProcessReading::default());
        let own = reading();
        assert!(own.resident_bytes > 0 && own.threads > 0, "{own:?}");
    }
}
