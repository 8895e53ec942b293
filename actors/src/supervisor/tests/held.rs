//! What was accepted before a self-test that has to pass: it waits, and the test's own jobs do not.

use super::*;
use crate::api::Waiting;

/// Submits a job of the cluster's own test.
fn canary(cluster: &mut Cluster) -> u64 {
    let context = prepared_of(&cluster.state.config().method.clone(), cluster.contexts(), 40, &[1]);
    let mut asked = job(Source::Context(context), None);
    asked.question.canary = true;
    let fresh = cluster.state.number();
    let (number, decided) = cluster.state.submit(seconds(cluster.now), fresh, asked).expect("it goes before others");
    cluster.adopt(decided);
    number
}

#[test]
fn accepted_jobs_wait_for_the_self_test_and_its_canaries_do_not() {
    // One was being encoded when the supervisor ended, others wait: the queue is full, and so is what may run.
    let mut cluster = Cluster::ready(config(2, 0));
    let jobs: Vec<u64> = (0..3).map(|_| cluster.submit(None)).collect();
    cluster.restart();
    cluster.state.hold_back(true);
    (0..cluster.state.config().hosts.len()).for_each(|at| cluster.join(at, 2));
    cluster.encode();
    cluster.tick(1.0, &[101, 102, 103]);
    assert!(cluster.generation().is_none(), "nothing is generated");
    for &job in &jobs {
        let status = cluster.status(job);
        assert_eq!((status.generated_tokens, status.waiting), (0, Some(Waiting::SelfTest)));
    }
    let number = canary(&mut cluster);
    assert!(!cluster.encode().is_empty(), "it is encoded");
    let (host, order) = cluster.generation().expect("and answered");
    assert_eq!(order.job, number);
    cluster.token(host, number, 0, 7);
    assert_eq!(cluster.status(number).tokens, [7]);
    cluster.state.hold_back(false);
    cluster.tick(1.5, &[101, 102, 103]);
    cluster.encode();
    let (_, order) = cluster.generation().expect("the first goes on");
    assert_eq!(order.job, jobs[0]);
}
