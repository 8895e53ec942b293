//! When a request that came to nothing is made again, and after how long. Makes none.

use std::{
    thread,
    time::{Duration, SystemTime},
};

use actix_web::http::header::HttpDate;
use ureq::http::{HeaderMap, StatusCode};

use super::{error::HubError, meter::PullMeter};

/// Tries in a row that bring nothing, before it is given up.
const TRIES: u32 = 5;
/// Before the second try; each later one waits three times as long.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Longest wait, whatever a hub asks for.
const LONGEST_HUB_WAIT: Duration = Duration::from_secs(60);

/// Tries of one request.
#[derive(Debug, Default)]
pub(super) struct Retries {
    failed: u32,
}

impl Retries {
    /// The tries in a row that failed.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Waits, and says for what, until the request is to be made again.
    ///
    /// # Errors
    /// The one that it failed with, where that does not pass by itself or it was tried often enough.
    pub fn pause(&mut self, error: HubError, meter: &PullMeter) -> Result<(), HubError> {
        let Some(passing) = error.passing() else { return Err(error) };
        let Some(wait) = self.wait(passing.asked) else { return Err(error) };
        let (what, cause, seconds) = (passing.what, passing.cause, wait.as_secs_f64());
        meter.note(&format!("{what}: {cause}; try {} of {TRIES} in {seconds:.1} s", self.failed + 1));
        thread::sleep(wait);
        Ok(())
    }

    /// How long to wait after one more failure, `None` after the last; a hub may ask for more.
    fn wait(&mut self, asked: Option<Duration>) -> Option<Duration> {
        self.failed += 1;
        (self.failed < TRIES).then(|| {
            let grown = FIRST_WAIT * 3_u32.pow(self.failed - 1);
            grown.max(asked.unwrap_or_default()).min(LONGEST_HUB_WAIT)
        })
    }
}

/// Makes a request again while what it fails with passes by itself.
pub(super) fn patiently<T>(meter: &PullMeter, mut ask: impl FnMut() -> Result<T, HubError>) -> Result<T, HubError> {
    let mut retries = Retries::default();
    loop {
        match ask() {
            Err(error) => retries.pause(error, meter)?,
            answer => return answer,
        }
    }
}

/// How long an answer asks to wait: `Retry-After` (RFC 9110, section 10.2.3), else the seconds that a limit's `RateLimit` ends after
/// (`"api";r=0;t=55`, as Hugging Face has it).
pub(super) fn asked_wait(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let after = |text: &str| match text.trim().parse::<u64>() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let date = SystemTime::from(text.trim().parse::<HttpDate>().ok()?);
            Some(date.duration_since(now).unwrap_or_default())
        }
    };
    // The header stands in answers that no limit stopped, too.
    let limit = || header("ratelimit").filter(|_| status == StatusCode::TOO_MANY_REQUESTS);
    let reset = |text: &str| text.split([';', ',']).find_map(|part| part.trim().strip_prefix("t=")?.parse().ok());
    header("retry-after").and_then(after).or_else(|| limit().and_then(reset).map(Duration::from_secs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_are_bounded_and_end() {
        let waits = |asked: Option<u64>| {
            let mut retries = Retries::default();
            let wait = std::iter::from_fn(|| retries.wait(asked.map(Duration::from_secs)));
            wait.map(|wait| wait.as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(waits(None), [200, 600, 1800, 5400]);
        assert_eq!(waits(Some(3)), [3000, 3000, 3000, 5400], "never before it is asked to");
        assert_eq!(waits(Some(u64::MAX)), [60_000; 4]);
    }

    #[test]
    fn what_does_not_pass_is_not_tried_again() {
        let meter = PullMeter::new(true);
        let mut asked = 0;
        let answer: Result<(), _> = patiently(&meter, || {
            asked += 1;
            Err(HubError::NotFound { what: "model a/b".to_owned() })
        });
        assert_eq!((answer.unwrap_err().code(), asked), ("hub_not_found", 1));
    }

    #[test]
    fn a_hub_says_in_seconds_or_by_a_date_how_long_to_wait() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let asked = |status: u16, name: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            asked_wait(StatusCode::from_u16(status).unwrap(), &headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(asked(429, "retry-after", "7"), Some(7));
        assert_eq!(asked(503, "retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"), Some(7));
        assert_eq!(asked(503, "retry-after", "Sun, 06 Nov 1994 08:49:00 GMT"), Some(0), "in the past");
        assert_eq!(asked(429, "ratelimit", "\"api\";r=0;t=55"), Some(55));
        assert_eq!(asked(503, "ratelimit", "\"api\";r=9;t=55"), None, "no limit is reached");
        for wrong in ["-1", "soon", ""] {
            assert_eq!(asked(429, "retry-after", wrong), None, "{wrong}");
        }
    }
}
