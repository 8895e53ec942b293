//! Processes held to a part of a core, or given no memory, by a control group of their own: version 2, or 1, whichever can be written
//! here.

use std::{
    fs, io,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

const ROOT: &str = "/sys/fs/cgroup";
/// The part of a core, in microseconds of each so many.
const PERIOD_US: u32 = 100_000;
const RUNS_US: u32 = 6_000;
/// So little that whatever a process does next is too much.
const NO_MEMORY: &str = "4096";

static MADE: AtomicUsize = AtomicUsize::new(0);

/// A group that is gone, and its processes back where they were, when it is dropped.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// A group of `controller` (`cpu` or `memory`), with these limits: file and text in version 2, and in version 1.
    fn with(controller: &str, limits: [&[(&str, String)]; 2]) -> io::Result<Self> {
        let unified = fs::read_to_string(format!("{ROOT}/cgroup.controllers")).is_ok_and(|all| {
            let has = all.split_whitespace().any(|one| one == controller);
            has && fs::write(format!("{ROOT}/cgroup.subtree_control"), format!("+{controller}")).is_ok()
        });
        let (parent, limits) = match unified {
            true => (PathBuf::from(ROOT), limits[0]),
            false => (PathBuf::from(ROOT).join(controller), limits[1]),
        };
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let group = Self(parent.join(format!("asterism-test-{}-{number}", std::process::id())));
        // Where no such file system is mounted, a folder would do nothing.
        fs::metadata(parent.join("cgroup.procs"))?;
        fs::create_dir(&group.0)?;
        limits.iter().try_for_each(|(file, text)| fs::write(group.0.join(file), text))?;
        Ok(group)
    }

    /// Moves a process into it, with all of its threads.
    fn take(&self, pid: u64) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
            .expect("a process that runs, and a group that takes it");
    }

    /// Processes that it ended for want of memory.
    fn ended(&self) -> u64 {
        let page = ["memory.events", "memory.oom_control"].map(|file| fs::read_to_string(self.0.join(file)));
        let counted = page
            .into_iter()
            .flatten()
            .find_map(|page| page.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()));
        counted.unwrap_or(0)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let held = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        let parent = self.0.parent().expect("a group below the root").join("cgroup.procs");
        held.lines().for_each(|pid| drop(fs::write(&parent, pid)));
        // What has just ended is a member for a moment.
        for _ in 0..1000 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::yield_now(),
                _ => break,
            }
        }
    }
}

/// Holds a process to 6% of a core until what is returned is dropped.
pub fn six_percent(pid: u64) -> io::Result<ControlGroup> {
    let both = format!("{RUNS_US} {PERIOD_US}");
    let old = [("cpu.cfs_period_us", PERIOD_US.to_string()), ("cpu.cfs_quota_us", RUNS_US.to_string())];
    let group = ControlGroup::with("cpu", [&[("cpu.max", both)], &old])?;
    group.take(pid);
    Ok(group)
}

fn without_memory() -> io::Result<ControlGroup> {
    let limit = NO_MEMORY.to_string();
    ControlGroup::with("memory", [&[("memory.max", limit.clone())], &[("memory.limit_in_bytes", limit)]])
}

/// Why no process can be left without memory here, if none can.
pub fn no_memory_groups() -> Option<String> {
    without_memory().err().map(|error| format!("no cgroup with a memory limit can be made here: {error}"))
}

/// Leaves a process without memory until the kernel has ended it for that.
pub fn starve(pid: u64) {
    let group = without_memory().expect("it was tried");
    group.take(pid);
    super::eventually("the kernel to end it", || !super::lives(pid));
    assert!(group.ended() >= 1, "{pid} ended, and not for want of memory");
}
