//! The hosts of a simulated cluster: those of the file, as often as needed. Starts nothing.

use std::collections::BTreeMap;

use asterism_actors::{
    api::Role,
    supervisor::{HostSpec, ISLAND_LABEL, RACK_LABEL, SupervisorConfig},
};
use asterism_plan::{Calibration, ModelShape, StepSeconds};

/// Seconds of a small message from one machine to another, where nothing was measured.
const TRIP_S: f64 = 50e-6;
/// Bytes in a second of a link, where nothing was measured: of 100 Gbit/s.
const WIRE_BYTES_PER_S: f64 = 12.5e9;

/// Where a simulation happens.
#[derive(Clone, Debug)]
pub struct Room {
    /// What the supervisor is configured with.
    pub config: SupervisorConfig,
    /// The model.
    pub shape: ModelShape,
    /// How fast hosts are.
    pub speeds: Calibration,
}

/// How fast a host is, where nobody measured it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Floating-point operations in a second.
    pub flops_per_s: f64,
}

impl Pace {
    /// What a calibration would say of hosts of this pace, each with a machine's share of its own.
    pub fn speeds(self, shape: &ModelShape) -> Calibration {
        let flop_s = 1.0 / self.flops_per_s;
        let step = shape.step_flops_per_token() as f64 * flop_s;
        Calibration {
            linear_s_per_flop: flop_s,
            attention_s_per_pair: shape.attention_flops_per_pair() as f64 * flop_s,
            layer_s: TRIP_S,
            full_speed_hosts: f64::INFINITY,
            full_speed_answers: f64::INFINITY,
            start_s: TRIP_S,
            step: StepSeconds { one_row: step, further_row: step },
            key: StepSeconds::default(),
            wire_bytes_per_s: WIRE_BYTES_PER_S,
            round_trip_s: 2.0 * TRIP_S,
        }
    }
}

impl Room {
    /// With so many context hosts: those of the file, then again on further nodes, in further racks and islands.
    pub fn grow(&mut self, count: usize) {
        let (contexts, others): (Vec<HostSpec>, Vec<HostSpec>) =
            self.config.hosts.drain(..).partition(|host| host.role == Role::Context);
        let again = |at: usize| copy(&contexts[at % contexts.len()], at / contexts.len());
        self.config.hosts = (0..count).map(again).chain(others).collect();
    }

    /// Context hosts that encode on one node, by node.
    pub fn crowds(&self) -> BTreeMap<&str, usize> {
        let mut crowds = BTreeMap::new();
        for host in self.config.hosts.iter().filter(|host| host.role == Role::Context) {
            *crowds.entry(host.node.as_str()).or_default() += 1;
        }
        crowds
    }
}

/// A host of the file the first time, and its like on another node later.
fn copy(host: &HostSpec, time: usize) -> HostSpec {
    let again = |name: &str| if time == 0 { name.to_owned() } else { format!("{name}.{time}") };
    let label = |(key, value): (&String, &String)| match key.as_str() {
        ISLAND_LABEL | RACK_LABEL => (key.clone(), again(value)),
        _ => (key.clone(), value.clone()),
    };
    let labels = host.labels.iter().map(label).collect();
    HostSpec { name: again(&host.name), node: again(&host.node), labels, ..host.clone() }
}
