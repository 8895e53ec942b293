//! The lines of a batch's input file: where they are, and one at a time. Reads no request.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::FileExt,
};

/// Bytes of a file that are looked at together.
const PIECE: usize = 64 << 10;

/// A line that has something on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinePlace {
    /// Lines before it.
    pub line: usize,
    /// Bytes on it.
    pub bytes: usize,
    at: u64,
}

/// The lines of a file that have something on them.
#[derive(Debug)]
pub struct Lines {
    file: Option<File>,
    /// In the order of the file.
    pub places: Vec<LinePlace>,
}

impl Lines {
    /// No lines.
    pub fn none() -> Self {
        Self { file: None, places: Vec::new() }
    }

    /// The first `most` lines of a file.
    pub fn find(file: File, most: usize) -> io::Result<Self> {
        let places = find(BufReader::with_capacity(PIECE, &file), most)?;
        Ok(Self { file: Some(file), places })
    }

    /// What stands on a line.
    pub fn read(&self, place: LinePlace) -> io::Result<Vec<u8>> {
        let mut line = vec![0; place.bytes];
        match &self.file {
            Some(file) => file.read_exact_at(&mut line, place.at)?,
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        Ok(line)
    }
}

fn find(mut file: BufReader<impl Read>, most: usize) -> io::Result<Vec<LinePlace>> {
    let (mut places, mut place, mut blank) = (Vec::new(), LinePlace { line: 0, bytes: 0, at: 0 }, true);
    while places.len() < most {
        let piece = file.fill_buf()?;
        let end = piece.iter().position(|byte| *byte == b'\n');
        let part = &piece[..end.unwrap_or(piece.len())];
        blank &= part.iter().all(u8::is_ascii_whitespace);
        place.bytes += part.len();
        let (has_ended, read) = (piece.is_empty(), part.len() + usize::from(end.is_some()));
        file.consume(read);
        if end.is_none() && !has_ended {
            continue;
        }
        if !blank {
            places.push(place);
        }
        if has_ended {
            break;
        }
        place = LinePlace { line: place.line + 1, bytes: 0, at: place.at + place.bytes as u64 + 1 };
        blank = true;
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_splitting_gives_whatever_is_read_at_once() {
        for text in ["", "\n", "a", "a\n", "a\nb", "\n \n\tab\r\n\n\nc  \n ", "x\n\n\n"] {
            for piece in [1, 2, 3, 64] {
                let split = text.as_bytes().split(|byte| *byte == b'\n').enumerate();
                let expected: Vec<(usize, &[u8])> =
                    split.filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace)).collect();
                let places = find(BufReader::with_capacity(piece, text.as_bytes()), 100).unwrap();
                let got = places.iter().map(|place| (place.line, &text.as_bytes()[place.at as usize..][..place.bytes]));
                assert_eq!(got.collect::<Vec<_>>(), expected, "{text:?} {piece}");
            }
        }
        let places = find(BufReader::new(&b"a\nb\nc\n"[..]), 2).unwrap();
        assert_eq!(places.len(), 2);
    }
}
