//! What goes to the device with a launch, as an argument of a kernel. Launches nothing.

/// Bytes that go to the device as an argument of a kernel.
pub const ARGUMENT_BYTES: usize = 3968;

/// Words that go as an argument, as the kernels declare them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Carried([u32; ARGUMENT_BYTES / 4]);

impl Carried {
    /// Whether there is room for so many bytes.
    pub fn has_room(bytes: usize) -> bool {
        bytes <= ARGUMENT_BYTES
    }

    /// These bytes, whole words, where there is room for them.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let mut carried = Self([0; ARGUMENT_BYTES / 4]);
        carried.0.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(to, from)| *to = u32::from_ne_bytes(*from));
        (Self::has_room(bytes.len()) && bytes.len().is_multiple_of(4)).then_some(carried)
    }
}
