//! The answers that a batch has so far: each behind a line that says whose it is and how long, so that none has to be read to be found.
//! One that was cut short by the end of its process is none.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

use crate::api::openai::store::Counts;

/// Longest line before an answer.
const ANSWER_HEAD_BYTES: u64 = 64;
/// Bytes that are copied together.
const PIECE: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    is_good: bool,
    at: u64,
    bytes: u64,
}

/// Such a file.
#[derive(Debug)]
pub struct BatchAnswers {
    file: File,
    end: u64,
    places: BTreeMap<usize, Place>,
}

impl BatchAnswers {
    /// Of a file that is open to be read and appended to.
    pub fn read(file: File) -> io::Result<Self> {
        let (mut reader, mut end, mut places) = (BufReader::new(&file), 0, BTreeMap::new());
        reader.seek(SeekFrom::Start(0))?;
        let length = file.metadata()?.len();
        while let Some((line, place, next)) = next(&mut reader, end)?.filter(|(.., next)| *next <= length) {
            places.entry(line).or_insert(place);
            end = next;
        }
        drop(reader);
        file.set_len(end)?;
        Ok(Self { file, end, places })
    }

    /// Whether a line is answered.
    pub fn has(&self, line: usize) -> bool {
        self.places.contains_key(&line)
    }

    /// How many are good, and how many are not.
    pub fn counts(&self) -> Counts {
        let good = self.places.values().filter(|place| place.is_good).count();
        Counts { good, bad: self.places.len() - good }
    }

    /// Adds the answer to a line, which is JSON.
    pub fn append(&mut self, (line, is_good): (usize, bool), answer: &[u8]) -> io::Result<()> {
        let head = format!("{line} {} {}\n", u8::from(is_good), answer.len());
        let entry = [head.as_bytes(), answer, b"\n"].concat();
        self.file.write_all(&entry)?;
        let place = Place { is_good, at: self.end + head.len() as u64, bytes: answer.len() as u64 };
        self.end += entry.len() as u64;
        self.places.entry(line).or_insert(place);
        Ok(())
    }

    /// Waits until the disk has them.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Writes those that are good, or those that are not, a line each in the order of what was asked.
    pub fn copy(&self, good: bool, to: &mut impl Write) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        for place in self.places.values().filter(|place| place.is_good == good) {
            // With the end of its line.
            let (mut at, end) = (place.at, place.at + place.bytes + 1);
            while at < end {
                let piece = &mut piece[..(end - at).min(PIECE as u64) as usize];
                self.file.read_exact_at(piece, at)?;
                to.write_all(piece)?;
                at += piece.len() as u64;
            }
        }
        Ok(())
    }
}

/// The answer that begins at `at`, and where the next one does; none where it is cut short.
fn next(reader: &mut BufReader<&File>, at: u64) -> io::Result<Option<(usize, Place, u64)>> {
    let mut head = Vec::new();
    reader.by_ref().take(ANSWER_HEAD_BYTES).read_until(b'\n', &mut head)?;
    let words = std::str::from_utf8(&head).ok().and_then(|head| head.strip_suffix('\n'));
    let mut words = words.unwrap_or_default().split(' ').map(|word| word.parse::<u64>().ok());
    let (Some(Some(line)), Some(Some(good)), Some(Some(bytes))) = (words.next(), words.next(), words.next()) else {
        return Ok(None);
    };
    let place = Place { is_good: good == 1, at: at + head.len() as u64, bytes };
    let Some(end) = i64::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(1)) else { return Ok(None) };
    reader.seek_relative(end)?;
    Ok(Some((line as usize, place, place.at.saturating_add(bytes + 1))))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    fn open(folder: &tempfile::TempDir) -> File {
        let path = folder.path().join("answers");
        OpenOptions::new().create(true).read(true).append(true).open(path).unwrap()
    }

    fn copied(answers: &BatchAnswers, good: bool) -> String {
        let mut copy = Vec::new();
        answers.copy(good, &mut copy).unwrap();
        String::from_utf8(copy).unwrap()
    }

    #[test]
    fn an_answer_that_was_cut_short_is_none_and_two_of_a_line_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut answers = BatchAnswers::read(open(&folder)).unwrap();
        answers.append((2, true), br#"{"a":2}"#).unwrap();
        answers.append((7, false), br#"{"a":7}"#).unwrap();
        let whole = answers.end;
        for torn in
            [&b"3"[..], b"3 1 ", b"3 1 7\n", b"3 1 7\n{\"a\":3}", b"3 1 99999999999999999999\n", b"\n\n", b"\xff"]
        {
            open(&folder).write_all(torn).unwrap();
            let mut answers = BatchAnswers::read(open(&folder)).unwrap();
            assert_eq!((answers.end, answers.has(2), answers.has(3)), (whole, true, false), "{torn:?}");
            [(0, true), (2, true)].iter().for_each(|line| answers.append(*line, b"0").unwrap());
            let again = BatchAnswers::read(open(&folder)).unwrap();
            assert_eq!((again.end, &again.places), (answers.end, &answers.places));
            assert_eq!(copied(&again, true), "0\n{\"a\":2}\n");
            assert_eq!((copied(&again, false), again.counts()), ("{\"a\":7}\n".into(), Counts { good: 2, bad: 1 }));
            open(&folder).set_len(whole).unwrap();
        }
    }

    #[test]
    fn a_long_answer_is_copied_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut answers = BatchAnswers::read(open(&folder)).unwrap();
        let long = "x".repeat(3 * PIECE + 5);
        answers.append((1, true), long.as_bytes()).unwrap();
        assert_eq!(copied(&BatchAnswers::read(open(&folder)).unwrap(), true), long + "\n");
    }
}
