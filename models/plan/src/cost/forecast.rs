//! When a plan will be done: its cost at the speeds of a calibrated machine. Measures nothing.

use serde::{Deserialize, Serialize};

use super::{Cost, HostCost, shape::ModelShape};

/// How fast a machine computes one model, and how fast its hosts talk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Seconds of a floating-point operation in the linear layers of phase 1, on a context host that computes alone.
    pub linear_s_per_flop: f64,
    /// Seconds of one (query row, key) pair of one head in phase 1, likewise.
    pub attention_s_per_pair: f64,
    /// Seconds that one layer of one shard takes beyond both.
    pub layer_s: f64,
    /// Context hosts of one device that encode at once without slowing each other down, at least 1. Who encodes alone has the
    /// cores of all.
    pub full_speed_hosts: f64,
    /// The same of hosts that answer in phase 2, each with its own share of the cores.
    pub full_speed_answers: f64,
    /// Seconds from the end of phase 1 to the query step.
    pub start_s: f64,
    /// The query host's part of a step of phase 2, through all layers and the head.
    pub step: StepSeconds,
    /// A context host's part, for each key it holds, through all layers.
    pub key: StepSeconds,
    /// Bytes that cross the wire in a second, one way.
    pub wire_bytes_per_s: f64,
    /// Seconds from a small question to all context hosts until the last of their small answers.
    pub round_trip_s: f64,
}

/// Seconds of something in a step of phase 2, by the step's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSeconds {
    /// With one row.
    pub one_row: f64,
    /// For each row more.
    pub further_row: f64,
}

impl StepSeconds {
    /// With so many rows, at least 1.
    pub fn of(&self, rows: usize) -> f64 {
        self.one_row + self.further_row * (rows - 1) as f64
    }
}

/// What a plan is carried out on.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// The model.
    pub shape: &'a ModelShape,
    /// Device of each host of the cost: those of one device, the cores of a machine or a GPU, share it and its memory.
    pub devices: &'a [usize],
    /// Rows of the query step, at least 1.
    pub query_tokens: usize,
}

/// When a plan will be done, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Phase 1 of each host; 0 for one without shards.
    pub hosts: Vec<f64>,
    /// Phase 1: until the slowest host is done.
    pub encode_s: f64,
    /// The query step.
    pub query_s: f64,
    /// Each token after the first.
    pub token_s: f64,
}

impl Forecast {
    /// The seconds that `cost` takes at the speeds of `calibration`. Hosts of one device slow each other down while they
    /// compute; hosts that pass each other keys are taken to wait for nothing but the slowest.
    pub fn of(cost: &Cost, on: &Conditions, calibration: &Calibration) -> Self {
        let mut hosts = at_once(on.devices, &cost.hosts, calibration.full_speed_hosts, |host| {
            calibration.encode_work(host, on.shape)
        });
        for (seconds, host) in hosts.iter_mut().zip(&cost.hosts).filter(|(_, host)| host.shards > 0) {
            *seconds += calibration.wire_s(host, on.shape);
        }
        let step = |rows| calibration.step_s(cost, on, rows);
        Self {
            encode_s: hosts.iter().copied().fold(0.0, f64::max),
            query_s: calibration.start_s + step(on.query_tokens),
            token_s: step(1),
            hosts,
        }
    }
}

impl Calibration {
    /// Seconds of phase 1 of a host that computes alone.
    fn encode_work(&self, host: &HostCost, shape: &ModelShape) -> f64 {
        let linear = host.flops - host.attention_pairs * shape.attention_flops_per_pair();
        linear as f64 * self.linear_s_per_flop
            + host.attention_pairs as f64 * self.attention_s_per_pair
            + (host.shards * shape.layers) as f64 * self.layer_s
    }

    /// Seconds that a host waits for bytes in phase 1.
    fn wire_s(&self, host: &HostCost, shape: &ModelShape) -> f64 {
        let trips = 1 + if host.exchange_bytes > 0 { shape.layers - 1 } else { 0 };
        (host.input_bytes + host.exchange_bytes) as f64 / self.wire_bytes_per_s + trips as f64 * self.round_trip_s
    }

    /// Seconds of a step of phase 2.
    fn step_s(&self, cost: &Cost, on: &Conditions, rows: usize) -> f64 {
        let answer = |host: &HostCost| host.kept_tokens as f64 * self.key.of(rows);
        let answers = at_once(on.devices, &cost.hosts, self.full_speed_answers, answer);
        let bytes: u64 = cost.hosts.iter().map(|host| host.step_bytes_per_token).sum();
        self.step.of(rows)
            + answers.into_iter().fold(0.0, f64::max)
            + on.shape.layers as f64 * self.round_trip_s
            + bytes as f64 * rows as f64 / self.wire_bytes_per_s
    }
}

/// When each host is done that starts with the others on its device and has `work` seconds of its own; `full_speed` of them at
/// once do not slow each other down.
fn at_once(devices: &[usize], hosts: &[HostCost], full_speed: f64, work: impl Fn(&HostCost) -> f64) -> Vec<f64> {
    let mut order: Vec<(f64, usize)> = hosts.iter().map(work).zip(0..).filter(|(work, _)| *work > 0.0).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut done = vec![0.0; hosts.len()];
    for (at, &(work, host)) in order.iter().enumerate() {
        let device = devices[host];
        let earlier = order[..at].iter().rev().find(|(_, other)| devices[*other] == device);
        let (worked, since) = earlier.map_or((0.0, 0.0), |&(worked, other)| (worked, done[other]));
        let busy = order[at..].iter().filter(|(_, other)| devices[*other] == device).count();
        done[host] = since + (work - worked) * (busy as f64 / full_speed).max(1.0);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Method, MethodConfig, PlanRequest};

    const FREE: Calibration = Calibration {
        linear_s_per_flop: 0.0,
        attention_s_per_pair: 0.0,
        layer_s: 0.0,
        full_speed_hosts: 4.0,
        full_speed_answers: 4.0,
        start_s: 0.0,
        step: StepSeconds { one_row: 0.0, further_row: 0.0 },
        key: StepSeconds { one_row: 0.0, further_row: 0.0 },
        wire_bytes_per_s: f64::INFINITY,
        round_trip_s: 0.0,
    };

    fn cost(method: &str, tokens: u32, hosts: usize) -> Cost {
        let context: Vec<u32> = (0..tokens).map(|token| token * 7919 % 503).collect();
        let shape = &ModelShape::TINY;
        let request = PlanRequest { context: &context, query: &[1; 16], hosts, one_device: true, shape, speeds: None };
        let method: MethodConfig = serde_json::from_str(method).unwrap();
        Cost::of(&method.plan(&request).unwrap(), shape)
    }

    fn forecast(cost: &Cost, devices: &[usize], calibration: Calibration) -> Forecast {
        Forecast::of(cost, &Conditions { shape: &ModelShape::TINY, devices, query_tokens: 16 }, &calibration)
    }

    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() <= 1e-9 * expected.abs(), "{got} is not {expected}");
    }

    #[test]
    fn each_unit_of_work_is_paid_once() {
        let shape = ModelShape::TINY;
        let dense = cost(r#"{"dense": {}}"#, 1000, 1);
        let host = &dense.hosts[0];
        let attention = host.attention_pairs * shape.attention_flops_per_pair();
        let linear = forecast(&dense, &[0], Calibration { linear_s_per_flop: 1.0, ..FREE });
        near(linear.encode_s, (host.flops - attention) as f64);
        let pairs = forecast(&dense, &[0], Calibration { attention_s_per_pair: 2.0, ..FREE });
        near(pairs.encode_s, 2.0 * host.attention_pairs as f64);
        let layers = forecast(&dense, &[0], Calibration { layer_s: 3.0, ..FREE });
        near(layers.encode_s, 3.0 * shape.layers as f64);
        let wire = forecast(&dense, &[0], Calibration { wire_bytes_per_s: 10.0, ..FREE });
        near(wire.encode_s, host.input_bytes as f64 / 10.0);
        near(wire.query_s, 16.0 * host.step_bytes_per_token as f64 / 10.0);
        let trips = forecast(&dense, &[0], Calibration { round_trip_s: 1.0, ..FREE });
        assert_eq!((trips.encode_s, trips.query_s, trips.token_s), (1.0, 4.0, 4.0));
        let start = forecast(&dense, &[0], Calibration { start_s: 5.0, ..FREE });
        assert_eq!((start.encode_s, start.query_s, start.token_s), (0.0, 5.0, 0.0));
        let step = StepSeconds { one_row: 1.0, further_row: 2.0 };
        let steps = forecast(&dense, &[0], Calibration { step, key: StepSeconds { one_row: 0.5, ..step }, ..FREE });
        assert_eq!((steps.encode_s, steps.token_s), (0.0, 1.0 + 0.5 * 1000.0));
        near(steps.query_s, 31.0 + (0.5 + 30.0) * 1000.0);
    }

    #[test]
    fn hosts_of_one_device_share_it() {
        let star = cost(r#"{"star": {"shared_prefix": false}}"#, 4000, 4);
        let linear = |full_speed_hosts| Calibration { linear_s_per_flop: 1e-9, full_speed_hosts, ..FREE };
        let alone = forecast(&star, &[0, 1, 2, 3], linear(1.0));
        let shared = forecast(&star, &[0; 4], linear(2.0));
        near(alone.hosts[3], forecast(&star, &[0; 4], linear(4.0)).hosts[3]);
        // The first shard has no anchor: half the work. While it lasts each of the four has half the speed.
        near(alone.hosts[0] * 2.0, alone.hosts[1]);
        near(shared.hosts[0], 2.0 * alone.hosts[0]);
        near(shared.hosts[3], 2.0 * alone.hosts[0] + 1.5 * (alone.hosts[3] - alone.hosts[0]));
        near(shared.encode_s, shared.hosts[1]);
        // All the work is done at the full speed of two hosts as long as two are busy.
        near(forecast(&star, &[0, 0, 1, 1], linear(1.0)).hosts[3], 2.0 * alone.hosts[3]);
    }

    #[test]
    fn hosts_without_shards_take_no_time() {
        let dense = cost(r#"{"dense": {}}"#, 1000, 3);
        let all = Calibration { linear_s_per_flop: 1.0, round_trip_s: 1.0, wire_bytes_per_s: 1.0, ..FREE };
        let forecast = forecast(&dense, &[0; 3], all);
        assert_eq!(forecast.hosts.iter().filter(|seconds| **seconds > 0.0).count(), 1);
        assert_eq!(forecast.encode_s, forecast.hosts.iter().sum::<f64>());
    }

    #[test]
    fn keys_that_pass_cost_time_in_every_layer() {
        let ring = cost(r#"{"ring": {"layout": "contiguous"}}"#, 4000, 4);
        let wire = forecast(&ring, &[0; 4], Calibration { wire_bytes_per_s: 1.0, round_trip_s: 1.0, ..FREE });
        let last = &ring.hosts[3];
        near(wire.hosts[3], (last.input_bytes + last.exchange_bytes) as f64 + ModelShape::TINY.layers as f64);
    }
}
