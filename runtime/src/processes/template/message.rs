//! What the two processes of a template say to each other, and the memory that one may have. Renders nothing.

use std::io::{self, Write};

/// The hidden verb of a process that renders.
pub const VERB: &str = "render-template";

/// Address space of a process, and so many bytes more for each byte that it is asked with.
pub(crate) const RENDERER_MEMORY_BYTES: u64 = 1 << 30;

pub(crate) const MEMORY_A_BYTE: u64 = 24;

pub(crate) fn write(output: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    output.write_all(&(bytes.len() as u64).to_le_bytes())?;
    output.write_all(bytes)?;
    output.flush()
}
