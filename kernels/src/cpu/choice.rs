//! Which instructions the CPU kernels use: what the configuration asks for, resolved against what the processor has.

use std::fmt;
use std::str::FromStr;

#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512, Pairs};
use super::lanes::{Kernel, Lanes, PortableLanes};
use crate::{DType, KernelError};

/// Kernels as configured. `Auto` takes the fastest that the processor and the compute type allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KernelChoice {
    /// AMX or AVX512-BF16 for bf16, else AVX-512, AVX2, portable, in this order.
    #[default]
    Auto,
    /// Plain Rust, any processor.
    Portable,
    /// 256-bit vectors.
    Avx2,
    /// 512-bit vectors.
    Avx512,
    /// The same, and products of pairs in bf16.
    Avx512Bf16,
    /// Tile products in bf16.
    Amx,
}

impl KernelChoice {
    /// The fastest that this processor and a compute type allow.
    pub fn best(dtype: DType) -> Self {
        let best = KernelSet::resolve(Self::Auto, dtype).expect("the portable kernels run anywhere");
        best.choice()
    }

    /// The name used in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        }
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KernelChoice {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        [Self::Auto, Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx]
            .into_iter()
            .find(|choice| choice.name() == name)
            .ok_or_else(|| KernelError::UnknownKernels { got: name.into() })
    }
}

/// Kernels as they will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelSet {
    Portable,
    Avx2,
    Avx512,
    Avx512Bf16,
    Amx,
}

impl KernelSet {
    pub(super) fn resolve(choice: KernelChoice, dtype: DType) -> Result<Self, KernelError> {
        let fastest_first = [Self::Amx, Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Portable];
        let wanted = match choice {
            KernelChoice::Auto => {
                let set = fastest_first.into_iter().find(|set| set.available(dtype));
                return Ok(set.expect("the portable kernels run anywhere"));
            }
            KernelChoice::Portable => Self::Portable,
            KernelChoice::Avx2 => Self::Avx2,
            KernelChoice::Avx512 => Self::Avx512,
            KernelChoice::Avx512Bf16 => Self::Avx512Bf16,
            KernelChoice::Amx => Self::Amx,
        };
        let needs = match wanted {
            Self::Portable => "nothing",
            Self::Avx2 => "AVX2 and FMA",
            Self::Avx512 => "AVX-512F",
            Self::Avx512Bf16 => "AVX512-BF16, AVX-512BW and compute type bf16",
            Self::Amx => "AMX-BF16 and compute type bf16",
        };
        if wanted.available(dtype) {
            Ok(wanted)
        } else {
            Err(KernelError::Unsupported { wanted: choice.name(), needs })
        }
    }

    pub(super) fn choice(self) -> KernelChoice {
        match self {
            Self::Portable => KernelChoice::Portable,
            Self::Avx2 => KernelChoice::Avx2,
            Self::Avx512 => KernelChoice::Avx512,
            Self::Avx512Bf16 => KernelChoice::Avx512Bf16,
            Self::Amx => KernelChoice::Amx,
        }
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn available(self, dtype: DType) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            Self::Avx512Bf16 => dtype == DType::Bf16 && Pairs::available(),
            Self::Amx => dtype == DType::Bf16 && super::amx::available(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn available(self, _dtype: DType) -> bool {
        self == Self::Portable
    }

    /// Whether codes of 8-bit keys and values are multiplied as integers.
    pub(super) fn multiplies_codes(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 | Self::Amx => Avx512::multiplies_codes(),
            _ => false,
        }
    }

    /// Whether linear layers multiply pairs of bf16.
    pub(super) fn multiplies_pairs(self) -> bool {
        self == Self::Avx512Bf16
    }

    /// Runs `kernel` with this set's vectors.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2<K: Kernel>(kernel: K) {
            kernel.run::<Avx2>();
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f")]
        fn with_avx512<K: Kernel>(kernel: K) {
            kernel.run::<Avx512>();
        }
        match self {
            // SAFETY: `resolve` hands out a set only where the processor has its instructions.
            #[cfg(target_arch = "x86_64")]
            KernelSet::Avx2 => unsafe { with_avx2(kernel) },
            // SAFETY: as above; AVX512-BF16 and AMX need AVX-512.
            #[cfg(target_arch = "x86_64")]
            KernelSet::Avx512 | KernelSet::Avx512Bf16 | KernelSet::Amx => unsafe { with_avx512(kernel) },
            _ => kernel.run::<PortableLanes>(),
        }
    }
}
