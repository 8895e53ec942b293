//! What the operating system lets this process have. Decides nothing else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that are asked for, where the system gives as many.
const WANTED_FILES: u64 = 65_536;

/// Raises how many files this process may have open, as far as it is let; returns how many that are.
pub fn raise_open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.unwrap_or(WANTED_FILES).min(WANTED_FILES);
    let now = current.unwrap_or(WANTED_FILES);
    if now >= most || setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).is_err() {
        return now as usize;
    }
    most as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_once_it_stays() {
        let files = raise_open_files();
        assert!(files > 0 && getrlimit(Resource::Nofile).current.is_none_or(|current| current >= files as u64));
        assert_eq!(raise_open_files(), files);
    }
}
