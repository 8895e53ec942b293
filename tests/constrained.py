#!/usr/bin/env python3
"""Answers that are held to a schema beside free ones: tokens per second of so many streams at a time, in turn, and the median of both.

    tests/constrained.py --binary target/release/asterism

Ends with 1 where those that are held have less than 0.9 of the others. With the embedded model, whose steps are so short that masks weigh
the most. Python's standard library alone; only loopback; stops what it started.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from clusters import Cluster

LEAST = 0.9
HARBOUR = (pathlib.Path(__file__).parent.parent / "examples/harbour.txt").read_text()
ROW = {"type": "object", "properties": {"name": {"type": "string"}, "depth": {"type": "integer"}, "kind": {"enum": ["sea", "lake"]}},
       "required": ["name", "depth", "kind"], "additionalProperties": False}
# As long as there is room.
SCHEMA = {"type": "array", "items": ROW, "minItems": 1000}


def tokens_of_stream(api, body):
    request = urllib.request.Request(f"http://{api}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        lines = [line for line in answer.read().splitlines() if line.startswith(b'data: {')]
    return json.loads(lines[-1][6:])["usage"]["completion_tokens"]


def read_metric(admin, name):
    with urllib.request.urlopen(f"http://{admin}/metrics") as answer:
        return [float(line.split()[-1]) for line in answer.read().decode().splitlines() if line.startswith(name)]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--streams", type=int, default=16)
    arguments.add_argument("--tokens", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    free = {"messages": [{"role": "system", "content": HARBOUR}, {"role": "user", "content": "Write rows."}], "max_tokens": given.tokens,
            "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 1, "seed": 5}
    held = free | {"response_format": {"type": "json_schema", "json_schema": {"name": "rows", "schema": SCHEMA}}}
    speeds = {"free": [], "held": []}
    with tempfile.TemporaryDirectory(prefix="asterism-held-") as folder:
        with Cluster(given.binary, pathlib.Path(folder), "held", api='listen = "127.0.0.1:0"\n') as cluster:
            record = cluster.record()
            api = record["api"]
            with ThreadPoolExecutor(given.streams) as pool:
                # Once for what is encoded and compiled once.
                for body in [free, held]:
                    tokens_of_stream(api, body | {"max_tokens": 8})
                for number in range(2 * given.rounds):
                    name, body = [("free", free), ("held", held)][(number + number // 2) % 2]
                    began = time.monotonic()
                    tokens = sum(pool.map(lambda seed: tokens_of_stream(api, body | {"seed": seed}), range(given.streams)))
                    speeds[name].append(tokens / (time.monotonic() - began))
                    print(f"{name}: {tokens} tokens, {speeds[name][-1]:.0f} tokens/s", flush=True)
            masks, seconds = (sum(read_metric(record["admin"], f"asterism_phase2_mask_seconds_{what}")) for what in ["count", "sum"])
    print(f"{masks:.0f} masks, {seconds / masks * 1e6:.0f} us each")
    free, held = (statistics.median(speeds[name]) for name in ["free", "held"])
    print(f"{given.streams} streams: free {free:.0f}, held to a schema {held:.0f} tokens/s: {held / free:.2f}")
    assert held >= LEAST * free, speeds


if __name__ == "__main__":
    main()
