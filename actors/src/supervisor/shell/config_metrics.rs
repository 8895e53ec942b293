//! What a supervisor runs, as metrics say it from its start on.

use metrics::{counter, gauge};

use crate::{
    metric::{
        CONFIG_INFO, HOST_DEAD_AFTER, HOST_MEMORY_LIMIT_BYTES, HOST_RESTARTS, HOST_WEIGHTS_BYTES, PHASE1_CACHED_TOKENS,
        REJECTIONS, REQUESTS_WAITING_LIMIT, SESSION_PINNED_LIMIT_BYTES, SPANS_DROPPED, SUPERVISOR_LABEL,
        TRANSPORT_REJECTS, owned, start_at_zero,
    },
    supervisor::config::SupervisorConfig,
};

/// Says what a supervisor runs.
pub fn record_config(config: &SupervisorConfig) {
    let labels = [
        ("cluster", config.cluster.clone()),
        ("model", config.first_model().name.clone()),
        ("dtype", format!("{:?}", config.first_model().kv.computed).to_lowercase()),
        ("method", config.method.name().to_string()),
        ("recovery", format!("{:?}", config.recovery).to_lowercase()),
    ];
    gauge!(CONFIG_INFO, &labels).set(1.0);
    for host in &config.hosts {
        let of_host = |name: &'static str, bytes: u64| gauge!(name, "host" => host.name.clone()).set(bytes as f64);
        of_host(HOST_WEIGHTS_BYTES, host.weight_bytes);
        host.memory_limit.into_iter().for_each(|limit| of_host(HOST_MEMORY_LIMIT_BYTES, limit));
        for name in [HOST_RESTARTS, PHASE1_CACHED_TOKENS, SPANS_DROPPED] {
            counter!(name, "host" => host.name.clone()).increment(0);
        }
    }
    gauge!(REQUESTS_WAITING_LIMIT).set(config.max_queue as f64);
    gauge!(HOST_DEAD_AFTER).set(config.liveness.dead_after.as_secs_f64());
    config.sessions.max_pinned_bytes.into_iter().for_each(|most| gauge!(SESSION_PINNED_LIMIT_BYTES).set(most as f64));
    start_at_zero();
    let processes = config.hosts.iter().map(|host| host.name.as_str()).chain([SUPERVISOR_LABEL]);
    for (host, reason) in processes.flat_map(|host| REJECTIONS.iter().map(move |reason| (host, *reason))) {
        counter!(TRANSPORT_REJECTS, &[("host", host), ("reason", reason)].map(owned)).increment(0);
    }
}
