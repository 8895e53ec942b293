#!/usr/bin/env python3
"""A short job beside a long context that is being encoded: seconds until the short one is encoded and between its tokens, alone and beside it,
and whether its tokens are the same. Prints a line of JSON a round; ends with 1 where tokens differ.

    tests/beside.py --binary target/release/asterism [--long 60k --method dense --short 3000 --answer 24 --rounds 2] [--devices cuda:0] [--process]

Only loopback; stops what it started. Python's standard library alone.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request

from clusters import Cluster

DEADLINE_S, VOCABULARY = 300, range(10, 4000)


def ask(cluster, path, body=None, method=None):
    request = urllib.request.Request(f"http://{cluster.record()['admin']}{path}", json.dumps(body).encode() if body else None,
                                     {"Content-Type": "application/json"} if body else {}, method=method)
    return urllib.request.urlopen(request, timeout=DEADLINE_S)


def submit(cluster, context, method, answer):
    body = {"context": context, "query": context[:12], "max_tokens": answer, "ignore_eos": True, "method": method}
    return json.load(ask(cluster, "/api/v1/jobs", body))["id"]


def job(cluster, number):
    return json.load(ask(cluster, f"/api/v1/jobs/{number}"))


def followed(cluster, context, answer):
    """A job of the default method: its tokens, the seconds that its context took, and those between its tokens."""
    number, came = submit(cluster, context, {"auto": {}}, answer), []
    with ask(cluster, f"/api/v1/jobs/{number}/events") as events:
        for line in events:
            if json.loads(line)["event"] == "token":
                came.append(time.monotonic())
    done = job(cluster, number)
    if done["state"] != "SUCCEEDED":
        raise RuntimeError(json.dumps(done["error"]))
    gaps = [after - before for before, after in zip(came, came[1:])]
    return done["tokens"], done["timings"]["encode_s"], gaps


def begun(cluster, number):
    """Waits until a layer of it is encoded."""
    with ask(cluster, f"/api/v1/jobs/{number}/events") as events:
        if not any(json.loads(line)["event"] == "progress" for line in events):
            raise RuntimeError(json.dumps(job(cluster, number)))


def ended(cluster, number):
    """Waits for its end."""
    deadline = time.monotonic() + DEADLINE_S
    while (status := job(cluster, number))["state"] in ("PENDING", "RUNNING"):
        if time.monotonic() > deadline:
            raise TimeoutError("the long job does not end")
        time.sleep(0.01)
    return status


def cancelled(cluster, number):
    """Cancels it, if it has not ended."""
    try:
        ask(cluster, f"/api/v1/jobs/{number}", method="DELETE").read()
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
    ended(cluster, number)


def encoded(cluster, number):
    """Seconds that its context took, once it has ended."""
    status = ended(cluster, number)
    if status["state"] != "SUCCEEDED":
        raise RuntimeError(json.dumps(status["error"]))
    return status["timings"]["encode_s"]


def figures(encode, gaps):
    return {"encode_s": round(encode, 3), "token_ms": round(1e3 * statistics.median(gaps), 2), "longest_ms": round(1e3 * max(gaps), 1)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--long", default="60k", help="tokens of the long context")
    arguments.add_argument("--method", default="dense", help="the long one's")
    arguments.add_argument("--short", type=int, default=3000, help="tokens of the short context")
    arguments.add_argument("--answer", type=int, default=24, help="tokens of the short answer")
    arguments.add_argument("--whole", action="store_true", help="encode the long context to its end, beside the short job and alone")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--contexts", type=int, default=2, help="context hosts")
    arguments.add_argument("--model", default='dtype = "bf16"', help="lines of [model]")
    arguments.add_argument("--devices", default="cpu", help="the query host's is the last")
    arguments.add_argument("--process", action="store_true", help="all hosts in one process")
    given = arguments.parse_args()
    draw = random.Random(11)
    length = int(given.long.removesuffix("k")) * (1024 if given.long.endswith("k") else 1)
    long, short = (draw.choices(VOCABULARY, k=count) for count in (length, given.short))
    differ = False
    with tempfile.TemporaryDirectory(prefix="asterism-beside-") as folder:
        devices = given.devices.split(",")

        def host(name):
            at = len(devices) - 1 if name.startswith("query") else int(name.rpartition("-")[2]) % max(1, len(devices) - 1)
            return f'device = "{devices[at]}"\n' + ('process = "all"\n' if given.process else "")

        model = f"\n[model]\n{given.model.replace(';', chr(10))}\n"
        with Cluster(given.binary, pathlib.Path(folder), "beside", contexts=given.contexts, sections=model, host=host) as cluster:
            followed(cluster, [10] + short, 2)
            for turn in range(given.rounds):
                # Another context each time, so that it is encoded.
                _, *alone = followed(cluster, [100 + turn] + short, given.answer)
                other = submit(cluster, [200 + turn] + long, {given.method: {}}, 1)
                begun(cluster, other)
                tokens, *beside = followed(cluster, [300 + turn] + short, given.answer)
                all_along = job(cluster, other)["state"] == "RUNNING"
                figure = {}
                if given.whole:
                    figure["long_beside_s"] = encoded(cluster, other)
                    figure["long_alone_s"] = encoded(cluster, submit(cluster, [400 + turn] + long, {given.method: {}}, 1))
                else:
                    cancelled(cluster, other)
                same = tokens == followed(cluster, [300 + turn] + short, given.answer)[0]
                differ |= not same
                figure |= {"alone": figures(*alone), "beside": figures(*beside), "encoding_all_along": all_along, "same_tokens": same}
                print(json.dumps(figure), flush=True)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
