//! Where a host computes, as the cluster file writes it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Where a host computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA GPU, counted from 0 as the driver counts them.
    Cuda(usize),
}

/// More GPUs than machines have.
const MOST_GPUS: usize = 64;

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let index = |text: &str| text.parse().ok().filter(|index| *index < MOST_GPUS);
        match (text, text.strip_prefix("cuda:").and_then(index)) {
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(index)) => Ok(Self::Cuda(index)),
            _ => Err(format!("no device is called '{text}'; expected \"cpu\", or \"cuda:0\" for the first GPU")),
        }
    }
}

impl Serialize for Device {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_written_as_they_are_read() {
        for text in ["cpu", "cuda:0", "cuda:7"] {
            assert_eq!(text.parse::<Device>().map(|device| device.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:64", "cuda:x", "CPU"] {
            assert!(text.parse::<Device>().unwrap_err().contains("expected \"cpu\""), "{text}");
        }
    }
}
