//! Where the context's keys and values live, as a step asks for them: behind a wire, or in this very process.

use asterism_kernels::{AllGather, Backend};

use super::{
    answers::{Answers, LayerQueries},
    batch::PartAsk,
    local::LocalContext,
};
use crate::{Decoder, ModelError};

/// Devices that share a step, that of the step first: each with what it has of the context.
pub struct Team<'a, B: Backend> {
    pub(super) members: Vec<(&'a Decoder<B>, &'a LocalContext<'a, B>)>,
    /// Puts together what each makes.
    pub(super) gather: &'a dyn AllGather<B>,
}

/// Where the context's keys and values live.
pub trait ContextAttention<B: Backend> {
    /// Answers the rows of each part with partials of every shard of the part's context, wherever these are.
    fn ask(&mut self, queries: LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Answers<'_, B>, ModelError>;
    /// The devices of this process that share a step of these parts, where they gain by it: they have all of the context, and
    /// nobody is asked.
    fn team(&self, parts: &[PartAsk]) -> Option<Team<'_, B>> {
        let _ = parts;
        None
    }
    /// The last answers are merged with the query host's own part, or handed to the device to be. For whoever takes the time;
    /// does nothing unless told otherwise.
    fn merged(&mut self) {}
}

impl<B: Backend> ContextAttention<B> for LocalContext<'_, B> {
    fn ask(&mut self, queries: LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Answers<'_, B>, ModelError> {
        Ok(Answers::here(self.answers((queries.layer, queries.window), asks)))
    }
}
