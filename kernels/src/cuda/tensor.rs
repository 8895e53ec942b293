//! Tensors in device memory and views of their heads. Computes nothing.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use half::bf16;

use super::codes::CachedCodes;
use super::device::layout::{Map, Strides};
use super::device::{Device, DeviceBuffer, WriteMark};
use crate::{DType, HostTensor, KernelError, RawBytes};

/// A tensor in device memory, row-major but for what `rows_first` says; clones share it.
#[derive(Clone)]
pub struct Tensor {
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    pub(super) buffer: Arc<DeviceBuffer>,
    /// Bytes before the first element.
    pub(super) offset: usize,
    /// `(heads, rows, dim)` that lies as `(rows, heads, dim)`: as products give and take it, and caches hold it.
    pub(super) rows_first: bool,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?} on the GPU", self.shape, self.dtype)
    }
}

/// Elements of tensors as they travel, in device memory.
pub(super) struct Staged<'a> {
    device: &'a Device,
    buffer: Arc<DeviceBuffer>,
    bytes: usize,
    /// What is copied from.
    _held: Vec<Tensor>,
}

impl<'a> Staged<'a> {
    /// So many bytes that were packed on the device.
    pub fn of(device: &'a Device, buffer: DeviceBuffer, bytes: usize) -> Self {
        Self { device, buffer: Arc::new(buffer), bytes, _held: Vec::new() }
    }
}

impl RawBytes for Staged<'_> {
    fn size(&self) -> usize {
        self.bytes
    }

    fn read(&self, start: usize, to: &mut [u8]) -> Result<(), KernelError> {
        assert!(start + to.len() <= self.bytes, "{} bytes from {start} on, of {}", to.len(), self.bytes);
        self.device.download_bytes(self.buffer.pointer + start as u64, to)
    }
}

/// `(heads, rows, dim)` in device memory, elements of a row side by side, heads and rows anywhere.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(super) pointer: u64,
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) dim: usize,
    pub(super) at: Strides,
    pub(super) dtype: DType,
    /// When it may have been written.
    pub(super) written: WriteMark,
    /// Where the map of what it views is kept.
    pub(super) map: Option<&'a OnceLock<Box<Map>>>,
    /// Where codes of these keys and the values beside them are kept.
    pub(super) codes: Option<&'a CachedCodes>,
    lives: PhantomData<&'a DeviceBuffer>,
}

impl<'a> View<'a> {
    pub(super) fn new(pointer: u64, [heads, rows, dim]: [usize; 3], at: Strides, dtype: DType) -> Self {
        let written = WriteMark::UNKNOWN;
        Self { pointer, heads, rows, dim, at, dtype, written, map: None, codes: None, lives: PhantomData }
    }

    /// The same, of memory that no later launch writes.
    pub(super) fn written(self, written: WriteMark) -> Self {
        Self { written, ..self }
    }

    /// The same, whose map is kept here.
    pub(super) fn mapped(self, map: Option<&'a OnceLock<Box<Map>>>) -> Self {
        Self { map, ..self }
    }

    /// The same, whose codes are kept here.
    pub(super) fn coded(self, codes: Option<&'a CachedCodes>) -> Self {
        Self { codes, ..self }
    }

    /// `(heads, rows, dim)`.
    pub fn shape(&self) -> [usize; 3] {
        [self.heads, self.rows, self.dim]
    }

    /// Some heads.
    pub(super) fn of_heads(self, heads: Range<usize>) -> Self {
        debug_assert!(heads.start <= heads.end && heads.end <= self.heads, "heads {heads:?} of {}", self.heads);
        let pointer = self.pointer + (heads.start as i64 * self.at.head) as u64 * self.dtype.size() as u64;
        Self { pointer, heads: heads.len(), map: None, codes: None, ..self }
    }

    /// Rows `start..end` of every head.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn part(self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.rows, "rows {start}..{end} of {}", self.rows);
        let pointer = self.pointer + (start as i64 * self.at.row) as u64 * self.dtype.size() as u64;
        let whole = end - start == self.rows;
        let (map, codes) = (self.map.filter(|_| whole), self.codes.filter(|_| whole));
        Self { pointer, rows: end - start, map, codes, ..self }
    }
}

impl Tensor {
    /// Row-major shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn pointer(&self) -> u64 {
        self.buffer.pointer + self.offset as u64
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    pub(super) fn matrix(&self, operation: &'static str) -> Result<(usize, usize), KernelError> {
        match self.shape[..] {
            [rows, columns] => Ok((rows, columns)),
            _ => Err(KernelError::shape(operation, "(rows, columns)", &[&self.shape])),
        }
    }

    pub(super) fn cube(&self, operation: &'static str) -> Result<(usize, usize, usize), KernelError> {
        match self.shape[..] {
            [heads, rows, dim] => Ok((heads, rows, dim)),
            _ => Err(KernelError::shape(operation, "(heads, tokens, head dim)", &[&self.shape])),
        }
    }

    /// A tensor `(heads, rows, dim)` as it lies.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for another number of axes.
    pub fn heads_first(&self) -> Result<View<'_>, KernelError> {
        let (heads, rows, dim) = self.cube("heads_first")?;
        let at = match self.rows_first {
            true => Strides::by_rows(heads, dim),
            false => Strides { head: (rows * dim) as i64, row: dim as i64 },
        };
        Ok(View::new(self.pointer(), [heads, rows, dim], at, self.dtype))
    }

    /// A tensor `(rows, heads dim)` by its heads: what a projection gives and takes.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for another number of axes, or columns that do not divide into `heads`.
    pub fn token_major(&self, heads: usize) -> Result<View<'_>, KernelError> {
        let (rows, columns) = self.matrix("token_major")?;
        if heads == 0 || !columns.is_multiple_of(heads) {
            return Err(KernelError::shape("token_major", format!("columns of {heads} heads"), &[&self.shape]));
        }
        let at = Strides { head: (columns / heads) as i64, row: columns as i64 };
        Ok(View::new(self.pointer(), [heads, rows, columns / heads], at, self.dtype))
    }

    /// Rows `start..end` of a matrix, shared.
    ///
    /// # Errors
    /// [`KernelError::Shape`] where there are no such rows.
    pub fn rows(&self, start: usize, end: usize) -> Result<Self, KernelError> {
        let (rows, columns) = self.matrix("rows")?;
        if start > end || end > rows {
            return Err(KernelError::shape("rows", format!("a range within {rows} rows"), &[&[start, end]]));
        }
        let offset = self.offset + start * columns * self.dtype.size();
        Ok(Self { shape: vec![end - start, columns], offset, ..self.clone() })
    }

    /// Rows `start..end` of every head, shared, of a tensor that lies by rows.
    pub(super) fn part(&self, start: usize, end: usize) -> Self {
        let (heads, dim) = (self.shape[0], self.shape[2]);
        let offset = self.offset + start * heads * dim * self.dtype.size();
        Self { shape: vec![heads, end - start, dim], offset, ..self.clone() }
    }

    /// `(heads, rows, dim)` that lies by rows as `(rows, heads dim)`, shared.
    pub(super) fn joined(&self) -> Self {
        let (heads, rows, dim) = (self.shape[0], self.shape[1], self.shape[2]);
        Self { shape: vec![rows, heads * dim], rows_first: false, ..self.clone() }
    }
}

impl Device {
    /// A tensor whose elements are not set.
    pub fn empty(&self, shape: &[usize], dtype: DType) -> Result<Tensor, KernelError> {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Ok(Tensor { shape: shape.to_vec(), dtype, buffer: Arc::new(self.alloc(bytes)?), offset: 0, rows_first: false })
    }

    /// A tensor `(heads, rows, dim)` that lies by rows, whose elements are not set.
    pub(super) fn empty_by_rows(&self, shape: [usize; 3], dtype: DType) -> Result<Tensor, KernelError> {
        Ok(Tensor { rows_first: true, ..self.empty(&shape, dtype)? })
    }

    /// The same, of one that is kept when what was computed with it is forgotten.
    pub(super) fn empty_lasting(&self, shape: [usize; 3], dtype: DType) -> Result<Tensor, KernelError> {
        let buffer = Arc::new(self.alloc_lasting(shape.iter().product::<usize>() * dtype.size())?);
        Ok(Tensor { shape: shape.to_vec(), dtype, buffer, offset: 0, rows_first: true })
    }

    /// The same tensor, row-major.
    pub(super) fn by_heads(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        if !x.rows_first {
            return Ok(x.clone());
        }
        let to = self.empty(&x.shape, x.dtype)?;
        self.copy_heads(x.heads_first()?, to.heads_first()?)?;
        Ok(to)
    }

    /// The same tensor `(heads, rows, dim)`, lying by rows.
    pub(super) fn by_rows(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        let (heads, rows, dim) = x.cube("by_rows")?;
        if x.rows_first {
            return Ok(x.clone());
        }
        let to = self.empty_by_rows([heads, rows, dim], x.dtype)?;
        self.copy_heads(x.heads_first()?, to.heads_first()?)?;
        Ok(to)
    }

    /// Host values, rounded to `dtype`.
    pub fn tensor(&self, shape: &[usize], values: &[f32], dtype: DType) -> Result<Tensor, KernelError> {
        if shape.iter().product::<usize>() != values.len() {
            return Err(KernelError::shape("upload", format!("{} values", values.len()), &[shape]));
        }
        let bytes: Vec<u8> = match dtype {
            DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        };
        let buffer = Arc::new(self.upload_bytes(&bytes)?);
        Ok(Tensor { shape: shape.to_vec(), dtype, buffer, offset: 0, rows_first: false })
    }

    /// A checkpoint's tensors, equal in all but their rows, one after the other, in `dtype`.
    pub(super) fn weights(
        &self,
        operation: &'static str,
        parts: &[HostTensor<'_>],
        shape: &[usize],
        dtype: DType,
    ) -> Result<Tensor, KernelError> {
        let tensor = self.empty(shape, dtype)?;
        let (mut at, mut converted) = (tensor.pointer(), Vec::new());
        for part in parts {
            part.check(operation)?;
            // Straight from where the checkpoint lies in memory, unless its type differs.
            let bytes = if part.stored == dtype.into() {
                part.bytes
            } else {
                converted.clear();
                convert(part, dtype, &mut converted);
                &converted
            };
            self.write(at, bytes)?;
            at += bytes.len() as u64;
        }
        Ok(tensor)
    }

    /// Copies the elements of all, in `dtype`, as they travel, to where they can be read from.
    pub(super) fn raw(&self, tensors: &[Tensor], dtype: DType) -> Result<Staged<'_>, KernelError> {
        let bytes: usize = tensors.iter().map(|x| x.elements() * dtype.size()).sum();
        let (buffer, mut at) = (Arc::new(self.alloc(bytes)?), 0);
        let mut held = Vec::with_capacity(tensors.len());
        for x in tensors.iter().filter(|x| x.elements() > 0) {
            let x = self.cast(x, dtype)?;
            let to = Tensor { buffer: Arc::clone(&buffer), offset: at, rows_first: false, ..x.clone() };
            at += x.bytes();
            match x.rows_first {
                true => self.copy_heads(x.heads_first()?, to.heads_first()?)?,
                false => self.copy_2d((x.pointer(), 0), (to.pointer(), 0), x.bytes(), 1)?,
            }
            held.push(x);
        }
        Ok(Staged { device: self, buffer, bytes, _held: held })
    }

    /// Elements in `dtype`, as they travelled.
    pub(super) fn upload_raw(&self, shape: &[usize], pieces: &[&[u8]], dtype: DType) -> Result<Tensor, KernelError> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if Some(bytes) != shape.iter().try_fold(dtype.size(), |all, size| all.checked_mul(*size)) {
            return Err(KernelError::shape("upload", format!("{bytes} bytes of {dtype:?}"), &[shape]));
        }
        let (buffer, mut at) = (Arc::new(self.alloc(bytes)?), 0);
        for piece in pieces {
            self.write(buffer.pointer + at, piece)?;
            at += piece.len() as u64;
        }
        Ok(Tensor { shape: shape.to_vec(), dtype, buffer, offset: 0, rows_first: false })
    }

    /// Waits, and gives the elements as f32.
    pub fn download(&self, tensor: &Tensor) -> Result<Vec<f32>, KernelError> {
        let tensor = self.by_heads(tensor)?;
        if tensor.dtype == DType::F32 {
            let mut values = vec![0f32; tensor.elements()];
            // SAFETY: the values are four bytes each, any of which make a value; GPUs and their hosts are little-endian.
            let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), tensor.bytes()) };
            self.download_bytes(tensor.pointer(), bytes)?;
            return Ok(values);
        }
        let mut bytes = vec![0; tensor.bytes()];
        self.download_bytes(tensor.pointer(), &mut bytes)?;
        Ok(bytes.as_chunks::<2>().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()).collect())
    }
}

/// The elements of a checkpoint's tensor in `dtype`, behind `to`: blocks as what they stand for.
fn convert(part: &HostTensor<'_>, dtype: DType, to: &mut Vec<u8>) {
    // Whole blocks of every format.
    const CONVERTED: usize = 1024;
    let (elements, mut wide) = (part.shape.iter().product::<usize>(), [0.0; CONVERTED]);
    for start in (0..elements).step_by(CONVERTED) {
        let wide = &mut wide[..CONVERTED.min(elements - start)];
        part.widen(start, wide);
        match dtype {
            DType::F32 => wide.iter().for_each(|value| to.extend_from_slice(&value.to_le_bytes())),
            _ => wide.iter().for_each(|value| to.extend_from_slice(&bf16::from_f32(*value).to_le_bytes())),
        }
    }
}
