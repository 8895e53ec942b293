//! What names, numbers and lists of requests may be. Checked where they enter, before anything of a request costs.

use std::{collections::BTreeMap, time::Duration};

use crate::error::JobError;

/// Longest name, in characters.
const NAME_LENGTH: usize = 64;
/// What ids that were drawn begin with, by a client or for it: nobody guesses them, and no two are the same.
const DRAWN_ID: &str = "job-";
/// Longest time that a request may ask for.
pub const LONGEST_REQUEST_TIME: Duration = Duration::from_secs(365 * 86_400);
/// Shortest such time but none, in seconds.
pub const SHORTEST_S: f64 = 0.001;
/// Most labels of a job, and of the hosts that it asks for.
const LABELS: usize = 32;
/// Most stop strings of a job, and bytes of each.
const STOPS: (usize, usize) = (16, 512);
/// Longest salt of a context, in bytes.
pub const SALT_BYTES: usize = 256;
/// Most tokens that are told beside each token of an answer.
pub const TOP_LOGPROBS: u32 = 20;
/// Characters of a refused text that its refusal repeats.
const SHOWN_CHARACTERS: usize = 80;

/// A name of a job, session, host or label.
///
/// # Errors
/// [`JobError::Invalid`] unless it is 1 to 64 letters, digits, `-`, `_` or `.`, and neither `.` nor `..`.
pub fn name(param: &'static str, name: &str) -> Result<String, JobError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=NAME_LENGTH).contains(&name.len()) && name.bytes().all(plain) && name != "." && name != ".." {
        return Ok(name.to_string());
    }
    let expected = format!("1 to {NAME_LENGTH} letters, digits, '-', '_' or '.', and neither '.' nor '..'");
    Err(JobError::Invalid { param, message: format!("{param} is '{}', expected {expected}", shown(name)) })
}

/// An id that a client chose for a job.
///
/// # Errors
/// [`JobError::Invalid`] when it is no name, or looks as if it had been drawn and was not.
pub fn client_id(id: &str) -> Result<String, JobError> {
    let id = name("id", id)?;
    match id.strip_prefix(DRAWN_ID) {
        Some(drawn) if drawn.len() != 32 || !drawn.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) => {
            let message = format!("id is '{id}'; behind '{DRAWN_ID}' stand 32 hexadecimal digits drawn at random");
            Err(JobError::Invalid { param: "id", message })
        }
        _ => Ok(id),
    }
}

/// A job's id from 128 random bits.
pub fn drawn_id(random: u128) -> String {
    format!("{DRAWN_ID}{random:032x}")
}

/// Label of a job that somebody waits for on a connection.
pub const ATTACHED: &str = "attached";
/// Label with the batch of a job.
pub const BATCH: &str = "batch";
/// Label with the name of the key that asked.
pub const KEY: &str = "key";
/// Label of a job that is a response, with how it was asked for.
pub const RESPONSE: &str = "response";
/// How a response is asked for that nobody waits for on a connection.
pub const BACKGROUND: &str = "background";
/// Labels that say how a job was asked for, which no request names itself.
pub const OWN_LABELS: [&str; 4] = [ATTACHED, BATCH, KEY, RESPONSE];

/// Whether nobody waits for a job with these labels on a connection: it is a batch's, or a response in the background.
pub fn is_background(labels: &BTreeMap<String, String>) -> bool {
    labels.contains_key(BATCH) || labels.get(RESPONSE).is_some_and(|way| way == BACKGROUND)
}

/// Refuses a request's labels where one is the cluster's own.
///
/// # Errors
/// [`JobError::Invalid`] with the label.
pub fn no_own_labels(labels: &BTreeMap<String, String>) -> Result<(), JobError> {
    let own = OWN_LABELS.into_iter().find(|own| labels.contains_key(*own));
    own.map_or(Ok(()), |own| {
        let message =
            format!("the label '{own}' is the cluster's own, as are {}: take another key", OWN_LABELS.join(", "));
        Err(JobError::Invalid { param: "labels", message })
    })
}

/// Keys and values of labels.
///
/// # Errors
/// [`JobError::Invalid`] when there are too many, or one is no name.
pub fn labels(param: &'static str, labels: &BTreeMap<String, String>) -> Result<(), JobError> {
    if labels.len() > LABELS {
        let message = format!("{param} has {} entries, expected at most {LABELS}", labels.len());
        return Err(JobError::Invalid { param, message });
    }
    labels.iter().flat_map(|(key, value)| [key, value]).try_for_each(|part| name(param, part).map(drop))
}

/// Strings that end an answer.
///
/// # Errors
/// [`JobError::Invalid`] when there are too many, or one is too long.
pub fn stops(stop: &[String]) -> Result<(), JobError> {
    let (most, bytes) = STOPS;
    if stop.len() > most || stop.iter().any(|stop| stop.len() > bytes) {
        let longest = stop.iter().map(String::len).max().unwrap_or(0);
        let message = format!(
            "stop has {} strings, the longest of {longest} bytes; expected at most {most} of at most {bytes}",
            stop.len()
        );
        return Err(JobError::Invalid { param: "stop", message });
    }
    Ok(())
}

/// What sets the contexts of some requests apart from those of all others. A secret, perhaps: no refusal repeats it.
///
/// # Errors
/// [`JobError::Invalid`] unless it is 1 to 256 bytes.
pub fn cache_salt(salt: &str) -> Result<(), JobError> {
    let got = match salt.len() {
        0 => "is empty".to_owned(),
        bytes if bytes > SALT_BYTES => format!("has {bytes} bytes"),
        _ => return Ok(()),
    };
    let message = format!("cache_salt {got}, expected a text of 1 to {SALT_BYTES} bytes, or no cache_salt");
    Err(JobError::Invalid { param: "cache_salt", message })
}

/// How many of the likeliest tokens are told beside each of an answer.
///
/// # Errors
/// [`JobError::Invalid`] when it is more than 20.
pub fn logprobs(wanted: Option<u32>) -> Result<(), JobError> {
    match wanted {
        Some(wanted) if wanted > TOP_LOGPROBS => {
            let message = format!("logprobs is {wanted}, expected at most {TOP_LOGPROBS}");
            Err(JobError::Invalid { param: "logprobs", message })
        }
        _ => Ok(()),
    }
}

/// A number of seconds above 0.
///
/// # Errors
/// [`JobError::Invalid`] unless it is a millisecond to a year.
pub fn seconds(param: &'static str, seconds: f64) -> Result<Duration, JobError> {
    let (least, most) = (SHORTEST_S, LONGEST_REQUEST_TIME.as_secs_f64());
    if (least..=most).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(JobError::Invalid { param, message: format!("{param} is {seconds}, expected {least} to {most} seconds") })
}

/// A number of seconds, 0 for at once.
///
/// # Errors
/// As [`seconds`].
pub fn seconds_or_none(param: &'static str, value: f64) -> Result<Duration, JobError> {
    if value == 0.0 { Ok(Duration::ZERO) } else { seconds(param, value) }
}

/// The beginning of a text that was refused, without characters that a terminal would obey.
pub fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARACTERS).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clusters_own_labels_are_no_request_s() {
        let of =
            |key: &str| BTreeMap::from([("task".to_string(), "a".to_string()), (key.to_string(), "x".to_string())]);
        assert!(no_own_labels(&of("team")).is_ok());
        for own in OWN_LABELS {
            let refused = no_own_labels(&of(own)).unwrap_err();
            assert_eq!(
                (refused.code(), refused.body().param.as_deref()),
                ("invalid_request", Some("labels")),
                "{refused}"
            );
        }
    }

    #[test]
    fn names_are_plain() {
        for good in ["a", "moby-dick_1.2", "-", "...", &"x".repeat(64)] {
            assert_eq!(name("id", good).unwrap(), good);
        }
        for bad in ["", ".", "..", "a b", "a/b", "a%2f", "\u{1b}[2J", "é", "a\n", &"x".repeat(65)] {
            let refused = name("id", bad).unwrap_err();
            assert_eq!(refused.code(), "invalid_request");
            assert!(refused.to_string().chars().all(|c| !c.is_control()), "{refused}");
        }
        assert!(client_id("mine").is_ok() && client_id(&drawn_id(37)).is_ok() && client_id("job-37").is_err());
        assert!(name("id", &"x".repeat(1 << 20)).unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn seconds_are_a_duration() {
        assert_eq!(seconds("ttl_s", 1.5).unwrap(), Duration::from_millis(1500));
        assert_eq!(seconds_or_none("deadline_s", 0.0).unwrap(), Duration::ZERO);
        for bad in [0.0, -0.0, -1.0, 1e-320, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, 3.2e7] {
            assert!(seconds("ttl_s", bad).is_err(), "{bad}");
        }
        assert!(seconds_or_none("deadline_s", f64::NAN).is_err());
    }

    #[test]
    fn lists_are_short() {
        let many = |count: usize| (0..count).map(|i| (format!("k{i}"), "v".to_string())).collect();
        assert!(labels("labels", &many(32)).is_ok() && labels("labels", &many(33)).is_err());
        assert!(labels("labels", &BTreeMap::from([("k".into(), "\u{7}".into())])).is_err());
        assert!(logprobs(None).is_ok() && logprobs(Some(20)).is_ok() && logprobs(Some(21)).is_err());
        assert!(stops(&vec!["x".repeat(512); 16]).is_ok());
        assert!(stops(&vec![String::new(); 17]).is_err() && stops(&["x".repeat(513)]).is_err());
    }

    #[test]
    fn a_salt_is_short_and_no_refusal_repeats_it() {
        assert!(["a", "a b", "\u{0}", &"x".repeat(256)].into_iter().all(|salt| cache_salt(salt).is_ok()));
        for (salt, got) in [("", "is empty"), (&*"é".repeat(129), "has 258 bytes")] {
            let refused = cache_salt(salt).unwrap_err();
            let expected = format!("cache_salt {got}, expected a text of 1 to 256 bytes, or no cache_salt");
            assert_eq!((refused.to_string(), refused.body().param.as_deref()), (expected, Some("cache_salt")));
        }
    }
}
