//! The GPUs of this machine, and why a host cannot compute on one. Opens none to compute.

use std::cell::LazyCell;

use serde::Serialize;

use crate::{
    cluster::{Cluster, file::Device},
    error::CliError,
    processes::local_hosts,
};

/// What there is for GPUs.
#[derive(Debug, Default, Serialize)]
pub(crate) struct GpuReport {
    /// Whether this program knows GPUs.
    pub built: bool,
    /// Latest CUDA that the driver knows.
    pub driver: Option<String>,
    /// Why the driver does not work.
    pub trouble: Option<String>,
    pub devices: Vec<DeviceReport>,
    pub libraries: Vec<LibraryReport>,
}

#[derive(Debug, Serialize)]
pub(crate) struct DeviceReport {
    pub device: String,
    pub name: String,
    pub capability: String,
    pub usable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<&'static str>,
    pub free_bytes: u64,
    pub all_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct LibraryReport {
    pub name: &'static str,
    pub version: Option<String>,
    pub without: &'static str,
}

impl GpuReport {
    #[cfg(not(feature = "cuda"))]
    pub fn of_this_machine() -> Self {
        Self::default()
    }

    #[cfg(feature = "cuda")]
    pub fn of_this_machine() -> Self {
        let found = asterism_kernels::cuda::survey();
        let device = |(index, gpu): (usize, asterism_kernels::cuda::Gpu)| DeviceReport {
            device: Device::Cuda(index).to_string(),
            capability: format!("{}.{}", gpu.capability.0, gpu.capability.1),
            usable: gpu.usable(),
            remark: gpu.remark(),
            name: gpu.name,
            free_bytes: gpu.memory.0 as u64,
            all_bytes: gpu.memory.1 as u64,
        };
        let library = |library: asterism_kernels::cuda::Library| LibraryReport {
            name: library.name,
            version: library.version,
            without: library.without,
        };
        Self {
            built: true,
            driver: found.driver,
            trouble: found.trouble,
            devices: found.gpus.into_iter().enumerate().map(device).collect(),
            libraries: found.libraries.into_iter().map(library).collect(),
        }
    }

    /// Why nothing can be computed on a GPU here.
    pub fn trouble_of(&self, index: usize) -> Option<String> {
        match (self.devices.get(index), &self.driver, &self.trouble) {
            (Some(found), ..) if found.usable => None,
            (Some(found), ..) => Some(format!(
                "that is a {} of compute capability {}; 8.0 (the A100) or later is needed",
                found.name, found.capability
            )),
            (None, None, _) => Some("there is no NVIDIA driver (libcuda) here".into()),
            (None, Some(_), Some(trouble)) => Some(trouble.clone()),
            (None, Some(_), None) => Some(format!("the driver knows {} GPUs, counted from 0", self.devices.len())),
        }
    }
}

/// Refuses hosts of this machine that are to compute on GPUs that it does not have.
pub fn there(cluster: &Cluster) -> Result<(), CliError> {
    let hosts = local_hosts(cluster);
    let mut each = hosts.iter().flat_map(|host| host.devices.all().iter().map(move |device| (host, *device)));
    // Who has no host on a GPU needs no driver.
    let gpus = LazyCell::new(GpuReport::of_this_machine);
    let troubled = each.find_map(|(host, device)| match device {
        Device::Cuda(index) => Some((host, device, gpus.trouble_of(index)?)),
        Device::Cpu => None,
    });
    troubled.map_or(Ok(()), |(host, device, trouble)| {
        Err(CliError::usage(format!("host '{}' is to compute on {device}; {trouble}", host.name))
            .hint("write device = \"cpu\", or name a GPU of this machine: `asterism doctor` lists them"))
    })
}
