//! The date that a chat template is told, and how it writes it. Reads no clock.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A second in UTC, between the years 1 and 9999. Written as `2026-11-25`, or `2026-11-25T08:30:00Z` where it is not midnight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateDate {
    /// Seconds since 1970.
    seconds: i64,
}

/// What is no [`TemplateDate`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got:?} is no date: expected one such as \"2026-11-25\" or \"2026-11-25T08:30:00Z\"")]
pub struct NoDate {
    got: String,
}

const DAY: i64 = 86_400;
/// The first of January of the year 1 and of the year 10000.
const BOUNDS: (i64, i64) = (-62_135_596_800, 253_402_300_800);
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date of the Gregorian calendar.
struct Civil {
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
}

impl TemplateDate {
    /// So many seconds after 1970 began; nothing outside of the years 1 to 9999.
    pub fn from_unix(seconds: i64) -> Option<Self> {
        (BOUNDS.0..BOUNDS.1).contains(&seconds).then_some(Self { seconds })
    }

    /// As C's `strftime` writes it in the locale "C". What it does not know stays as it is, as glibc has it.
    pub fn strftime(&self, format: &str) -> String {
        let (mut text, mut rest) = (String::with_capacity(format.len() + 16), format.chars());
        while let Some(c) = rest.next() {
            match c {
                '%' => self.convert(&mut rest, &mut text),
                other => text.push(other),
            }
        }
        text
    }

    /// Writes what stands behind a `%`: flags `-`, `_`, `0`, `^` and `#`, a width, modifiers `E` and `O`, a conversion.
    fn convert(&self, rest: &mut std::str::Chars<'_>, text: &mut String) {
        let directive = rest.as_str();
        let letters = directive.trim_start_matches(['-', '_', '0', '^', '#']);
        let flags = &directive[..directive.len() - letters.len()];
        let bare = letters.trim_start_matches(|c: char| c.is_ascii_digit());
        let width = letters[..letters.len() - bare.len()].parse::<usize>().ok();
        let modified = bare.strip_prefix(['E', 'O']).unwrap_or(bare);
        let Some((conversion, written)) = modified.chars().next().and_then(|c| Some((c, self.conversion(c)?))) else {
            text.push('%');
            return;
        };
        *rest = modified[conversion.len_utf8()..].chars();
        text.push_str(&written.with(flags, width.map(|width| width.min(WIDEST_DATE_FIELD))));
    }

    fn conversion(&self, conversion: char) -> Option<Field> {
        let (days, second) = (self.seconds.div_euclid(DAY), self.seconds.rem_euclid(DAY));
        let Civil { year, month, day } = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let week_day = (days + 4).rem_euclid(7);
        let year_day = days - days_of(&Civil { year, month: 1, day: 1 });
        let twelve = (hour + 11) % 12 + 1;
        let name = |names: &[&str], at: i64| names[at as usize].to_owned();
        let short = |names: &[&str], at: i64| names[at as usize][..3].to_owned();
        Some(match conversion {
            'a' => Field::Text(short(&DAYS, week_day)),
            'A' => Field::Text(name(&DAYS, week_day)),
            'b' | 'h' => Field::Text(short(&MONTHS, month - 1)),
            'B' => Field::Text(name(&MONTHS, month - 1)),
            'c' => Field::Text(self.strftime("%a %b %e %H:%M:%S %Y")),
            'C' => Field::Zeros(year / 100, 2),
            'd' => Field::Zeros(day, 2),
            'D' | 'x' => Field::Text(self.strftime("%m/%d/%y")),
            'e' => Field::Spaces(day, 2),
            'F' => Field::Text(self.strftime("%Y-%m-%d")),
            'g' => Field::Zeros(week(year, year_day, week_day).0 % 100, 2),
            'G' => Field::Zeros(week(year, year_day, week_day).0, 1),
            'H' => Field::Zeros(hour, 2),
            'I' => Field::Zeros(twelve, 2),
            'j' => Field::Zeros(year_day + 1, 3),
            'k' => Field::Spaces(hour, 2),
            'l' => Field::Spaces(twelve, 2),
            'm' => Field::Zeros(month, 2),
            'M' => Field::Zeros(minute, 2),
            'n' => Field::Text("\n".to_owned()),
            'p' => Field::Text(if hour < 12 { "AM" } else { "PM" }.to_owned()),
            'P' => Field::Text(if hour < 12 { "am" } else { "pm" }.to_owned()),
            'r' => Field::Text(self.strftime("%I:%M:%S %p")),
            'R' => Field::Text(self.strftime("%H:%M")),
            's' => Field::Zeros(self.seconds, 1),
            'S' => Field::Zeros(second, 2),
            't' => Field::Text("\t".to_owned()),
            'T' | 'X' => Field::Text(self.strftime("%H:%M:%S")),
            'u' => Field::Zeros((week_day + 6) % 7 + 1, 1),
            'U' => Field::Zeros((year_day + 7 - week_day) / 7, 2),
            'V' => Field::Zeros(week(year, year_day, week_day).1, 2),
            'w' => Field::Zeros(week_day, 1),
            'W' => Field::Zeros((year_day + 7 - (week_day + 6) % 7) / 7, 2),
            'y' => Field::Zeros(year % 100, 2),
            'Y' => Field::Zeros(year, 1),
            // Python's `datetime.now()`, which transformers asks, knows no zone.
            'z' | 'Z' => Field::Text(String::new()),
            'f' => Field::Zeros(0, 6),
            '%' => Field::Text("%".to_owned()),
            _ => return None,
        })
    }
}

/// Widest field that a format may ask for.
const WIDEST_DATE_FIELD: usize = 1024;

/// What a conversion writes.
enum Field {
    Text(String),
    /// A number, filled up with zeros.
    Zeros(i64, usize),
    /// A number, filled up with spaces.
    Spaces(i64, usize),
}

impl Field {
    fn with(self, flags: &str, width: Option<usize>) -> String {
        let (text, least, fill) = match self {
            Self::Text(text) => (text, 0, ' '),
            Self::Zeros(number, least) => (number.to_string(), least, '0'),
            Self::Spaces(number, least) => (number.to_string(), least, ' '),
        };
        let mut fill = Some(fill);
        let mut text = text;
        for flag in flags.chars() {
            match flag {
                // Without a width there is nothing to fill up.
                '-' => fill = width.map(|_| ' '),
                '_' => fill = Some(' '),
                '0' => fill = Some('0'),
                '^' => text = text.to_uppercase(),
                _ => {
                    text = if text.chars().any(char::is_lowercase) { text.to_uppercase() } else { text.to_lowercase() }
                }
            }
        }
        let missing = width.unwrap_or(least).saturating_sub(text.chars().count());
        fill.map_or(String::new(), |fill| fill.to_string().repeat(missing)) + &text
    }
}

/// Days since 1970 to a date: counted in years that begin in March, so that a leap day ends one.
fn civil(days: i64) -> Civil {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = (from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    Civil { year, month, day: day_of_year - (153 * from_march + 2) / 5 + 1 }
}

/// A date to days since 1970.
fn days_of(date: &Civil) -> i64 {
    let year = date.year - i64::from(date.month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((date.month + 9) % 12) + 2) / 5 + date.day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The year and the week of ISO 8601 that a day is in; days are counted from 0, Sunday is 0.
fn week(year: i64, year_day: i64, week_day: i64) -> (i64, i64) {
    let monday = (week_day + 6) % 7;
    let of = |year_day: i64| (year_day - monday + 10) / 7;
    let length =
        |year| days_of(&Civil { year: year + 1, month: 1, day: 1 }) - days_of(&Civil { year, month: 1, day: 1 });
    // Days that are left behind this one's week, Thursday decides.
    match of(year_day) {
        0 => (year - 1, of(year_day + length(year - 1))),
        53 if length(year) - 1 - year_day < 3 - monday => (year + 1, 1),
        number => (year, number),
    }
}

impl fmt::Display for TemplateDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let midnight = self.seconds.rem_euclid(DAY) == 0;
        f.write_str(&self.strftime(if midnight { "%04Y-%m-%d" } else { "%04Y-%m-%dT%H:%M:%SZ" }))
    }
}

impl FromStr for TemplateDate {
    type Err = NoDate;

    fn from_str(text: &str) -> Result<Self, NoDate> {
        let (date, time) = match text.strip_suffix('Z').and_then(|text| text.split_once('T')) {
            Some((date, time)) => (date, Some(time)),
            None => (text, None),
        };
        let read = || {
            let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
            let [hour, minute, second] = time.map_or(Some([0; 3]), |time| numbers(time, ':', [2; 3]))?;
            let days = days_of(&Civil { year, month, day });
            let same = civil(days);
            let exists = (same.year, same.month, same.day) == (year, month, day) && (1..=12).contains(&month);
            let within = exists && hour < 24 && minute < 60 && second < 60;
            within.then_some(days * DAY + hour * 3600 + minute * 60 + second).and_then(Self::from_unix)
        };
        read().ok_or_else(|| NoDate { got: text.chars().take(64).collect() })
    }
}

/// Three numbers of so many digits.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let parts: Vec<&str> = text.split(between).collect();
    let number = |(part, digits): (&&str, usize)| {
        let plain = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| part.parse::<i64>().ok()).flatten()
    };
    let read: Vec<i64> = parts.iter().zip(digits).map(number).collect::<Option<_>>()?;
    (parts.len() == digits.len()).then(|| read.try_into().ok()).flatten()
}

impl TryFrom<String> for TemplateDate {
    type Error = NoDate;

    fn try_from(text: String) -> Result<Self, NoDate> {
        text.parse()
    }
}

impl From<TemplateDate> for String {
    fn from(date: TemplateDate) -> Self {
        date.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are those of Python's `datetime.strftime` on Linux, in the locale "C".
    #[test]
    fn dates_are_written_as_c_writes_them() {
        let all = "%a %A %b %B %h|%c|%C %d %D %e %F|%g %G %V %u %w %U %W %j|%H %I %k %l %M %p %P %r %R %S %T %X|%m %x %y %Y|%z%Z %f %%";
        for (date, expected) in [
            (
                "2026-11-25T08:30:05Z",
                "Wed Wednesday Nov November Nov|Wed Nov 25 08:30:05 2026|20 25 11/25/26 25 2026-11-25|26 2026 48 3 3 47 47 329|08 08  8  8 30 AM am 08:30:05 AM 08:30 05 08:30:05 08:30:05|11 11/25/26 26 2026| 000000 %",
            ),
            (
                "2024-02-29",
                "Thu Thursday Feb February Feb|Thu Feb 29 00:00:00 2024|20 29 02/29/24 29 2024-02-29|24 2024 09 4 4 08 09 060|00 12  0 12 00 AM am 12:00:00 AM 00:00 00 00:00:00 00:00:00|02 02/29/24 24 2024| 000000 %",
            ),
            (
                "2023-01-01T12:00:00Z",
                "Sun Sunday Jan January Jan|Sun Jan  1 12:00:00 2023|20 01 01/01/23  1 2023-01-01|22 2022 52 7 0 01 00 001|12 12 12 12 00 PM pm 12:00:00 PM 12:00 00 12:00:00 12:00:00|01 01/01/23 23 2023| 000000 %",
            ),
            (
                "2021-01-03T23:59:59Z",
                "Sun Sunday Jan January Jan|Sun Jan  3 23:59:59 2021|20 03 01/03/21  3 2021-01-03|20 2020 53 7 0 01 00 003|23 11 23 11 59 PM pm 11:59:59 PM 23:59 59 23:59:59 23:59:59|01 01/03/21 21 2021| 000000 %",
            ),
            (
                "2020-12-31T13:07:00Z",
                "Thu Thursday Dec December Dec|Thu Dec 31 13:07:00 2020|20 31 12/31/20 31 2020-12-31|20 2020 53 4 4 52 52 366|13 01 13  1 07 PM pm 01:07:00 PM 13:07 00 13:07:00 13:07:00|12 12/31/20 20 2020| 000000 %",
            ),
            (
                "1999-12-31",
                "Fri Friday Dec December Dec|Fri Dec 31 00:00:00 1999|19 31 12/31/99 31 1999-12-31|99 1999 52 5 5 52 52 365|00 12  0 12 00 AM am 12:00:00 AM 00:00 00 00:00:00 00:00:00|12 12/31/99 99 1999| 000000 %",
            ),
            (
                "2018-12-31",
                "Mon Monday Dec December Dec|Mon Dec 31 00:00:00 2018|20 31 12/31/18 31 2018-12-31|19 2019 01 1 1 52 53 365|00 12  0 12 00 AM am 12:00:00 AM 00:00 00 00:00:00 00:00:00|12 12/31/18 18 2018| 000000 %",
            ),
            (
                "9999-12-31T23:59:59Z",
                "Fri Friday Dec December Dec|Fri Dec 31 23:59:59 9999|99 31 12/31/99 31 9999-12-31|99 9999 52 5 5 52 52 365|23 11 23 11 59 PM pm 11:59:59 PM 23:59 59 23:59:59 23:59:59|12 12/31/99 99 9999| 000000 %",
            ),
            (
                "1970-01-01",
                "Thu Thursday Jan January Jan|Thu Jan  1 00:00:00 1970|19 01 01/01/70  1 1970-01-01|70 1970 01 4 4 00 00 001|00 12  0 12 00 AM am 12:00:00 AM 00:00 00 00:00:00 00:00:00|01 01/01/70 70 1970| 000000 %",
            ),
            (
                "2100-03-01",
                "Mon Monday Mar March Mar|Mon Mar  1 00:00:00 2100|21 01 03/01/00  1 2100-03-01|00 2100 09 1 1 09 09 060|00 12  0 12 00 AM am 12:00:00 AM 00:00 00 00:00:00 00:00:00|03 03/01/00 00 2100| 000000 %",
            ),
            (
                "2010-01-03",
                "Sun Sunday Jan January Jan|Sun Jan  3 00:00:00 2010|20 03 01/03/10  3 2010-01-03|09 2009 53 7 0 01 00 003|00 12  0 12 00 AM am 12:00:00 AM 00:00 00 00:00:00 00:00:00|01 01/03/10 10 2010| 000000 %",
            ),
            (
                "2008-12-29",
                "Mon Monday Dec December Dec|Mon Dec 29 00:00:00 2008|20 29 12/29/08 29 2008-12-29|09 2009 01 1 1 52 52 364|00 12  0 12 00 AM am 12:00:00 AM 00:00 00 00:00:00 00:00:00|12 12/29/08 08 2008| 000000 %",
            ),
        ] {
            let read: TemplateDate = date.parse().unwrap();
            assert_eq!(read.strftime(all), expected, "{date}");
            assert_eq!(read.to_string(), date);
            assert_eq!(TemplateDate::from_unix(read.strftime("%s").parse().unwrap()), Some(read));
        }
        let date: TemplateDate = "2026-03-05T04:07:09Z".parse().unwrap();
        for (format, expected) in [
            ("%-d %B %Y", "5 March 2026"),
            ("%_d|%e|%-m|%-H|%-I|%k", " 5| 5|3|4|4| 4"),
            ("%^a %^B %#Z %#p", "THU MARCH  am"),
            ("%10Y|%-j|%05d|%_5d|%-5d", "0000002026|64|00005|    5|    5"),
            ("%Q %", "%Q %"),
            ("100%%", "100%"),
            ("%Ey %Od %EY", "26 05 2026"),
            ("%d%b%Y", "05Mar2026"),
            ("ü%dé", "ü05é"),
            ("%+", "%+"),
            ("%E", "%E"),
        ] {
            assert_eq!(date.strftime(format), expected, "{format}");
        }
        assert!(date.strftime("%999999999d").len() <= WIDEST_DATE_FIELD, "no width of a template's is believed");
    }

    #[test]
    fn what_is_no_date_is_refused_with_an_example() {
        for text in [
            "",
            "2026",
            "2026-13-01",
            "2026-02-29",
            "2026-1-1",
            "0000-01-01",
            "10000-01-01",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01 ",
            "-026-01-01",
            "today",
        ] {
            let error = text.parse::<TemplateDate>().unwrap_err().to_string();
            assert!(error.contains("2026-11-25") && error.contains(&format!("{text:?}")), "{error}");
        }
        assert_eq!(TemplateDate::from_unix(i64::MAX), None);
        let typed: TemplateDate = serde_json::from_str("\"2026-11-25\"").unwrap();
        assert_eq!(serde_json::to_string(&typed).unwrap(), "\"2026-11-25\"");
    }
}
