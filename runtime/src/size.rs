//! Token counts as people type them: `4096`, `4k`, `1m`. Binary multiples, as context lengths are counted.

use std::{fmt, str::FromStr};

/// Smallest block that is meant: anything below is a `k` forgotten.
pub const MIN_BLOCK_TOKENS: usize = 16;

/// A number of tokens.
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
        count.checked_mul(unit).map(Self).ok_or_else(|| refusal(text))
    }
}

fn refusal(text: &str) -> String {
    format!("'{text}' is not a number of tokens; write 4096, 4k or 1m (k = 1024)")
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
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
    fn table_forms() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(16384), "16,384");
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(3 << 20), "3.0 MiB");
    }
}
