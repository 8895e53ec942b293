#!/usr/bin/env python3
"""Two supervisors, three members of a real etcd, hosts, and clients that submit jobs and ask a session all the while. The leader is killed
(SIGKILL), stopped (SIGSTOP, for longer than its lease) and cut off from etcd, again and again; etcd loses its majority and gets it back.

Checked: whoever was told 202 gets an answer, and the right tokens; another supervisor serves within the lease and a second; one that was
stopped writes nothing when it wakes up; from the revisions of etcd, that no two leaders wrote in turns; without etcd what runs goes on, and
what is new is refused in words; `down` ends those that stand by too.

    tests/standby.py --binary target/release/asterism [--kills 3 --stops 2 --cuts 1 --lease 3 --within 4 --seed 1] [--folder DIR]

Needs etcd (Debian: etcd-server): on PATH, or as ASTERISM_ETCD names it; skipped otherwise. Only loopback; stops what it
started. Python's standard library alone.
"""

import argparse
import asyncio
import base64
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from clusters import skipped

CLUSTER = """version = 1

[cluster]
name = "standby"

[attention.dense]

[standby]
etcd = {etcd}
shared_dir = "{folder}/shared"
lease_s = {lease}

[supervisor]
max_restarts = 1000

[[node]]
name = "local"
address = "127.0.0.1"
"""
HOSTS = [("context-0", "context"), ("context-1", "context"), ("query-0", "query")]
PROMPT = "What is the special magic number for harbour-lantern?"
PATIENCE_S, POLL_S = 90, 0.05
CUT = "cut"


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    return [one.getsockname()[1] for one in held]


def ask(url, body=None, method=None, timeout=5):
    """Status and JSON, or what an endpoint says in plain text; status 0 where nobody answers."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if data else {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    except OSError as error:
        return 0, str(error)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode(errors="replace")


class Wires:
    """What leads from one supervisor to the members of etcd, and can be cut."""

    def __init__(self, ports, members):
        self.ends, self.is_cut, self.writers = dict(zip(ports, members)), False, set()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result(5)

    async def listen(self):
        for port, member in self.ends.items():
            await asyncio.start_server(lambda reader, writer, member=member: self.carry(reader, writer, member), "127.0.0.1", port)

    async def carry(self, reader, writer, member):
        if self.is_cut:
            return writer.transport.abort()
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", member)
        except OSError:
            return writer.transport.abort()
        pair = {writer, there}
        self.writers |= pair
        await asyncio.gather(self.copy(reader, there), self.copy(there_reader, writer), return_exceptions=True)
        self.writers -= pair
        for end in pair:
            end.transport.abort()

    async def copy(self, reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        raise ConnectionError

    def cut(self, is_cut):
        def now():
            self.is_cut = is_cut
            if is_cut:
                for writer in self.writers:
                    writer.transport.abort()

        self.loop.call_soon_threadsafe(now)


class Room:
    """Everything that runs."""

    def __init__(self, binary, folder, lease):
        self.binary, self.folder, self.lease, self.processes, self.etcd = binary, folder, lease, {}, {}
        (folder / "shared").mkdir()
        ports = free_ports(16)
        self.members = {f"m{at}": (ports[2 * at], ports[2 * at + 1]) for at in range(3)}
        self.endpoints = [f"http://127.0.0.1:{client}" for client, _ in self.members.values()]
        self.supervisors = {"a": (ports[6], ports[7]), "b": (ports[8], ports[9])}
        clients = [client for client, _ in self.members.values()]
        self.wires = {"a": Wires(ports[10:13], clients), "b": Wires(ports[13:16], clients)}
        self.file = folder / "cluster.toml"
        text = CLUSTER.format(etcd=json.dumps(self.endpoints), folder=folder, lease=lease)
        self.file.write_text(text + "".join(f'\n[[host]]\nname = "{name}"\nrole = "{role}"\n' for name, role in HOSTS))
        self.ending = False

    def start(self, name, words, **environment):
        log = open(self.folder / f"{name}.log", "ab")
        # Each in a group of its own, which Ctrl-C does not reach: `end` ends them in order.
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ, **environment), process_group=0)

    def start_etcd(self, program):
        together = ",".join(f"{name}=http://127.0.0.1:{peer}" for name, (_, peer) in self.members.items())
        for name, (client, peer) in self.members.items():
            urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
            self.etcd[name] = self.start(name, [
                program, f"--name={name}", f"--data-dir={self.folder}/{name}", f"--initial-cluster={together}",
                f"--listen-client-urls={urls['client']}", f"--advertise-client-urls={urls['client']}",
                f"--listen-peer-urls={urls['peer']}", f"--initial-advertise-peer-urls={urls['peer']}",
            ])
        within(30, "etcd has a leader", lambda: self.gateway("kv/range", {"key": key("head")}) is not None)

    def gateway(self, path, body):
        for endpoint in self.endpoints:
            status, answer = ask(f"{endpoint}/v3/{path}", body)
            if status == 200:
                return answer
        return None

    def supervise(self, name):
        """Starts a supervisor again whenever it ends, as a service manager does."""
        listen, admin = self.supervisors[name]
        words = [self.binary, "supervisor", "-f", self.file, "--listen", f"127.0.0.1:{listen}", "--admin-listen", f"127.0.0.1:{admin}"]

        members = json.dumps([f"http://127.0.0.1:{port}" for port in self.wires[name].ends])

        def keep():
            while not self.ending:
                process = self.start(f"supervisor-{name}", words, ASTERISM__CLUSTER__DATA_DIR=str(self.folder / name),
                                     ASTERISM__STANDBY__ETCD=members)
                self.processes[name] = process
                process.wait()
                time.sleep(0.2)

        threading.Thread(target=keep, daemon=True).start()

    def start_node(self):
        places = ",".join(f"127.0.0.1:{listen}" for listen, _ in self.supervisors.values())
        self.processes["node"] = self.start("node", [self.binary, "node", "-f", self.file, "--name", "local", "--join", places],
                                            ASTERISM__CLUSTER__DATA_DIR=str(self.folder / "node"))

    def url(self, name):
        return f"http://127.0.0.1:{self.supervisors[name][1]}"

    def leader(self, timeout=1):
        """Who serves, by what it answers."""
        for name in self.supervisors:
            status, topology = ask(f"{self.url(name)}/api/v1/topology", timeout=timeout)
            if status == 200:
                return name, topology
        return None, None

    def is_ready(self):
        _, topology = self.leader()
        return topology is not None and all(host["health"] == "ready" for host in topology["hosts"])

    def end(self):
        self.ending = True
        for process in list(self.processes.values()) + list(self.etcd.values()):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in list(self.processes.values()) + list(self.etcd.values()):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def key(name):
    return base64.b64encode(f"/asterism/standby/{name}".encode()).decode()


def within(seconds, what, done):
    since = time.monotonic()
    while time.monotonic() - since < seconds:
        found = done()
        if found:
            return found
        time.sleep(POLL_S)
    raise AssertionError(f"{what}: not within {seconds} s")


class Client(threading.Thread):
    """Submits jobs one after the other, each until its answer is there, and asks whichever supervisor leads."""

    def __init__(self, room, context, number, session):
        super().__init__(daemon=True)
        self.room, self.context, self.number, self.session = room, context, number, session
        self.done, self.refused, self.wrong, self.stopping = 0, {}, [], False

    def asked(self, path, body=None):
        """The answer of a leader: the first one, but of those that know nothing of it the last; of others it notes what they refuse with."""
        unknown = None
        for name in self.room.supervisors:
            status, answer = ask(f"{self.room.url(name)}{path}", body)
            if status in (200, 202):
                return status, answer
            if status == 404:
                unknown = answer
            elif status:
                code = answer["error"]["code"] if isinstance(answer, dict) else str(answer)
                self.refused[code] = self.refused.get(code, 0) + 1
        return (404, unknown) if unknown else (0, None)

    def run(self):
        turn = 0
        while not self.stopping:
            turn += 1
            job = {"id": f"client-{self.number}-{turn}", "query": PROMPT, "max_tokens": 12}
            job.update({"session": self.session} if turn % 2 else {"context": self.context})
            try:
                self.one(job)
            except Exception as error:
                self.wrong.append(f"{job['id']}: {error!r}")
                return

    def one(self, job):
        since = time.monotonic()
        while True:
            status, answer = self.asked("/api/v1/jobs", job)
            if status in (200, 202):
                break
            if time.monotonic() - since > PATIENCE_S:
                raise AssertionError(f"was not accepted: {answer}")
            time.sleep(POLL_S)
        # From here on it is acknowledged. Who was stopped or cut off knows only what was, until it has heard that it leads no more.
        known = time.monotonic()
        while True:
            status, answer = self.asked(f"/api/v1/jobs/{job['id']}")
            if status == 200 and answer["state"] in ("SUCCEEDED", "FAILED", "CANCELLED"):
                break
            known = known if status == 404 else time.monotonic()
            if time.monotonic() - known > self.room.lease + 5:
                raise AssertionError(f"was accepted and is not known any more: {answer}")
            if time.monotonic() - since > PATIENCE_S:
                raise AssertionError(f"was accepted and has no answer: {status} {answer}")
            time.sleep(POLL_S)
        if answer["state"] != "SUCCEEDED":
            raise AssertionError(f"{answer['state']}: {answer.get('error')}")
        with LOCK:
            kind = "session" if "session" in job else "context"
            expected = TOKENS.setdefault(kind, answer["tokens"])
        if answer["tokens"] != expected:
            raise AssertionError(f"{answer['tokens']}, expected {expected}")
        self.done += 1


LOCK, TOKENS = threading.Lock(), {}


def chain(room):
    """What etcd has of `head`, the oldest first: who led, and the number of each write. Read back revision by revision."""
    found, revision = [], 0
    while True:
        body = {"key": key("head"), **({"revision": str(revision)} if revision else {})}
        pairs = (room.gateway("kv/range", body) or {}).get("kvs", [])
        if not pairs:
            return found[::-1]
        term, number = base64.b64decode(pairs[0]["value"]).split()
        modified = int(pairs[0]["mod_revision"])
        found.append((int(term), int(number), modified))
        if modified == int(pairs[0]["create_revision"]):
            return found[::-1]
        revision = modified - 1


def check_chain(links):
    for (term, number, revision), (later_term, later_number, later) in zip(links, links[1:]):
        if later_term == term:
            assert later_number > number, f"at revision {later}: write {later_number} of term {term} behind {number}"
        else:
            assert later_term > term and later_number == 0, f"at revision {later}: term {later_term} behind {term} ({revision})"
    return len({term for term, _, _ in links})


def take_over(room, old, how):
    """Has the leader end, hang or be cut off; who serves then, after how many seconds, and after how many the cluster
    answers again."""
    process = room.processes[old]
    if how == CUT:
        room.wires[old].cut(True)
    else:
        process.send_signal(how)
    since = time.monotonic()

    def leads():
        """Another one than that process: a supervisor that was killed is started again, and may lead."""
        for name in room.supervisors:
            if (name != old or room.processes[name] is not process) and ask(f"{room.url(name)}/api/v1/topology", timeout=1)[0] == 200:
                return name
        return None

    other = within(room.lease + 30, "another supervisor serves", leads)
    serves = time.monotonic() - since
    within(60, "the cluster is ready", lambda: ask(f"{room.url(other)}/readyz", timeout=1)[0] == 200)
    return process, other, serves, time.monotonic() - since


def without_majority(room, clients):
    """Two of three members hang: nothing new, what runs goes on; then all is as before."""
    leader, _ = room.leader()
    members = list(room.etcd.values())[:2]
    # A long answer is under way when they do. It may well end before the first word is refused: the journal is given seconds to answer.
    long = {"id": "long", "context": clients[0].context, "query": PROMPT, "max_tokens": 12000, "ignore_eos": True}
    within(30, "a long job is accepted", lambda: clients[0].asked("/api/v1/jobs", long)[0] in (200, 202))

    def status():
        code, said = ask(f"{room.url(leader)}/api/v1/jobs/long")
        return said if code == 200 else None

    # Where nobody answers in time, it is asked again.
    generated = lambda: within(30, "the long job is shown", status).get("generated_tokens", 0)
    before = within(60, "the long job generates", lambda: tokens if (tokens := generated()) > 3 else None)
    for member in members:
        member.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    time.sleep(0.5)  # for a write to begin
    within(5, "the long job is shown while etcd hangs", status)
    refused = within(40, "a new job is refused", lambda: refusal(room, leader))
    assert "etcd" in refused or "http://127.0.0.1" in refused, refused
    after = generated()
    # More than are generated between a question and the next.
    assert after >= before + 100, f"{after} tokens, before {before}: what runs does not go on"
    for member in members:
        member.send_signal(signal.SIGCONT)
    gone = time.monotonic() - since
    since = time.monotonic()
    within(60, "a new job is accepted", lambda: clients[0].asked("/api/v1/jobs", {**long, "id": "later", "max_tokens": 2})[0] in (200, 202))
    return gone, after - before, time.monotonic() - since, refused


def refusal(room, leader):
    status, answer = ask(f"{room.url(leader)}/api/v1/jobs", {"context": "a", "query": PROMPT, "max_tokens": 2}, timeout=20)
    return answer["error"]["message"] if status == 503 and answer["error"]["code"] == "journal_unreachable" else None


def run(room, options, rng):
    for name in room.supervisors:
        room.supervise(name)
    first, _ = within(60, "a supervisor leads", lambda: room.leader() if room.leader()[0] else None)
    (other,) = [name for name in room.supervisors if name != first]
    status, words = within(20, "the other stands by", lambda: (ask(f"{room.url(other)}/readyz") if ask(f"{room.url(other)}/readyz")[0] == 200 else None))
    assert "stands by" in words, words
    status, refused = ask(f"{room.url(other)}/api/v1/topology")
    assert (status, refused["error"]["code"]) == (503, "standby"), (status, refused)
    print(f"{first} leads; {other} says: {words.strip()}")
    room.start_node()
    within(120, "all hosts are ready", room.is_ready)

    context = pathlib.Path(__file__).parent.parent.joinpath("examples/harbour.txt").read_text()
    status, session = ask(f"{room.url(first)}/api/v1/sessions", {"name": "kept", "context": context, "ttl_s": 3600}, timeout=30)
    assert status in (200, 201, 202), session
    clients = [Client(room, context, number, "kept") for number in range(2)]
    for client in clients:
        client.start()
    within(120, "jobs are answered", lambda: all(client.done > 1 for client in clients) or any(client.wrong for client in clients))

    times = []
    faults = [signal.SIGKILL] * options.kills + [signal.SIGSTOP] * options.stops + [CUT] * options.cuts
    rng.shuffle(faults)
    for turn, how in enumerate(faults):
        time.sleep(rng.uniform(0.2, 2))
        leader, _ = within(30, "somebody leads", lambda: room.leader() if room.leader()[0] else None)
        process, other, serves, answers = take_over(room, leader, how)
        times.append(serves)
        print(f"{turn}: {getattr(how, 'name', how)} of {leader}: {other} serves after {serves:.2f} s, answers after {answers:.2f} s; "
              f"{sum(client.done for client in clients)} jobs answered", flush=True)
        if how == signal.SIGSTOP:
            process.send_signal(signal.SIGCONT)
        process.wait(20)
        room.wires[leader].cut(False)
        within(30, "both run", lambda: ask(f"{room.url(leader)}/readyz")[0] == 200)
        within(60, "all hosts are ready", room.is_ready)
        wrong = [words for client in clients for words in client.wrong]
        assert not wrong, wrong

    gone, tokens, back, refused = without_majority(room, clients)
    print(f"without etcd's majority for {gone:.1f} s: {tokens} tokens more, new work refused: \"{refused}\"; taken again {back:.1f} s after it was back")
    before = [client.done for client in clients]
    within(90, "jobs are answered", lambda: all(client.done > done + 1 for client, done in zip(clients, before)) or any(client.wrong for client in clients))
    for client in clients:
        client.stopping = True
    for client in clients:
        client.join(PATIENCE_S + 10)
        assert not client.is_alive() and not client.wrong, client.wrong
    named = ",".join(room.url(name) for name in room.supervisors)
    shown = subprocess.run([room.binary, "session", "show", "kept", "--server", named, "-o", "json"], capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0 and '"kept"' in shown.stdout, shown.stderr
    room.ending = True
    subprocess.run([room.binary, "down", "--server", named], check=True, capture_output=True, timeout=30)
    for name in ("a", "b", "node"):
        ended = room.processes[name].wait(30)
        assert ended == 0, f"{name} ended with {ended} when the cluster was ended"
    links = chain(room)
    terms = check_chain(links)
    most, times = options.within or options.lease + 1, sorted(times)
    print(f"{sum(client.done for client in clients)} jobs acknowledged and answered with the same tokens; {len(links)} writes of {terms} terms "
          f"in order; refusals seen: {clients[0].refused}")
    if times:
        print(f"{len(times)} take-overs with a lease of {options.lease} s: median {times[len(times) // 2]:.2f} s, slowest {times[-1]:.2f} s, "
              f"{sum(time > most for time in times)} beyond {most} s")
        assert times[-1] <= most, f"a take-over took {times[-1]:.2f} s, expected at most {most} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=pathlib.Path("target/release/asterism"))
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--stops", type=int, default=2)
    parser.add_argument("--cuts", type=int, default=1)
    parser.add_argument("--lease", type=int, default=3)
    parser.add_argument("--within", type=float, help="seconds that a take-over may take [default: the lease and one]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path)
    options = parser.parse_args()
    etcd = shutil.which(os.environ.get("ASTERISM_ETCD", "etcd"))
    if etcd is None:
        skipped("there is no etcd here (Debian: etcd-server)")
    folder = pathlib.Path(options.folder or tempfile.mkdtemp(prefix="standby-")).resolve()
    folder.mkdir(exist_ok=True)
    room = Room(options.binary.resolve(), folder, options.lease)
    try:
        room.start_etcd(etcd)
        run(room, options, random.Random(options.seed))
    except BaseException:
        for log in sorted(folder.glob("*.log")) + sorted(folder.glob("*/logs/*.log")):
            print(f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-6:]), file=sys.stderr)
        raise
    finally:
        room.end()
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
