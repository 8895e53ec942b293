//! Where a host computes, as the cluster file writes it.

use std::{fmt, str::FromStr};

use asterism_actors::api::bounds;
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

/// The devices of a host: one, or several of a kind, which share its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(Vec<Device>);

impl Devices {
    /// Of one kind, and each GPU once.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn of(devices: Vec<Device>) -> Result<Self, String> {
        let gpu = |device: &Device| *device != Device::Cpu;
        if let Some(twice) = devices.iter().enumerate().find(|(at, one)| gpu(one) && devices[..*at].contains(one)) {
            return Err(format!("each GPU once; {} is named twice", twice.1));
        }
        match devices.iter().filter(|device| gpu(device)).count() {
            _ if devices.is_empty() => Err("a device at least; without the key, that of [model]".into()),
            0 if devices.len() > MOST_GPUS => Err(format!("at most {MOST_GPUS} devices")),
            gpus if gpus == 0 || gpus == devices.len() => Ok(Self(devices)),
            _ => Err("devices of one kind: GPUs alone, or \"cpu\" several times".into()),
        }
    }

    /// All of them, in order.
    pub fn all(&self) -> &[Device] {
        &self.0
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether they compute in the host's own memory.
    pub fn on_cpu(&self) -> bool {
        self.0[0] == Device::Cpu
    }
}

impl From<Device> for Devices {
    fn from(device: Device) -> Self {
        Self(vec![device])
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(Device::to_string).collect::<Vec<_>>().join(","))
    }
}

impl Serialize for Devices {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
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
            _ => Err(format!(
                "no device is called '{}'; expected \"cpu\", or \"cuda:0\" for the first GPU",
                bounds::shown(text)
            )),
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
        let several = |devices: &[Device]| Devices::of(devices.to_vec());
        let gpus = several(&[Device::Cuda(1), Device::Cuda(0)]).unwrap();
        assert_eq!((gpus.to_string(), gpus.count(), gpus.on_cpu()), ("cuda:1,cuda:0".into(), 2, false));
        assert_eq!(several(&[Device::Cpu; 4]).unwrap().count(), 4);
        let refused = |devices: &[Device]| several(devices).unwrap_err();
        assert!(refused(&[Device::Cuda(1), Device::Cuda(1)]).contains("cuda:1 is named twice"));
        assert!(refused(&[Device::Cuda(0), Device::Cpu]).contains("one kind"));
        assert!(refused(&[]).contains("a device at least"));
        for text in ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:64", "cuda:x", "CPU"] {
            assert!(text.parse::<Device>().unwrap_err().contains("expected \"cpu\""), "{text}");
        }
    }
}
