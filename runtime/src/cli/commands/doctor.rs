//! `doctor`: what this machine has to compute with, what is missing, and which hosts of the cluster file that stops.

use std::collections::BTreeMap;

use asterism_kernels::check_heads;
use asterism_models::DecoderParts;
use serde::Serialize;

use crate::{
    cli::{
        checks::{
            self, Asker, Judgment, Verdict,
            gpus::{DeviceReport, GpuReport, LibraryReport},
        },
        output,
    },
    cluster::{
        Cluster,
        file::{ComputeType, DType, Device},
        size::{bytes, count},
    },
    error::{CliError, Exit},
    globals::{Format, Globals},
    observe::version::Version,
    processes::{
        calibration::MachineProfile,
        device::{self, Numbers},
        local_hosts,
    },
};

/// What `-o json` prints.
#[derive(Serialize)]
struct DoctorReport {
    version: Version,
    processor: String,
    cores: usize,
    gpu: GpuReport,
    /// What stops hosts of the cluster file, each with its remedy.
    problems: Vec<String>,
    /// Each thing that was looked at, and how it is.
    checks: Vec<Judgment>,
}

/// Looks and prints; exit 3 when something is wrong that a cluster would not work with here.
pub fn run(globals: &Globals) -> Result<Exit, CliError> {
    let cluster = globals.cluster_if_any()?;
    let (gpu, machine) = (GpuReport::of_this_machine(), MachineProfile::here());
    let problems = cluster.as_ref().map_or_else(Vec::new, |cluster| problems(cluster, &gpu));
    let checks = checks::look(Asker::Doctor, globals, cluster.as_ref());
    let (version, processor, cores) = (Version::current(), machine.processor, machine.cores);
    let report = DoctorReport { version, processor, cores, gpu, problems, checks };
    match globals.format {
        Format::Table => output::print(&text(&report))?,
        format => output::print_json(&report, format)?,
    }
    let fails = report.checks.iter().any(|check| check.verdict == Verdict::Error);
    Ok(if fails || !report.problems.is_empty() { Exit::Unreachable } else { Exit::Success })
}

/// Why hosts of this machine could not start.
fn problems(cluster: &Cluster, gpu: &GpuReport) -> Vec<String> {
    let mut problems: Vec<String> = checks::refusals(Asker::Doctor, cluster).map(|error| error.message).collect();
    if !problems.is_empty() {
        return problems;
    }
    let weights = |host: &crate::cluster::Host| {
        let model = cluster.with_model_of(host).model;
        let checkpoint = crate::processes::checkpoint::checkpoint_of(&model).ok()?;
        let parts = device::parts(host.role, cluster.recovery);
        Some(Numbers::of(&model).weight_bytes(checkpoint.config(), parts))
    };
    // Hosts of a process have one copy on a GPU, of as much as one of them needs.
    let mut processes: Vec<BTreeMap<&str, u64>> = vec![BTreeMap::new(); gpu.devices.len()];
    let on = |host: &'_ crate::cluster::Host| host.devices.all().to_vec();
    let each = local_hosts(cluster).into_iter().flat_map(|host| on(host).into_iter().map(move |device| (host, device)));
    for (host, device) in each {
        let Device::Cuda(index) = device else { continue };
        match gpu.trouble_of(index) {
            Some(trouble) => problems.push(format!("host '{}' is to compute on {device}; {trouble}", host.name)),
            None => {
                let whole = weights(host).unwrap_or_default();
                let wanted = device::weights_of_each(whole, &host.devices);
                let most = processes[index].entry(&host.process).or_default();
                *most = wanted.max(*most);
            }
        }
    }
    let wanted = processes.iter().map(|processes| processes.values().sum::<u64>());
    for (found, wanted) in gpu.devices.iter().zip(wanted).filter(|(found, wanted)| *wanted > found.free_bytes) {
        problems.push(format!(
            "the hosts on {} need {} for weights, {} are free, {} are missing; put them into one process, or fewer hosts or a smaller model on it{}",
            found.device,
            bytes(wanted),
            bytes(found.free_bytes),
            bytes(wanted - found.free_bytes),
            what_fits(cluster, found.free_bytes)
        ));
    }
    problems
}

/// On how many GPUs with so much free memory a host would hold the model, in words; nothing where one does.
fn what_fits(cluster: &Cluster, free: u64) -> String {
    let Ok(checkpoint) = crate::processes::checkpoint::checkpoint_of(&cluster.model) else { return String::new() };
    let (shape, numbers) = (checkpoint.config(), Numbers::of(&cluster.model));
    let least = |numbers: Numbers| {
        let weights = numbers.weight_bytes(shape, DecoderParts::All);
        let shared = |devices: &u64| check_heads(shape.heads, *devices as usize).is_ok();
        (1..=shape.heads.query as u64).filter(shared).find(|devices| weights.div_ceil(*devices) < free)
    };
    let eight = Numbers { linear: Some(ComputeType::Fp8), ..numbers };
    match (least(numbers), least(eight).filter(|_| numbers.dtype == DType::Bf16 && numbers.linear.is_none())) {
        (None | Some(1), _) => String::new(),
        (Some(devices), Some(fewer)) if fewer < devices => {
            format!("; a host with `devices` of {devices} such GPUs holds it, with linear = \"fp8\" one of {fewer}")
        }
        (Some(devices), _) => format!("; a host with `devices` of {devices} such GPUs holds it"),
    }
}

fn text(report: &DoctorReport) -> String {
    let DoctorReport { version, processor, cores, gpu, problems, checks } = report;
    let mut lines = vec![
        format!("asterism   {} ({}, {})", version.version, version.target, version.profile),
        format!("processor  {processor}, {}", count(*cores, "core")),
    ];
    match (gpu.built, &gpu.driver) {
        (false, _) => lines.push("GPUs       this program was built for CPUs only (`--features cuda`)".into()),
        (true, None) => lines.push("GPUs       no NVIDIA driver (libcuda) is installed; CPUs only".into()),
        (true, Some(driver)) => lines.push(format!("driver     knows CUDA up to {driver}")),
    }
    lines.extend(gpu.trouble.iter().map(|trouble| format!("driver     does not work: {trouble}")));
    lines.extend(gpu.devices.iter().map(|found| {
        let DeviceReport { device, name, capability, remark, free_bytes, all_bytes, .. } = found;
        let (free, all) = (bytes(*free_bytes), bytes(*all_bytes));
        let remark = remark.map(|remark| format!(", {remark}")).unwrap_or_default();
        format!("{device:<10} {name}, compute capability {capability}, {free} of {all} free{remark}")
    }));
    // Without a GPU nothing would use them.
    let libraries = gpu.libraries.iter().filter(|_| !gpu.devices.is_empty());
    lines.extend(libraries.map(|LibraryReport { name, version, without }| match version {
        Some(version) => format!("{name:<10} {version}"),
        None => format!("{name:<10} not found: {without}"),
    }));
    for Judgment { what, verdict, found, remedy } in checks {
        let mark = match verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Error => "error",
        };
        lines.push(format!("{mark:<10} {what}: {found}"));
        lines.extend(remedy.iter().map(|remedy| format!("           {remedy}")));
    }
    lines.extend(problems.iter().map(|problem| format!("problem    {problem}")));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::file::parse;

    fn cluster(device: &str) -> Cluster {
        let file =
            include_str!("../../../../cluster.toml").replace("[model]", &format!("[model]\ndevice = \"{device}\""));
        Cluster::resolve(&parse(&file, []).unwrap(), std::path::Path::new("/")).unwrap()
    }

    #[test]
    fn hosts_on_the_cpu_need_nothing() {
        assert_eq!(problems(&cluster("cpu"), &GpuReport::default()), Vec::<String>::new());
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_for_cpus_says_so() {
        let stated = problems(&cluster("cuda:0"), &GpuReport::of_this_machine());
        assert!(
            stated[0].contains("host 'context-0' computes on cuda:0") && stated[0].contains("for CPUs only"),
            "{stated:?}"
        );
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn what_hosts_lack_is_counted() {
        use asterism_models::Checkpoint;

        let found = |free_bytes| DeviceReport {
            device: "cuda:0".into(),
            name: "a GPU".into(),
            capability: "9.0".into(),
            usable: true,
            remark: None,
            free_bytes,
            all_bytes: 1 << 30,
        };
        let driver = || Some("13.0".to_owned());
        let gpu = |devices| GpuReport { built: true, driver: driver(), devices, ..GpuReport::default() };
        assert_eq!(problems(&cluster("cuda:0"), &gpu(vec![found(1 << 30)])), Vec::<String>::new());
        let small = problems(&cluster("cuda:0"), &gpu(vec![found(1 << 20)]));
        assert!(small.len() == 1 && small[0].contains("are missing"), "{small:?}");
        let mut together = cluster("cuda:0");
        together.hosts.iter_mut().for_each(|host| host.process = "all".into());
        let bytes = Checkpoint::embedded()
            .unwrap()
            .config()
            .weight_bytes(DecoderParts::All, (asterism_kernels::DType::F32, false));
        assert_eq!(problems(&together, &gpu(vec![found(bytes)])), Vec::<String>::new());
        assert_eq!(problems(&together, &gpu(vec![found(bytes - 1)])).len(), 1);
        assert_eq!(problems(&cluster("cuda:0"), &gpu(vec![found(bytes)])).len(), 1, "a copy for each process");
        let absent = problems(&cluster("cuda:1"), &gpu(vec![found(1 << 30)]));
        assert!(absent.len() == 5 && absent[0].contains("knows 1 GPUs"), "{absent:?}");
        let old = GpuReport { trouble: Some("its driver knows CUDA up to 12.4".into()), ..gpu(Vec::new()) };
        let old = problems(&cluster("cuda:0"), &old);
        assert!(old[0].contains("cuda:0; its driver knows CUDA up to 12.4"), "{old:?}");
        let none = problems(&cluster("cuda:0"), &GpuReport { built: true, ..GpuReport::default() });
        assert!(none[0].contains("no NVIDIA driver"), "{none:?}");
    }
}
