//! The header of a GGUF file (version 2 and 3): metadata and where tensors lie. Everything that it says is checked against the bytes
//! that there are before it is believed, and nothing is allocated by what it claims. Judges no value.

use std::collections::BTreeMap;
use std::ops::Range;

use asterism_kernels::{BlockFormat, DType, Stored};

use super::refusal::refused;
use crate::ModelError;

/// What a file's first part says.
#[derive(Debug)]
pub(super) struct Header<'a> {
    pub metadata: BTreeMap<&'a str, Field<'a>>,
    pub tensors: Vec<TensorHeader<'a>>,
}

/// A value of the metadata.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a [u8]),
    /// Of one kind: how many, and their bytes.
    Array(u32, usize, &'a [u8]),
}

/// A tensor, its axes as other formats have them: the innermost last.
#[derive(Debug)]
pub(super) struct TensorHeader<'a> {
    pub name: &'a str,
    pub shape: Vec<usize>,
    pub stored: Stored,
    /// In the file.
    pub bytes: Range<usize>,
}

/// The kinds of texts and of lists.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
/// Longest name of a field or a tensor, bytes.
const LONGEST_NAME: usize = 512;
/// Most axes of a tensor.
const MOST_AXES: u32 = 4;
/// Fewest bytes of an entry of the metadata, and of one of the list of tensors.
const SHORTEST_ENTRY: [u64; 2] = [13, 24];

impl<'a> Header<'a> {
    /// Reads the header of a file of these bytes.
    pub fn read(path: &str, bytes: &'a [u8]) -> Result<Self, ModelError> {
        let mut cursor = Cursor { path, bytes, at: 0 };
        let [tensors, entries] = cursor.counts()?;
        let metadata = cursor.metadata(entries)?;
        let tensors = (0..tensors).map(|number| cursor.tensor(number)).collect::<Result<Vec<_>, _>>()?;
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Field::Unsigned(alignment @ 1..=0x10_0000)) => *alignment as usize,
            Some(other) => {
                return Err(refused(path, "general.alignment", other.shown(), "a number from 1 to 1048576"));
            }
        };
        let data = cursor.at.next_multiple_of(alignment);
        let tensors = tensors.into_iter().map(|tensor| tensor.placed(path, data, alignment, bytes.len()));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        let mut names = std::collections::BTreeSet::new();
        if let Some(twice) = tensors.iter().find(|tensor| !names.insert(tensor.name)) {
            return Err(refused(path, format!("tensor {}", twice.name), "listed twice", "one of each name"));
        }
        Ok(Self { metadata, tensors })
    }

    /// A tensor by its name in the file.
    pub fn tensor(&self, name: &str) -> Option<&TensorHeader<'a>> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

impl TensorHeader<'_> {
    /// A small tensor's numbers, which must be plain ones.
    pub fn floats(&self, path: &str, file: &[u8]) -> Result<Vec<f32>, ModelError> {
        let bytes = &file[self.bytes.clone()];
        match self.stored {
            Stored::Plain(DType::F32) => {
                Ok(bytes.as_chunks::<4>().0.iter().map(|bits| f32::from_le_bytes(*bits)).collect())
            }
            other => Err(refused(path, format!("tensor {}", self.name), format!("stored as {other}"), "f32")),
        }
    }
}

/// A tensor as the header lists it: its place counts from where the data begins.
struct Listed<'a> {
    name: &'a str,
    shape: Vec<usize>,
    stored: Stored,
    offset: u64,
}

impl<'a> Listed<'a> {
    fn placed(self, path: &str, data: usize, alignment: usize, length: usize) -> Result<TensorHeader<'a>, ModelError> {
        let Self { name, shape, stored, offset } = self;
        let field = || format!("tensor {name}");
        if !shape.last().is_none_or(|row| row.is_multiple_of(stored.block())) {
            let expected = format!("rows of whole blocks of {} elements", stored.block());
            return Err(refused(path, field(), format!("{shape:?} of {stored}"), expected));
        }
        let elements = shape.iter().try_fold(1usize, |all, axis| all.checked_mul(*axis));
        let Some(bytes) = elements.and_then(|elements| stored.bytes_of(elements)) else {
            let expected = format!("no more than the {length} bytes of the file");
            return Err(refused(path, field(), format!("{shape:?} of {stored}"), expected));
        };
        if !offset.is_multiple_of(alignment as u64) {
            return Err(refused(path, field(), format!("at offset {offset}"), format!("a multiple of {alignment}")));
        }
        let start = usize::try_from(offset).ok().and_then(|offset| data.checked_add(offset));
        let end = start.and_then(|start| start.checked_add(bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= length => Ok(TensorHeader { name, shape, stored, bytes: start..end }),
            _ => {
                let got = format!("{bytes} bytes at offset {offset} of the data, which begins at byte {data}");
                let expected = format!("its end within the {length} bytes of the file: fetch the file again");
                Err(refused(path, field(), got, expected))
            }
        }
    }
}

impl<'a> Field<'a> {
    /// In a few words.
    pub fn shown(self) -> String {
        match self {
            Self::Unsigned(number) => number.to_string(),
            Self::Signed(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Bool(flag) => flag.to_string(),
            Self::Text(text) => {
                let text = String::from_utf8_lossy(text);
                format!("{:?}", text.chars().take(40).collect::<String>())
            }
            Self::Array(_, count, _) => format!("a list of {count}"),
        }
    }

    /// The texts of a list of them.
    pub fn texts(self) -> Option<impl Iterator<Item = &'a [u8]>> {
        let Self::Array(TEXT, count, bytes) = self else { return None };
        let mut cursor = Cursor { path: "", bytes, at: 0 };
        Some((0..count).map_while(move |_| cursor.text(&"").ok()))
    }

    /// The numbers of a list of them.
    pub fn numbers(self) -> Option<impl Iterator<Item = f64>> {
        let Self::Array(kind, count, bytes) = self else { return None };
        if matches!(kind, TEXT | ARRAY) {
            return None;
        }
        let mut cursor = Cursor { path: "", bytes, at: 0 };
        let number = |field| match field {
            Field::Unsigned(number) => number as f64,
            Field::Signed(number) => number as f64,
            Field::Float(number) => number,
            Field::Bool(flag) => f64::from(u8::from(flag)),
            Field::Text(_) | Field::Array(..) => f64::NAN,
        };
        Some((0..count).map_while(move |_| cursor.scalar(kind, &"").ok().map(number)))
    }
}

/// Reads on from a place.
struct Cursor<'p, 'a> {
    path: &'p str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'_, 'a> {
    /// Checks what a file begins with, and gives how many tensors and entries of metadata follow.
    fn counts(&mut self) -> Result<[u64; 2], ModelError> {
        let magic = self.array::<4>(&"magic")?;
        if magic != *b"GGUF" {
            return Err(refused(self.path, "magic", format!("{magic:?}"), "the letters GGUF"));
        }
        let version = self.u32(&"version")?;
        if !matches!(version, 2 | 3) {
            let got = if matches!(version.swap_bytes(), 1..=3) {
                "that of a big-endian file".into()
            } else {
                version.to_string()
            };
            return Err(refused(self.path, "version", got, "2 or 3, little-endian: convert the model anew"));
        }
        let counts = [self.u64(&"tensor count")?, self.u64(&"metadata count")?];
        let left = (self.bytes.len() - self.at) as u64;
        for (at, name) in ["tensor count", "metadata count"].into_iter().enumerate() {
            if counts[at] > left / SHORTEST_ENTRY[1 - at] {
                let expected = format!("no more than {left} bytes can list: fetch the file again");
                return Err(refused(self.path, name, counts[at].to_string(), expected));
            }
        }
        Ok(counts)
    }

    fn metadata(&mut self, entries: u64) -> Result<BTreeMap<&'a str, Field<'a>>, ModelError> {
        let mut metadata = BTreeMap::new();
        for number in 0..entries {
            let name = self.name(&format_args!("metadata entry {number}"))?;
            let field = &format_args!("metadata entry {name:?}");
            let kind = self.u32(field)?;
            let value = match kind {
                ARRAY => self.list(field)?,
                kind => self.scalar(kind, field)?,
            };
            if metadata.insert(name, value).is_some() {
                return Err(refused(self.path, name, "there twice", "one of each name"));
            }
        }
        Ok(metadata)
    }

    fn list(&mut self, field: &dyn std::fmt::Display) -> Result<Field<'a>, ModelError> {
        let (kind, count) = (self.u32(field)?, self.u64(field)?);
        let start = self.at;
        match size_of_kind(kind) {
            Some(size) => {
                let bytes = count.checked_mul(size as u64).and_then(|bytes| usize::try_from(bytes).ok());
                self.take(bytes.unwrap_or(usize::MAX), field)?;
            }
            // Each is looked at, so that one that is cut short ends it.
            None if kind == TEXT => {
                for _ in 0..count {
                    self.text(field)?;
                }
            }
            None => return Err(self.unknown_kind(kind, field)),
        }
        Ok(Field::Array(kind, count as usize, &self.bytes[start..self.at]))
    }

    fn scalar(&mut self, kind: u32, field: &dyn std::fmt::Display) -> Result<Field<'a>, ModelError> {
        Ok(match kind {
            0 => Field::Unsigned(u64::from(self.array::<1>(field)?[0])),
            1 => Field::Signed(i64::from(i8::from_le_bytes(self.array(field)?))),
            2 => Field::Unsigned(u64::from(u16::from_le_bytes(self.array(field)?))),
            3 => Field::Signed(i64::from(i16::from_le_bytes(self.array(field)?))),
            4 => Field::Unsigned(u64::from(self.u32(field)?)),
            5 => Field::Signed(i64::from(i32::from_le_bytes(self.array(field)?))),
            // The shortest decimal of a 32-bit float is what its author wrote.
            6 => Field::Float(f32::from_le_bytes(self.array(field)?).to_string().parse().unwrap_or(f64::NAN)),
            7 => match self.array::<1>(field)?[0] {
                0 => Field::Bool(false),
                1 => Field::Bool(true),
                other => return Err(refused(self.path, field.to_string(), format!("a flag of {other}"), "0 or 1")),
            },
            TEXT => Field::Text(self.text(field)?),
            10 => Field::Unsigned(self.u64(field)?),
            11 => Field::Signed(i64::from_le_bytes(self.array(field)?)),
            12 => Field::Float(f64::from_le_bytes(self.array(field)?)),
            other => return Err(self.unknown_kind(other, field)),
        })
    }

    fn unknown_kind(&self, kind: u32, field: &dyn std::fmt::Display) -> ModelError {
        refused(self.path, field.to_string(), format!("of type {kind}"), "a type from 0 to 12, and no list of lists")
    }

    fn tensor(&mut self, number: u64) -> Result<Listed<'a>, ModelError> {
        let name = self.name(&format_args!("tensor {number}"))?;
        let field = &format_args!("tensor {name}");
        let axes = self.u32(field)?;
        if !(1..=MOST_AXES).contains(&axes) {
            return Err(refused(self.path, field.to_string(), format!("{axes} axes"), format!("1 to {MOST_AXES}")));
        }
        let mut shape = Vec::with_capacity(axes as usize);
        for _ in 0..axes {
            let axis = self.u64(field)?;
            match usize::try_from(axis) {
                Ok(axis @ 1..) => shape.insert(0, axis),
                _ => return Err(refused(self.path, field.to_string(), format!("an axis of {axis}"), "1 or more")),
            }
        }
        let kind = self.u32(field)?;
        let stored = stored(kind).map_err(|name| {
            let formats = BlockFormat::GGML.map(BlockFormat::name).join(", ");
            let got = format!("of type {}", name.map_or_else(|| kind.to_string(), str::to_owned));
            refused(self.path, field.to_string(), got, format!("F32, F16, BF16, {formats}"))
        })?;
        Ok(Listed { name, shape, stored, offset: self.u64(field)? })
    }

    /// A text that names something.
    fn name(&mut self, field: &dyn std::fmt::Display) -> Result<&'a str, ModelError> {
        let text = self.text(field)?;
        if text.len() > LONGEST_NAME {
            let (got, expected) = (format!("a name of {} bytes", text.len()), format!("at most {LONGEST_NAME}"));
            return Err(refused(self.path, field.to_string(), got, expected));
        }
        std::str::from_utf8(text).map_err(|_| refused(self.path, field.to_string(), "a name that is no UTF-8", "UTF-8"))
    }

    fn text(&mut self, field: &dyn std::fmt::Display) -> Result<&'a [u8], ModelError> {
        let length = self.u64(field)?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX), field)
    }

    fn u32(&mut self, field: &dyn std::fmt::Display) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: &dyn std::fmt::Display) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    fn array<const N: usize>(&mut self, field: &dyn std::fmt::Display) -> Result<[u8; N], ModelError> {
        let bytes = self.take(N, field)?;
        Ok(*bytes.first_chunk().expect("as many as were taken"))
    }

    fn take(&mut self, bytes: usize, field: &dyn std::fmt::Display) -> Result<&'a [u8], ModelError> {
        let left = self.bytes.len() - self.at;
        match self.at.checked_add(bytes).and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += bytes;
                Ok(taken)
            }
            None => {
                let got = format!("cut short: {bytes} bytes from byte {} on, of which the file has {left}", self.at);
                Err(refused(self.path, field.to_string(), got, "all of it: fetch the file again"))
            }
        }
    }
}

/// Bytes of a number of a kind.
fn size_of_kind(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// The type of a tensor by ggml's number; what it is called where it is not read.
fn stored(kind: u32) -> Result<Stored, Option<&'static str>> {
    use BlockFormat as B;
    Ok(match kind {
        0 => DType::F32.into(),
        1 => DType::F16.into(),
        30 => DType::Bf16.into(),
        2 => Stored::Blocks(B::Q4_0),
        3 => Stored::Blocks(B::Q4_1),
        6 => Stored::Blocks(B::Q5_0),
        7 => Stored::Blocks(B::Q5_1),
        8 => Stored::Blocks(B::Q8_0),
        10 => Stored::Blocks(B::Q2K),
        11 => Stored::Blocks(B::Q3K),
        12 => Stored::Blocks(B::Q4K),
        13 => Stored::Blocks(B::Q5K),
        14 => Stored::Blocks(B::Q6K),
        20 => Stored::Blocks(B::Iq4Nl),
        23 => Stored::Blocks(B::Iq4Xs),
        39 => Stored::Blocks(B::Mxfp4),
        _ => return Err(OTHERS.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)),
    })
}

/// Types that are not read.
const OTHERS: [(u32, &str); 17] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
];
