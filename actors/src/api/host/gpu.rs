//! The GPUs of the cluster's machines, as clients see them: plain values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most GPUs of a machine that are told of.
pub const MOST_GPUS: usize = 64;
/// Most bytes of a GPU's name or id that are kept.
const WORD_BYTES: usize = 96;
/// Most bytes that are read of all of a machine's: about twice what the most there may be take.
const GPUS_BYTES: usize = 1024 * MOST_GPUS;

/// A GPU, as its management library tells; what it does not tell is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GpuReading {
    /// Its place among those of its machine, by their places on the bus.
    pub index: u32,
    /// What it is sold as.
    pub name: String,
    /// What tells it from every other.
    pub uuid: String,
    /// Of the time just past, the part in which it computed, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<u32>,
    /// Bytes of its memory that are used, by whomever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Bytes of its memory that are free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Temperature in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub celsius: Option<u32>,
    /// Clock of its processors in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    /// Clock of its memory in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<u32>,
    /// Errors of its memory that were corrected, since its driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrected_errors: Option<u64>,
    /// Those that were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncorrected_errors: Option<u64>,
    /// Faults that its driver calls Xid, since the node's agent began.
    pub xids: u64,
    /// The number of the latest of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_xid: Option<u64>,
    /// When that came, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_xid_at: Option<u64>,
}

/// A GPU of a node's machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuStatus {
    /// The node.
    pub node: String,
    /// The GPU.
    #[serde(flatten)]
    pub gpu: GpuReading,
}

impl GpuReading {
    /// What is wrong with it, in a clause.
    pub fn errors(&self) -> Option<String> {
        let uncorrected = self.uncorrected_errors.filter(|errors| *errors > 0);
        let uncorrected = uncorrected.map(|errors| format!("{errors} uncorrected ECC errors"));
        let parts = [uncorrected, self.last_xid.map(|xid| format!("Xid {xid}"))];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// These, as a node's agent says them.
    pub fn as_json(gpus: &[Self]) -> String {
        serde_json::to_string(gpus).expect("plain values")
    }

    /// What of an agent's words is taken: so many GPUs, and names of plain letters; nothing where they are not such words, or too many.
    pub fn of_json(words: &str) -> Vec<Self> {
        if words.len() > GPUS_BYTES {
            return Vec::new();
        }
        let mut gpus: Vec<Self> = serde_json::from_str(words).unwrap_or_default();
        gpus.truncate(MOST_GPUS);
        let plain = |word: &str| -> String {
            word.chars().filter(|letter| (' '..='~').contains(letter)).take(WORD_BYTES).collect()
        };
        for gpu in &mut gpus {
            (gpu.name, gpu.uuid) = (plain(&gpu.name), plain(&gpu.uuid));
        }
        gpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_is_bounded() {
        let gpus = vec![GpuReading { name: "NVIDIA H100".into(), celsius: Some(61), ..GpuReading::default() }];
        assert_eq!(GpuReading::of_json(&GpuReading::as_json(&gpus)), gpus);
        let odd = GpuReading { name: format!("\u{1b}[31m{}", "x".repeat(400)), ..gpus[0].clone() };
        let taken = GpuReading::of_json(&GpuReading::as_json(&vec![odd.clone(); 100]));
        assert_eq!((taken.len(), taken[0].name.len()), (MOST_GPUS, WORD_BYTES));
        assert!(!taken[0].name.contains('\u{1b}'));
        assert!(
            GpuReading::of_json(&GpuReading::as_json(&vec![odd; 1000])).is_empty(),
            "what no machine has is not read"
        );
        // What a later version adds is left out, and what it leaves out is not told.
        assert_eq!(
            GpuReading::of_json(r#"[{"index": 3, "fans": 2}]"#),
            [GpuReading { index: 3, ..GpuReading::default() }]
        );
        assert!(GpuReading::of_json("[1]").is_empty() && GpuReading::of_json("").is_empty());
    }
}
