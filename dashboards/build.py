#!/usr/bin/env python3
"""Writes the Grafana dashboards of this folder from the panels below; `--check` only says which would change.

    dashboards/build.py [--check]

A panel is a title, what it shows in a sentence, its unit, and its expressions with what Grafana writes beside each line. `ASTERISM`
in an expression is the selector of the chosen supervisors. Python's standard library alone.
"""

import json
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).parent
SCHEMA_VERSION = 42
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'instance=~"$instance"'
# Between these stands a table in README.md that this writes.
TABLE = ("<!-- panels -->", "<!-- end of panels -->")
# Colours of thresholds.
GREEN, ORANGE, RED = "green", "orange", "red"


def quantiles(metric, extra=""):
    """Its 50th, 90th and 99th percentile."""
    name = f"asterism_{metric}_bucket"
    of = f"sum by (le) (rate({name}{{ASTERISM{extra}}}[$__rate_interval]))"
    return [(f"histogram_quantile({share}, {of})", label) for share, label in
            [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")]]


def mean(metric, by):
    """Its mean, by a label."""
    part = lambda suffix: f"sum by ({by}) (rate(asterism_{metric}_{suffix}{{ASTERISM}}[$__rate_interval]))"
    return [(f"{part('sum')} / {part('count')}", "{{" + by + "}}")]


def rate(metric, by, label=None, extra=""):
    of = f"rate(asterism_{metric}{{ASTERISM{extra}}}[$__rate_interval])"
    return (f"sum by ({by}) ({of})", label or "{{" + by + "}}") if by else (f"sum({of})", label)


def now(metric, by, label=None, extra=""):
    of = f"asterism_{metric}{{ASTERISM{extra}}}"
    return (f"sum by ({by}) ({of})", label or "{{" + by + "}}") if by else (f"sum({of})", label)


def happened(metric, by, label=None, over="$__rate_interval"):
    of = f"increase(asterism_{metric}{{ASTERISM}}[{over}])"
    return (f"sum by ({by}) ({of})", label or "{{" + by + "}}") if by else (f"sum({of})", label)


def gpus(metric, by="", label="", each="{of}"):
    """What agents tell of GPUs, by node and place; a cluster without any has one that is called none."""
    of = each.format(of=f"asterism_{metric}{{ASTERISM}}")
    by = ", ".join(["node", "gpu", *by.split()])
    return (f'max by ({by}) ({of}) or label_replace(0 * max(asterism_build_info{{ASTERISM}}), "gpu", "none", "", "")',
            "{{node}} {{gpu}}" + label)


def those(metric, by):
    """What happened by a label of many values, without those of which nothing did; none of them is something too."""
    of = happened(metric, by)[0]
    return (f'topk(8, {of} > 0) or label_replace(0 * {happened(metric, None)[0]}, "{by}", "none", "", "")', "{{" + by + "}}")


# (kind, title, what it shows, unit, expressions, settings)
OVERVIEW = [
    ("stat", "Hosts ready", "Hosts that are ready, of those in the cluster file.", "percentunit",
     [("avg(asterism_host_up{ASTERISM})", "ready")], {"steps": [(None, RED), (0.99, ORANGE), (1, GREEN)]}),
    ("stat", "Running", "Jobs that run now.", "short", [now("requests_running", None, "running")], {}),
    ("stat", "Waiting", "Jobs that wait for their turn now.", "short", [now("requests_waiting", None, "waiting")], {}),
    ("stat", "Answered a minute", "Jobs that ended with an answer, a minute.", "short",
     [("60 * " + rate("request_success_total", None)[0], "answered")], {"decimals": 1}),
    ("stat", "Failed in an hour", "Jobs that failed within the last hour.", "short",
     [happened("requests_failed_total", None, "failed", "1h")], {"steps": [(None, GREEN), (0.5, RED)], "decimals": 0}),
    ("stat", "Tokens a second", "Tokens generated, a second.", "short",
     [rate("generation_tokens_total", None, "generated")], {"decimals": 1}),
    ("lines", "Requests", "Jobs that ended, by how, and requests refused before they became jobs.", "reqps",
     [rate("request_success_total", "finished_reason", "answered, {{finished_reason}}"),
      rate("requests_failed_total", None, "failed"), rate("requests_cancelled_total", None, "cancelled"),
      rate("requests_refused_total", None, "refused")], {}),
    ("lines", "Running and waiting", "Jobs that run and wait, and the most that may wait before requests are refused.", "short",
     [now("requests_running", None, "running"), now("requests_waiting", None, "waiting"),
      now("requests_waiting_limit", None, "most that may wait")], {"log": True}),
    ("lines", "Queue wait", "From submission to the start of work.", "s", quantiles("request_queue_time_seconds"), {}),
    ("lines", "Time to first token", "From submission to the first token: waiting, phase 1 and the question's step.", "s",
     quantiles("time_to_first_token_seconds"), {}),
    ("lines", "Request time", "From submission to the end.", "s", quantiles("e2e_request_latency_seconds"), {}),
    ("lines", "Time between tokens", "From one token of an answer to the next, on the query host.", "s",
     quantiles("inter_token_latency_seconds"), {}),
    ("lines", "Tokens", "Tokens of prompts of answered jobs and tokens generated, a second.", "short",
     [rate("prompt_tokens_total", None, "prompt"), rate("generation_tokens_total", None, "generated")], {"log": True}),
    ("heatmap", "Prompt lengths", "Context and question tokens of answered jobs: how many of which length.", "short",
     [("sum by (le) (increase(asterism_request_prompt_tokens_bucket{ASTERISM}[$__rate_interval]))", "{{le}}")], {}),
    ("lines", "Requests answered from sessions", "Share of answered jobs that asked a session, whose context was encoded before.",
     "percentunit",
     [("sum(rate(asterism_session_hits_total{ASTERISM}[5m])) / "
       "(sum(rate(asterism_request_success_total{ASTERISM}[5m])) > 0)", "from sessions")], {"max": 1}),
    ("lines", "Sessions", "Sessions by state.", "short", [now("sessions", "state")], {"stack": True}),
    ("lines", "Prefill by method", "Mean seconds of phase 1 and the question's step, by method.", "s",
     mean("request_prefill_time_seconds", "method"), {}),
    ("lines", "Decoding by method", "Mean seconds of decoding, by method.", "s", mean("request_decode_time_seconds", "method"), {}),
]

PHASES = [
    ("lines", "Shard encoding by host", "Mean seconds that a host encodes a shard.", "s",
     mean("phase1_shard_encode_seconds", "host"), {}),
    ("lines", "Stragglers", "How many times longer than its equals, or than before, a host takes to compute; 1 while it is not "
     "slow. Time that it waits for others does not count.", "none",
     [("max by (host) (asterism_host_slowdown_ratio{ASTERISM})", "{{host}}")], {"steps": [(None, "transparent"), (1.5, RED)]}),
    ("lines", "Computing in phase 1", "Seconds a second in which a host computes shards.", "s",
     [("sum by (host) (rate(asterism_phase1_computing_seconds{ASTERISM}[$__rate_interval]))", "{{host}}")], {"stack": True}),
    ("lines", "Waiting in phase 1", "Seconds a second in which a host's shards wait for what others pass them, or for their turn.", "s",
     [("sum by (host) (rate(asterism_phase1_waiting_seconds{ASTERISM}[$__rate_interval]))", "{{host}}")], {"stack": True}),
    ("lines", "Answering in phase 2", "Seconds a second in which a host computes answers for query hosts.", "s",
     [("sum by (host) (rate(asterism_phase2_answering_seconds{ASTERISM}[$__rate_interval]))", "{{host}}")], {"stack": True}),
    ("lines", "Phase 1 tokens by host", "Tokens run through the model in phase 1, prefixes included, a second.", "short",
     [rate("phase1_tokens_total", "host")], {}),
    ("lines", "Phase 1 tokens not encoded", "Tokens of blocks that a host held the same already, a second.", "short",
     [rate("phase1_cached_tokens_total", "host")], {}),
    ("lines", "Contexts held already", "Contexts of jobs, a second, by how much of them hosts held when they were asked about: chats go on "
     "with what they had.", "short", [rate("contexts_reused_total", "held")], {"stack": True}),
    ("lines", "Shard encoding", "Seconds that a shard takes, over all hosts and methods.", "s",
     quantiles("phase1_shard_encode_seconds"), {}),
    ("lines", "Shard encoding by method", "Mean seconds of a shard, by method.", "s",
     mean("phase1_shard_encode_seconds", "method"), {}),
    ("lines", "Pairs not computed", "Share of dense attention's pairs that phase 1 of the latest job left out, by method.",
     "percentunit", [("max by (method) (asterism_attention_sparsity_ratio{ASTERISM})", "{{method}}")], {"max": 1}),
    ("lines", "Phase 2 step", "The question or a token through every layer, to the choice of the next token.", "s",
     quantiles("phase2_step_seconds"), {}),
    ("lines", "Wait in a layer", "The query host's wait in a layer for the slowest context host, its own attention being done.", "s",
     quantiles("phase2_layer_wait_seconds"), {}),
    ("lines", "Tokens guessed", "Guesses of tokens that steps took along, and those that were right, a second.", "short",
     [(rate("spec_decode_num_draft_tokens_total", None)[0], "guessed"),
      (rate("spec_decode_num_accepted_tokens_total", None)[0], "right")], {}),
    ("lines", "Merge in a layer", "The query host's merging of partials in a layer.", "s", quantiles("phase2_merge_seconds"), {}),
    ("lines", "Masks of forms", "For a token of an answer that is held to a form: which tokens may come.", "s",
     quantiles("phase2_mask_seconds"), {}),
    ("lines", "Where phase 2 goes", "Seconds of phase 2 a second, by what the query hosts do: wait for context hosts, merge, or "
     "compute on their own.", "s",
     [(rate("phase2_layer_wait_seconds_sum", None)[0], "wait"), (rate("phase2_merge_seconds_sum", None)[0], "merge"),
      (f"{rate('phase2_step_seconds_sum', None)[0]} - {rate('phase2_layer_wait_seconds_sum', None)[0]} - "
       f"{rate('phase2_merge_seconds_sum', None)[0]}", "compute")], {"stack": True}),
]

CLUSTER = [
    ("states", "Hosts", "Ready or not, by host.", "none", [("asterism_host_up{ASTERISM}", "{{host}}")], {"wide": True}),
    ("lines", "Models", "1 while a job for a model would be planned and answered.", "short", [now("model_answers", "model")], {"max": 1}),
    ("lines", "Heartbeat age", "Seconds since a host was last heard, and after how many it is dead.", "s",
     [("max by (host) (asterism_host_heartbeat_age_seconds{ASTERISM})", "{{host}}"),
      ("max(asterism_host_dead_after_seconds{ASTERISM})", "dead after")], {"log": True}),
    ("lines", "Hosts lost", "Hosts declared dead, by reason.", "short", [happened("host_failures_total", "reason")],
     {"bars": True}),
    ("lines", "Restarts", "Times that a host's process was started again.", "short", [happened("host_restarts_total", "host")],
     {"bars": True}),
    ("lines", "Shards encoded again", "After a loss: those that were lost, and those encoded together with them.", "short",
     [happened("shard_reencodes_total", "reason")], {"bars": True}),
    ("lines", "Shards moved", "From hosts that drain, restart or have too many: transferred as they lay, or encoded anew.", "short",
     [happened("shards_moved_total", "how")], {"bars": True}),
    ("lines", "Recovery", "From a loss to the next token or encoded context, within the last hour.", "s",
     [(f"histogram_quantile({share}, sum by (le) (increase(asterism_recovery_duration_seconds_bucket{{ASTERISM}}[1h])))", label)
      for share, label in [(0.5, "p50"), (0.99, "p99")]], {}),
    ("lines", "Failed jobs", "Jobs that failed, by code.", "short",
     [those("requests_failed_total", "error_type")], {"bars": True}),
    ("lines", "Refused requests", "Requests of the API that were refused, by code: `overloaded` and `capacity_exhausted` are the "
     "cluster's, the others the client's.", "short",
     [those("requests_refused_total", "error_type")], {"bars": True}),
    ("lines", "Sessions", "Sessions by state.", "short", [now("sessions", "state")], {"stack": True}),
    ("lines", "Pinned by sessions", "Bytes of keys and values that sessions pin, and the limit where one is set.", "bytes",
     [now("session_pinned_bytes", None, "pinned"), now("session_pinned_limit_bytes", None, "limit")], {}),
    ("lines", "Keys and values", "Bytes of keys and values that a host holds.", "bytes",
     [("sum by (host) (asterism_kv_cache_bytes{ASTERISM})", "{{host}}")], {"stack": True}),
    ("lines", "Kept for nobody", "Bytes of keys and values of shards that nobody asks for any more, which a host keeps while there is room.",
     "bytes", [now("kv_idle_bytes", "host")], {"stack": True}),
    ("lines", "Memory against its limit", "Weights, keys and values of a host as a share of its limit, where one is set.",
     "percentunit",
     [("sum by (host) (asterism_kv_cache_bytes{ASTERISM} + on (instance, host) group_left () asterism_host_weights_bytes{ASTERISM}) "
       "/ sum by (host) (asterism_host_memory_limit_bytes{ASTERISM})", "{{host}}")], {"max": 1}),
    ("lines", "Certificates", "Days until the certificate of a process ends. They are renewed 30 days before.", "d",
     [("(max by (host) (asterism_certificate_expiry_timestamp_seconds{ASTERISM}) - time()) / 86400", "{{host}}")], {}),
    ("lines", "Mixed numerics", "Times that a job or session went on, on hosts whose results differ in their last bits.", "short",
     [happened("numerics_mixed_total", None, "mixed")], {"bars": True}),
    ("lines", "Self-tests", "Self-tests that ended, by result, and whether the cluster takes no work for want of one that passed.", "short",
     [happened("self_tests_total", "result"), now("self_test_closed", None, "takes no work")], {}),
    ("table", "What runs", "The supervisor's build, and what it was told to run.", "none",
     [("asterism_config_info{ASTERISM} * on (instance) group_left (version, target, profile) asterism_build_info{ASTERISM}", "")],
     {"wide": True}),
]

TRANSPORT = [
    ("lines", "Sent", "Bytes of frames a second that a process sent.", "Bps",
     [rate("transport_bytes_total", "host", extra=',direction="sent"')], {}),
    ("lines", "Received", "Bytes of frames a second that a process received.", "Bps",
     [rate("transport_bytes_total", "host", extra=',direction="received"')], {}),
    ("lines", "Round trip to the supervisor", "Smoothed round trip of a host's link to the supervisor.", "s",
     [('max by (host) (asterism_transport_rtt_seconds{ASTERISM,peer="supervisor"})', "{{host}}")], {"log": True}),
    ("lines", "Longest round trip between hosts", "The longest smoothed round trip of a host's links to other hosts.", "s",
     [('max by (host) (asterism_transport_rtt_seconds{ASTERISM,peer="hosts"})', "{{host}}")], {"log": True}),
    ("lines", "Links by transport", "Links to other hosts that a host opened and that are up, by what carries them.", "short",
     [("sum by (host, transport) (asterism_transport_links{ASTERISM})", "{{host}} {{transport}}")], {}),
    ("lines", "Fall-backs", "Links that did not take the best way that either end has. `asterism status` says why.", "short",
     [happened("transport_fallbacks_total", "host")], {"bars": True}),
    ("lines", "GPU memory", "Bytes of the memory of a host's GPU, used by whomever or free. Of a host on a CPU: 0.", "bytes",
     [("sum by (host, state) (asterism_gpu_memory_bytes{ASTERISM}) or sum by (host) (0 * asterism_host_up{ASTERISM})",
       "{{host}} {{state}}")], {}),
    ("lines", "GPUs: use", "Part of the time in which a GPU of a node's machine computed.", "percentunit", [gpus("gpu_busy_ratio")],
     {"max": 1}),
    ("lines", "GPUs: memory", "Bytes of the memory of a GPU of a node's machine, used by whomever or free.", "bytes",
     [gpus("gpu_device_memory_bytes", "state", " {{state}}")], {}),
    ("lines", "GPUs: temperature", "Degrees of a GPU of a node's machine.", "celsius", [gpus("gpu_temperature_celsius")], {}),
    ("lines", "GPUs: clocks", "Clocks of a GPU of a node's machine: of its processors and its memory. One that falls while it computes is "
     "throttled, by heat or power.", "hertz", [gpus("gpu_clock_hertz", "clock", " {{clock}}")], {}),
    ("lines", "GPUs: ECC errors", "Errors of a GPU's memory since its driver was loaded, by whether they were corrected.", "short",
     [gpus("gpu_ecc_errors", "kind", " {{kind}}")], {}),
    ("lines", "GPUs: Xid", "Faults of a GPU that its driver calls Xid, since the node's agent began, and the number of one within an hour.", "short",
     [gpus("gpu_xids"), gpus("gpu_last_xid_timestamp_seconds", "xid", " Xid {{xid}}", "time() - {of} < bool 3600")], {}),
    ("lines", "Clocks of machines", "Seconds that the clock of a host's machine is ahead of the supervisor's.", "s",
     [("max by (host) (asterism_host_clock_offset_seconds{ASTERISM}) or max by (host) (0 * asterism_host_up{ASTERISM})", "{{host}}")],
     {"signed": True}),
    ("lines", "Disk of the journal", "Bytes of the file system of data_dir, and those that are free.", "bytes",
     [now("disk_size_bytes", None, "size"), now("disk_free_bytes", None, "free")], {}),
    ("lines", "Links opened again", "Links that a host opened in the place of one that it had lost.", "short",
     [happened("transport_reconnects_total", "host")], {"bars": True}),
    ("lines", "Peers refused", "Peers that a process refused, by reason.", "short",
     [those("transport_rejects_total", "reason")], {"bars": True}),
    ("lines", "Spans dropped", "Spans that a process could not give to the collector, since that was not there or too slow.", "short",
     [happened("spans_dropped_total", "host")], {"bars": True}),
    ("lines", "Cores used", "CPU seconds a second of a host's process.", "none",
     [("sum by (host) (rate(asterism_host_process_cpu_seconds{ASTERISM}[$__rate_interval]))", "{{host}}")], {"stack": True}),
    ("lines", "Threads", "Threads of a host's process.", "short", [now("host_process_threads", "host")], {}),
    ("lines", "Process memory", "Bytes in memory of a host's process.", "bytes",
     [now("host_process_resident_memory_bytes", "host")], {}),
    ("lines", "Weights", "Bytes of the weights that a host needs.", "bytes", [now("host_weights_bytes", "host")], {}),
]

DASHBOARDS = {
    "overview": ("Asterism: overview", "Traffic, queue, latency, tokens and sessions of a cluster.", OVERVIEW),
    "phases": ("Asterism: phases", "Where the time of a request goes: encoding by host, and the layers of phase 2.", PHASES),
    "cluster": ("Asterism: cluster and recovery", "Hosts, losses, recovery, sessions and memory.", CLUSTER),
    "transport": ("Asterism: transport and machines", "Bytes, round trips and refusals of links, and what processes take.", TRANSPORT),
}
TYPES = {"lines": "timeseries", "stat": "stat", "heatmap": "heatmap", "states": "state-timeline", "table": "table"}


def thresholds(steps):
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def defaults(kind, unit, settings):
    found = {"unit": unit, "thresholds": thresholds(settings.get("steps", [(None, GREEN)]))}
    if "decimals" in settings:
        found["decimals"] = settings["decimals"]
    if kind == "stat":
        found["color"] = {"mode": "thresholds"}
    if kind in ("lines", "stat") and not settings.get("signed"):
        found["min"] = 0
    if "max" in settings:
        found["max"] = settings["max"]
    if kind == "states":
        texts = {"0": ("not ready", RED), "1": ("ready", GREEN)}
        options = {value: {"text": text, "color": colour, "index": int(value)} for value, (text, colour) in texts.items()}
        found["mappings"] = [{"type": "value", "options": options}]
        found["custom"] = {"fillOpacity": 80, "lineWidth": 0}
    if kind == "lines":
        bars, stack = settings.get("bars", False), settings.get("stack", False)
        found["color"] = {"mode": "palette-classic"}
        found["custom"] = {
            "drawStyle": "bars" if bars else "line",
            "lineWidth": 1 if bars else 2,
            "fillOpacity": 60 if bars or stack else 8,
            "pointSize": 4,
            "showPoints": "never" if bars or stack else "auto",
            "spanNulls": True,
            "stacking": {"mode": "normal" if bars or stack else "none", "group": "A"},
            "scaleDistribution": {"type": "log", "log": 10} if settings.get("log") else {"type": "linear"},
            "thresholdsStyle": {"mode": "dashed" if "steps" in settings else "off"},
        }
        if settings.get("log"):
            # Zero has no place on a logarithmic scale.
            del found["min"]
    return found


def options(kind, unit):
    if kind == "lines":
        return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc"}}
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""}, "colorMode": "value",
                "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "value"}
    if kind == "states":
        return {"showValue": "never", "rowHeight": 0.8, "mergeValues": True, "alignValue": "left",
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
                "tooltip": {"mode": "single", "sort": "none"}}
    if kind == "heatmap":
        return {"calculate": False, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "fill": "blue",
                                                              "exponent": 0.5, "reverse": False},
                "yAxis": {"unit": unit}, "rowsFrame": {"layout": "auto"}, "legend": {"show": True},
                "showValue": "auto", "tooltip": {"mode": "single", "yHistogram": False},
                "filterValues": {"le": 1e-9}, "exemplars": {"color": "rgba(255,0,255,0.7)"}}
    return {"showHeader": True, "cellHeight": "sm"}


def target(kind, ref, expression, label):
    found = {"refId": ref, "datasource": PROMETHEUS, "editorMode": "code", "legendFormat": label,
             "expr": expression.replace("ASTERISM", CHOSEN)}
    instant = kind in ("table",)
    found |= {"instant": instant, "range": not instant}
    return found | ({"format": "heatmap"} if kind == "heatmap" else {"format": "table"} if kind == "table" else {})


def panel(number, place, of):
    kind, title, description, unit, expressions, settings = of
    targets = [target(kind, chr(ord("A") + at), *expression) for at, expression in enumerate(expressions)]
    found = {"id": number, "type": TYPES[kind], "title": title, "description": description, "datasource": PROMETHEUS,
             "gridPos": place, "targets": targets, "options": options(kind, unit),
             "fieldConfig": {"defaults": defaults(kind, unit, settings), "overrides": []}}
    if kind == "table":
        hidden = {name: True for name in ["Time", "Value", "__name__", "job"]}
        found["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden, "indexByName": {}, "renameByName": {}}}]
    return found


def placed(panels):
    """Panels with their places: stats six in a row, others two in a row, wide ones alone."""
    x, y, height = 0, 0, 0
    for at, of in enumerate(panels):
        width, tall = (4, 4) if of[0] == "stat" else (24 if of[5].get("wide") else 12, 8)
        if x + width > 24 or (height and tall != height):
            x, y = 0, y + height
        height = tall
        yield panel(at + 1, {"x": x, "y": y, "w": width, "h": tall}, of)
        x += width


def dashboard(name, title, description, panels):
    everything = {"selected": True, "text": "All", "value": "$__all"}
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0, "options": [],
         "refresh": 1, "multi": False, "includeAll": False},
        {"name": "instance", "label": "Supervisor", "type": "query", "datasource": PROMETHEUS, "hide": 0, "options": [],
         "query": {"query": "label_values(asterism_build_info, instance)", "refId": "instance"}, "refresh": 2, "sort": 1,
         "multi": True, "includeAll": True, "current": everything},
    ]
    links = [{"title": "Asterism", "type": "dashboards", "tags": ["asterism"], "asDropdown": True, "icon": "external link",
              "includeVars": True, "keepTime": True, "targetBlank": False, "tooltip": "", "url": ""}]
    return {"uid": f"asterism-{name}", "title": title, "description": description, "tags": ["asterism"],
            "schemaVersion": SCHEMA_VERSION, "version": 1, "editable": True, "graphTooltip": 1, "timezone": "browser",
            "refresh": "10s", "time": {"from": "now-30m", "to": "now"}, "timepicker": {}, "fiscalYearStartMonth": 0,
            "annotations": {"list": []}, "links": links, "templating": {"list": variables}, "panels": list(placed(panels))}


def metrics_of(panels):
    """Each panel's title with the metrics that feed it."""
    for _, title, _, _, expressions, _ in panels:
        names = {re.sub("_(bucket|sum|count)$", "", name) for of in expressions for name in re.findall(r"\basterism_\w+", of[0])}
        yield title, sorted(names)


def readme():
    """README.md with the table of panels as they are."""
    rows = ["| dashboard | panel | metrics |", "|---|---|---|"]
    for name, (_, _, panels) in DASHBOARDS.items():
        rows += [f"| {name} | {title} | {', '.join(f'`{metric}`' for metric in names)} |" for title, names in metrics_of(panels)]
    before, rest = (FOLDER / "README.md").read_text().split(TABLE[0])
    return f"{before}{TABLE[0]}\n" + "\n".join(rows) + f"\n{TABLE[1]}" + rest.split(TABLE[1])[1]


def main():
    stale = []
    texts = {f"{name}.json": json.dumps(dashboard(name, *of), indent=1) + "\n" for name, of in DASHBOARDS.items()}
    for name, text in (texts | {"README.md": readme()}).items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale and "--check" in sys.argv:
        sys.exit(f"not what dashboards/build.py writes: {', '.join(stale)}; run dashboards/build.py")
    print(f"{len(DASHBOARDS)} dashboards, {sum(len(of[2]) for of in DASHBOARDS.values())} panels; written: {', '.join(stale) or 'none'}")


if __name__ == "__main__":
    main()
