#!/usr/bin/env python3
"""Many clients of OpenAI's API at once, each streaming answers about documents of its own, beside one long document. Prints times to the
first token, between tokens and how long short requests wait behind the long one; ends with 1 when a bound is missed.

    tests/api_load.py --binary target/release/asterism                    # 64 clients, 2k tokens each, beside 16k, 5 minutes
    tests/api_load.py --binary target/debug/asterism --seconds 30 --clients 8 --tokens 500 --long 4000
    tests/api_load.py --binary asterism --clients 256 --tokens 1000 --answer 256 --long 0 --seconds 60 --contexts 1 --device cuda:0 \\
        --model 'random_weights = "llama-3.1-8b";dtype = "bf16"'

Only loopback; stops everything that it started. Python's standard library alone.
"""

import argparse
import http.client
import json
import pathlib
import sys
import tempfile
import threading
import time

from clusters import Cluster, text

# Longest wait of one request, and growth of the supervisor's memory from the first third of the run to the last.
REQUEST_TIMEOUT, GROWTH_MIB = 600.0, 64.0
# Seconds within which tokens have come at once.
AT_ONCE = 0.001


class Load:
    def __init__(self, api, until, fields):
        self.api, self.until, self.fields, self.lock = api, until, fields, threading.Lock()
        self.first, self.between, self.beside, self.whole, self.pieces = [], [], [], [], []
        self.answered, self.tokens, self.refused, self.failed = 0, 0, 0, []
        self.long_runs = threading.Event()

    def goes_on(self):
        return time.monotonic() < self.until

    def ask(self, text, tokens):
        """Streams one answer: seconds to its first token, between tokens and for all of it, how many there were, and when each came.
        None where it was refused as announced."""
        connection = http.client.HTTPConnection(*self.api, timeout=REQUEST_TIMEOUT)
        body = {"messages": [{"role": "user", "content": text}, {"role": "user", "content": "What is the number?"}], "stream": True,
                "stream_options": {"include_usage": True}, "max_tokens": tokens, "ignore_eos": True, "logprobs": True, **self.fields}
        began = last = time.monotonic()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status == 503 and answer.getheader("retry-after"):
                answer.read()
                return None
            if answer.status != 200:
                raise OSError(f"{answer.status} {answer.read()[:200]}")
            first, between, pieces, usage, done = None, [], [], {}, False
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                if line.startswith(b"data: [DONE]"):
                    done = True
                    break
                said, now = json.loads(line[6:]), time.monotonic()
                if "error" in said:
                    raise OSError(str(said))
                usage = said.get("usage") or usage
                # Each token has its log-probability, also one that completes no character; those of one step come at once.
                if said["choices"] and (said["choices"][0].get("logprobs") or {}).get("content"):
                    if first is None:
                        first = now - began
                    elif now - last > AT_ONCE:
                        between.append(now - last)
                    last = now
                    pieces.append(now)
            if not done:
                raise OSError("a stream ended early")
            return first, between, time.monotonic() - began, usage["completion_tokens"], pieces
        finally:
            connection.close()


def client(load, number, tokens, answer):
    count = 0
    while load.goes_on():
        beside, count = load.long_runs.is_set(), count + 1
        try:
            told = load.ask(text(tokens, f"Document {number}-{count}"), answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            with load.lock:
                load.failed.append(f"{type(error).__name__}: {error}")
            return
        with load.lock:
            if told is None:
                load.refused += 1
            else:
                load.answered += 1
                load.tokens += told[3]
                load.first.append(told[0])
                load.between.extend(told[1])
                load.whole.append(told[2])
                load.pieces.append((told[3], told[4]))
                if beside and told[0] is not None:
                    load.beside.append(told[0])
        if told is None:
            time.sleep(1)


def long(load, tokens, times):
    count = 0
    while load.goes_on() and tokens:
        count += 1
        load.long_runs.set()
        try:
            told = load.ask(text(tokens, f"Document long-{count}"), 16)
        except (OSError, http.client.HTTPException, ValueError) as error:
            with load.lock:
                load.failed.append(f"long {type(error).__name__}: {error}")
            return
        finally:
            load.long_runs.clear()
        if told:
            times.append(told[2])
        time.sleep(1)


def steady(load, began):
    """Tokens a second between the first third of the run, when all clients begin at once, and its end, when none begins any more."""
    start, end, tokens = began + (load.until - began) / 3, load.until, 0.0
    for count, pieces in load.pieces:
        tokens += count * sum(start <= piece < end for piece in pieces) / max(1, len(pieces))
    return tokens / (end - start)


def memory(record):
    lines = pathlib.Path(f"/proc/{record['pid']}/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["VmRSS"].split()[0]) / 1024


def told(name, seconds):
    if not seconds:
        return f"{name:<44} nothing"
    ordered = sorted(seconds)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return f"{name:<44} p50 {at(0.5):8.3f} s   p99 {at(0.99):8.3f} s   most {ordered[-1]:8.3f} s   of {len(ordered)}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--clients", type=int, default=64)
    arguments.add_argument("--tokens", type=int, default=2000)
    arguments.add_argument("--long", type=int, default=13000, help="tokens of the long document; 0: none")
    arguments.add_argument("--answer", type=int, default=16, help="tokens that each short request asks for")
    arguments.add_argument("--fields", type=json.loads, default={}, help='further fields of each request, such as {"temperature": 0.8}')
    arguments.add_argument("--seconds", type=float, default=300)
    arguments.add_argument("--queue", type=int, default=1024)
    arguments.add_argument("--contexts", type=int, default=2, help="context hosts")
    arguments.add_argument("--model", help="lines of [model], `;` between them")
    arguments.add_argument("--device", help="of all hosts, which are one process then")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="asterism-api-load-") as folder:
        api = f'listen = "127.0.0.1:0"\nmax_queue = {given.queue}\n'
        model = f"\n[model]\n{given.model.replace(';', chr(10))}\n" if given.model else ""
        place = f'device = "{given.device}"\nprocess = "all"\n' if given.device else ""
        with Cluster(given.binary, pathlib.Path(folder), "apiload", given.contexts, api, lambda name: place, model) as cluster:
            ended = measure(given, cluster.record())
    sys.exit(ended)


def measure(given, record):
    host, _, port = record["api"].rpartition(":")
    load, times, rss = Load((host, int(port)), time.monotonic() + given.seconds, given.fields), [], []
    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(load, number, given.tokens, given.answer)) for number in range(given.clients)]
    threads.append(threading.Thread(target=long, args=(load, given.long, times)))
    for thread in threads:
        thread.start()
    while load.goes_on():
        rss.append(memory(record))
        time.sleep(1)
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    third = max(1, len(rss) // 3)
    growth = max(rss[-third:]) - max(rss[:third])
    print(f"{given.clients} clients, {given.tokens} tokens each, beside {given.long}, {given.seconds:.0f} s")
    print(f"{load.answered} answered, {load.refused} told to come again (503), {len(load.failed)} failed, {len(times)} long ones")
    print(f"{load.tokens / took:.1f} tokens/s of short answers, {steady(load, began):.1f} from the first third to the last that began")
    print(told("first token", [seconds for seconds in load.first if seconds is not None]))
    print(told("first token of those that came beside a long one", load.beside))
    print(told("from token to token of an answer", load.between))
    print(told("whole answer", load.whole))
    print(told("whole long answer", times))
    print(f"supervisor {rss[0]:.0f} MiB at first, {max(rss):.0f} at most, {growth:+.1f} from the first third to the last")
    for failure in load.failed[:5]:
        print(f"failed: {failure}", file=sys.stderr)
    wrong = load.failed or not load.answered or (given.long and not times) or growth > GROWTH_MIB
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
