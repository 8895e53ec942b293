//! How a test asks and tells a driver in another process: a line each way, by a socket. `report` is answered with the report so far,
//! `limit BYTES` says how much memory each GPU has from now on, `refuse AFTER COUNT` that so many allocations are refused after so many.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Once;
use std::{env, fs, process, thread};

use crate::driver;

/// A folder; none: nobody asks.
const FOLDER: &str = "NULL_DRIVER_FOLDER";

/// Listens from the first call on.
pub fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(path) = path("sock") else { return };
        let listener = UnixListener::bind(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        thread::spawn(move || {
            for asked in listener.incoming().flatten() {
                // Who asks may go away.
                let _ = answer(&asked);
            }
        });
        driver::at_exit(last_words);
    });
}

fn path(extension: &str) -> Option<PathBuf> {
    Some(PathBuf::from(env::var_os(FOLDER)?).join(format!("{}.{extension}", process::id())))
}

extern "C" fn last_words() {
    if let Some(path) = path("json") {
        // A test that misses it says so.
        let _ = fs::write(path, driver::locked().report());
    }
}

fn answer(mut asked: &UnixStream) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(asked).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let mut driver = driver::locked();
    let said = match (words.first().copied(), number(1), number(2)) {
        (Some("report"), ..) => driver.report(),
        (Some("limit"), Some(bytes), _) => {
            driver.memory.limit(bytes);
            "done".into()
        }
        (Some("refuse"), Some(after), Some(count)) => {
            driver.memory.refuse(after, count);
            "done".into()
        }
        _ => format!("unknown: {line}"),
    };
    drop(driver);
    writeln!(asked, "{said}")
}
