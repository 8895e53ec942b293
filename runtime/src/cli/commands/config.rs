//! `init`, `validate`, `config default` and `version`: about files and this program, never about a running cluster.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    thread::available_parallelism,
};

use asterism_plan::MethodConfig;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    api::admin::{Applied, ApplyConfig},
    cli::{
        checks::{self, Asker, Verdict},
        commands::model::opened,
        output::{self, Table},
    },
    client::Client,
    cluster::{
        Cluster, Host,
        file::{ClusterFile, DType, Device, Devices, Role, changes::Change},
        sample::SAMPLE,
        size::count,
    },
    data_dir,
    error::{CliError, Exit},
    globals::{Format, Globals, ReadFile},
    observe::{logging, version::Version},
    processes::local_hosts,
};

/// Keys that have no default, as comments of a cluster file.
const OPTIONAL: &str = "\
# Keys without a default, with what their absence means:
#
# [cluster]
# data_dir = \"/var/lib/asterism\"      # .asterism/NAME beside this file
# [model]                             # or [[model]], as often as there are models: docs/operations.md
# name = \"next\"                       # what requests and hosts call it; as its folder is called
# path = \"Llama-3.1-8B-Instruct\"      # a Hugging Face folder, a GGUF file, or one of the hub's cache (~/.cache/huggingface/hub/models--ORG--NAME); the embedded model
# max_context_tokens = \"128k\"         # what the model was trained for
# random_weights = \"llama-3.1-8b\"     # instead of path, to measure speed; none
# linear = \"fp8\"                      # 8-bit linear layers, on GPUs of bf16; what dtype says
# attention_dtype = \"fp8\"             # 8-bit attention of prefill, on Hopper, heads of 128; what dtype says
# kv_dtype = \"q8\"                     # 8-bit keys and values: some half of the memory of bf16; what dtype says
# [transport]
# lanes = 3                           # sockets and threads for large payloads; as many for GPU hosts with six cores each, else 0
# [models.heads.trained]              # APB's retaining heads, which requests call `trained`
# path = \"heads.safetensors\"
# model = \"next\"                      # the model that they were trained for, by name; the first
# [security]
# ca = \"ca.pem\"                       # ca, cert and key: made in data_dir
# cert = \"{name}.pem\"                # of each process: {name} is its host, its node or supervisor;
# key = \"{name}.key\"                 # with URI:asterism://CLUSTER/ROLE/NAME and DNS:asterism as alternative names
# token_file = \"token\"                # its first line is the admin API's token; no token
# join_listen = \"10.0.0.1:7402\"       # nodes get certificates here (`cert token`); nowhere
# [sessions]
# max_pinned_bytes = \"64GiB\"          # KV that sessions may pin; what the hosts' memory allows
# [serving]
# max_generating = 64                 # jobs that a query host generates at once; 64, or 256 where one is on a GPU
# speculation = \"off\"               # tokens guessed from prompt and answer, several verified in a step; \"auto\": where it pays
# token_interval_ms = 25              # longest step of a query host, with which tokens follow each other; 25 on CPUs, 50 on GPUs
# [api]
# listen = \"127.0.0.1:8000\"         # OpenAI's API; none
# api_key_file = \"api-keys\"         # NAME SHA256 [REQUESTS] on each line; everybody may ask
# tls_cert = \"api.pem\"             # its certificate, and tls_key: that one's key; plain HTTP
# allow_origins = [\"https://app.example\"] # pages that may ask it in a browser; none
# admin_tls_cert = \"admin.pem\"     # the same for the admin API, and admin_tls_key; plain HTTP
# [observability]
# otlp_endpoint = \"http://127.0.0.1:4318\" # a collector of spans (OTLP over HTTP); none
# [[node]]
# name = \"north\"
# address = \"10.0.0.1\"
# [[host]]
# name = \"context-0\"
# role = \"context\"                    # or \"query\", or \"spare\": takes the place of a lost host
# model = \"next\"                      # the [[model]] that it holds; the first
# node = \"north\"                      # the only node
# process = \"both\"                    # shared with the hosts that name it too: tensors in memory; its own
# device = \"cuda:0\"                   # a GPU; device of [model]
# devices = [\"cuda:0\", \"cuda:1\"]      # instead of device: several that share the model; one
# port = 7410                         # chosen by the operating system
# threads = 8                         # the node's cores, shared by its hosts that compute
# kernels = \"avx2\"                    # instructions of the CPU; the best there are
# memory_limit = \"16GiB\"              # for weights and KV; unlimited
# labels = { rack = \"a\" }             # what jobs may ask for with --host-label; none
";

/// What hosts in one process mean, in a cluster file that has them.
const IN_ONE_PROCESS: &str = "\
# All hosts are in one process, so that weights lie in memory once. Whatever ends one host ends all of them, and they start again together.
# Without `process` each host is a process with weights of its own, and the others go on where one is lost.
";

/// `asterism init`
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Context hosts on this machine
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub hosts: u16,
    /// The model that answers: a Hugging Face folder, a GGUF file, or ORG/NAME of the hub's cache [default: the embedded one]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// What hosts compute on: cpu, or cuda:0 for the first GPU
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cpu)]
    pub device: Device,
}

/// `asterism config`
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print every key that has a default, with it, and those without one as remarks; with -o json the former alone
    Default,
    /// Have the running cluster be as a cluster file says, without a restart; what needs one is refused by its key
    Apply(ApplyArgs),
}

/// `asterism config apply`
#[derive(Args, Debug)]
pub struct ApplyArgs {
    /// The cluster file
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Say what it changes and what needs a restart, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// A node that joined with --hosts and is to go; several: each
    #[arg(long, value_name = "NODE")]
    pub without: Vec<String>,
}

/// Prints a cluster file.
pub fn init(globals: &Globals, args: &InitArgs) -> Result<Exit, CliError> {
    globals.refuse_json("init", "it prints a cluster file, which is TOML")?;
    let model = args.model.as_deref().map(model_entry).transpose()?;
    let entry = model.as_ref().map(|(entry, _)| entry.as_str());
    output::print(&sample(args.hosts, entry, args.device))?;
    if let Some((_, most)) = model {
        globals.note(format_args!(
            "written to cluster.toml, `asterism up` starts it, and `asterism plan --tokens {}` says what it takes",
            planned_tokens(most)
        ));
    }
    Ok(Exit::Success)
}

/// How a cluster file names a model, once what it is was read, and the tokens that it takes: it may lie in another folder than this.
fn model_entry(model: &Path) -> Result<(String, usize), CliError> {
    let most = opened(model)?.config().max_position;
    let absolute = if model.exists() { std::path::absolute(model).ok() } else { None };
    Ok((absolute.as_deref().unwrap_or(model).display().to_string(), most))
}

/// A context to plan first, of a model that takes so many tokens: it leaves room for the query of `plan` and an answer.
fn planned_tokens(most: usize) -> String {
    match (most / 8 * 7).saturating_sub(64).clamp(1, 15 << 10) {
        few @ ..1024 => few.to_string(),
        many => format!("{}k", many >> 10),
    }
}

/// The sample with another number of context hosts, and perhaps another model or device, which all hosts have in one process: weights lie
/// in memory once.
fn sample(context_hosts: u16, model: Option<&str>, device: Device) -> String {
    let (head, _) = SAMPLE.split_once("[[host]]").expect("the sample has hosts");
    let (before, section) = head.split_once("[model]").expect("the sample has a model");
    let (of_model, after) = section.split_once("\n\n").expect("more follows");
    let (of_model, together) = match (model, device) {
        (None, Device::Cpu) => (of_model.to_owned(), ""),
        _ => {
            let path = model.map(|path| format!("path = {}\n", toml::Value::from(path)));
            let dtype = if model.is_some() { "bf16" } else { "f32" };
            let lines = format!("\n{}dtype = \"{dtype}\"\ndevice = \"{device}\"", path.unwrap_or_default());
            (lines, "process = \"all\"\n")
        }
    };
    let host = |name: &str, role: &str| format!("[[host]]\nname = \"{name}\"\nrole = \"{role}\"\n{together}");
    let context = (0..context_hosts).map(|index| host(&format!("context-{index}"), "context") + "\n");
    let note = if together.is_empty() { "" } else { IN_ONE_PROCESS };
    let hosts = context.collect::<String>() + &host("query-0", "query");
    format!("{before}[model]{of_model}\n\n{after}{note}{hosts}")
}

/// Checks a cluster file, the weights and ports that it names, and shows what it resolves to.
pub fn validate(globals: &Globals) -> Result<Exit, CliError> {
    let cluster = globals.cluster()?;
    checks::valid(&cluster)?;
    for judgment in checks::look(Asker::Validate, globals, Some(&cluster)) {
        if judgment.verdict == Verdict::Warning {
            globals.note(format_args!("warning: {}; {}", judgment.found, judgment.remedy.unwrap_or_default()));
        }
    }
    let model = match (&cluster.model.path, cluster.model.random) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(shape)) => format!("{} with random weights", shape.name()),
        (None, None) => "embedded".into(),
    };
    match globals.format {
        Format::Table => output::print(&host_table(&host_rows(&cluster)).to_string())?,
        format => output::print_json(&Valid::of(&cluster, model.clone()), format)?,
    }
    globals.note(format_args!(
        "cluster '{}' is valid: model {model}, method {}, supervisor {}, admin API {}, data in {}",
        cluster.name,
        cluster.method.name(),
        cluster.listen,
        data_dir::admin_url(cluster.admin_listen, cluster.admin_tls.is_some()),
        cluster.data_dir.display(),
    ));
    Ok(Exit::Success)
}

/// What a valid file resolves to.
#[derive(Serialize)]
struct Valid<'a> {
    cluster: &'a str,
    /// `embedded`, or the model's folder.
    model: String,
    dtype: DType,
    /// By name, with its options.
    method: &'a MethodConfig,
    listen: SocketAddr,
    admin_listen: SocketAddr,
    data_dir: &'a Path,
    hosts: Vec<HostRow>,
}

impl<'a> Valid<'a> {
    fn of(cluster: &'a Cluster, model: String) -> Self {
        let Cluster { name, method, listen, admin_listen, data_dir, .. } = cluster;
        let (dtype, hosts) = (cluster.model.dtype, host_rows(cluster));
        Self { cluster: name, model, dtype, method, listen: *listen, admin_listen: *admin_listen, data_dir, hosts }
    }
}

fn host_table(rows: &[HostRow]) -> Table {
    let mut table = Table::new(["HOST", "ROLE", "NODE", "DEVICE", "ADDRESS", "THREADS"]);
    for host in rows {
        let HostRow { name, role, node, device, address, threads } = host;
        let role = match role {
            Role::Context => "context",
            Role::Query => "query",
            Role::Spare => "spare",
        };
        let threads = match threads {
            None => "auto".to_owned(),
            Some(Threads { least, most }) if least == most => least.to_string(),
            Some(Threads { least, most }) => format!("{least} to {most}"),
        };
        table.row([name.clone(), role.into(), node.clone(), device.to_string(), address.clone(), threads]);
    }
    table
}

#[derive(Serialize)]
struct HostRow {
    name: String,
    role: Role,
    node: String,
    device: Devices,
    address: String,
    /// None: a share of a machine that is not this one.
    threads: Option<Threads>,
}

/// Threads that a host computes with.
#[derive(Clone, Copy, Serialize)]
struct Threads {
    /// When all hosts of its machine compute.
    least: usize,
    /// When no other does.
    most: usize,
}

fn host_rows(cluster: &Cluster) -> Vec<HostRow> {
    let cores = available_parallelism().map_or(1, |cores| cores.get());
    let here: Vec<&str> = local_hosts(cluster).into_iter().map(|host| host.name.as_str()).collect();
    let threads = |host: &Host| match host.threads {
        Some(given) => Some(Threads { least: given, most: given }),
        None if !host.devices.on_cpu() || !here.contains(&host.name.as_str()) => None,
        None => Some(Threads { least: cluster.threads_of(host, cores), most: cores }),
    };
    let row = |host: &Host| HostRow {
        name: host.name.clone(),
        role: host.role,
        node: host.node.clone(),
        device: host.devices.clone(),
        address: match host.address.port {
            0 => format!("{} (any port)", host.address.place),
            _ => host.address.to_string(),
        },
        threads: threads(host),
    };
    cluster.hosts.iter().map(row).collect()
}

/// Runs a verb of the group.
pub fn run(globals: &Globals, verb: ConfigVerb) -> Result<Exit, CliError> {
    match verb {
        ConfigVerb::Default => default(globals),
        ConfigVerb::Apply(args) => apply(globals, &args),
    }
}

/// `config apply`
fn apply(globals: &Globals, args: &ApplyArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let named = Globals { file: Some(args.path.clone()), ..globals.clone() };
    let ReadFile { text, .. } = named.read_cluster()?;
    // The cluster that runs is the one of -f, or else of the file.
    let client = Client::find(if globals.file.is_some() || globals.server.is_some() { globals } else { &named })?;
    let request = ApplyConfig { file: text, without: args.without.clone(), dry_run: args.dry_run };
    let Applied { changes, applied } = client.apply_config(&request)?;
    output::print_rows(&changes, globals.format, |changes| {
        let mut table = Table::new(["KEY", "BEFORE", "AFTER", "TAKES EFFECT"]);
        for Change { key, before, after, takes } in changes {
            let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
            table.row([key.clone(), value(before), value(after), takes.to_string()]);
        }
        table
    })?;
    let needs = changes.iter().filter(|change| !change.takes.while_it_runs()).count();
    globals.note(match (changes.len(), applied, needs) {
        (0, ..) => "the cluster is as the file says".into(),
        (all, true, _) => format!("changed: {all}; next: asterism host list"),
        (1, false, 0) => "1 change, which needs no restart; without --dry-run it is made".into(),
        (all, false, 0) => format!("{all} changes, none of which needs a restart; without --dry-run they are made"),
        (all, false, needs) => {
            let verb = if needs == 1 { "needs" } else { "need" };
            format!("{needs} of {} {verb} a restart, and none would be made without it", count(all, "change"))
        }
    });
    Ok(Exit::Success)
}

/// `config default`
fn default(globals: &Globals) -> Result<Exit, CliError> {
    if globals.format != Format::Table {
        output::print_json(&ClusterFile::default(), globals.format)?;
        return Ok(Exit::Success);
    }
    let text = toml::to_string_pretty(&ClusterFile::default()).expect("the typed file is TOML");
    let tables =
        text.lines().filter(|line| *line != "node = []" && *line != "host = []").collect::<Vec<_>>().join("\n");
    output::print(&format!("{}\n\n{OPTIONAL}", tables.trim_end()))?;
    Ok(Exit::Success)
}

/// Version and build.
pub fn version(globals: &Globals) -> Result<Exit, CliError> {
    let version = Version::current();
    match globals.format {
        Format::Table => {
            let Version { version, protocol, target, profile } = version;
            output::print(&format!("asterism {version} (protocol {protocol}, {target}, {profile})\n"))?;
        }
        format => output::print_json(&version, format)?,
    }
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_plan_fits_the_model() {
        assert_eq!([256, 2048, 8192, 16384, 131_072].map(planned_tokens), ["160", "1k", "6k", "13k", "15k"]);
    }

    #[test]
    fn init_prints_the_sample_and_other_sizes_of_it() {
        let embedded = |hosts| sample(hosts, None, Device::Cpu);
        assert_eq!(embedded(4), SAMPLE);
        assert_eq!(embedded(2).matches("role = \"context\"").count(), 2);
        let file = crate::cluster::file::parse(&embedded(7), []).unwrap();
        assert!(Cluster::resolve(&file, Path::new("/")).is_ok());
    }

    #[test]
    fn init_names_a_model_and_a_device() {
        for (model, device) in
            [(Some("/models/a \"b\".gguf"), Device::Cpu), (None, Device::Cuda(1)), (Some("org/m"), Device::Cuda(0))]
        {
            let text = sample(3, model, device);
            let file = crate::cluster::file::parse(&text, []).unwrap();
            let of = file.model.iter().next().unwrap();
            assert_eq!(of.path.as_deref(), model.map(Path::new), "{text}");
            assert_eq!((of.device, of.dtype == DType::Bf16), (device, model.is_some()), "{text}");
            assert_eq!(file.hosts.len(), 4);
            assert!(file.hosts.iter().all(|host| host.process.as_deref() == Some("all")), "{text}");
            assert!(Cluster::resolve(&file, Path::new("/")).is_ok());
        }
    }

    #[test]
    fn every_default_is_itself_a_valid_file() {
        let text = toml::to_string_pretty(&ClusterFile::default()).unwrap();
        assert_eq!(crate::cluster::file::parse(&text, []).unwrap(), ClusterFile::default());
        insta::assert_snapshot!(text);
    }

    #[test]
    fn every_key_without_a_default_is_valid() {
        let lines = OPTIONAL.lines().skip(2).map(|line| line.trim_start_matches("# ").to_owned() + "\n");
        let file = crate::cluster::file::parse(&format!("version = 1\n{}", lines.collect::<String>()), []).unwrap();
        assert_eq!(file.hosts[0].memory_limit, Some(crate::cluster::size::Bytes(16 << 30)));
        assert_eq!(file.hosts[0].labels["rack"], "a");
        assert!(file.sessions.max_pinned_bytes.is_some() && file.serving.token_interval_ms == Some(25));
        assert_eq!(file.serving.speculation, crate::cluster::file::Speculation::Off);
        assert!(file.security.token_file.is_some());
    }
}
