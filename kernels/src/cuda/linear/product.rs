//! A product as those that multiply are told of it.

/// A product, its rows aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub n: usize,
    pub k: usize,
    pub bias: bool,
    pub residual: bool,
    /// Rows and weights are 8-bit floats with scales.
    pub eight: bool,
}

/// Device addresses; 0 where there is none.
#[derive(Clone, Copy)]
pub struct Operands {
    pub x: u64,
    pub weight: u64,
    /// Scales of rows and of outputs, where the operands are 8-bit floats.
    pub scales: [u64; 2],
    pub bias: u64,
    pub residual: u64,
    pub out: u64,
    /// Elements from row to row of the residual and of what comes out, where these are columns of a wider matrix; 0: outputs.
    pub pitch: usize,
}
