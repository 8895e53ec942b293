//! Tokens chosen of logits where they lie. What too many tokens are alike for is chosen on the host, by the reference.

use super::super::device::{Device, LaunchShape, launch, typed};
use super::super::tensor::Tensor;
use crate::{KernelError, RowChoice, RowToken, TokenChoice};

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
    unused: i32,
    part: f64,
}

/// Bytes of what a kernel tells of the likeliest token of a row, and of what is asked.
const LIKELIEST_BYTES: usize = 24;
const TOLD_BYTES: usize = 8 + 8 * MOST_TOP;

impl Ask {
    /// Nothing where the likeliest token is all that is asked of a row.
    fn of(row: usize, choice: &RowChoice) -> Option<Self> {
        let whole = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let (row, top) = (row as i32, choice.top.min(MOST_TOP) as i32);
        let likeliest =
            Self { row, known: -1, top_k: 0, top, temperature: 0.0, top_p: 1.0, min_p: 0.0, unused: 0, part: 0.0 };
        match choice.token {
            TokenChoice::Likeliest => (choice.top > 0).then_some(likeliest),
            TokenChoice::Known(token) => Some(Self { known: whole(token), ..likeliest }),
            TokenChoice::Drawn(cut, part) => Some(Self {
                top_k: whole(cut.top_k),
                temperature: cut.temperature,
                top_p: cut.top_p,
                min_p: cut.min_p,
                part,
                ..likeliest
            }),
        }
    }

    fn bytes(&self) -> [u8; size_of::<Self>()] {
        // SAFETY: no byte of it is padding, and any bits are bytes.
        unsafe { std::mem::transmute(*self) }
    }
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
        let asks: Vec<Ask> = choices.iter().enumerate().filter_map(|(row, choice)| Ask::of(row, choice)).collect();
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
        if !asks.is_empty() {
            let table: Vec<u8> = asks.iter().flat_map(Ask::bytes).collect();
            let table = self.upload_bytes(&table)?;
            let (table, told) = (table.pointer, likeliest + likeliest_bytes as u64);
            let shape = LaunchShape::new(asks.len(), ROW_THREADS);
            launch!(self, &typed("choose", logits.dtype), shape, from, likeliest, table, told, columns)?;
        }
        let mut bytes = vec![0; likeliest_bytes + TOLD_BYTES * asks.len()];
        self.download_bytes(found.pointer, &mut bytes)?;
        let (likeliest, told) = bytes.split_at(likeliest_bytes);
        let mut told = asks.iter().zip(told.chunks_exact(TOLD_BYTES)).peekable();
        let each = likeliest.chunks_exact(LIKELIEST_BYTES).zip(choices).enumerate();
        let of_row = |(row, (likeliest, choice)): (usize, (&[u8], &RowChoice))| {
            let told = told.next_if(|(ask, _)| ask.row as usize == row).map(|(_, told)| told);
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
}
