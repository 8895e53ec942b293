//! A cluster that is not there: its supervisor's state machine as it runs, and hosts that do nothing but take the time that the
//! cost model says. What fails, and when, a seed decides; the same seed gives the same run. No socket, no thread, no tensor.

mod chart;
mod hosts;
mod room;
mod run;
mod work;

pub use chart::svg;
pub use room::{Pace, Room};
pub use run::{Asked, Happened, LostHost, Run, Simulation, Stage};
pub use work::{prepared, sweep};

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc, time::Duration};

    use asterism_actors::api::JobState;
    use asterism_plan::MethodConfig;

    use super::*;
    use crate::{
        cluster::{Cluster, sample::sample},
        processes::{checkpoint, wiring},
    };

    /// The sample's cluster with so many context hosts, of a Tflop/s each.
    fn room(hosts: usize) -> Room {
        let cluster = Cluster::resolve(&sample(), Path::new(".")).unwrap();
        let front = Arc::new(checkpoint::model_front(&cluster.model).unwrap());
        let config = wiring::supervisor_config(&cluster, std::slice::from_ref(&front));
        let shape = front.config.shape(config.first_model().kv);
        let mut room = Room { config, speeds: Pace { flops_per_s: 1e12 }.speeds(&shape), shape };
        room.grow(hosts);
        room
    }

    fn simulated(room: &Room, method: &str, tokens: u32, failures: usize, seed: u64) -> Run {
        let method: MethodConfig = serde_json::from_str(method).unwrap();
        let ids = (0..tokens).map(|at| at.wrapping_mul(2_654_435_761) % 5000).collect();
        let context = prepared(ids, &method, room).unwrap();
        let asked = Asked { query_tokens: 8, answer_tokens: 4, failures, seed };
        let mut simulation = Simulation::new(room, &context, &asked);
        let decided = simulation.submit(context, &asked).unwrap();
        simulation.place(decided);
        simulation.run(Duration::from_secs(3600), |_| {})
    }

    #[test]
    fn hosts_that_fail_are_made_good_and_the_answer_comes() {
        let room = room(24);
        // Behind a shared prefix each loss has others begin again: of several at once the bound of one says nothing.
        for (method, failures) in
            [(r#"{"star": {"anchor_tokens": 512}}"#, 3), (r#"{"pulsar": {"shared_prefix": true}}"#, 1)]
        {
            for seed in 1..4 {
                let run = simulated(&room, method, 400_000, failures, seed);
                assert_eq!(
                    run.ended.map(|(_, state)| state),
                    Some(JobState::Succeeded),
                    "{method} {seed}: {:?}",
                    run.timeline
                );
                assert_eq!(run.failures.len(), failures, "{method} {seed}");
                assert!(run.failures.iter().all(LostHost::is_within_bound), "{method} {seed}: {:?}", run.failures);
                assert!(run.failures.iter().any(|failure| failure.shards > 0), "{method} {seed}");
            }
        }
    }

    #[test]
    fn a_seed_gives_one_run() {
        let room = room(12);
        let run = |seed| simulated(&room, r#"{"star": {"anchor_tokens": 512}}"#, 100_000, 2, seed);
        let (one, again, other) = (run(5), run(5), run(6));
        assert_eq!((one.timeline.clone(), one.failures, one.events), (again.timeline, again.failures, again.events));
        assert_ne!(one.timeline, other.timeline);
    }

    #[test]
    fn without_failures_phase_1_takes_what_the_plan_says() {
        let room = room(8);
        let run = simulated(&room, r#"{"star": {"anchor_tokens": 512}}"#, 100_000, 0, 1);
        let slowest = run.stretches.iter().map(|stretch| stretch.to_s).fold(0.0, f64::max);
        assert_eq!(run.stretches.len(), 8, "a shard each");
        assert!((run.encoded_s.unwrap() - slowest).abs() < 1e-9);
        let picture = svg(&run, &[], &[(50_000, 1e-6), (100_000, 1e-6)]);
        assert!(picture.starts_with("<svg") && picture.contains("8 hosts"), "{picture}");
    }

    #[test]
    fn hosts_of_a_room_are_on_nodes_racks_and_islands_of_their_own() {
        let mut room = room(4);
        room.config.hosts[0].labels.insert("rack".into(), "a".into());
        room.config.hosts[0].labels.insert("disk".into(), "fast".into());
        room.grow(9);
        let of = |at: usize| (room.config.hosts[at].name.as_str(), room.config.hosts[at].node.as_str());
        assert_eq!(
            [of(0), of(4), of(8)],
            [("context-0", "local"), ("context-0.1", "local.1"), ("context-0.2", "local.2")]
        );
        let labels = &room.config.hosts[8].labels;
        assert_eq!((labels["rack"].as_str(), labels["disk"].as_str()), ("a.2", "fast"));
        assert_eq!(room.config.hosts.len(), 10, "and the query host");
    }
}
