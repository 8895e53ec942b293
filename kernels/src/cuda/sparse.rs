//! Attention over listed keys, and what the host still chooses: vertical-slash and FlexPrefill, by its kernels in f32.

use super::{Attention, Cuda, Kv, Tensor};
use crate::{Backend, Cpu, CpuOptions, DType, KernelError, KeySets, Mask, Partial};

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

    /// Attention over listed keys, and each row's highest score where that is wanted.
    pub(super) fn selected(
        &self,
        q: &Tensor,
        kv: &Kv,
        keys: &KeySets,
        maxima: Option<&Tensor>,
    ) -> Result<Partial<Tensor>, KernelError> {
        self.computed("attention_selected", q)?;
        let partial = self.partial(q, DType::F32)?;
        let [k, v] = kv.view(0, kv.len());
        let (q, out) = (q.heads_first()?, partial.output.heads_first()?);
        let call = Attention { q, k, v, mask: Mask::Causal, out, lse: &partial.lse };
        self.device.attend_selected(call, keys, maxima)?;
        Ok(partial)
    }
}
