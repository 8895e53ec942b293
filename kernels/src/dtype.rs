//! Element types. Checkpoints store in one, devices compute in one and hold keys and values in one: three choices, not one. Converts
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
