//! Where JSON ends within a text that comes in pieces. Reads no value.

/// How far a list or an object has been gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueScan {
    depth: usize,
    is_text: bool,
    is_escaped: bool,
}

impl ValueScan {
    /// Goes over its next byte; the first is a brace or a bracket.
    pub fn go_over(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.is_text => self.is_escaped = true,
            b'"' => self.is_text = !self.is_text,
            _ if self.is_text => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Within a text of it.
    pub fn is_in_text(&self) -> bool {
        self.is_text
    }

    /// Nothing of it follows.
    pub fn has_ended(&self) -> bool {
        self.depth == 0 && !self.is_text
    }
}

/// Where the list or object ends that a text begins with, if it does.
pub fn end(text: &str) -> Option<usize> {
    let mut scan = ValueScan::default();
    let ends = |byte| {
        scan.go_over(byte);
        scan.has_ended()
    };
    text.bytes().position(ends).map(|at| at + 1)
}

/// Where this stands outside of the texts of the list or object that a text begins with.
pub fn find_outside(text: &str, wanted: &str) -> Option<usize> {
    let mut scan = ValueScan::default();
    let is_there = |(at, byte)| {
        let is_there = !scan.is_in_text() && text.as_bytes()[at..].starts_with(wanted.as_bytes());
        scan.go_over(byte);
        is_there
    };
    text.bytes().enumerate().position(is_there)
}
