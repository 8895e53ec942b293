//! Several files as one, in the format of `tar` (POSIX ustar), so that any `tar` lists it: plain files alone, whose names are checked.
//! Compresses nothing.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Component, Path},
};

const BLOCK: usize = 512;
/// Longest name of a file in an archive.
const LONGEST_NAME: usize = 100;
/// Largest file: what eleven octal digits say.
const LARGEST: u64 = (1 << 33) - 1;

/// Writes files one after the other.
pub struct ArchiveWriter<W: Write>(W);

impl<W: Write> ArchiveWriter<W> {
    /// Of nothing yet.
    pub fn new(to: W) -> Self {
        Self(to)
    }

    /// Adds a file of this content.
    pub fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.header(name, content.len() as u64)?;
        self.0.write_all(content)?;
        self.pad(content.len() as u64)
    }

    /// Adds a file as long as it is now: one that grows meanwhile is cut there.
    pub fn add_file(&mut self, name: &str, file: &File) -> io::Result<()> {
        let bytes = file.metadata()?.len();
        self.header(name, bytes)?;
        let copied = io::copy(&mut file.take(bytes), &mut self.0)?;
        if copied != bytes {
            return Err(io::Error::other(format!("{name} shrank from {bytes} to {copied} bytes while it was read")));
        }
        self.pad(bytes)
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.0.write_all(&[0; 2 * BLOCK])?;
        self.0.flush()?;
        Ok(self.0)
    }

    fn header(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        if name.len() > LONGEST_NAME || bytes > LARGEST {
            return Err(io::Error::other(format!("{name}: a name of {} bytes, a file of {bytes}", name.len())));
        }
        let mut header = [0; BLOCK];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{bytes:011o}\0").as_bytes());
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.write_all(&header)
    }

    fn pad(&mut self, bytes: u64) -> io::Result<()> {
        let over = (bytes % BLOCK as u64) as usize;
        if over == 0 { Ok(()) } else { self.0.write_all(&vec![0; BLOCK - over]) }
    }
}

/// Hands each file of an archive to `take`, with its name and a reader of its content, until the end.
///
/// # Errors
/// When it is no archive, is cut, has anything but plain files, or a name that leads elsewhere.
pub fn read(mut from: impl Read, mut take: impl FnMut(&str, &mut dyn Read) -> io::Result<()>) -> io::Result<()> {
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("it is cut: it ends before its end"),
        _ => error,
    };
    loop {
        let mut header = [0; BLOCK];
        from.read_exact(&mut header).map_err(cut)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let (name, bytes) = checked(&header)?;
        let mut content = from.by_ref().take(bytes);
        take(&name, &mut content)?;
        // What was not read of it, and its padding.
        io::copy(&mut content, &mut io::sink())?;
        if content.limit() > 0 {
            return Err(io::Error::other(format!("it is cut in {name}")));
        }
        let over = (bytes % BLOCK as u64) as usize;
        let mut padding = vec![0; if over == 0 { 0 } else { BLOCK - over }];
        from.read_exact(&mut padding).map_err(cut)?;
    }
}

/// Name and length, where the header is one of a plain file.
fn checked(header: &[u8; BLOCK]) -> io::Result<(String, u64)> {
    let wrong = |what: String| Err(io::Error::other(what));
    let stated = octal(&header[148..156]).unwrap_or(0);
    let mut summed = *header;
    summed[148..156].fill(b' ');
    let sum: u64 = summed.iter().map(|byte| u64::from(*byte)).sum();
    if header[257..262] != *b"ustar" || stated != sum {
        return wrong("it is no archive of this program, or damaged".into());
    }
    let name = header[..LONGEST_NAME].split(|byte| *byte == 0).next().unwrap_or_default();
    let Ok(name) = std::str::from_utf8(name) else { return wrong("a name in it is not UTF-8".into()) };
    let plain = |component: Component| matches!(component, Component::Normal(_));
    if name.is_empty() || !Path::new(name).components().all(plain) || header[156] != b'0' {
        return wrong(format!("it has {name:?}, which is no plain file below the folder that it is unpacked to"));
    }
    match octal(&header[124..136]) {
        Some(bytes) => Ok((name.to_owned(), bytes)),
        None => wrong(format!("it does not say how long {name} is")),
    }
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = ArchiveWriter::new(Vec::new());
        files.iter().for_each(|(name, content)| writer.add(name, content).unwrap());
        writer.finish().unwrap()
    }

    fn files(bytes: &[u8]) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        read(bytes, |name, content| {
            let mut all = Vec::new();
            content.read_to_end(&mut all)?;
            found.push((name.to_owned(), all));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn what_goes_in_comes_out() {
        let long = vec![7; 1300];
        let stored = archive(&[("a", b""), ("data/b.txt", b"text"), ("c", &long), ("d", &long[..512])]);
        assert_eq!(stored.len() % BLOCK, 0);
        let found = files(&stored).unwrap();
        let expected = [("a", &b""[..]), ("data/b.txt", b"text"), ("c", &long), ("d", &long[..512])];
        assert_eq!(found, expected.map(|(name, content)| (name.to_owned(), content.to_vec())));
        // One that nobody reads is passed over.
        let mut names = Vec::new();
        read(&stored[..], |name, _| {
            names.push(name.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(names, ["a", "data/b.txt", "c", "d"]);
    }

    #[test]
    fn what_leads_elsewhere_or_is_cut_or_changed_is_refused() {
        for name in ["/etc/passwd", "../b", "a/../../b"] {
            let error = files(&archive(&[(name, b"x")])).unwrap_err();
            assert!(error.to_string().contains("no plain file below"), "{name}: {error}");
        }
        let good = archive(&[("a", b"abc"), ("b", b"abc")]);
        for cut in [10, BLOCK, BLOCK + 2, good.len() - 2 * BLOCK] {
            assert!(files(&good[..cut]).unwrap_err().to_string().contains("cut"), "{cut}");
        }
        let mut changed = good.clone();
        changed[0] = b'z';
        assert!(files(&changed).unwrap_err().to_string().contains("damaged"));
        let mut link = good;
        link[156] = b'2';
        assert!(files(&link).is_err());
        assert!(ArchiveWriter::new(Vec::new()).add(&"x".repeat(LONGEST_NAME + 1), b"").is_err());
    }
}
