//! The cluster as it will run: every default filled in, every name resolved, contradictions refused. Starts nothing.

mod api;
mod clashes;
mod data;
mod error;
pub mod file;
pub(crate) mod host;
mod hosts;
mod model;
mod observability;
mod security;
pub mod size;
mod standby;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use asterism_actors::supervisor::{Liveness, MixedNumerics, ReadyWhen, SessionLimits};
use asterism_plan::{Method, MethodConfig, ModelShape, PlanError, PlanRequest};
use asterism_transport::Place;

pub use api::{ADMIN, API, Api, Limits, Origins, TlsFiles, TlsKeys};
pub(crate) use clashes::check_name;
use clashes::{check_free, check_tcp_ports};
pub use data::Data;
pub use error::{ClusterError, FILE_VERSION};
pub use file::sample;
use file::{ClusterFile, ControlTransport, Recovery, Role};
pub use host::{Host, NAME_LABEL};
use host::{LEAST_MEMORY, socket_address};
pub use model::Model;
pub use observability::Log;
pub use security::{CertificateFiles, Security};
use size::Bytes;
pub use standby::{EtcdProof, Standby};

/// Jobs that a supervisor has been seen to hold.
const MOST_QUEUED: usize = 100_000;
/// Jobs whose rows a step can be chosen from without that taking longer than the step.
const MOST_GENERATING: usize = 4096;
/// Jobs of one query host where the file does not say: on a GPU a step of all of them reads the weights once.
const GENERATING_ON_GPU: usize = 256;
const GENERATING_ON_CPU: usize = 64;
const MOST_INTERVAL_MS: u64 = 10_000;

/// How long a restarted supervisor waits for its hosts, beyond `dead_after`.
const REJOIN: Duration = Duration::from_secs(3);

/// Longest that a host may take to end: an hour.
const LONGEST_STOP_S: u64 = 3600;

/// A resolved cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Certificates, logs and the lock live here.
    pub data_dir: PathBuf,
    /// Where hosts reach the supervisor; port 0: chosen by the operating system.
    pub listen: SocketAddr,
    /// Where the admin API listens.
    pub admin_listen: SocketAddr,
    /// Certificate and key of the admin API; none: it speaks plain HTTP.
    pub admin_tls: Option<TlsFiles>,
    /// Where OpenAI's API listens, if anywhere, and the file of its keys.
    pub api: Option<Api>,
    /// The model of requests and hosts that name none.
    pub model: Model,
    /// Models beside it, each with hosts of its own.
    pub further_models: Vec<Model>,
    /// Attention when a job names none.
    pub method: MethodConfig,
    /// Who may join and who may ask.
    pub security: Security,
    /// When a silent host is suspect, and when dead.
    pub liveness: Liveness,
    /// What happens to a job whose host died.
    pub recovery: Recovery,
    /// What becomes of a job that no hosts of equal numerics can take.
    pub mixed_numerics: MixedNumerics,
    /// Times that a host's process is started again.
    pub max_restarts: u32,
    /// Whether it takes no work before a self-test has passed.
    pub self_test: bool,
    /// How long a host that is asked to end may take to give its work to others.
    pub stop_grace: Duration,
    /// When the cluster counts as ready to answer.
    pub ready_when: ReadyWhen,
    /// Whether hosts that are slow get shards only when others have no room.
    pub avoid_stragglers: bool,
    /// Whether shards of sessions move to where they lie better when it is quiet.
    pub rebalance: bool,
    /// What pinned contexts may take.
    pub sessions: SessionLimits,
    /// What generates at once.
    pub serving: ServingLimits,
    /// What may wait.
    pub queue: QueueLimits,
    /// Where several supervisors share their journal, if there are several.
    pub standby: Option<Standby>,
    /// What is logged, and how.
    pub log: Log,
    /// What carries tensors between hosts.
    pub data: Data,
    /// The collector of spans, if there is one, without a `/` at its end.
    pub otlp_endpoint: Option<String>,
    /// Hosts in the order of the file.
    pub hosts: Vec<Host>,
}

/// What generates at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingLimits {
    /// Jobs of one query host.
    pub max_generating: usize,
    /// Whether tokens are guessed and several verified in a step.
    pub speculation: file::Speculation,
    /// How long a step may take; none: as suits the device.
    pub token_interval: Option<Duration>,
}

/// What may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Jobs, and sessions that there may be.
    pub jobs: usize,
    /// Bytes of their contexts and questions.
    pub bytes: u64,
}

impl Cluster {
    /// Resolves `file`; relative paths are taken from `directory`, where the file lies.
    pub fn resolve(file: &ClusterFile, directory: &Path) -> Result<Self, ClusterError> {
        if file.version != FILE_VERSION {
            return Err(ClusterError::Version { got: file.version });
        }
        let ControlTransport::Quic = file.transport.control;
        check_name("cluster.name", &file.cluster.name)?;
        check_method(&file.attention)?;
        let data_dir = match &file.cluster.data_dir {
            Some(path) => directory.join(path),
            None => directory.join(".asterism").join(&file.cluster.name),
        };
        let listen = socket_address("cluster.listen", &file.cluster.listen)?;
        let admin_listen = socket_address("api.admin_listen", &file.api.admin_listen)?;
        let security = security::resolve(&file.security, directory, listen)?;
        security.check_admin(admin_listen)?;
        let api = api::resolve(file, directory, security.allow_open_admin)?;
        check_tcp_ports([
            ("api.admin_listen", Some(admin_listen)),
            ("api.listen", api.as_ref().map(|api| api.listen)),
            ("security.join_listen", security.join_listen),
        ])?;
        let mut models = model::resolve_all(file, directory)?;
        let model = models.remove(0);
        Ok(Self {
            name: file.cluster.name.clone(),
            data_dir,
            listen,
            admin_listen,
            admin_tls: api::admin_tls(file, directory)?,
            api,
            model,
            further_models: models,
            method: file.attention.clone(),
            security,
            liveness: liveness(file)?,
            recovery: recovery(file)?,
            mixed_numerics: file.cluster.mixed_numerics,
            max_restarts: file.supervisor.max_restarts,
            self_test: file.supervisor.self_test,
            stop_grace: stop_grace(file)?,
            rebalance: file.supervisor.rebalance,
            avoid_stragglers: file.supervisor.avoid_stragglers,
            ready_when: ready_when(file)?,
            sessions: sessions(file)?,
            serving: serving(file)?,
            queue: queue(file)?,
            standby: standby::resolve(&file.standby, directory)?,
            log: observability::log(file),
            data: Data::resolve(&file.transport)?,
            otlp_endpoint: observability::otlp_endpoint(file)?,
            hosts: hosts::resolve(file, listen)?,
        })
    }

    /// Where the hosts of a node are reached, without a port.
    pub fn node_place(&self, name: &str) -> Option<&Place> {
        self.hosts.iter().find(|host| host.node == name).map(|host| &host.address.place)
    }

    /// Refuses the name of a node that is to join with hosts of its own where it is none, or somebody else's.
    ///
    /// # Errors
    /// [`ClusterError`] with the name.
    pub fn check_new_node(&self, name: &str) -> Result<(), ClusterError> {
        check_name("node.name", name)?;
        check_free("node", name)?;
        match self.hosts.iter().any(|host| host.name == name || host.process == name) {
            true => Err(ClusterError::TakenName { kind: "node", name: name.to_owned(), owner: "a host" }),
            false => Ok(()),
        }
    }

    /// All models, in the order of the file.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        [&self.model].into_iter().chain(&self.further_models)
    }

    /// The cluster that a model has for itself: with that alone, and its hosts.
    pub fn of_model(&self, model: &Model) -> Self {
        let hosts = self.hosts.iter().filter(|host| host.model == model.name).cloned().collect();
        Self { model: model.clone(), further_models: Vec::new(), hosts, ..self.clone() }
    }

    /// The cluster as a host computes in it: beside all others, with its own model.
    pub fn with_model_of(&self, host: &Host) -> Self {
        let model = self.models().find(|model| model.name == host.model).unwrap_or(&self.model).clone();
        Self { model, further_models: Vec::new(), ..self.clone() }
    }

    /// The host called `name`.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// Hosts of `role`, in the order of the file.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(move |host| host.role == role)
    }

    /// Whether the weights of `host`'s process on its device are counted as its own: for the first of the hosts that hold them
    /// together.
    pub fn counts_weights(&self, host: &Host) -> bool {
        self.with_weights_of(host).next().is_none_or(|first| first.name == host.name)
    }

    /// The hosts that hold weights together with `host`, itself among them.
    pub fn with_weights_of<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = &'a Host> {
        let own = (&host.process, &host.devices, host.kernels);
        self.hosts.iter().filter(move |other| (&other.process, &other.devices, other.kernels) == own)
    }

    /// Threads `host` computes with on a machine of `cores` where all its hosts compute: context hosts share them, the query
    /// host, which works while they idle, has all. A spare takes the place of a context host.
    pub fn threads_of(&self, host: &Host, cores: usize) -> usize {
        let sharing = match host.role {
            Role::Context | Role::Spare => {
                self.with_role(Role::Context).filter(|other| other.node == host.node).count()
            }
            Role::Query => 1,
        };
        host.threads.unwrap_or(cores / sharing.max(1)).max(1)
    }
}

/// Refuses sizes that no context could be planned with.
pub(crate) fn check_method(method: &MethodConfig) -> Result<(), ClusterError> {
    let context = vec![0; 1 << 20];
    // A query of one token: what methods do without one is not the cluster file's business. No model is loaded yet.
    let request = PlanRequest {
        context: &context,
        query: &[0],
        hosts: 1,
        one_device: false,
        shape: &ModelShape::TINY,
        speeds: None,
    };
    match method.review(&request).and_then(|()| method.plan(&request)) {
        Err(PlanError::BlockTooSmall { block, least, .. }) => Err(ClusterError::Value {
            key: "block_tokens",
            got: block.to_string(),
            expected: format!("at least {least}; did you mean \"{block}k\"?"),
        }),
        Err(cause) => Err(ClusterError::Method { method: method.name(), cause }),
        Ok(_) => Ok(()),
    }
}

/// Heartbeats of all hosts together that a supervisor asks for in a second: with more hosts each beats less often, as long as silence
/// means the same.
const MOST_HEARTBEATS_PER_S: u64 = 2048;

fn liveness(file: &ClusterFile) -> Result<Liveness, ClusterError> {
    let section = &file.supervisor;
    let at_least_one = |key, got: u64| match got {
        0 => Err(ClusterError::Value { key, got: "0".into(), expected: "at least 1".into() }),
        _ => Ok(got),
    };
    let heartbeat_ms = at_least_one("supervisor.heartbeat_ms", section.heartbeat_ms)?;
    let suspect_after = at_least_one("supervisor.suspect_after", section.suspect_after.into())?;
    let suspect_after_ms = heartbeat_ms.saturating_mul(suspect_after);
    if section.dead_after_ms <= suspect_after_ms {
        return Err(ClusterError::Value {
            key: "supervisor.dead_after_ms",
            got: section.dead_after_ms.to_string(),
            expected: format!("more than heartbeat_ms x suspect_after = {suspect_after_ms}"),
        });
    }
    let paced_ms = (1000 * file.hosts.len() as u64).div_ceil(MOST_HEARTBEATS_PER_S);
    let longest_ms = (section.dead_after_ms - 1) / suspect_after;
    Ok(Liveness {
        heartbeat: Duration::from_millis(heartbeat_ms.max(paced_ms.min(longest_ms))),
        suspect_after: section.suspect_after,
        dead_after: Duration::from_millis(section.dead_after_ms),
        rejoin: REJOIN,
    })
}

fn stop_grace(file: &ClusterFile) -> Result<Duration, ClusterError> {
    let got = file.supervisor.stop_grace_s;
    match got <= LONGEST_STOP_S {
        true => Ok(Duration::from_secs(got)),
        false => Err(ClusterError::Value {
            key: "supervisor.stop_grace_s",
            got: got.to_string(),
            expected: format!("0 to {LONGEST_STOP_S} seconds"),
        }),
    }
}

fn ready_when(file: &ClusterFile) -> Result<ReadyWhen, ClusterError> {
    let contexts = file.hosts.iter().filter(|host| host.role == Role::Context).count();
    match file.supervisor.ready_when {
        file::ReadyWhen::Answers => Ok(ReadyWhen::Answers),
        file::ReadyWhen::All => Ok(ReadyWhen::All),
        file::ReadyWhen::Contexts(least) if least >= 1 => Ok(ReadyWhen::Contexts(least)),
        file::ReadyWhen::Contexts(least) => Err(ClusterError::Value {
            key: "supervisor.ready_when",
            got: least.to_string(),
            expected: format!("\"answers\", \"all\", or a number of context hosts, of which the file has {contexts}"),
        }),
    }
}

fn recovery(file: &ClusterFile) -> Result<Recovery, ClusterError> {
    let spares = file.hosts.iter().filter(|host| host.role == Role::Spare).count();
    match file.supervisor.recovery {
        Recovery::Spare if spares == 0 => Err(ClusterError::Value {
            key: "supervisor.recovery",
            got: "\"spare\"".into(),
            expected: "needs at least 1 host with role = \"spare\", and the file has 0; or \"redistribute\"".into(),
        }),
        recovery => Ok(recovery),
    }
}

fn sessions(file: &ClusterFile) -> Result<SessionLimits, ClusterError> {
    let section = &file.sessions;
    if section.default_ttl_s == 0 {
        let expected = "at least 1 second".into();
        return Err(ClusterError::Value { key: "sessions.default_ttl_s", got: "0".into(), expected });
    }
    Ok(SessionLimits {
        default_ttl: Duration::from_secs(section.default_ttl_s),
        max_pinned_bytes: section.max_pinned_bytes.map(|Bytes(bytes)| bytes),
    })
}

fn serving(file: &ClusterFile) -> Result<ServingLimits, ClusterError> {
    let refused =
        |key, got: u64, expected: &str| ClusterError::Value { key, got: got.to_string(), expected: expected.into() };
    let interval = file.serving.token_interval_ms;
    let of_gpu = |host: &file::HostSection| {
        let model = file.model_of(host).1.unwrap_or(&file.model.first);
        host.device.unwrap_or(model.device) != file::Device::Cpu
    };
    let on_gpu = file.hosts.iter().any(|host| host.role == Role::Query && of_gpu(host));
    let jobs = file.serving.max_generating.unwrap_or(if on_gpu { GENERATING_ON_GPU } else { GENERATING_ON_CPU });
    if !(1..=MOST_GENERATING).contains(&jobs) {
        return Err(refused("serving.max_generating", jobs as u64, "1 to 4096 jobs"));
    }
    if let Some(got) = interval.filter(|got| !(1..=MOST_INTERVAL_MS).contains(got)) {
        return Err(refused("serving.token_interval_ms", got, "1 to 10000 milliseconds"));
    }
    Ok(ServingLimits {
        max_generating: jobs,
        speculation: file.serving.speculation,
        token_interval: interval.map(Duration::from_millis),
    })
}

fn queue(file: &ClusterFile) -> Result<QueueLimits, ClusterError> {
    let refused =
        |key, got: u64, expected: &str| ClusterError::Value { key, got: got.to_string(), expected: expected.into() };
    let (jobs, Bytes(bytes)) = (file.api.max_queue, file.api.max_queue_bytes);
    if !(1..=MOST_QUEUED).contains(&jobs) {
        return Err(refused("api.max_queue", jobs as u64, "1 to 100000 jobs"));
    }
    if bytes < LEAST_MEMORY {
        return Err(refused("api.max_queue_bytes", bytes, "at least 1 MiB; write a unit, such as \"512MiB\""));
    }
    Ok(QueueLimits { jobs, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::file::parse;
    use asterism_kernels::KvFormat;
    use std::collections::BTreeMap;

    const SAMPLE: &str = include_str!("../../cluster.toml");

    fn resolve(text: &str) -> Result<Cluster, ClusterError> {
        Cluster::resolve(&parse(text, []).expect("the text parses"), Path::new("/etc/asterism"))
    }

    #[test]
    fn many_hosts_beat_less_often_and_are_no_later_missed() {
        let cluster = |hosts: usize, section: &str| {
            let host = |at: usize| format!("[[host]]\nname = \"c{at}\"\nrole = \"context\"\n");
            let hosts: String = (1..hosts).map(host).collect();
            let head = "version = 1\n[[node]]\nname = \"local\"\naddress = \"127.0.0.1\"\n";
            resolve(&format!("{head}{section}{hosts}[[host]]\nname = \"q\"\nrole = \"query\"\n")).unwrap().liveness
        };
        let millis = |liveness: Liveness| liveness.heartbeat.as_millis();
        assert_eq!(millis(cluster(2, "")), 250);
        assert_eq!(millis(cluster(512, "")), 250);
        assert_eq!(millis(cluster(768, "")), 375);
        let most = cluster(4096, "");
        assert_eq!((millis(most), most.dead_after), (499, Duration::from_millis(1500)));
        assert!(most.heartbeat * most.suspect_after < most.dead_after);
        assert_eq!(
            millis(cluster(768, "[supervisor]\nheartbeat_ms = 490\n")),
            490,
            "what is asked for is not shortened"
        );
    }

    #[test]
    fn each_of_several_models_has_hosts_of_its_own() {
        let host =
            |name: &str, role: &str, model: &str| format!("[[host]]\nname = \"{name}\"\nrole = \"{role}\"\n{model}");
        let of_b = [host("d", "context", "model = \"b\"\n"), host("r", "query", "model = \"b\"\n")].concat();
        let head = "version = 1\n[[node]]\nname = \"local\"\naddress = \"127.0.0.1\"\n";
        let own = [host("c", "context", ""), host("q", "query", "")].concat();
        let models = "[[model]]\npath = \"/a\"\n[[model]]\nname = \"b\"\npath = \"b\"\n";
        let text = [head, models, &own, &of_b].concat();
        let cluster = resolve(&text).unwrap();
        let models: Vec<_> = cluster.models().map(|model| (model.label(), model.path.as_deref().unwrap())).collect();
        assert_eq!(models, [("", Path::new("/a")), ("b", Path::new("/etc/asterism/b"))]);
        let b = cluster.of_model(&cluster.further_models[0]);
        assert_eq!(b.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(), ["d", "r"]);
        assert_eq!((&b.model.name, cluster.with_model_of(&b.hosts[0]).hosts.len()), (&Some("b".to_owned()), 4));
        let heads = "[models.heads.x]\npath = \"x\"\n[models.heads.y]\npath = \"y\"\nmodel = \"b\"\n";
        let cluster = resolve(&format!("{text}{heads}")).unwrap();
        let heads_of = |model: &Model| model.heads.keys().cloned().collect::<String>();
        assert_eq!(cluster.models().map(heads_of).collect::<Vec<_>>(), ["x", "y"], "each model has those of its own");
        let said = resolve(&format!("{text}{}", heads.replace("\"b\"", "\"e\""))).unwrap_err().to_string();
        assert!(said.contains("models.heads.NAME.model = \"e\""), "{said}");
        let refused = |from: &str, to: &str| resolve(&text.replace(from, to)).unwrap_err().to_string();
        let together = "role = \"query\"\nmodel = \"b\"\nprocess = \"c\"\n";
        for (from, to, words) in [
            (
                "model = \"b\"",
                "model = \"e\"",
                "host 'd' holds model 'e', which is not in the file; known: one without a name, b",
            ),
            ("name = \"b\"\npath", "path", "model.name = nothing: [[model]] 2 of 2 has none"),
            ("[[model]]\npath = \"/a\"", "[[model]]\nname = \"b\"", "two models are named 'b'"),
            ("role = \"query\"\nmodel = \"b\"\n", "role = \"query\"\n", "model 'b' has no host with role = \"query\""),
            ("role = \"query\"\nmodel = \"b\"\n", together, "hold different models; a process holds one"),
            (
                "role = \"query\"\nmodel",
                "labels = { \"asterism.model\" = \"b\" }\nrole = \"query\"\nmodel",
                "write model = \"b\" instead",
            ),
        ] {
            let said = refused(from, to);
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn the_sample_resolves() {
        let cluster = resolve(SAMPLE).unwrap();
        assert_eq!(cluster.with_role(Role::Context).count(), 4);
        assert_eq!(cluster.with_role(Role::Query).count(), 1);
        assert_eq!(cluster.data_dir, Path::new("/etc/asterism/.asterism/asterism"));
        let context = cluster.host("context-2").unwrap();
        assert_eq!([1, 2, 9].map(|cores| cluster.threads_of(context, cores)), [1, 1, 2]);
        assert_eq!(cluster.threads_of(cluster.host("query-0").unwrap(), 8), 8);
    }

    #[test]
    fn contradictions_are_refused() {
        let edits: [(&str, &str); 40] = [
            ("version = 1", "version = 2"),
            ("127.0.0.1:7400", "localhost"),
            ("name = \"context-1\"", "name = \"context-0\""),
            ("name = \"context-1\"", "name = \"context 1\""),
            ("name = \"context-1\"", "name = \"context-1\"\nnode = \"north\""),
            ("name = \"context-1\"", "name = \"context-1\"\nport = 7400"),
            ("name = \"context-1\"", "name = \"context-1\"\nthreads = 0"),
            ("role = \"query\"", "role = \"context\""),
            ("name = \"context-1\"", "name = \"context-1\"\nmemory_limit = 8"),
            ("name = \"context-1\"", "name = \"context-1\"\nlabels = { rack = \"a b\" }"),
            ("[api]", "[supervisor]\nrecovery = \"spare\"\n[api]"),
            ("[api]", "[sessions]\ndefault_ttl_s = 0\n[api]"),
            ("[api]", "[serving]\nmax_generating = 0\n[api]"),
            ("[api]", "[serving]\ntoken_interval_ms = 0\n[api]"),
            ("[[node]]", "[[node]]\nname = \"other\"\naddress = \"10.0.0.1\"\n[[node]]"),
            ("mode = \"mtls\"", "ca = \"ca.pem\""),
            ("[attention.auto]", "[attention.star]\nblock_tokens = 4"),
            ("[api]", "[supervisor]\ndead_after_ms = 100\n[api]"),
            ("role = \"context\"", "role = \"spare\""),
            ("mode = \"mtls\"", "join_listen = \"127.0.0.1:7400\""),
            ("mode = \"mtls\"", "mode = \"insecure\"\njoin_listen = \"127.0.0.1:7402\""),
            ("mode = \"mtls\"", "ca = \"a\"\ncert = \"b\"\nkey = \"c\"\njoin_listen = \"127.0.0.1:7402\""),
            ("name = \"context-1\"", "name = \"context-1\"\nthreads = 1000000"),
            ("name = \"context-1\"", "name = \"supervisor\""),
            ("name = \"context-1\"", "name = \"up\""),
            ("name = \"context-1\"", "name = \"local\""),
            ("[[node]]\nname = \"local\"", "[[node]]\nname = \"supervisor\""),
            ("127.0.0.1:7401", "0.0.0.0:7401"),
            ("mode = \"mtls\"", "mode = \"mtls\"\njoin_listen = \"0.0.0.0:7401\""),
            ("127.0.0.1:8000", "0.0.0.0:8000"),
            ("127.0.0.1:8000", "127.0.0.1:7401"),
            ("[api]", "[observability]\notlp_endpoint = \"https://collector:4318\"\n[api]"),
            ("name = \"context-1\"", "name = \"context-1\"\nprocess = \"supervisor\""),
            ("name = \"context-1\"", "name = \"context-1\"\nprocess = \"a b\""),
            ("dtype = \"f32\"", "linear = \"fp8\""),
            ("dtype = \"f32\"", "dtype = \"bf16\"\nlinear = \"fp8\""),
            ("dtype = \"f32\"", "attention_dtype = \"fp8\""),
            ("dtype = \"f32\"", "dtype = \"bf16\"\nattention_dtype = \"fp8\""),
            ("dtype = \"f32\"", "kv_dtype = \"fp8\""),
            (
                "dtype = \"f32\"",
                "kv_dtype = \"q8\"\n[[host]]\nname = \"two\"\nrole = \"context\"\ndevices = [\"cpu\", \"cpu\"]",
            ),
        ];
        let errors = edits.map(|(from, to)| resolve(&SAMPLE.replace(from, to)).unwrap_err().to_string()).join("\n");
        insta::assert_snapshot!(errors);
    }

    #[test]
    fn keys_are_kept_as_they_are_computed_or_in_8_bits() {
        let with = |text: &str| SAMPLE.replace("dtype = \"f32\"", text);
        let kept = |text: &str| resolve(&with(text)).unwrap().model.kept;
        assert_eq!(kept("dtype = \"bf16\""), KvFormat::Computed);
        assert_eq!(kept("dtype = \"bf16\"\nkv_dtype = \"q8\""), KvFormat::Q8);
        assert_eq!(kept("dtype = \"bf16\"\nkv_dtype = \"q8\"\ndevice = \"cuda:0\""), KvFormat::Q8);
        let unknown = parse(&with("kv_dtype = \"int4\""), []).unwrap_err().to_string();
        assert!(unknown.contains("unknown value 'int4'; known here: q8, fp8"), "{unknown}");
    }

    #[test]
    fn a_refusal_repeats_a_few_devices_of_many() {
        let of = |devices: &str| {
            let host = format!("role = \"context\"\ndevices = [{devices}]");
            resolve(&SAMPLE.replacen("role = \"context\"", &host, 1)).unwrap_err().to_string()
        };
        let first = "\"cpu\", ".repeat(8);
        let many = of(&"\"cpu\", ".repeat(5000));
        assert!(many.contains(&format!("[{first}and 4992 more] of host 'context-0'")), "{many}");
        let few = of("\"cpu\", \"cuda:0\"");
        assert!(few.contains("[\"cpu\", \"cuda:0\"] of host 'context-0'"), "{few}");
        let long = format!("role = \"context\"\ndevice = \"{}\"", "x".repeat(5000));
        let long = parse(&SAMPLE.replacen("role = \"context\"", &long, 1), []).unwrap_err().to_string();
        assert!(long.len() < 300 && long.contains("no device is called 'xxx"), "{long}");
    }

    #[test]
    fn limits_labels_and_recovery_are_resolved() {
        let text = SAMPLE
            .replace("[api]", "[supervisor]\nrecovery = \"spare\"\nmax_restarts = 0\n\n[sessions]\ndefault_ttl_s = 60\nmax_pinned_bytes = \"2GiB\"\n\n[api]")
            .replace("name = \"context-1\"\nrole = \"context\"", "name = \"context-1\"\nrole = \"spare\"\nmemory_limit = \"8GiB\"\nlabels = { rack = \"a\" }");
        let cluster = resolve(&text).unwrap();
        assert_eq!((cluster.recovery, cluster.max_restarts), (Recovery::Spare, 0));
        let limits = SessionLimits { default_ttl: Duration::from_secs(60), max_pinned_bytes: Some(2 << 30) };
        assert_eq!(cluster.sessions, limits);
        let spare = cluster.host("context-1").unwrap();
        assert_eq!((spare.role, spare.memory_limit), (Role::Spare, Some(8 << 30)));
        let expected = BTreeMap::from([("rack".into(), "a".into()), ("host".into(), spare.name.clone())]);
        assert_eq!(spare.labels, expected);
        assert_eq!(cluster.threads_of(spare, 9), 3);
        let two = SAMPLE.replace("name = \"context-1\"\nrole = \"context\"", "name = \"context-1\"\nrole = \"query\"");
        assert_eq!(resolve(&two).unwrap().with_role(Role::Query).count(), 2);
    }

    #[test]
    fn hosts_share_a_process_on_one_node_alone() {
        let named = |name: &str| (format!("name = \"{name}\""), format!("name = \"{name}\"\nprocess = \"both\""));
        let [one, other] = ["context-1", "context-2"].map(named);
        let text = SAMPLE.replace(&one.0, &one.1).replace(&other.0, &other.1);
        let cluster = resolve(&text).unwrap();
        let processes: Vec<&str> = cluster.hosts.iter().map(|host| host.process.as_str()).collect();
        assert_eq!(processes, ["context-0", "both", "both", "context-3", "query-0"]);
        let counted =
            |cluster: &Cluster| cluster.hosts.iter().map(|host| cluster.counts_weights(host)).collect::<Vec<_>>();
        assert_eq!(counted(&cluster), [true, true, false, true, true]);
        let unlike = text.replace(&format!("{}\n", other.1), &format!("{}\nkernels = \"portable\"\n", other.1));
        assert_eq!(counted(&resolve(&unlike).unwrap()), [true; 5]);
        let taken = text.replacen("\"both\"", "\"context-2\"", 1);
        insta::assert_snapshot!(
            resolve(&taken).unwrap_err().to_string(),
            @"host.process = context-2: the name of host 'context-2', which is in process 'both'; choose another"
        );
        let nodes = text.replace("[[host]]\nname", "[[host]]\nnode = \"local\"\nname").replacen(
            "[[node]]",
            "[[node]]\nname = \"far\"\naddress = \"10.0.0.1\"\n[[node]]",
            1,
        );
        assert!(resolve(&nodes).is_ok());
        let apart = nodes.replace("node = \"local\"\nname = \"context-2\"", "node = \"far\"\nname = \"context-2\"");
        insta::assert_snapshot!(
            resolve(&apart).unwrap_err().to_string(),
            @"host.process = both: hosts 'context-1' and 'context-2' name it and are on the nodes 'local' and 'far'; a process runs on one"
        );
    }

    #[test]
    fn a_port_is_given_once() {
        let ports = SAMPLE.replace("role = \"context\"", "role = \"context\"\nport = 7410");
        insta::assert_snapshot!(resolve(&ports).unwrap_err().to_string());
    }
}
