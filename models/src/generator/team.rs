//! A context whose shards lie on several devices of this process: rows go from device to device, and nobody waits on the host.

use std::sync::Arc;

use asterism_kernels::Backend;

use super::context::{ContextAttention, Held, HeldShards, LayerQueries, LocalContext, PartAnswer, PartAsk};
use crate::{EncodedShard, ModelError};

/// Context shards on the device that steps are taken on, and on others.
pub struct TeamContext<'a, B: Backend> {
    home: LocalContext<'a, B>,
    /// The device of the steps, and those of the others.
    devices: (&'a B, Vec<(&'a B, LocalContext<'a, B>)>),
}

impl<'a, B: Backend> TeamContext<'a, B> {
    /// Answers a step of one part, taken on the first device, from the shards that each has.
    ///
    /// # Panics
    /// Without a device.
    pub fn new(devices: &[(&'a B, &'a [EncodedShard<B>])]) -> Self {
        let local = |&(backend, shards): &(&'a B, &'a [EncodedShard<B>])| LocalContext::new(backend, shards);
        let (home, others) = devices.split_first().expect("a device at least");
        Self { home: local(home), devices: (home.0, others.iter().map(|other| (other.0, local(other))).collect()) }
    }
}

impl<B: Backend> ContextAttention<B> for TeamContext<'_, B> {
    fn here(&self, queries: &LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Option<HeldShards<'_, B>>, ModelError> {
        let LayerQueries { layer, heads, q } = *queries;
        let mut held = self.home.keys(layer, asks);
        let (home, others) = &self.devices;
        if others.is_empty() {
            return Ok(Some(held));
        }
        let lent = home.lend(vec![q.clone()])?;
        for (backend, context) in others {
            let (shards, each) = context.asked(layer, asks);
            if each.is_empty() {
                continue;
            }
            let q = lent(backend)?.swap_remove(0);
            let rows =
                Arc::new(backend.lend(vec![backend.attend_rows(heads, &q, (&each, &vec![1; each.len()]))?])?);
            let mut start = 0;
            for ((held, shards), ask) in held.iter_mut().zip(shards).zip(asks) {
                for shard in shards {
                    let end = start + ask.rows.len();
                    held.push(Held::Rows { shards: vec![shard], rows: (rows.clone(), start..end) });
                    start = end;
                }
            }
        }
        Ok(Some(held))
    }

    fn ask(&mut self, _: LayerQueries<'_, B>, _: &[PartAsk]) -> Result<bool, ModelError> {
        unreachable!("all is here")
    }

    fn collect(&mut self) -> Result<Vec<PartAnswer<B>>, ModelError> {
        unreachable!("all is here")
    }
}
