//! How long a thread keeps a core where others want it.

use std::io;
use std::time::Duration;

/// Sets how long this thread, and those that it starts from now on, keep a core at a time: on Linux from 6.12 on, the shorter that is,
/// the sooner they get one that another has. None is as long as the system thinks right. `niceness` is the thread's. One that runs only
/// when others do not, or before all others, stays as it is.
///
/// # Errors
///
/// The system's, where it does not let threads be scheduled.
#[cfg(target_os = "linux")]
pub fn keep_cores_for(slice: Option<Duration>, niceness: i32) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: niceness,
        sched_priority: 0,
        sched_runtime: slice.map_or(0, |slice| slice.as_nanos() as u64),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the system reads the attributes, which live until it has.
    let done = unsafe {
        match libc::sched_getscheduler(0) {
            libc::SCHED_OTHER => libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0),
            _ => 0,
        }
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Does nothing: only Linux has slices.
///
/// # Errors
///
/// None.
#[cfg(not(target_os = "linux"))]
pub fn keep_cores_for(_: Option<Duration>, _: i32) -> io::Result<()> {
    Ok(())
}
