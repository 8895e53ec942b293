//! What is asked of a machine beside its operations: how much memory a case took, how fast memory is, and how long work takes.

use std::{fs, hint::black_box, thread, time::Instant};

use asterism_kernels::{Backend, Cpu, DeviceGroup, KernelError, WorkQueue as _};
use serde::Serialize;

/// Repetitions of short work take this long together, so that the clock and waiting for a device do not count.
const ROW_S: f64 = 0.02;
const MOST_REPETITIONS: f64 = 100.0;
/// Bytes that a copy on the host reads: more than caches hold.
const COPIED: usize = 256 << 20;

/// A backend whose memory can be measured.
pub trait BenchBackend: Backend {
    /// Whose memory the peak is of.
    const MEMORY: &'static str;
    /// Has the peak begin anew.
    fn forget_peak(&self);
    /// Most bytes in use since then, if the system tells.
    fn peak_bytes(&self) -> Option<u64>;
    /// Bytes that a copy reads and writes in a second.
    fn copy_bytes_per_s(&self) -> Result<f64, KernelError>;
}

impl BenchBackend for Cpu {
    const MEMORY: &'static str = "process";

    fn forget_peak(&self) {
        self.trim_memory();
        // Where the system forbids it, the peak is that since the process started.
        let _ = fs::write("/proc/self/clear_refs", "5");
    }

    fn peak_bytes(&self) -> Option<u64> {
        peak_of(&fs::read_to_string("/proc/self/status").ok()?)
    }

    fn copy_bytes_per_s(&self) -> Result<f64, KernelError> {
        let threads = self.thread_limit().now().max(1);
        let from = vec![1u8; COPIED];
        let mut to = vec![2u8; COPIED];
        let share = COPIED.div_ceil(threads);
        let seconds = seconds(self, 5, || {
            thread::scope(|scope| {
                for (to, from) in to.chunks_mut(share).zip(from.chunks(share)) {
                    scope.spawn(|| to.copy_from_slice(black_box(from)));
                }
            });
            Ok(())
        })?;
        black_box(&to);
        Ok((2 * COPIED) as f64 / seconds.best_s)
    }
}

/// Those of all its devices together.
impl<B: BenchBackend> BenchBackend for DeviceGroup<B> {
    const MEMORY: &'static str = B::MEMORY;

    fn forget_peak(&self) {
        self.members().iter().for_each(|member| member.forget_peak());
    }

    fn peak_bytes(&self) -> Option<u64> {
        let peaks = self.members().iter().map(|member| member.peak_bytes());
        // Processors of one host are one process.
        if self.queues() { peaks.sum() } else { peaks.max().flatten() }
    }

    fn copy_bytes_per_s(&self) -> Result<f64, KernelError> {
        self.members().iter().map(|member| member.copy_bytes_per_s()).sum()
    }
}

#[cfg(feature = "cuda")]
impl BenchBackend for asterism_kernels::Cuda {
    const MEMORY: &'static str = "device";

    fn forget_peak(&self) {
        self.device().forget_peak();
    }

    fn peak_bytes(&self) -> Option<u64> {
        self.device().peak_memory()
    }

    fn copy_bytes_per_s(&self) -> Result<f64, KernelError> {
        use asterism_kernels::TensorOps as _;

        /// Rows of 8 KiB: 2 GiB, or 128 processors do not get to full speed.
        const ROWS: usize = 1 << 18;
        let mut x = self.upload(&[ROWS / 256, 2048], &vec![1.0; ROWS / 256 * 2048])?;
        while self.shape(&x)[0] < ROWS {
            x = self.concat(&[x.clone(), x], 0)?;
        }
        let seconds = seconds(self, 5, || self.narrow(&x, 0, 0, ROWS).map(drop))?;
        Ok((2 * ROWS * 2048 * 4) as f64 / seconds.best_s)
    }
}

/// `VmHWM` of a process's status, in bytes.
fn peak_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

/// What repetitions took.
#[derive(Clone, Debug, Serialize)]
pub struct RepetitionSeconds {
    /// Sorted.
    pub seconds: Vec<f64>,
    pub best_s: f64,
    pub median_s: f64,
}

impl RepetitionSeconds {
    /// Of one repetition at least.
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self { best_s: seconds[0], median_s: seconds[seconds.len() / 2], seconds }
    }
}

/// Seconds of one `work`, of each of so many rows of some in turn, after one or two that are not timed.
pub fn seconds<B: Backend>(
    backend: &B,
    rows: u16,
    mut work: impl FnMut() -> Result<(), KernelError>,
) -> Result<RepetitionSeconds, KernelError> {
    let mut row = |repetitions: usize| {
        backend.finish()?;
        let started = Instant::now();
        (0..repetitions).try_for_each(|_| work())?;
        backend.finish()?;
        Ok::<_, KernelError>(started.elapsed().as_secs_f64() / repetitions as f64)
    };
    let mut once = row(1)?;
    if once < 1.0 {
        once = row(1)?;
    }
    let repetitions = (ROW_S / once).clamp(1.0, MOST_REPETITIONS) as usize;
    Ok(RepetitionSeconds::of((0..rows).map(|_| row(repetitions)).collect::<Result<_, _>>()?))
}

/// Numbers of mean 0 and variance 1, evenly spread, the same for a seed everywhere (SplitMix64).
pub fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32;
        (2.0 * unit - 1.0) * 3f32.sqrt()
    };
    (0..count).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    #[test]
    fn the_peak_of_a_process_follows_what_it_allocates() {
        assert_eq!(peak_of("Name:\tx\nVmHWM:\t   12 kB\nVmRSS:\t 8 kB\n"), Some(12 << 10));
        assert_eq!(peak_of("VmRSS:\t 8 kB\n"), None);
        // Other tests of this process allocate, too.
        let (_, module) = module_path!().split_once("::").expect("a module of the crate");
        let test = format!("{module}::the_peak_of_this_process_follows_what_it_allocates");
        let mut child = Command::new(env::current_exe().expect("a program"));
        let output = child.args(["--exact", &test, "--ignored"]).output().expect("it runs already");
        let reported = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && reported.contains("1 passed"), "{reported}");
    }

    #[test]
    #[ignore = "the child of the_peak_of_a_process_follows_what_it_allocates"]
    fn the_peak_of_this_process_follows_what_it_allocates() {
        let cpu = crate::processes::checkpoint::cpu(
            (crate::cluster::file::DType::F32, Default::default()),
            1,
            Default::default(),
        )
        .unwrap();
        // What is allocated last stays, so that the allocator does not give back of itself what lies before it.
        let mut stays = Vec::new();
        let mut peak_with = |bytes: usize| {
            cpu.forget_peak();
            let parts: Vec<_> = (0..bytes >> 16).map(|_| vec![1u8; 1 << 16]).collect();
            stays.push(vec![1u8; 1 << 16]);
            drop(black_box(parts));
            cpu.peak_bytes().unwrap()
        };
        let (much, little) = (peak_with(64 << 20), peak_with(8 << 20));
        assert!(much >= 64 << 20 && much >= little + (40 << 20), "{much} {little}");
    }

    #[test]
    fn numbers_have_mean_0_and_variance_1_and_follow_from_the_seed() {
        let numbers = random(7, 1 << 16);
        let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
        let variance = numbers.iter().map(|x| x * x).sum::<f32>() / numbers.len() as f32;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert_eq!(numbers[..9], random(7, 9)[..]);
        assert_ne!(numbers[..9], random(8, 9)[..]);
    }

    #[test]
    fn the_median_is_of_the_sorted() {
        let RepetitionSeconds { seconds, best_s, median_s } = RepetitionSeconds::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((seconds, best_s, median_s), (vec![1.0, 2.0, 3.0], 1.0, 2.0));
    }
}
