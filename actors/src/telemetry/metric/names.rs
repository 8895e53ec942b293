//! Every metric by name, with its help text. Counts nothing.

/// Declares a metric name with its help text.
macro_rules! names {
    ($($(#[doc = $help:literal])+ $constant:ident = $name:literal;)+) => {
        $($(#[doc = $help])+ pub const $constant: &str = concat!("asterism_", $name);)+
        /// Every name with its help text.
        pub const ALL: &[(&str, &str)] = &[$(($constant, concat!($($help),+))),+];
    };
}

names! {
    /// Jobs that run.
    REQUESTS_RUNNING = "requests_running";
    /// Jobs that wait.
    REQUESTS_WAITING = "requests_waiting";
    /// Most jobs that may wait, and most sessions.
    REQUESTS_WAITING_LIMIT = "requests_waiting_limit";
    /// Jobs that ended with an answer, by reason.
    REQUEST_SUCCESS = "request_success_total";
    /// Jobs that their users cancelled.
    REQUESTS_CANCELLED = "requests_cancelled_total";
    /// Requests of the admin API that were refused, by error code.
    REQUESTS_REFUSED = "requests_refused_total";
    /// Jobs that failed, by error code.
    REQUESTS_FAILED = "requests_failed_total";
    /// Context and query tokens of answered jobs.
    PROMPT_TOKENS = "prompt_tokens_total";
    /// Tokens generated.
    GENERATION_TOKENS = "generation_tokens_total";
    /// Seconds from submission to the first token.
    TIME_TO_FIRST_TOKEN = "time_to_first_token_seconds";
    /// Seconds from one token of an answer to the next, each for itself, on the query host.
    INTER_TOKEN_LATENCY = "inter_token_latency_seconds";
    /// Seconds from submission to the end.
    E2E_REQUEST_LATENCY = "e2e_request_latency_seconds";
    /// Seconds from submission to the start of work.
    REQUEST_QUEUE_TIME = "request_queue_time_seconds";
    /// Seconds of phase 1 and the query step.
    REQUEST_PREFILL_TIME = "request_prefill_time_seconds";
    /// Seconds of decoding.
    REQUEST_DECODE_TIME = "request_decode_time_seconds";
    /// Context and query tokens of a job.
    REQUEST_PROMPT_TOKENS = "request_prompt_tokens";
    /// Seconds of phase 1 of one shard.
    PHASE1_SHARD_ENCODE = "phase1_shard_encode_seconds";
    /// Seconds in which hosts computed in phase 1, by method.
    PHASE1_COMPUTING = "phase1_computing_seconds";
    /// Seconds of phase 1 in which hosts waited for what others pass them, or for their turn, by method.
    PHASE1_WAITING = "phase1_waiting_seconds";
    /// Tokens run through the model in phase 1, prefixes included.
    PHASE1_TOKENS = "phase1_tokens_total";
    /// Tokens of blocks that were not encoded, since a host held the same already.
    PHASE1_CACHED_TOKENS = "phase1_cached_tokens_total";
    /// Contexts of jobs that were encoded, by how much of them hosts held already: all, part or none.
    CONTEXTS_REUSED = "contexts_reused_total";
    /// Seconds of a step of phase 2 on the query host: the query or a token through every layer, to the next token's choice.
    PHASE2_STEP = "phase2_step_seconds";
    /// Seconds that the query host waits in a layer of phase 2 for the slowest context host, its own attention being done.
    PHASE2_LAYER_WAIT = "phase2_layer_wait_seconds";
    /// Seconds that the query host merges partials in a layer of phase 2.
    PHASE2_MERGE = "phase2_merge_seconds";
    /// Seconds that a token of an answer that is held to a form waits on the query host to know which tokens may come; most of that is computed while the model takes its step.
    PHASE2_MASK = "phase2_mask_seconds";
    /// Guesses of tokens that steps of phase 2 brought along, by query host.
    SPEC_DECODE_DRAFT_TOKENS = "spec_decode_num_draft_tokens_total";
    /// Guesses of tokens that were right, by query host: tokens beyond one of each step.
    SPEC_DECODE_ACCEPTED_TOKENS = "spec_decode_num_accepted_tokens_total";
    /// Seconds in which a host's present process computed answers for query hosts in phase 2, as it last told.
    PHASE2_ANSWERING = "phase2_answering_seconds";
    /// Share of dense attention's pairs that phase 1 of the latest job did not compute, by method; 0 where it computed more.
    ATTENTION_SPARSITY = "attention_sparsity_ratio";
    /// Bytes of keys and values a host holds.
    KV_CACHE_BYTES = "kv_cache_bytes";
    /// Bytes of keys and values of shards that nobody asks for any more, which a host keeps while there is room.
    KV_IDLE_BYTES = "kv_idle_bytes";
    /// Bytes of the weights that a host needs.
    HOST_WEIGHTS_BYTES = "host_weights_bytes";
    /// Most bytes of weights, keys and values that a host may hold, where that is limited.
    HOST_MEMORY_LIMIT_BYTES = "host_memory_limit_bytes";
    /// Bytes in memory of a host's process, as it last told.
    HOST_RESIDENT_BYTES = "host_process_resident_memory_bytes";
    /// Seconds of CPU that a host's present process has taken, as it last told.
    HOST_CPU_SECONDS = "host_process_cpu_seconds";
    /// Threads of a host's process, as it last told.
    HOST_THREADS = "host_process_threads";
    /// Bytes of the memory of a host's GPU, used by whomever or free, as it last told.
    GPU_MEMORY_BYTES = "gpu_memory_bytes";
    /// Part of the time just past in which a GPU of a node's machine computed, as the node's agent last told.
    GPU_BUSY = "gpu_busy_ratio";
    /// Bytes of the memory of a GPU of a node's machine, used by whomever or free, as the node's agent last told.
    GPU_DEVICE_MEMORY_BYTES = "gpu_device_memory_bytes";
    /// Temperature of a GPU of a node's machine, as the node's agent last told.
    GPU_TEMPERATURE = "gpu_temperature_celsius";
    /// Clocks of a GPU of a node's machine, of its processors and its memory, as the node's agent last told.
    GPU_CLOCK = "gpu_clock_hertz";
    /// Errors of the memory of a GPU of a node's machine since its driver was loaded, by whether they were corrected.
    GPU_ECC_ERRORS = "gpu_ecc_errors";
    /// Faults of a GPU of a node's machine that its driver calls Xid, since the node's agent began.
    GPU_XIDS = "gpu_xids";
    /// When the latest Xid of a GPU of a node's machine came, in seconds since 1970, by its number.
    GPU_LAST_XID = "gpu_last_xid_timestamp_seconds";
    /// Seconds that the clock of a host's machine is ahead of the supervisor's, as it last told.
    HOST_CLOCK_OFFSET = "host_clock_offset_seconds";
    /// Bytes of the file system of the supervisor's data_dir.
    DISK_SIZE_BYTES = "disk_size_bytes";
    /// Of these, those that it may still fill.
    DISK_FREE_BYTES = "disk_free_bytes";
    /// 1 while a job for a model would be planned and answered.
    MODEL_ANSWERS = "model_answers";
    /// How many times longer than its equals, or than before, a host takes to compute; 1 while it is not slow.
    HOST_SLOWDOWN = "host_slowdown_ratio";
    /// 1 while a host is ready.
    HOST_UP = "host_up";
    /// Seconds since a host's last message.
    HOST_HEARTBEAT_AGE = "host_heartbeat_age_seconds";
    /// Seconds of silence after which a host is declared dead.
    HOST_DEAD_AFTER = "host_dead_after_seconds";
    /// Hosts declared dead, by reason.
    HOST_FAILURES = "host_failures_total";
    /// Times that a host's process was started again.
    HOST_RESTARTS = "host_restarts_total";
    /// Shards encoded again after a loss: those that were lost, and those that were encoded together with them.
    SHARD_REENCODES = "shard_reencodes_total";
    /// Shards that moved from a host that lives, by how: transferred as they lay, or encoded anew.
    SHARDS_MOVED = "shards_moved_total";
    /// Times that a job or a session went on, on hosts whose results differ in their last bits.
    NUMERICS_MIXED = "numerics_mixed_total";
    /// Seconds from a loss to the next token or encoded context.
    RECOVERY_DURATION = "recovery_duration_seconds";
    /// Sessions, by state.
    SESSIONS = "sessions";
    /// Bytes of keys and values that sessions pin on all hosts.
    SESSION_PINNED_BYTES = "session_pinned_bytes";
    /// Most bytes that sessions may pin, where that is limited.
    SESSION_PINNED_LIMIT_BYTES = "session_pinned_limit_bytes";
    /// Questions to sessions.
    SESSION_HITS = "session_hits_total";
    /// Bytes of frames that a process sent and received, by direction; the supervisor's own has that for its host.
    TRANSPORT_BYTES = "transport_bytes_total";
    /// Smoothed round trip of a host's link to the supervisor, and the longest of its links to other hosts, as it last told.
    TRANSPORT_RTT = "transport_rtt_seconds";
    /// Links to other hosts that a host opened and that are up, by the transport that carries them.
    TRANSPORT_LINKS = "transport_links";
    /// Links that a host opened by another way than the best that either end has, since its process started; `status` says why.
    TRANSPORT_FALLBACKS = "transport_fallbacks_total";
    /// Links that a host opened in the place of one it had lost, since its process started.
    TRANSPORT_RECONNECTS = "transport_reconnects_total";
    /// Peers that a process refused, by reason; the supervisor's own has that for its host.
    TRANSPORT_REJECTS = "transport_rejects_total";
    /// Spans that a process could not give to the collector, since that was not there or too slow; the supervisor's own has that for its host.
    SPANS_DROPPED = "spans_dropped_total";
    /// When a process's certificate ends, in seconds since 1970.
    CERTIFICATE_EXPIRY = "certificate_expiry_timestamp_seconds";
    /// Self-tests that ended, by result: passed, wrong, or undone where not everything could be tried.
    SELF_TESTS = "self_tests_total";
    /// 1 while the cluster takes no work because a self-test has to pass first, or found it wrong.
    SELF_TEST_CLOSED = "self_test_closed";
    /// Always 1; its labels say what runs.
    BUILD_INFO = "build_info";
    /// Always 1; its labels say what the supervisor was told to run.
    CONFIG_INFO = "config_info";
}
