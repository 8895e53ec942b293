//! What Slurm gave a job, read from its variables and from what `scontrol` and `squeue` print. Asks nobody.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use thiserror::Error;

use crate::cluster::check_name;

/// Nodes that a job has, and what it may use of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The job's number.
    pub job: u64,
    /// How often it was queued again.
    pub restarts: u32,
    /// Where it was submitted.
    pub submitted_in: PathBuf,
    /// The nodes, in Slurm's order.
    pub nodes: Vec<AllocatedNode>,
}

/// A node of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedNode {
    /// Slurm's name of it.
    pub name: String,
    /// Name or address that Slurm reaches it at.
    pub address: String,
    /// Tasks of the job there.
    pub tasks: usize,
    /// GPUs of each task; 0: it computes on the CPU.
    pub gpus_per_task: usize,
    /// The switch that it is at, or its block, where Slurm knows its network.
    pub leaf: Option<Leaf>,
}

/// The smallest part of a network that Slurm knows a node to be in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Slurm's name of it.
    pub name: String,
    /// What it is.
    pub kind: LeafKind,
}

/// What the smallest part of a network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// A switch of the lowest level (`topology/tree`): nodes that are near each other and fail together.
    Switch,
    /// A block (`topology/block`): nodes that are near each other.
    Block,
}

/// Why an allocation cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AllocationError {
    /// A variable that every job has.
    #[error("{name} is not set: this is no job of Slurm; start it in a batch script, or through salloc (deploy/slurm)")]
    NotInJob { name: &'static str },
    /// A value of another form.
    #[error("{name} is {got:?}, expected {expected}")]
    Value { name: &'static str, got: String, expected: &'static str },
    /// Numbers that contradict each other.
    #[error("{name} is {got:?}, which tells of {told} nodes, and the job has {nodes}")]
    Nodes { name: &'static str, got: String, told: usize, nodes: usize },
    /// Tasks that cannot have a GPU each.
    #[error(
        "node {node} has {tasks} tasks and {gpus} GPUs, expected a GPU at least for each task: ask for fewer tasks a node"
    )]
    Gpus { node: String, tasks: usize, gpus: usize },
}

impl Allocation {
    /// Reads the job's `variables`; `hostnames` is what `scontrol show hostnames` prints, `nodes` what `scontrol show node -o` does.
    ///
    /// # Errors
    /// Where this is no job, or its variables have another form than Slurm's.
    pub fn read(variables: &BTreeMap<String, String>, hostnames: &str, nodes: &str) -> Result<Self, AllocationError> {
        let names: Vec<&str> = hostnames.split_whitespace().collect();
        let tasks = per_node(variables, "SLURM_TASKS_PER_NODE", names.len())?;
        let addresses = addresses(nodes);
        let node = |(name, tasks): (&&str, usize)| {
            Ok(AllocatedNode {
                name: (*name).to_owned(),
                address: addresses.get(*name).map_or(*name, |address| address).to_owned(),
                tasks,
                gpus_per_task: gpus_per_task(variables, name, tasks)?,
                leaf: None,
            })
        };
        Ok(Self {
            job: number(variables, "SLURM_JOB_ID")?.ok_or(AllocationError::NotInJob { name: "SLURM_JOB_ID" })?,
            restarts: number(variables, "SLURM_RESTART_COUNT")?.unwrap_or(0).try_into().unwrap_or(u32::MAX),
            submitted_in: variables.get("SLURM_SUBMIT_DIR").map_or_else(|| ".".into(), PathBuf::from),
            nodes: names.iter().zip(tasks).map(node).collect::<Result<_, _>>()?,
        })
    }
}

/// Switches of the lowest level and blocks, with their compressed lists of nodes, as `scontrol show topology` prints them. Names that
/// no label can have are left out.
pub fn leaves(topology: &str) -> Vec<(Leaf, &str)> {
    fn leaf(line: &str) -> Option<(Leaf, &str)> {
        let nodes = field(line, "Nodes=").filter(|nodes| *nodes != "(null)")?;
        let (name, kind) = match (field(line, "SwitchName="), field(line, "BlockName=")) {
            (Some(name), _) if field(line, "Level=") == Some("0") => (name, LeafKind::Switch),
            (None, Some(name)) => (name, LeafKind::Block),
            _ => return None,
        };
        check_name("the name of a switch", name).ok()?;
        Some((Leaf { name: name.to_owned(), kind }, nodes))
    }
    topology.lines().filter_map(leaf).collect()
}

/// The compressed list of the job's nodes.
///
/// # Errors
/// Where this is no job.
pub fn node_list(variables: &BTreeMap<String, String>) -> Result<&str, AllocationError> {
    let name = "SLURM_JOB_NODELIST";
    variables.get(name).map(String::as_str).ok_or(AllocationError::NotInJob { name })
}

/// Time that a job has, as `squeue -O TimeLeft` prints it: `[days-][hours:]minutes:seconds`; none where it has no limit.
///
/// # Errors
/// On anything else.
pub fn time_left(text: &str) -> Result<Option<Duration>, AllocationError> {
    let text = text.trim();
    if ["UNLIMITED", "NOT_SET", "INVALID"].contains(&text) {
        return Ok(None);
    }
    let refused = || AllocationError::Value {
        name: "squeue's TimeLeft",
        got: text.to_owned(),
        expected: "[days-][hours:]minutes:seconds, or UNLIMITED",
    };
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let fields: Vec<u64> = [days]
        .into_iter()
        .chain(clock.split(':'))
        .map(|field| field.parse().map_err(|_| refused()))
        .collect::<Result<_, _>>()?;
    let (days, hours, minutes, seconds) = match fields[..] {
        [days, minutes, seconds] => (days, 0, minutes, seconds),
        [days, hours, minutes, seconds] => (days, hours, minutes, seconds),
        _ => return Err(refused()),
    };
    let parts = [(days, 86_400), (hours, 3600), (minutes, 60), (seconds, 1)];
    let total = parts.into_iter().try_fold(0u64, |sum, (count, unit)| sum.checked_add(count.checked_mul(unit)?));
    total.map(|seconds| Some(Duration::from_secs(seconds))).ok_or_else(refused)
}

fn number(variables: &BTreeMap<String, String>, name: &'static str) -> Result<Option<u64>, AllocationError> {
    let Some(got) = variables.get(name) else { return Ok(None) };
    // GPUs are counted behind their kind, as in `h100:4`.
    let digits = got.rsplit(':').next().unwrap_or(got);
    match digits.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(AllocationError::Value { name, got: got.clone(), expected: "a whole number" }),
    }
}

/// A count for each node, as Slurm writes it: `2(x3),1`.
fn per_node(
    variables: &BTreeMap<String, String>,
    name: &'static str,
    nodes: usize,
) -> Result<Vec<usize>, AllocationError> {
    let got = variables.get(name).ok_or(AllocationError::NotInJob { name })?;
    let refused = || AllocationError::Value { name, got: got.clone(), expected: "counts such as 2(x3),1" };
    let mut counts = Vec::new();
    for part in got.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(refused)?),
            None => (part, "1"),
        };
        let (count, times): (usize, usize) =
            (count.parse().map_err(|_| refused())?, times.parse().map_err(|_| refused())?);
        if count == 0 || times > nodes - counts.len().min(nodes) {
            let told = counts.len().saturating_add(times);
            let contradiction = AllocationError::Nodes { name, got: got.clone(), told, nodes };
            return Err(if count == 0 { refused() } else { contradiction });
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    match counts.len() {
        told if told == nodes => Ok(counts),
        told => Err(AllocationError::Nodes { name, got: got.clone(), told, nodes }),
    }
}

/// As the job asked for them, or all that the node has in equal parts.
fn gpus_per_task(variables: &BTreeMap<String, String>, node: &str, tasks: usize) -> Result<usize, AllocationError> {
    if let Some(gpus) = number(variables, "SLURM_GPUS_PER_TASK")? {
        return Ok(gpus as usize);
    }
    let of_node = number(variables, "SLURM_GPUS_PER_NODE")?.or(number(variables, "SLURM_GPUS_ON_NODE")?);
    match of_node.unwrap_or(0) as usize {
        0 => Ok(0),
        gpus if gpus >= tasks => Ok(gpus / tasks),
        gpus => Err(AllocationError::Gpus { node: node.to_owned(), tasks, gpus }),
    }
}

/// `NodeAddr` by `NodeName`.
fn addresses(nodes: &str) -> BTreeMap<&str, &str> {
    nodes.lines().filter_map(|line| Some((field(line, "NodeName=")?, field(line, "NodeAddr=")?))).collect()
}

/// A field of a line that one of Slurm's commands prints.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "NodeName=n1 Arch=x86_64 Gres=(null) NodeAddr=10.0.0.1 NodeHostName=n1 Port=6818\n\
                         NodeName=n2 Arch=x86_64 Gres=(null) NodeAddr=n2-eth NodeHostName=n2 Port=6818\n";

    fn read(changes: &[(&str, &str)]) -> Result<Allocation, AllocationError> {
        let job = [
            ("SLURM_JOB_ID", "17"),
            ("SLURM_JOB_NODELIST", "n[1-3]"),
            ("SLURM_TASKS_PER_NODE", "2(x2),1"),
            ("SLURM_SUBMIT_DIR", "/home/ada"),
        ];
        let mut variables: BTreeMap<String, String> =
            job.iter().chain(changes).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        variables.retain(|_, value| value != "unset");
        Allocation::read(&variables, "n1\nn2\nn3\n", SHOWN)
    }

    #[test]
    fn a_job_is_read_as_slurm_tells_it() {
        let allocation = read(&[]).unwrap();
        assert_eq!((allocation.job, allocation.restarts), (17, 0));
        assert_eq!(allocation.submitted_in, PathBuf::from("/home/ada"));
        let seen: Vec<_> = allocation.nodes.iter().map(|node| (&*node.name, &*node.address, node.tasks)).collect();
        assert_eq!(seen, [("n1", "10.0.0.1", 2), ("n2", "n2-eth", 2), ("n3", "n3", 1)], "n3 was not shown");
        assert_eq!(read(&[("SLURM_RESTART_COUNT", "2")]).unwrap().restarts, 2);
    }

    #[test]
    fn tasks_and_gpus_of_each_node() {
        type Told = Vec<(usize, usize)>;
        let cases: [(&[(&str, &str)], Told); 7] = [
            (&[("SLURM_TASKS_PER_NODE", "4(x3)")], vec![(4, 0); 3]),
            (&[("SLURM_TASKS_PER_NODE", "1,2,3")], vec![(1, 0), (2, 0), (3, 0)]),
            (&[("SLURM_TASKS_PER_NODE", "1,2(x2)"), ("SLURM_GPUS_ON_NODE", "0")], vec![(1, 0), (2, 0), (2, 0)]),
            (&[("SLURM_GPUS_PER_TASK", "1")], vec![(2, 1), (2, 1), (1, 1)]),
            (&[("SLURM_GPUS_PER_TASK", "h100:2")], vec![(2, 2), (2, 2), (1, 2)]),
            (&[("SLURM_GPUS_PER_NODE", "h100:4")], vec![(2, 2), (2, 2), (1, 4)]),
            (&[("SLURM_GPUS_ON_NODE", "2")], vec![(2, 1), (2, 1), (1, 2)]),
        ];
        for (changes, expected) in cases {
            let nodes = read(changes).unwrap().nodes;
            let seen: Told = nodes.iter().map(|node| (node.tasks, node.gpus_per_task)).collect();
            assert_eq!(seen, expected, "{changes:?}");
        }
    }

    #[test]
    fn what_no_job_has_is_refused_in_words() {
        let cases: [(&[(&str, &str)], &str); 8] = [
            (&[("SLURM_JOB_ID", "unset")], "SLURM_JOB_ID is not set"),
            (&[("SLURM_JOB_ID", "a")], "SLURM_JOB_ID is \"a\", expected a whole number"),
            (&[("SLURM_TASKS_PER_NODE", "unset")], "SLURM_TASKS_PER_NODE is not set"),
            (&[("SLURM_TASKS_PER_NODE", "2(3)")], "expected counts such as 2(x3),1"),
            (&[("SLURM_TASKS_PER_NODE", "0(x3)")], "expected counts such as 2(x3),1"),
            (&[("SLURM_TASKS_PER_NODE", "2(x2)")], "tells of 2 nodes, and the job has 3"),
            (&[("SLURM_TASKS_PER_NODE", "2(x999999999999)")], "tells of 999999999999 nodes, and the job has 3"),
            (&[("SLURM_GPUS_ON_NODE", "1")], "node n1 has 2 tasks and 1 GPUs"),
        ];
        for (changes, expected) in cases {
            let words = read(changes).unwrap_err().to_string();
            assert!(words.contains(expected), "{changes:?}: {words}");
        }
        assert!(node_list(&BTreeMap::new()).unwrap_err().to_string().contains("SLURM_JOB_NODELIST is not set"));
    }

    #[test]
    fn switches_and_blocks() {
        let shown = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n3,n7\n\
                     SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3],n7 Switches=s[0-1]\nSwitchName=a,b Level=0 Nodes=n9\n";
        let names = |shown| {
            let leaves = leaves(shown).into_iter();
            leaves.map(|(leaf, nodes)| format!("{:?} {} {nodes}", leaf.kind, leaf.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(shown), ["Switch s0 n[1-2]", "Switch s1 n3,n7"]);
        let shown =
            "BlockName=b1 BlockIndex=0 Nodes=n[1-18] BlockSize=18\nAggregatedBlock=b[1-2] BlockIndex=2 BlockSize=36";
        assert_eq!(names(shown), ["Block b1 n[1-18]"]);
        assert!(names("No topology information available\n").is_empty());
    }

    #[test]
    fn time_that_is_left() {
        let seconds = |text| time_left(text).map(|left| left.map(|left| left.as_secs()));
        for (text, expected) in [
            ("10:00\n", Some(600)),
            ("0:07", Some(7)),
            ("1:02:03", Some(3723)),
            ("2-00:00:01", Some(172_801)),
            ("UNLIMITED", None),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "7", "a:b", "1:2:3:4", "99999999999999999-00:00:00"] {
            assert!(seconds(text).is_err(), "{text:?}");
        }
    }
}
