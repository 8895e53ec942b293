//! A context whose shards lie on several devices of this process: rows go from device to device, and nobody waits on the host.

use std::sync::Arc;

use asterism_kernels::{Backend, PriorityGuard, Rank};

use super::{
    answers::{Answers, LayerQueries, PartialRows, ShardPartial},
    batch::PartAsk,
    context::{ContextAttention, Team},
    local::LocalContext,
    tensor_parallel::TensorParallel,
};
use crate::ModelError;

/// Context shards on the device that steps are taken on, and on others.
pub struct TeamContext<'a, B: Backend> {
    home: LocalContext<'a, B>,
    others: Vec<LocalContext<'a, B>>,
    linear: Option<&'a TensorParallel<B>>,
}

impl<'a, B: Backend> TeamContext<'a, B> {
    /// Answers a step that is taken on the first device from the shards that each has.
    ///
    /// # Panics
    /// Without a device.
    pub fn new(devices: Vec<LocalContext<'a, B>>) -> Self {
        let mut devices = devices.into_iter();
        Self { home: devices.next().expect("a device at least"), others: devices.collect(), linear: None }
    }

    /// A step goes ahead of long work on all of the devices, until this is dropped.
    pub fn priority(&self) -> Vec<PriorityGuard> {
        [&self.home].into_iter().chain(&self.others).map(|context| context.backend().priority(Rank::Token)).collect()
    }

    /// Has the devices share the linear layers of steps of one part and few rows.
    ///
    /// # Panics
    /// With more or fewer decoders than devices.
    #[must_use]
    pub fn sharing(self, linear: &'a TensorParallel<B>) -> Self {
        assert_eq!(linear.decoders().len(), 1 + self.others.len(), "a decoder for each device");
        Self { linear: Some(linear), ..self }
    }
}

impl<B: Backend> ContextAttention<B> for TeamContext<'_, B> {
    fn ask(
        &mut self,
        LayerQueries { layer, window, heads, q }: LayerQueries<'_, B>,
        asks: &[PartAsk],
    ) -> Result<Answers<'_, B>, ModelError> {
        let mut answers = self.home.answers((layer, window), asks);
        if self.others.is_empty() {
            return Ok(Answers::here(answers));
        }
        let exported = self.home.backend().export(vec![q.clone()])?;
        for context in &self.others {
            let (backend, each) = (context.backend(), context.asked((layer, window), asks));
            if each.is_empty() {
                continue;
            }
            let q = exported(backend)?.swap_remove(0);
            let rows = backend.attend_rows(heads, &q, (&each, &vec![1; each.len()]))?;
            let (rows, mut start) = (Arc::new(backend.export(vec![rows])?), 0);
            for ((answer, ask), theirs) in answers.iter_mut().zip(asks).zip(context.answers((layer, window), asks)) {
                for ShardPartial { shards, .. } in theirs {
                    let end = start + ask.rows.len();
                    let rows = PartialRows::Exported(rows.clone(), start..end);
                    answer.push(ShardPartial { shards, rows });
                    start = end;
                }
            }
        }
        Ok(Answers::here(answers))
    }

    fn team(&self, parts: &[PartAsk]) -> Option<Team<'_, B>> {
        let [PartAsk { part, rows, .. }] = parts else { return None };
        let contexts = || [&self.home].into_iter().chain(&self.others);
        let linear = self.linear.filter(|linear| linear.gains(rows.len()))?;
        let all = contexts().all(|context| context.has(*part));
        all.then(|| linear.team(contexts()))
    }
}
