//! Selection of keys for a tensor on the device, by the host's kernels in f32, until the device does it itself.

use super::{Cuda, Kv, Tensor};
use crate::{Backend, Cpu, CpuOptions, KernelError, KeySets, StripeRule};

impl Cuda {
    /// Runs `select` on copies of queries, keys and values.
    pub(super) fn on_host(
        &self,
        q: &Tensor,
        kv: &Kv,
        select: impl Fn(&Cpu, &<Cpu as Backend>::Tensor, &<Cpu as Backend>::Kv) -> Result<KeySets, KernelError>,
    ) -> Result<KeySets, KernelError> {
        self.computed("selection", q)?;
        let host = match self.host.get() {
            Some(host) => host,
            None => {
                let host = Cpu::new(CpuOptions::default())?;
                self.host.get_or_init(|| host)
            }
        };
        let [k, v] = kv.heads_first(&self.device)?;
        let copy = |x: &Tensor| host.upload(x.shape(), &self.device.download(x)?);
        select(host, &copy(q)?, &host.kv(&copy(&k)?, &copy(&v)?)?)
    }
}

/// Stripes together with the anchor region that every row of a group sees.
pub(super) fn with_anchor(stripes: &KeySets, rule: StripeRule, tokens: usize) -> Result<KeySets, KernelError> {
    let anchor = rule.anchor(stripes.heads(), tokens)?;
    let mut lists = Vec::with_capacity(stripes.heads() * stripes.groups());
    for head in 0..stripes.heads() {
        for group in 0..stripes.groups() {
            let mut ranges = [anchor.ranges(head, group), stripes.ranges(head, group)].concat();
            ranges.sort_unstable_by_key(|range| range.start);
            lists.push(ranges);
        }
    }
    KeySets::new(stripes.heads(), stripes.rows(), &lists)
}
