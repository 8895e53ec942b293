#!/usr/bin/env python3
"""A batch of questions over one document, with the supervisor and a context host killed on the way: every question is answered, none twice,
and the document is encoded once. Ends with 1 where that is not so.

    tests/batch.py --binary target/release/asterism [--questions 500]

Only loopback; stops what it started. Python's standard library alone.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from clusters import Cluster

HARBOUR = pathlib.Path(__file__).parent.parent / "examples/harbour.txt"
CHAT, DEADLINE_S = "/v1/chat/completions", 1800


def ask(cluster, path, body=None, kind="application/json", listener="api"):
    """The answer as text; asked again while the supervisor is away."""
    until = time.monotonic() + DEADLINE_S
    while True:
        url, headers = f"http://{cluster.record()[listener]}{path}", {"Content-Type": kind} if body else {}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def kill(pid):
    subprocess.run(["kill", "-9", str(pid)], check=True)


def run(cluster, questions):
    document = HARBOUR.read_text()
    line = lambda at: json.dumps({"custom_id": f"q{at}", "method": "POST", "url": CHAT, "body": {"max_tokens": 8, "messages": [
        {"role": "system", "content": document}, {"role": "user", "content": f"What is the special magic number for ship-{at}?"}]}})
    form = "--b\r\nContent-Disposition: form-data; name=\"{}\"{}\r\n\r\n{}\r\n"
    body = form.format("purpose", "", "batch") + form.format("file", '; filename="q.jsonl"', "\n".join(map(line, range(questions)))) + "--b--\r\n"
    file = json.loads(ask(cluster, "/v1/files", body.encode(), "multipart/form-data; boundary=b"))
    began = time.monotonic()
    made = json.dumps({"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}).encode()
    batch, killed = json.loads(ask(cluster, "/v1/batches", made)), []
    while batch["status"] == "in_progress" and time.monotonic() - began < DEADLINE_S:
        done = batch["request_counts"]["completed"]
        if not killed and done > questions // 4:
            hosts = json.loads(ask(cluster, "/api/v1/hosts", listener="admin"))
            holder = max((host for host in hosts if host["role"] == "context"), key=lambda host: host["kv_bytes"])
            killed.append((holder["name"], done))
            kill(holder["pid"])
        elif len(killed) == 1 and done > questions // 2:
            killed.append(("supervisor", done))
            kill(cluster.record()["pid"])
        time.sleep(0.2)
        batch = json.loads(ask(cluster, f"/v1/batches/{batch['id']}"))
    answers = [json.loads(answer) for answer in ask(cluster, f"/v1/files/{batch['output_file_id']}/content").splitlines()]
    names = [answer["custom_id"] for answer in answers]
    cached = [answer["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    print(f"{len(answers)} answers, {len(set(names))} different, {batch['request_counts']['failed']} failed, in {time.monotonic() - began:.1f} s")
    print(f"killed: {', '.join(f'{who} after {done} answers' for who, done in killed)}; fewest tokens found encoded: {min(cached)}")
    return len(killed) == 2 and names == [f"q{at}" for at in range(questions)] and min(cached) > 1000


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--questions", type=int, default=500)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="asterism-batch-") as folder:
        with Cluster(given.binary, pathlib.Path(folder), "batch", api='listen = "127.0.0.1:0"\n') as cluster:
            good = run(cluster, given.questions)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
