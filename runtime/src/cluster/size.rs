//! Token counts, memory sizes and times as people type and read them: `4096`, `4k`, `1m`; `8GiB`, `500MB`. Counts no tokens
//! itself.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Smallest block that is meant: anything below is a `k` forgotten.
pub const MIN_BLOCK_TOKENS: usize = 16;

/// More tokens than any model takes, and few enough to be added and multiplied.
const LARGEST_TOKENS: usize = 1 << 28;

/// A number of tokens; its multiples are binary, as context lengths are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tokens(pub usize);

impl FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let (digits, unit) = match lower.as_bytes().last() {
            Some(b'k') => (&lower[..lower.len() - 1], 1 << 10),
            Some(b'm') => (&lower[..lower.len() - 1], 1 << 20),
            _ => (lower.as_str(), 1),
        };
        let count: usize = digits.parse().map_err(|_| refusal(text))?;
        match count.checked_mul(unit) {
            Some(tokens) if tokens <= LARGEST_TOKENS => Ok(Self(tokens)),
            _ => Err(format!("'{text}' is more than {LARGEST_TOKENS} tokens, which no model takes")),
        }
    }
}

fn refusal(text: &str) -> String {
    format!("'{text}' is not a number of tokens; write 4096, 4k or 1m (k = 1024)")
}

/// Between 1 and `MOST`, as an option's value.
pub fn up_to<const MOST: usize>(text: &str) -> Result<usize, String> {
    let refused = || format!("'{text}' is not a whole number from 1 to {MOST}");
    text.parse().ok().filter(|count| (1..=MOST).contains(count)).ok_or_else(refused)
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refusal = || format!("'{text}' is not a number of bytes; write 8GiB, 500MB or 1048576");
        let digits = text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit: u64 = match text.trim()[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            "kb" => 1000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(refusal()),
        };
        let count: u64 = digits.trim_end().parse().map_err(|_| refusal())?;
        // The most that a TOML integer holds.
        count.checked_mul(unit).filter(|&bytes| bytes <= i64::MAX as u64).map(Self).ok_or_else(refusal)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Typed;
        impl de::Visitor<'_> for Typed {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"8GiB\", or a number of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Bytes, E> {
                u64::try_from(bytes).map(Bytes).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }
        }
        deserializer.deserialize_any(Typed)
    }
}

/// A count with thousands separated, for tables.
pub fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How many of something, whose plural ends in s: `1 shard`, `2,048 tokens`.
pub fn count(many: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(many), if many == 1 { "" } else { "s" })
}

/// Bytes with a binary unit, for tables.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Seconds with a fitting unit, for tables.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.1 => format!("{:.1} ms", 1e3 * s),
        s if s < 120.0 => format!("{s:.2} s"),
        s => format!("{:.1} min", s / 60.0),
    }
}

/// Some thirty years: what clocks can be asked to wait.
const LONGEST_SECONDS: u64 = 1_000_000_000;

/// A duration typed in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let refused = || format!("'{text}' is not a number of seconds from 0 to {LONGEST_SECONDS}");
    let value: f64 = text.parse().map_err(|_| refused())?;
    Duration::try_from_secs_f64(value).ok().filter(|time| time.as_secs() <= LONGEST_SECONDS).ok_or_else(refused)
}

/// Seconds in the two largest units that say something.
pub fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    let unit = match seconds {
        0..3600 => 1,
        3600..86400 => 60,
        _ => 3600,
    };
    let seconds = (seconds + unit / 2) / unit * unit;
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary() {
        assert_eq!("32k".parse(), Ok(Tokens(32768)));
        assert_eq!("1M".parse(), Ok(Tokens(1 << 20)));
        assert_eq!("17".parse(), Ok(Tokens(17)));
        for bad in ["", "k", "4kb", "-1", "4.5k", "99999999999999999999"] {
            assert!(bad.parse::<Tokens>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_have_binary_and_decimal_units() {
        let sizes = ["8GiB", "500 MB", "1048576", "3kib", "7b"].map(|text| text.parse().map(|Bytes(bytes)| bytes));
        assert_eq!(sizes, [8 << 30, 500_000_000, 1 << 20, 3 << 10, 7].map(Ok));
        for bad in ["", "GiB", "8G", "-1", "1.5GiB", "9999999TiB", "8 GiBs"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn spans_have_two_units() {
        let shown = [59.6, 3599.0, 7199.2, 7260.0, 86390.0, 90000.0, -3.0].map(span);
        assert_eq!(shown, ["1 min 0 s", "59 min 59 s", "2 h 0 min", "2 h 1 min", "1 d 0 h", "1 d 1 h", "0 s"]);
    }

    #[test]
    fn seconds_are_such_as_clocks_can_wait() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["", "-1", "nan", "inf", "1e300", "1e10", "soon"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn table_forms() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(16384), "16,384");
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(3 << 20), "3.0 MiB");
        assert_eq!([0.0123, 1.5, 300.0].map(duration), ["12.3 ms", "1.50 s", "5.0 min"]);
    }
}
