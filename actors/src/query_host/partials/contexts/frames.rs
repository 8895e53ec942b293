//! The frames of context hosts, taken in: answers, and shards that are handed over.

use asterism_kernels::{Backend, Exported};
use asterism_transport::{Frame, FrameKind, LocalValue};

use super::{Attachment, JobContexts};
use crate::query_host::partials::{
    answers::{self, Answer, AnswerError},
    gather,
    layer_step::{self, LayerStep},
};
use crate::{
    handing::ShardsHere,
    messages::{Admitted, PartialsAnswer, WireMessage, are_of},
};

impl<B: Backend> JobContexts<B> {
    /// Takes in a frame's answers; the error is what is wrong with all of it.
    pub(super) fn read(&mut self, line: u64, frame: &Frame) -> Result<(), AnswerError> {
        if frame.header.kind == FrameKind::Control {
            return self.admitted(line, frame);
        }
        let (step, layer) = layer_step::step_and_layer(frame.header.correlation);
        let read = answers::read(frame, self.decoder.config().heads.packed_row())?;
        for Answer { attachment, rows, answer, range } in read.parts {
            // What was detached meanwhile is not waited for.
            let Some(Attachment { job, channel, answers: expected }) = self.attachments.get(&attachment) else {
                continue;
            };
            let (job, channel) = (*job, *channel);
            if self.jobs[&job].channels.get(&channel).is_none_or(|(attached, _)| *attached != line) {
                return Err(AnswerError::OfAnother { attachment });
            }
            let groups = match answer {
                PartialsAnswer::Groups(groups) if are_of(&groups, expected) => groups,
                PartialsAnswer::Groups(got) => return Err(AnswerError::Shards { asked: expected.clone(), got }),
                PartialsAnswer::Failed { host, cause } => {
                    self.apply(job, gather::GatherEvent::Broke { channel, host, wrong: false, cause }, None);
                    continue;
                }
            };
            let answers = match self.asked.awaits(job, (step, layer)) {
                None => Ok(None),
                Some(part) if self.asked.parts[part].rows.len() != rows => {
                    Err(AnswerError::Rows { asked: self.asked.parts[part].rows.len(), got: rows })
                }
                Some(_) => match frame.handed.as_ref().and_then(|handed| handed.get::<Exported<B>>()) {
                    Some(exported) => {
                        let start = range.start / self.decoder.config().heads.packed_row();
                        Ok(Some(LayerStep::exported(&groups, (&exported, start), rows)))
                    }
                    None => self.asked.partials(&groups, (&read.values, range)).map(Some),
                },
            };
            match answers {
                Ok(answers) => {
                    let mut shards = groups.concat();
                    shards.sort_unstable_by_key(|shard| shard.block);
                    self.apply(job, gather::GatherEvent::Answer { channel, step, layer, shards }, answers);
                }
                Err(wrong) => {
                    let (host, cause) = (None, wrong.to_string());
                    self.apply(job, gather::GatherEvent::Broke { channel, host, wrong: true, cause }, None);
                }
            }
        }
        Ok(())
    }

    /// Takes in what a host hands over, if it does.
    fn admitted(&mut self, line: u64, frame: &Frame) -> Result<(), AnswerError> {
        let Admitted { attachment } = Admitted::read(&frame.meta, &self.lines.host(line))?;
        // What was detached meanwhile is not waited for.
        let Some(Attachment { job, channel, .. }) = self.attachments.get(&attachment) else { return Ok(()) };
        if self.jobs[job].channels.get(channel).is_none_or(|(attached, _)| *attached != line) {
            return Err(AnswerError::OfAnother { attachment });
        }
        let handed = frame.handed.as_ref().filter(|_| self.on_devices.0);
        self.local_shards.take(attachment, handed.and_then(LocalValue::get::<ShardsHere<B>>));
        Ok(())
    }
}
