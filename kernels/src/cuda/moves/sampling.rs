//! Tokens chosen of logits where they lie. What too many tokens are alike for, or none may come of, is chosen on the host, by the reference.

use super::super::device::{Device, DeviceBuffer, LaunchShape, launch, typed};
use super::super::tensor::Tensor;
use crate::{DType, KernelError, LogitChange, RowChoice, RowShape, RowToken, TokenChoice};

/// Threads of a row.
const ROW_THREADS: u32 = 1024;
/// Tokens of a row that a kernel tells besides, at most.
const MOST_TOP: usize = 20;

/// What is asked of a row, as the kernel declares it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ask {
    row: i32,
    known: i32,
    top_k: i32,
    top: i32,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    shape: i32,
    part: f64,
}

/// Bytes of what a kernel tells of the likeliest token of a row, and of what is asked.
const LIKELIEST_BYTES: usize = 24;
const TOLD_BYTES: usize = 8 + 8 * MOST_TOP;
/// Rows that are changed at once: their logits are copied, four bytes each.
const SHAPED_ROWS: usize = 128;

impl Ask {
    /// Whether more than the likeliest token is asked of a row.
    fn is_needed(choice: &RowChoice) -> bool {
        choice.token != TokenChoice::Likeliest || choice.top > 0 || choice.shape.is_some()
    }

    /// `shape`: which of the changed rows is this one, if it is one.
    fn of(row: usize, choice: &RowChoice, shape: Option<usize>) -> Self {
        let whole = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let (row, top) = (row as i32, choice.top.min(MOST_TOP) as i32);
        let shape = shape.map_or(-1, |shape| shape as i32);
        let likeliest =
            Self { row, known: -1, top_k: 0, top, temperature: 0.0, top_p: 1.0, min_p: 0.0, shape, part: 0.0 };
        match choice.token {
            TokenChoice::Likeliest => likeliest,
            TokenChoice::Known(token) => Self { known: whole(token), ..likeliest },
            TokenChoice::Drawn(cut, part) => Self {
                top_k: whole(cut.top_k),
                temperature: cut.temperature,
                top_p: cut.top_p,
                min_p: cut.min_p,
                part,
                ..likeliest
            },
        }
    }

    fn bytes(&self) -> [u8; size_of::<Self>()] {
        // SAFETY: no byte of it is padding, and any bits are bytes.
        unsafe { std::mem::transmute(*self) }
    }
}

/// Rows of logits that were changed, and the likeliest token of each.
struct ChangedRows {
    logits: DeviceBuffer,
    likeliest: DeviceBuffer,
}

/// Four bytes of each number of a change.
fn change_bytes(change: &LogitChange) -> impl Iterator<Item = u8> {
    let LogitChange { token, bias, repetition, presence, frequency } = *change;
    // What no row has changes nothing.
    let token = i32::try_from(token).unwrap_or(i32::MAX);
    let floats = [bias, repetition, presence, frequency].map(f32::to_le_bytes);
    token.to_le_bytes().into_iter().chain(floats.into_iter().flatten())
}

/// The number `at` of four-byte words.
fn word(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes[4 * at..4 * at + 4].try_into().expect("four bytes are four")
}

impl Device {
    /// As `ElementwiseOps::choose_tokens`.
    pub(in super::super) fn choose_tokens(
        &self,
        logits: &Tensor,
        choices: &[RowChoice],
    ) -> Result<Vec<RowToken>, KernelError> {
        let (rows, vocab) = logits.matrix("choose_tokens")?;
        if choices.len() != rows {
            let got = format!("{} choices", choices.len());
            return Err(KernelError::shape("choose_tokens", got, &[logits.shape()]));
        }
        if rows == 0 || vocab == 0 {
            return Ok(Vec::new());
        }
        let asks: Vec<_> = choices.iter().enumerate().filter(|(_, choice)| Ask::is_needed(choice)).collect();
        let likeliest_bytes = LIKELIEST_BYTES * rows;
        let found = self.alloc(likeliest_bytes + TOLD_BYTES * asks.len())?;
        let (from, likeliest, columns) = (logits.pointer(), found.pointer, vocab as i32);
        launch!(
            self,
            &typed("likeliest", logits.dtype),
            LaunchShape::new(rows, ROW_THREADS),
            from,
            likeliest,
            columns
        )?;
        let at_once = if asks.iter().any(|(_, choice)| choice.shape.is_some()) { SHAPED_ROWS } else { rows };
        let mut told = likeliest + likeliest_bytes as u64;
        for asks in asks.chunks(at_once) {
            self.choose(logits, likeliest, asks, told)?;
            told += (TOLD_BYTES * asks.len()) as u64;
        }
        let mut bytes = vec![0; likeliest_bytes + TOLD_BYTES * asks.len()];
        self.download_bytes(found.pointer, &mut bytes)?;
        let (likeliest, told) = bytes.split_at(likeliest_bytes);
        let mut told = asks.iter().zip(told.chunks_exact(TOLD_BYTES)).peekable();
        let each = likeliest.chunks_exact(LIKELIEST_BYTES).zip(choices).enumerate();
        let of_row = |(row, (likeliest, choice)): (usize, (&[u8], &RowChoice))| {
            let told = told.next_if(|((asked, _), _)| *asked == row).map(|(_, told)| told);
            let token = RowToken {
                token: u32::from_le_bytes(word(likeliest, 0)),
                logit: f32::from_le_bytes(word(likeliest, 2)),
                largest: f32::from_le_bytes(word(likeliest, 2)),
                sum: f64::from_le_bytes(likeliest[16..24].try_into().expect("eight bytes are eight")),
                is_finite: u32::from_le_bytes(word(likeliest, 1)) == 0,
                top: Vec::new(),
            };
            let Some(told) = told.filter(|_| token.is_finite) else { return Ok(token) };
            let chosen = i32::from_le_bytes(word(told, 0));
            if chosen < 0 || choice.top > MOST_TOP {
                return self.download(&logits.rows(row, row + 1)?).map(|logits| choice.of(&logits));
            }
            let id = |at: usize| u32::from_le_bytes(word(told, 2 + at));
            let logit = |at: usize| f32::from_le_bytes(word(told, 2 + MOST_TOP + at));
            let top = (0..choice.top.min(vocab)).map(|at| (id(at), logit(at))).collect();
            Ok(RowToken { token: chosen as u32, logit: f32::from_le_bytes(word(told, 1)), top, ..token })
        };
        each.map(of_row).collect()
    }

    /// What is asked of some rows, told at `told`.
    fn choose(
        &self,
        logits: &Tensor,
        likeliest: u64,
        asks: &[(usize, &RowChoice)],
        told: u64,
    ) -> Result<(), KernelError> {
        let (mut table, mut shapes) = (Vec::with_capacity(size_of::<Ask>() * asks.len()), Vec::new());
        for (row, choice) in asks {
            let shape = choice.shape.as_ref().map(|shape| {
                shapes.push((*row, shape));
                shapes.len() - 1
            });
            table.extend(Ask::of(*row, choice, shape).bytes());
        }
        let changed = if shapes.is_empty() { None } else { Some(self.changed_rows(logits, &shapes)?) };
        let (changed, of_changed) =
            changed.as_ref().map_or((0, 0), |changed| (changed.logits.pointer, changed.likeliest.pointer));
        let table = self.upload_bytes(&table)?;
        let (from, table, columns) = (logits.pointer(), table.pointer, logits.matrix("choose_tokens")?.1 as i32);
        let shape = LaunchShape::new(asks.len(), ROW_THREADS);
        let kernel = typed("choose", logits.dtype);
        launch!(self, &kernel, shape, from, likeliest, changed, of_changed, table, told, columns)
    }

    /// Rows of logits, changed as their shapes say.
    fn changed_rows(&self, logits: &Tensor, shapes: &[(usize, &RowShape)]) -> Result<ChangedRows, KernelError> {
        let (_, vocab) = logits.matrix("choose_tokens")?;
        let row_words = vocab.div_ceil(32);
        let (mut table, mut changes) = (Vec::new(), Vec::new());
        // Within a text, an answer's tokens have one mask after another that is the same.
        let mut masks: Vec<&[u32]> = Vec::new();
        let mut end_change = 0;
        for (row, RowShape { changes: of_row, allowed }) in shapes {
            let first_change = end_change;
            end_change += of_row.len() as i32;
            let word = allowed.as_deref().map_or(-1, |allowed| {
                if masks.last() != Some(&allowed) {
                    masks.push(allowed);
                }
                ((masks.len() - 1) * row_words) as i32
            });
            table.extend([*row as i32, first_change, end_change, word].into_iter().flat_map(i32::to_le_bytes));
            changes.extend(of_row.iter().flat_map(change_bytes));
        }
        let (changes_at, words_at) = (table.len(), table.len() + changes.len());
        let mut bytes = [table, changes].concat();
        for (mask, end) in masks.iter().zip(1..) {
            bytes.extend(mask.iter().take(row_words).flat_map(|word| word.to_le_bytes()));
            bytes.resize(words_at + 4 * row_words * end, 0);
        }
        let table = self.upload_bytes(&bytes)?;
        let changed = ChangedRows {
            logits: self.alloc(shapes.len() * vocab * DType::F32.size())?,
            likeliest: self.alloc(shapes.len() * LIKELIEST_BYTES)?,
        };
        let (from, table, columns) = (logits.pointer(), table.pointer, vocab as i32);
        let (changes, words) = (table + changes_at as u64, table + words_at as u64);
        let (to, likeliest) = (changed.logits.pointer, changed.likeliest.pointer);
        let shape = LaunchShape::new(shapes.len(), ROW_THREADS);
        launch!(self, &typed("shape", logits.dtype), shape, from, table, changes, words, to, likeliest, columns)?;
        Ok(changed)
    }
}
