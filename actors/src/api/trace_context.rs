//! Which span of which trace something is done for, as processes and clients tell each other (W3C Trace Context, `traceparent`).
//! Times nothing.

use std::{fmt, str::FromStr};

use ring::rand::{SecureRandom, SystemRandom};
use rkyv::Archive;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A span of a trace.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize,
)]
#[rkyv(attr(allow(missing_docs)))]
#[serde(into = "String", try_from = "String")]
pub struct TraceContext {
    /// The trace; not 0.
    pub trace: u128,
    /// The span; not 0.
    pub span: u64,
}

/// A text that is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected 00-TRACE-SPAN-FLAGS in 32, 16 and 2 hexadecimal digits, neither of the ids 0")]
pub struct NoTraceContext;

impl TraceContext {
    /// The first span of a new trace.
    pub fn drawn() -> Self {
        let mut bytes = [0; 24];
        // Without random bits spans of different processes could be taken for one another; nothing else would be wrong.
        let _ = SystemRandom::new().fill(&mut bytes);
        let (trace, span) = bytes.split_at(16);
        let trace = u128::from_ne_bytes(trace.try_into().expect("16 bytes"));
        Self { trace: trace.max(1), span: u64::from_ne_bytes(span.try_into().expect("8 bytes")).max(1) }
    }

    /// A new span of the same trace.
    pub fn child(self) -> Self {
        Self { trace: self.trace, ..Self::drawn() }
    }

    /// Another span of the same trace, the same each time.
    pub fn nth(self, number: u64) -> Self {
        // SplitMix64 (Steele et al., 2014): distinct numbers give distinct spans.
        let mut mixed = self.span.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self { span: (mixed ^ (mixed >> 31)).max(1), ..self }
    }

    /// What a client's `traceparent` says; none where it wants no spans to be kept.
    ///
    /// # Errors
    /// [`NoTraceContext`] when it is none.
    pub fn sampled(traceparent: &str) -> Result<Option<Self>, NoTraceContext> {
        let mut parts = traceparent.split('-');
        let mut digits = |count: usize| {
            let part = parts.next().filter(|part| part.len() == count).ok_or(NoTraceContext)?;
            let plain = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            if plain { u128::from_str_radix(part, 16).map_err(|_| NoTraceContext) } else { Err(NoTraceContext) }
        };
        let (version, trace, span, flags) = (digits(2)?, digits(32)?, digits(16)?, digits(2)?);
        // Later versions may say more; this one may not.
        let ends = version != 0 || parts.next().is_none();
        if version == 0xff || trace == 0 || span == 0 || !ends {
            return Err(NoTraceContext);
        }
        Ok((flags & 1 == 1).then_some(Self { trace, span: span as u64 }))
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-01", self.trace, self.span)
    }
}

impl FromStr for TraceContext {
    type Err = NoTraceContext;

    fn from_str(text: &str) -> Result<Self, NoTraceContext> {
        Self::sampled(text)?.ok_or(NoTraceContext)
    }
}

impl From<TraceContext> for String {
    fn from(context: TraceContext) -> Self {
        context.to_string()
    }
}

impl TryFrom<String> for TraceContext {
    type Error = NoTraceContext;

    fn try_from(text: String) -> Result<Self, NoTraceContext> {
        text.parse()
    }
}

/// The span of a job, and the one that it is done for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTrace {
    /// Its own.
    pub own: TraceContext,
    /// The request's.
    pub parent: u64,
}

impl JobTrace {
    /// Of a job that a request brought.
    pub fn under(request: TraceContext) -> Self {
        Self { own: request.child(), parent: request.span }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_traceparent_is_read_as_it_is_written() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = TraceContext::sampled(text).unwrap().unwrap();
        assert_eq!((context.to_string().as_str(), context.span), (text, 0x00f0_67aa_0ba9_02b7));
        assert_eq!(serde_json::from_value::<TraceContext>(serde_json::to_value(context).unwrap()).unwrap(), context);
        assert_eq!(TraceContext::sampled(&text.replace("-01", "-00")), Ok(None), "not to be kept");
        assert_eq!(TraceContext::sampled(&format!("{}-more", text.replacen("00", "01", 1))), Ok(Some(context)));
        for wrong in [
            "",
            "00",
            &text.to_uppercase(),
            &text[..54],
            &format!("{text}-more"),
            &text.replacen("00", "ff", 1),
            &text.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &text.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &text.replace("4bf9", "+bf9"),
        ] {
            assert_eq!(TraceContext::sampled(wrong), Err(NoTraceContext), "{wrong}");
        }
    }

    #[test]
    fn spans_of_a_trace_differ() {
        let first = TraceContext::drawn();
        let spans: BTreeSet<u64> = (0..100).flat_map(|n| [first.nth(n).span, first.child().span]).collect();
        assert_eq!((spans.len(), first.nth(3), first.child().trace), (200, first.nth(3), first.trace));
    }
}
