//! The logs of a data_dir, which do not grow without bound: once one is long it is put aside, in place of what was put aside before.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};

use crate::data_dir;

/// Longest log in bytes; one that was put aside is about as long.
const MOST_LOG_BYTES: u64 = 64 << 20;
const LOG_LOOK_EVERY: Duration = Duration::from_secs(10);

/// Looks at the logs of a data_dir for as long as this process lives.
pub fn keep_short(data_dir: &Path) {
    let folder = data_dir::log_folder(data_dir);
    tokio::spawn(async move {
        let mut looks = interval(LOG_LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let folder = folder.clone();
            let looked = tokio::task::spawn_blocking(move || shorten(&folder, MOST_LOG_BYTES)).await;
            if let Ok(Err(error)) = looked {
                tracing::debug!(%error, "logs cannot be shortened");
            }
        }
    });
}

/// Puts every log of more than `most` bytes aside and empties it. Whoever writes it appends, and goes on at its start; a line that is
/// written between the two is lost.
fn shorten(folder: &Path, most: u64) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let log = entry?.path();
        if log.extension().is_none_or(|extension| extension != "log") || fs::metadata(&log)?.len() <= most {
            continue;
        }
        let aside = log.with_extension("log.1");
        if let Err(error) = fs::copy(&log, &aside) {
            // A full disk needs the room more than the log.
            tracing::warn!(log = %log.display(), %error, "a long log is emptied, and what it held is lost");
            let _ = fs::remove_file(&aside);
        }
        File::options().write(true).open(&log)?.set_len(0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::data_dir::private;

    #[test]
    fn a_long_log_is_put_aside_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        fs::write(folder.path().join("other"), "not a log, however long").unwrap();
        let mut log = private::options().create(true).append(true).open(folder.path().join("query-0.log")).unwrap();
        for (written, kept, aside) in [
            ("12345678", "12345678", None),
            ("9", "", Some("123456789")),
            ("next", "next", Some("123456789")),
            ("and so on", "", Some("nextand so on")),
        ] {
            log.write_all(written.as_bytes()).unwrap();
            shorten(folder.path(), 8).unwrap();
            assert_eq!(read("query-0.log").as_deref(), Some(kept));
            assert_eq!(read("query-0.log.1").as_deref(), aside);
        }
        assert_eq!(read("other").as_deref(), Some("not a log, however long"));
        assert!(shorten(&folder.path().join("gone"), 8).is_err());
    }
}
