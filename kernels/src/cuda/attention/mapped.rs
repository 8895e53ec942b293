//! Calls as kernels want them: with maps of their keys and values for the tensor copy engine, where it is Hopper's, and with scales where
//! keys are codes.

use super::super::device::Device;
use super::super::device::layout::{KEY_BOX, Lies, Map, encode};
use super::super::kv::keys::Keys;
use super::super::tensor::View;
use super::call::Tiled;
use crate::KernelError;

/// As `hopper.cu` declares it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Mapped {
    maps: [Map; 2],
    call: Tiled,
    settled: u64,
    unused: [u64; 2],
}

impl Mapped {
    /// A call and the maps of its keys and values.
    pub fn of(call: Tiled, EncodedMaps { maps, settled }: EncodedMaps) -> Self {
        Self { maps, call, settled: u64::from(settled), unused: [0; 2] }
    }
}

/// A call over codes, as `codes.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Scaled {
    pub call: Tiled,
    /// Of keys, then of values.
    pub scales: [u64; 2],
}

/// How kernels come to the keys and values of a call.
#[allow(clippy::large_enum_variant, reason = "maps go to the kernels as they are")]
#[derive(Clone, Copy)]
pub enum Reach {
    /// By where these are.
    Addresses,
    Maps(EncodedMaps),
    /// By where codes are, and their scales, of keys and of values.
    Scales([u64; 2]),
}

/// Maps of keys and values, and whether these were written by none of what the launch behind may overlap.
#[derive(Clone, Copy)]
pub struct EncodedMaps {
    maps: [Map; 2],
    settled: bool,
}

const _: () = assert!(size_of::<Mapped>() == 448, "without gaps");

impl Device {
    /// How the kernels that cut keys come to these.
    pub(super) fn reach(&self, keys: Keys<'_>) -> Result<Reach, KernelError> {
        Ok(match keys {
            Keys::Eight(codes) => Reach::Scales(codes.scales),
            Keys::Computed(keys) => self.laid(keys)?.map_or(Reach::Addresses, Reach::Maps),
        })
    }

    /// Maps of keys and values, where there is a kernel that wants them.
    pub(in super::super) fn laid(&self, keys: [View<'_>; 2]) -> Result<Option<EncodedMaps>, KernelError> {
        if !self.is_hopper() {
            return Ok(None);
        }
        let map = |of: View<'_>| {
            let lies = Lies { pointer: of.pointer, sizes: [of.heads, of.rows, of.dim], at: of.at, copied: KEY_BOX };
            match of.map.map(|kept| (kept, kept.get())) {
                None => self.known_maps().find(lies),
                Some((_, Some(map))) => Ok(**map),
                Some((kept, None)) => encode(lies).map(|map| **kept.get_or_init(|| Box::new(map))),
            }
        };
        let [k, v] = keys;
        let settled = [k, v].iter().all(|of| self.queue().is_done(of.written));
        Ok(Some(EncodedMaps { maps: [map(k)?, map(v)?], settled }))
    }
}
