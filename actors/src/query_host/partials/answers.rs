//! The frames that context hosts answer with, taken apart. Knows nobody who waits for them.

use std::{ops::Range, sync::Arc};

use asterism_transport::{Frame, FrameHeader, FrameKind};
use thiserror::Error;

use crate::{
    messages::{InvalidMessage, PartialsAnswer, PartialsMeta, PartialsPart, ShardKeys, WireMessage},
    payload::Floats,
};

/// What is wrong with an answer. Its host is asked again, and told of to the supervisor.
#[derive(Debug, Error)]
pub enum AnswerError {
    /// Not an answer.
    #[error("asked for partials, it sent {header:?}")]
    NotPartials {
        /// Of its frame.
        header: FrameHeader,
    },
    /// Bytes that are no message.
    #[error(transparent)]
    Message(#[from] InvalidMessage),
    /// A payload that ends within a value.
    #[error("its payload of {bytes} bytes is not of whole values")]
    NotWhole {
        /// Bytes of it.
        bytes: usize,
    },
    /// Another number of values than it says.
    #[error("it sent {got} values and answers with {expected}")]
    Values {
        /// What its partials have.
        expected: usize,
        /// What came.
        got: usize,
    },
    /// For another host to answer.
    #[error("it answered for attachment {attachment}, which is another host's")]
    OfAnother {
        /// The attachment.
        attachment: u64,
    },
    /// Other shards than were asked.
    #[error("asked for partials of the shards {asked:?}, it answered for {got:?}")]
    Shards {
        /// What was asked.
        asked: Vec<Vec<u32>>,
        /// What came.
        got: Vec<Vec<ShardKeys>>,
    },
    /// Other rows than were asked.
    #[error("asked for {asked} rows, it answered {got}")]
    Rows {
        /// What was asked.
        asked: usize,
        /// What came.
        got: usize,
    },
    /// Partials that merge with nothing.
    #[error(
        "its partial of shard {shard} in layer {layer} is not finite; where every host's is, the input overflows this dtype"
    )]
    NotFinite {
        /// The first shard of the partial.
        shard: usize,
        /// Layer.
        layer: u32,
    },
}

/// A frame's answers.
pub struct Answers {
    /// The partials of all.
    pub values: Arc<Floats>,
    /// One an attachment.
    pub parts: Vec<Answer>,
}

/// The answer of one attachment.
pub struct Answer {
    /// Its number.
    pub attachment: u64,
    /// Rows of the question.
    pub rows: usize,
    /// Its shards, or why there are none.
    pub answer: PartialsAnswer,
    /// Its values among those of all.
    pub range: Range<usize>,
}

/// Reads a frame whose packed rows have so many values.
pub fn read(frame: &Frame, row: usize) -> Result<Answers, AnswerError> {
    if frame.header.kind != FrameKind::Response {
        return Err(AnswerError::NotPartials { header: frame.header });
    }
    let meta = PartialsMeta::read(&frame.meta, "the context host")?;
    let values = Floats::new(frame.payload.clone()).ok_or(AnswerError::NotWhole { bytes: frame.payload.len() })?;
    let mut end = 0_usize;
    let part = |PartialsPart { attachment, rows, answer }: PartialsPart| {
        let partials = if let PartialsAnswer::Groups(groups) = &answer { groups.len() } else { 0 };
        let (start, rows) = (end, rows as usize);
        end = end.saturating_add(rows.saturating_mul(row).saturating_mul(partials));
        Answer { attachment, rows, answer, range: start..end }
    };
    let parts = meta.parts.into_iter().map(part).collect();
    let got = values.as_ref().len();
    // How much was handed over is seen where it is fetched.
    match end == got || frame.handed.is_some() {
        true => Ok(Answers { values: Arc::new(values), parts }),
        false => Err(AnswerError::Values { expected: end, got }),
    }
}
