//! Element types. Checkpoints store in one, devices compute in one and keep keys and values in one: three choices, not one. Converts
//! single numbers.

/// Type of an element: of weights as they are stored, of activations, or of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision: a storage type of checkpoints, never computed in.
    F16,
}

impl DType {
    /// The name used in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// The number that a stored element is.
    ///
    /// # Panics
    /// With other bytes than an element has.
    pub fn read(self, bytes: &[u8]) -> f32 {
        let bits = || u16::from_le_bytes(bytes.try_into().expect("two bytes"));
        match self {
            Self::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
            Self::Bf16 => half::bf16::from_bits(bits()).to_f32(),
            Self::F16 => half::f16::from_bits(bits()).to_f32(),
        }
    }

    /// The number that is stored for another.
    pub fn rounded(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::Bf16 => half::bf16::from_f32(x).to_f32(),
            Self::F16 => half::f16::from_f32(x).to_f32(),
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

/// How keys and values are kept from call to call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// As they were computed.
    #[default]
    Computed,
    /// As 8-bit integers, with a scale (bf16) for each token of a head, of its key and of its value. A row's numbers depend on that
    /// row alone, so that neither blocks nor rows beside it change a bit.
    Q8,
}

impl KvFormat {
    /// The name used in configuration files; none of what is kept as it was computed.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Computed => None,
            Self::Q8 => Some("q8"),
        }
    }
}

/// Types of keys and values: as they are computed, and travel while a context is encoded, and as they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvType {
    /// Compute type.
    pub computed: DType,
    /// What is kept of them.
    pub kept: KvFormat,
}

impl KvType {
    /// Those that are kept as they are computed.
    pub const fn computed(computed: DType) -> Self {
        Self { computed, kept: KvFormat::Computed }
    }

    /// Whether they are kept as they are computed.
    pub fn is_computed(self) -> bool {
        self.kept == KvFormat::Computed
    }

    /// Bytes of a kept key, or value, of one token of a head of so many elements.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self.kept {
            KvFormat::Computed => dim * self.computed.size(),
            KvFormat::Q8 => dim + DType::Bf16.size(),
        }
    }
}

impl From<DType> for KvType {
    fn from(computed: DType) -> Self {
        Self::computed(computed)
    }
}
