#!/usr/bin/env python3
"""An agent's conversation over OpenAI's API: a long history, then turns that append what a tool found and take an answer. Prints for each turn
what was held and the seconds to its first and last token, and the same with nothing held, by a key that never asked before; a context
host is killed before the middle turn. Ends with 1 where an answer with reuse is not the one without, or nothing was reused.

    tests/agent_turns.py --binary target/debug/asterism                                            # 8k held, 10 turns, the embedded model
    tests/agent_turns.py --binary asterism --server 10.0.0.1:8000 --tokens 142000 --turns 20 --append 1000,4000 --answer 444
    tests/agent_turns.py --binary asterism --tokens 142000 --turns 20 --append 1000,4000 --answer 444 --compare 5 --contexts 2 \\
        --device cuda:0 --model 'random_weights = "llama-3.1-8b";dtype = "bf16"'

With `--server` it asks a cluster that is up (keys by `--keys a,b,...`, without them nothing is compared and nobody is killed). Python's
standard library alone.
"""

import argparse
import hashlib
import http.client
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

from clusters import Cluster, text

REQUEST_TIMEOUT = 1800.0


class Asked:
    """One streamed answer: its text, seconds to its first and last token, and what its usage says."""

    def __init__(self, address, key, body):
        connection = http.client.HTTPConnection(*address, timeout=REQUEST_TIMEOUT)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        began, self.first, self.text, self.usage = time.monotonic(), None, "", {}
        try:
            body = {**body, "stream": True, "stream_options": {"include_usage": True}}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise OSError(f"{answer.status} {answer.read()[:300]}")
            for line in answer:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    self.take(json.loads(line[6:]), time.monotonic() - began)
        finally:
            connection.close()
        self.last = time.monotonic() - began
        self.cached, self.prompt = self.usage["prompt_tokens_details"]["cached_tokens"], self.usage["prompt_tokens"]

    def take(self, said, now):
        if "error" in said:
            raise OSError(str(said))
        self.usage = said.get("usage") or self.usage
        for choice in said["choices"]:
            piece = choice["delta"].get("content")
            if piece:
                self.first, self.text = self.first or now, self.text + piece


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, help="starts a cluster of the embedded model with it")
    arguments.add_argument("--server", help="address and port of OpenAI's API of a cluster that is up")
    arguments.add_argument("--keys", default="", help="keys for --server: one for the conversation, and one a turn to compare with")
    arguments.add_argument("--tokens", type=int, default=8000, help="tokens held before the first turn")
    arguments.add_argument("--turns", type=int, default=10)
    arguments.add_argument("--append", default="60,240", help="least and most tokens that a turn appends")
    arguments.add_argument("--answer", type=int, default=32, help="tokens of an answer")
    arguments.add_argument("--method", default="auto")
    arguments.add_argument("--cache-key", help="prompt_cache_key of all turns: reuse begins with the second instead of the third")
    arguments.add_argument("--contexts", type=int, default=3)
    arguments.add_argument("--compare", type=int, default=1, help="every so many turns, and that of the kill, also with nothing held")
    arguments.add_argument("--model", help="lines of [model], `;` between them")
    arguments.add_argument("--device", help="of all hosts, each a process; several with commas are dealt out to them")
    arguments.add_argument("--process", action="store_true", help="all hosts in one process, which has the weights once; kills nobody")
    arguments.add_argument("--keep-hosts", action="store_true", help="kill nobody")
    given = arguments.parse_args()
    given.keep_hosts |= given.process
    if given.server:
        keys = [key for key in given.keys.split(",") if key]
        sys.exit(turns(given, given.server, keys, lambda: None))
    if not given.binary:
        arguments.error("name --binary or --server")
    keys = [f"key-{number}" for number in range(given.turns + 1)]
    with tempfile.TemporaryDirectory(prefix="asterism-agent-") as folder:
        api = f'listen = "127.0.0.1:0"\napi_key_file = "{folder}/keys"\n'
        more = '[supervisor]\nrecovery = "redistribute"\nmax_restarts = 100\n'
        more += f"\n[model]\n{given.model.replace(';', chr(10))}\n" if given.model else ""
        devices, dealt = given.device.split(",") if given.device else [], {}

        def place(name):
            device = devices and dealt.setdefault(name, devices[len(dealt) % len(devices)])
            return (f'device = "{device}"\n' if device else "") + ('process = "agent"\n' if given.process else "")

        cluster = Cluster(given.binary, pathlib.Path(folder), "agent", given.contexts, api, place, more)
        cluster.secret("keys", "".join(f"{key} {hashlib.sha256(key.encode()).hexdigest()}\n" for key in keys))
        with cluster:
            sys.exit(turns(given, cluster.record()["api"], keys, lambda: kill(cluster)))


def kill(cluster):
    """Ends the context host that holds most."""
    status = json.loads(cluster.run("status", "-o", "json").stdout)
    hosts = [host for host in status["hosts"] if host["role"] == "context"]
    victim = max(hosts, key=lambda host: host["kv_bytes"] + host["idle_kv_bytes"])
    os.kill(victim["pid"], signal.SIGKILL)
    return victim["name"]


def turns(given, server, keys, kill):
    host, _, port = server.rpartition(":")
    address, draw = (host, int(port)), random.Random(7)
    least, most = (int(tokens) for tokens in given.append.split(","))
    messages, failed, compares = [{"role": "system", "content": text(given.tokens, "Part history")}], [], len(keys) > given.turns
    body = {"max_tokens": given.answer, "ignore_eos": True, "attention": given.method}
    if given.cache_key:
        body["prompt_cache_key"] = given.cache_key
    print(f"{'turn':>4} {'prompt':>8} {'held':>8} {'first s':>8} {'last s':>8}   nothing held: {'first s':>8} {'last s':>8}  same")
    for turn in range(1, given.turns + 1):
        killed = kill() if turn == (given.turns + 1) // 2 and not given.keep_hosts else None
        messages.append({"role": "user", "content": text(draw.randint(least, most), f"Part turn {turn}") + " What is next?"})
        asked = Asked(address, keys[0] if keys else None, {**body, "messages": messages})
        line = f"{turn:>4} {asked.prompt:>8} {asked.cached:>8} {asked.first:>8.3f} {asked.last:>8.3f}"
        if compares and (turn % given.compare == 0 or killed):
            alone = Asked(address, keys[turn], {**body, "messages": messages})
            same = asked.text == alone.text and alone.cached == 0
            line += f"                 {alone.first:>8.3f} {alone.last:>8.3f}  {'yes' if same else 'NO'}"
            failed += [] if same else [f"turn {turn}: {asked.text!r}, with nothing held {alone.text!r} ({alone.cached} tokens held)"]
        if turn > 2 and not killed and asked.cached == 0 and given.method in ["auto", "dense", "pulsar", "chain"]:
            failed.append(f"turn {turn}: nothing was reused")
        print(line + (f"  {killed} killed" if killed else ""), flush=True)
        messages.append({"role": "assistant", "content": asked.text})
    for failure in failed:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    main()
