//! What a file is that should be another: told by its first bytes. Reads none.

use std::fmt;

/// Formats that are found in the place of weights or of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForeignFormat {
    /// What Git keeps in the place of a large file that was not fetched; with that file's length, where it says it.
    LfsPointer {
        length: Option<u64>,
    },
    Gguf,
    /// Since version 1.6 what torch.save writes.
    Zip,
    Pickle,
    Html,
}

/// Most bytes that are needed to tell.
pub(super) const SNIFFED_BYTES: usize = 256;

/// What begins like this.
pub(super) fn of(begins: &[u8]) -> Option<ForeignFormat> {
    let begins = &begins[..begins.len().min(SNIFFED_BYTES)];
    let text = String::from_utf8_lossy(begins);
    let tag = text.trim_start().to_ascii_lowercase();
    if text.starts_with("version https://git-lfs.github.com/spec/") {
        let length = text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok());
        return Some(ForeignFormat::LfsPointer { length });
    }
    match begins {
        [b'G', b'G', b'U', b'F', ..] => Some(ForeignFormat::Gguf),
        [b'P', b'K', 3, 4, ..] => Some(ForeignFormat::Zip),
        // A header of safetensors may be as long as that.
        [0x80, 2..=5, ..] if begins.get(8) != Some(&b'{') => Some(ForeignFormat::Pickle),
        _ if tag.starts_with("<!doctype") || tag.starts_with("<html") => Some(ForeignFormat::Html),
        _ => None,
    }
}

impl ForeignFormat {
    /// With its article.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::LfsPointer { .. } => "a Git LFS pointer",
            Self::Gguf => "a GGUF file",
            Self::Zip => "a zip archive, as torch.save writes it",
            Self::Pickle => "a pickle, as torch.save writes it",
            Self::Html => "a web page",
        }
    }

    /// What to do about it where a file of a model should be.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::LfsPointer { .. } => "`git lfs pull` in its folder, or `hf download`, fetches it",
            Self::Gguf => "a GGUF file is a model of its own: name it in place of the folder",
            Self::Zip | Self::Pickle => {
                "PyTorch's format is not read: fetch the repository's safetensors, or save the model with transformers' save_pretrained"
            }
            Self::Html => "fetch it again: the server sent a page about it",
        }
    }
}

impl fmt::Display for ForeignFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::LfsPointer { length: Some(length) } => {
                write!(f, " to a file of {length} bytes, which was not fetched")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 988097824\n";
        let expected = "a Git LFS pointer to a file of 988097824 bytes, which was not fetched";
        assert_eq!(of(pointer.as_bytes()).unwrap().to_string(), expected);
        for (begins, kind) in [
            (&b"GGUF\x03\0"[..], ForeignFormat::Gguf),
            (b"PK\x03\x04", ForeignFormat::Zip),
            (b"\x80\x02}", ForeignFormat::Pickle),
            (b"\n<!DOCTYPE html>", ForeignFormat::Html),
            (b"<html lang", ForeignFormat::Html),
        ] {
            assert_eq!(of(begins), Some(kind));
        }
        for begins in [&b""[..], b"{\"a\": 1}", b"\x80\x02\0\0\0\0\0\0{", b"GG"] {
            assert_eq!(of(begins), None);
        }
    }
}
