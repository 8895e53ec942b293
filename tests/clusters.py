"""A cluster of real processes on loopback, for the scripts beside this file: made in a folder, up while it is entered, then down. Python's
standard library alone."""

import json
import os
import pathlib
import random
import subprocess
import sys
import venv

CLUSTER = """version = 1

[cluster]
name = "{name}"
listen = "127.0.0.1:0"
data_dir = "{folder}/data"
{sections}
[attention.auto]

[api]
admin_listen = "127.0.0.1:0"
{api}
[[node]]
name = "local"
address = "127.0.0.1"
"""
HOST = '\n[[host]]\nname = "{name}"\nrole = "{role}"\n{lines}'
WORDS = "the harbour lantern road whale river stone garden letter winter market bridge story number captain island".split()
# Words of these that are a token of the model that the program brings.
WORDS_OF_A_TOKEN = 0.7


def text(tokens, beginning):
    """About so many tokens, of the model that the program brings, that no other beginning begins alike."""
    draw = random.Random(beginning)
    return f"{beginning}. " + " ".join(draw.choice(WORDS) for _ in range(int(tokens * WORDS_OF_A_TOKEN)))


def skipped(why):
    """Ends a test that cannot be run here: well, except where ASTERISM_REQUIRE=all takes nothing for tested that was skipped."""
    print(f"SKIPPED: {why}", file=sys.stderr)
    sys.exit(1 if os.environ.get("ASTERISM_REQUIRE") == "all" else 0)


def python_with(packages, folder, skip):
    """A Python below the folder that has the packages; `skip` is told why there is none."""
    try:
        venv.create(folder / "venv", with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        skip(f"there is no venv to make: {error}")
    python = folder / "venv/bin/python"
    got = subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], capture_output=True, text=True)
    if got.returncode:
        skip(f"pip does not give {' and '.join(packages)}: {got.stderr[-300:]}")
    return python


class Cluster:
    """`api` are lines of that section, `host` gives those of a host by its name, `sections` whole ones."""

    def __init__(self, binary, folder, name, contexts=2, api="", host=lambda name: "", sections=""):
        self.binary, self.folder, self.file = binary.resolve(), folder, folder / "cluster.toml"
        hosts = [(f"context-{at}", "context") for at in range(contexts)] + [("query-0", "query")]
        text = CLUSTER.format(name=name, folder=folder, api=api, sections=sections)
        self.file.write_text(text + "".join(HOST.format(name=name, role=role, lines=host(name)) for name, role in hosts))

    def __enter__(self):
        self.run("up", "--detach")
        return self

    def __exit__(self, *_):
        self.run("down")

    def run(self, *words):
        return subprocess.run([self.binary, *words, "-f", self.file], cwd=self.folder, check=True, timeout=180, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)

    def record(self):
        """Process and addresses of the supervisor that there is now."""
        return json.loads((self.folder / "data/supervisor.json").read_text())

    def secret(self, name, text):
        """A file of that name which its owner alone reads."""
        path = pathlib.Path(self.folder) / name
        path.write_text(text)
        path.chmod(0o600)
