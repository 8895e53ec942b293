#!/usr/bin/env python3
"""The console in headless Chromium against a cluster that wants a token: tests/console/check.mjs, with puppeteer-core and axe-core of npm.

    tests/console.py --binary target/release/asterism [--picture runtime/console.png]

Ends with 0 and a loud line where Chromium, node or npm's packages cannot be had. Only loopback; stops what it started. Python's standard
library alone.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

from clusters import Cluster, skipped

PACKAGES = ["puppeteer-core@25.16.0", "axe-core@4.14.1"]
TOKEN = "moon-over-the-harbour"


def skip(why):
    skipped(f"the console was not opened: {why}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--picture", type=pathlib.Path)
    given = arguments.parse_args()
    browser = next((found for name in ["chromium", "chromium-browser", "google-chrome"] if (found := shutil.which(name))), None)
    if not browser or not shutil.which("node") or not shutil.which("npm"):
        skip("it takes chromium, node and npm")
    with tempfile.TemporaryDirectory(prefix="asterism-console-") as folder:
        folder = pathlib.Path(folder)
        (folder / "package.json").write_text("{}")
        got = subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES], cwd=folder, capture_output=True,
                             text=True)
        if got.returncode:
            skip(f"npm does not give {' and '.join(PACKAGES)}: {got.stderr[-300:]}")
        cluster = Cluster(given.binary, folder, "harbour", contexts=3, sections=f'\n[security]\ntoken_file = "{folder}/token"\n')
        cluster.secret("token", TOKEN + "\n")
        with cluster:
            check = pathlib.Path(__file__).parent.resolve() / "console/check.mjs"
            picture = [given.picture.resolve()] if given.picture else []
            admin = f"http://{cluster.record()['admin']}/"
            ended = subprocess.run(["node", check, admin, browser, TOKEN, *picture], cwd=folder, timeout=400)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
