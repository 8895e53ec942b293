#!/usr/bin/env python3
"""Answers that are held to a schema, and to a regular expression, beside free ones: tokens per second of so many streams at a time, in
turn, and the median of each.

    tests/constrained.py --binary target/release/asterism [--model DIR_OR_GGUF]

Ends with 1 where those that are held have less than 0.9 of the others. With the embedded model unless another is named: its steps are so
short that masks weigh the most, and its vocabulary so small that they cost the least. Python's standard library alone; only loopback;
stops what it started.
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
REGEX = "([a-z]{3,9} ){1000}"


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
    arguments.add_argument("--model", type=pathlib.Path)
    arguments.add_argument("--streams", type=int, default=16)
    arguments.add_argument("--tokens", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    free = {"messages": [{"role": "system", "content": HARBOUR}, {"role": "user", "content": "Write rows."}], "max_tokens": given.tokens,
            "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 1, "seed": 5}
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "rows", "schema": SCHEMA}}}
    bodies = {"free": free, "schema": free | schema, "regex": free | {"guided_regex": REGEX}}
    sections = f'[model]\npath = "{given.model.resolve()}"\n' if given.model else ""
    speeds = {name: [] for name in bodies}
    with tempfile.TemporaryDirectory(prefix="asterism-held-") as folder:
        with Cluster(given.binary, pathlib.Path(folder), "held", api='listen = "127.0.0.1:0"\n', sections=sections) as cluster:
            record = cluster.record()
            with ThreadPoolExecutor(given.streams) as pool:
                # Once for what is encoded and compiled once.
                for body in bodies.values():
                    tokens_of_stream(record["api"], body | {"max_tokens": 8})
                for number in range(given.rounds):
                    for name in list(bodies)[::1 if number % 2 else -1]:
                        began = time.monotonic()
                        tokens = sum(pool.map(lambda seed: tokens_of_stream(record["api"], bodies[name] | {"seed": seed}), range(given.streams)))
                        speeds[name].append(tokens / (time.monotonic() - began))
                        print(f"{name}: {tokens} tokens, {speeds[name][-1]:.0f} tokens/s", flush=True)
            masks, seconds = (sum(read_metric(record["admin"], f"asterism_phase2_mask_seconds_{what}")) for what in ["count", "sum"])
    print(f"{masks:.0f} masks, waited for {seconds / masks * 1e6:.0f} us each")
    median = {name: statistics.median(all_speeds) for name, all_speeds in speeds.items()}
    for name in ["schema", "regex"]:
        print(f"{given.streams} streams: free {median['free']:.0f}, held to a {name} {median[name]:.0f} tokens/s: {median[name] / median['free']:.2f}")
    assert all(speed >= LEAST * median["free"] for speed in median.values()), speeds


if __name__ == "__main__":
    main()
