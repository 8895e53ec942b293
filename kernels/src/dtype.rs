//! Element types. Checkpoints store in one, devices compute in one and hold keys and values in one: three choices, not one. Converts
//! nothing.

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

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}
