#!/usr/bin/env python3
"""More work than a cluster can do at once: submits of three clients, a huge body every second, readers that do not read, and
a supervisor that is killed in the middle. Prints latencies and the supervisor's memory; ends with 1 when a bound is missed.

    tests/load.py --binary target/release/asterism                          # 10,000 submits, 5 minutes
    tests/load.py --deep --tokens 4096 --no-kill                            # all of them wait at once: the hosts take no work
    tests/load.py --positions 131072 --at-limit 4 --submits 0 --body-mib 0  # bodies as large as a model of 128k takes
    tests/load.py --short --binary target/debug/asterism                    # half a minute, for every change

Only loopback; stops everything that it started. Python's standard library alone.
"""

import argparse
import http.client
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

CLUSTER = """version = 1

[cluster]
name = "load"
listen = "127.0.0.1:0"
data_dir = "{folder}/data"

[attention.star]
block_tokens = 64

[api]
admin_listen = "127.0.0.1:0"
max_queue = {queue}
{model}
[[node]]
name = "local"
address = "127.0.0.1"

[[host]]
name = "context-0"
role = "context"
threads = 1

[[host]]
name = "query-0"
role = "query"
threads = 1
"""
TINY = pathlib.Path(__file__).parent / "golden/models/tiny-llama"
# What a busy machine keeps too, and a supervisor that waits for something does not.
SHORT = {"seconds": 35, "submits": 1000, "tokens": 4096, "readers": 50, "body_mib": 20, "deep": True, "no_kill": True,
         "livez_ms": 500, "submit_ms": 2000}
REQUEST_TIMEOUT = 30.0
CLIENTS = 3


class Cluster:
    def __init__(self, binary, folder, queue, positions):
        self.binary, self.folder, self.file = binary, folder, folder / "cluster.toml"
        model = f'\n[model]\npath = "{self.stretched(positions)}"\n' if positions else ""
        self.file.write_text(CLUSTER.format(folder=folder, queue=queue, model=model))
        self.run("up", "--detach")

    def run(self, *arguments):
        return subprocess.run([self.binary, *arguments, "-f", self.file], cwd=self.folder, timeout=120, check=True,
                              stdin=subprocess.DEVNULL, capture_output=True)

    def stretched(self, positions):
        """The tiny random model with so many positions."""
        model = self.folder / "model"
        shutil.copytree(TINY, model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
        return model

    def record(self):
        return json.loads((self.folder / "data/supervisor.json").read_text())

    def address(self):
        host, _, port = self.record()["admin"].rpartition(":")
        return host, int(port)

    def memory(self):
        """VmRSS and VmHWM of the supervisor in MiB."""
        lines = pathlib.Path(f"/proc/{self.record()['pid']}/status").read_text().splitlines()
        found = dict(line.split(":", 1) for line in lines)
        return tuple(int(found[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))

    def kill(self):
        subprocess.run(["kill", "-9", str(self.record()["pid"])], check=True)


class Load:
    """What is measured, and until when. Latencies while the supervisor is away are kept apart."""

    def __init__(self, cluster, deadline):
        self.cluster, self.deadline, self.lock = cluster, deadline, threading.Lock()
        self.latencies, self.refused, self.failed = {}, {}, {}
        self.acknowledged, self.cancelled = [], set()
        self.stopping, self.away = threading.Event(), threading.Event()
        self.rss, self.hwm, self.waiting = [], 0.0, 0

    def goes_on(self):
        return not self.stopping.is_set() and time.monotonic() < self.deadline

    def note(self, kind, seconds):
        with self.lock:
            self.latencies.setdefault(kind, []).append(seconds)

    def count(self, counts, kind):
        with self.lock:
            counts[kind] = counts.get(kind, 0) + 1

    def ask(self, kind, method, path, body=None, connection=None):
        """Status and body, or None when nobody answered."""
        began, was_away = time.monotonic(), self.away.is_set()
        own = connection or http.client.HTTPConnection(*self.cluster.address(), timeout=REQUEST_TIMEOUT)
        try:
            own.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = own.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            own.close()
            if not (was_away or self.away.is_set()):
                self.count(self.failed, kind)
            return None
        finally:
            if connection is None:
                own.close()
        if answer.status < 400 and not was_away and not self.away.is_set():
            self.note(kind, time.monotonic() - began)
        elif answer.status >= 400:
            self.count(self.refused, f"{kind} {answer.status}")
        return answer.status, text


def connection(load):
    return http.client.HTTPConnection(*load.cluster.address(), timeout=REQUEST_TIMEOUT)


def submitter(load, client, count, tokens):
    """Submits ids of its own, each again until it is taken."""
    link = connection(load)
    for number in range(count):
        name = f"load-{client}-{number}"
        context = [(client * 7919 + number * 31 + at) % 200 + 10 for at in range(tokens)]
        body = json.dumps({"id": name, "context": context, "query": [11, 12, 13], "max_tokens": 4, "ignore_eos": True,
                           "chat_template": False, "allow_idle_hosts": True})
        while load.goes_on():
            answer = load.ask("submit", "POST", "/api/v1/jobs", body, link)
            if answer and answer[0] == 202:
                with load.lock:
                    load.acknowledged.append(json.loads(answer[1])["id"])
                break
            if answer and answer[0] not in (429, 503, 507):
                sys.exit(f"{name} was refused: {answer}")
            time.sleep(0.2)
        if not load.goes_on():
            return


def every(load, seconds, act):
    while load.goes_on():
        began = time.monotonic()
        act()
        load.stopping.wait(max(0.0, seconds - (time.monotonic() - began)))


def huge_body(load, text):
    """One text of tens of megabytes; what the answer is matters not, only what it costs others."""
    head, tail = b'{"context": "', b'", "query": "q"}'
    try:
        with socket.create_connection(load.cluster.address(), timeout=REQUEST_TIMEOUT) as link:
            length = len(head) + len(text) + len(tail)
            link.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Content-Length: %d\r\n\r\n" % length + head)
            link.sendall(text)
            link.sendall(tail)
            answer = link.recv(64).split(b" ")
            load.count(load.refused, "huge body " + answer[1].decode() if len(answer) > 1 else "huge body closed")
    except OSError:
        load.count(load.refused, "huge body closed")


def at_limit(load, kind):
    """Bodies as large as the model takes, of words, of letters, of escapes; every second time only as much as is tokenised."""
    answer = load.ask("too large", "POST", "/api/v1/jobs", b" " * (34 << 20))
    most = int(answer[1].split(b"expected at most ")[1].split()[0]) if answer and answer[0] == 413 else 1 << 20
    room = most - 200
    pieces = [b"word ", b"qzjxkvbwpygfmcdulhnsrtoaie", b"\\u00e9", b"\\n\\u4e2d "]
    piece = pieces[kind % len(pieces)]
    bodies = [b'{"context": "' + piece * (room // share // len(piece)) + b'", "query": "q"}' for share in (1, 4)]
    while load.goes_on():
        for body in bodies:
            load.ask("at limit", "POST", "/api/v1/jobs", body)


def slow_reader(load, at):
    """Asks for a job's events and reads next to nothing."""
    while load.goes_on() and len(load.acknowledged) <= at:
        load.stopping.wait(0.2)
    while load.goes_on():
        try:
            with socket.create_connection(load.cluster.address(), timeout=5) as link:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                name = load.acknowledged[-1 - at % len(load.acknowledged)]
                link.sendall(b"GET /api/v1/jobs/%s/events HTTP/1.1\r\nHost: localhost\r\n\r\n" % name.encode())
                while load.goes_on():
                    load.stopping.wait(2.0)
                    link.settimeout(0.1)
                    try:
                        if not link.recv(1):
                            break
                    except TimeoutError:
                        pass
        except OSError:
            load.stopping.wait(0.5)


def cancel_one(load):
    with load.lock:
        waiting = [name for name in load.acknowledged[-50:] if name not in load.cancelled]
    if waiting:
        answer = load.ask("cancel", "POST", f"/api/v1/jobs/{waiting[-1]}/cancel")
        if answer and answer[0] == 200:
            load.cancelled.add(waiting[-1])


def look_at(load):
    try:
        rss, hwm = load.cluster.memory()
        status = json.loads((load.ask("status", "GET", "/api/v1/topology") or (0, "{}"))[1])
    except (OSError, KeyError, ValueError):
        return
    load.waiting = max(load.waiting, status.get("jobs_pending", 0))
    load.rss.append(rss)
    load.hwm = max(load.hwm, hwm)


def kill_in_the_middle(load, after):
    if load.stopping.wait(after):
        return
    load.away.set()
    before = load.cluster.record()["pid"]
    load.cluster.kill()
    while load.goes_on():
        load.stopping.wait(0.1)
        try:
            if load.cluster.record()["pid"] != before:
                link = http.client.HTTPConnection(*load.cluster.address(), timeout=5)
                link.request("GET", "/livez")
                if link.getresponse().status == 200:
                    break
        except (OSError, ValueError, http.client.HTTPException):
            pass
    load.away.clear()


def all_jobs(load):
    """Every job's state by id, read in parts."""
    states, after = {}, ""
    while True:
        answer = load.ask("last list", "GET", f"/api/v1/jobs?limit=500{after}")
        if not answer or answer[0] != 200:
            raise SystemExit(f"the list of jobs cannot be read: {answer}")
        part = json.loads(answer[1])
        states.update((job["id"], job["state"]) for job in part)
        if len(part) < 500:
            return states
        after = "&after=" + part[-1]["id"]


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(load, states):
    print(f"{'ms':10}{'count':>8}{'p50':>10}{'p99':>10}{'max':>10}")
    for kind in ("/livez", "submit", "cancel", "list", "at limit"):
        values = load.latencies.get(kind)
        if values:
            cells = [percentile(values, 0.5), percentile(values, 0.99), max(values)]
            print(f"{kind:10}{len(values):>8}" + "".join(f"{1000 * cell:>10.1f}" for cell in cells))
    print(f"supervisor: VmRSS at most {max(load.rss, default=0):.0f} MiB, VmHWM {load.hwm:.0f} MiB")
    print(f"at most {load.waiting} jobs waited at once")
    counts = {}
    for state in states.values():
        counts[state] = counts.get(state, 0) + 1
    print(f"acknowledged {len(load.acknowledged)}, cancelled {len(load.cancelled)}, jobs {counts}")
    print(f"answers that were no success: {load.refused}; requests without an answer: {load.failed}")


def judge(load, states, args):
    missed = []
    lost = [name for name in load.acknowledged if name not in states]
    if lost:
        missed.append(f"{len(lost)} acknowledged jobs are lost, such as {lost[:3]}")
    wanted = sum(1 for name in load.acknowledged if states.get(name) == "FAILED")
    # What no host takes is given up after a minute, one after the other.
    if wanted > (args.seconds // 60 if args.deep else 0):
        missed.append(f"{wanted} jobs failed")
    if len(load.acknowledged) < args.submits:
        missed.append(f"{len(load.acknowledged)} of {args.submits} submits were acknowledged in time")
    if args.deep and load.waiting < 0.9 * (args.submits - len(load.cancelled)):
        missed.append(f"{load.waiting} jobs waited at once, not {args.submits}")
    if not load.latencies.get("/livez"):
        missed.append("/livez was never answered")
    for kind, bound in (("/livez", args.livez_ms), ("submit", args.submit_ms)):
        values = load.latencies.get(kind)
        if values and 1000 * percentile(values, 0.99) > bound:
            missed.append(f"{kind} p99 is {1000 * percentile(values, 0.99):.0f} ms, bound {bound} ms")
    if load.hwm > args.memory_mib:
        missed.append(f"the supervisor took {load.hwm:.0f} MiB, bound {args.memory_mib} MiB")
    if load.failed:
        missed.append(f"requests without an answer while the supervisor was there: {load.failed}")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/asterism")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--submits", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each context")
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--body-mib", type=int, default=60)
    parser.add_argument("--deep", action="store_true", help="no host takes work, so that all wait at once")
    parser.add_argument("--positions", type=int, help="a tiny model of so many positions, in place of the embedded one")
    parser.add_argument("--at-limit", type=int, default=0, help="clients that send bodies as large as the model takes")
    parser.add_argument("--short", action="store_true", help="half a minute of --deep, with generous bounds")
    parser.add_argument("--no-kill", action="store_true", help="leave the supervisor alone")
    parser.add_argument("--livez-ms", type=float, default=50)
    parser.add_argument("--submit-ms", type=float, default=100)
    parser.add_argument("--memory-mib", type=float, default=1024)
    if "--short" in sys.argv:
        parser.set_defaults(**SHORT)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="asterism-load-"))
    cluster, load, threads = None, None, []
    try:
        cluster = Cluster(pathlib.Path(args.binary).resolve(), folder, max(args.submits, 1024), args.positions)
        if args.deep:
            [cluster.run("host", "cordon", host) for host in ("context-0", "query-0")]
        load = Load(cluster, time.monotonic() + args.seconds)
        share = [args.submits // CLIENTS + (at < args.submits % CLIENTS) for at in range(CLIENTS)]
        works = [lambda c=c: submitter(load, c, share[c], args.tokens) for c in range(CLIENTS)]
        works += [lambda at=at: slow_reader(load, at) for at in range(args.readers)]
        works.append(lambda: every(load, 0.05, lambda: load.ask("/livez", "GET", "/livez")))
        works.append(lambda: every(load, 0.5, lambda: load.ask("list", "GET", "/api/v1/jobs?state=pending&limit=100")))
        works.append(lambda: every(load, 1.0, lambda: cancel_one(load)))
        works.append(lambda: every(load, 0.5, lambda: look_at(load)))
        works += [lambda at=at: at_limit(load, at) for at in range(args.at_limit)]
        if args.body_mib:
            text = b"word " * ((args.body_mib << 20) // 5)
            works.append(lambda: every(load, 1.0, lambda: huge_body(load, text)))
        if not args.no_kill:
            works.append(lambda: kill_in_the_middle(load, args.seconds / 2))
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        [thread.start() for thread in threads]
        while load.goes_on():
            load.stopping.wait(0.5)
        load.stopping.set()
        [thread.join(REQUEST_TIMEOUT + 5) for thread in threads]
        states = all_jobs(load)
        report(load, states)
        missed = judge(load, states, args)
        print("\n".join(missed) or "every bound is kept")
        return 1 if missed else 0
    finally:
        if load:
            load.stopping.set()
        if cluster:
            subprocess.run([cluster.binary, "down", "-f", cluster.file], cwd=folder, timeout=60, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
