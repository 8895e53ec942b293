#!/usr/bin/env python3
"""A conversation over a context that grows: turns of an append and a question, each compared with the answer of a session that is created whole
on another cluster. Prints seconds by turn; ends with 1 where answers differ, or the last turn takes longer than --slowest times the second.

    tests/turns.py --binary target/release/asterism [--turns 40 --first 2000 --last 14000 --contexts 4 --dtype bf16]

Only loopback; stops what it started. Python's standard library alone.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile
import time
import urllib.request

from clusters import Cluster

DEADLINE_S, ANSWER, QUESTION, VOCABULARY = 300, 12, 12, range(10, 4000)


def ask(cluster, path, body=None, method=None):
    request = urllib.request.Request(f"http://{cluster.record()['admin']}{path}", json.dumps(body).encode() if body else None,
                                     {"Content-Type": "application/json"} if body else {}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def until(cluster, path, reached):
    deadline = time.monotonic() + DEADLINE_S
    while not reached(status := ask(cluster, path)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path}: {json.dumps(status)[:400]}")
        time.sleep(0.002)
    return status


def ready(cluster, session):
    status = until(cluster, f"/api/v1/sessions/{session}", lambda status: status["state"] != "encoding" and not status.get("appending"))
    if status["state"] != "ready" or status.get("append_error"):
        raise RuntimeError(json.dumps(status))


def answer(cluster, session, question):
    """The answer's tokens, and the seconds of the question and of decoding."""
    job = ask(cluster, "/api/v1/jobs", {"session": session, "query": question, "max_tokens": ANSWER, "ignore_eos": True})
    done = until(cluster, f"/api/v1/jobs/{job['id']}", lambda status: status["state"] not in ("PENDING", "RUNNING"))
    if done["state"] != "SUCCEEDED":
        raise RuntimeError(json.dumps(done["error"]))
    return done["tokens"], done["timings"]["total_s"] - done["timings"]["decode_s"], done["timings"]["decode_s"]


def run(given, growing, whole):
    draw, context, rows, equal = random.Random(7), [], [], 0
    for turn in range(1, given.turns + 1):
        length = given.first + (given.last - given.first) * (turn - 1) // max(1, given.turns - 1)
        added = draw.choices(VOCABULARY, k=length - len(context))
        context += added
        question = draw.choices(context, k=QUESTION)
        began = time.monotonic()
        if turn == 1:
            ask(growing, "/api/v1/sessions", {"name": "talk", "context": added})
        else:
            ask(growing, "/api/v1/sessions/talk/append", {"context": added})
        ready(growing, "talk")
        appended = time.monotonic() - began
        tokens, asked, decoded = answer(growing, "talk", question)
        ask(whole, "/api/v1/sessions", {"name": f"whole-{turn}", "context": context})
        ready(whole, f"whole-{turn}")
        equal += tokens == answer(whole, f"whole-{turn}", question)[0]
        ask(whole, f"/api/v1/sessions/whole-{turn}", method="DELETE")
        rows.append((turn, length, appended, asked, decoded))
    return rows, equal


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--turns", type=int, default=40)
    arguments.add_argument("--first", type=int, default=2000, help="tokens of the first turn's context")
    arguments.add_argument("--last", type=int, default=14000, help="tokens of the last turn's")
    arguments.add_argument("--contexts", type=int, default=4, help="context hosts")
    arguments.add_argument("--dtype", default="f32")
    arguments.add_argument("--slowest", type=float, default=1.5)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="asterism-turns-") as folder:
        made = []
        for name in ("growing", "whole"):
            (pathlib.Path(folder) / name).mkdir()
            model = f'\n[model]\ndtype = "{given.dtype}"\n'
            made.append(Cluster(given.binary, pathlib.Path(folder) / name, name, contexts=given.contexts, sections=model))
        with made[0] as growing, made[1] as whole:
            rows, equal = run(given, growing, whole)
    print(f"{'turn':>4} {'tokens':>7} {'append s':>9} {'question s':>11} {'decode s':>9} {'whole s':>8}")
    for turn, length, *seconds in rows:
        if turn <= 3 or turn % 5 == 0:
            print(f"{turn:>4} {length:>7} {seconds[0]:>9.3f} {seconds[1]:>11.3f} {seconds[2]:>9.3f} {sum(seconds):>8.3f}")
    # A machine is noisy: the second turn is told by the first few behind the first, the last by the last few.
    middle = lambda some: sorted(sum(seconds) for _, _, *seconds in some)[len(some) // 2]
    early, late = middle(rows[1:6]), middle(rows[-5:])
    print(f"{equal} of {len(rows)} answers are those of a session created whole; the last turns take {late / early:.2f} times the first "
          f"({late:.3f} s and {early:.3f} s, medians of five)")
    return 0 if equal == len(rows) and late <= given.slowest * early else 1


if __name__ == "__main__":
    sys.exit(main())
