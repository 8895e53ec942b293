#!/usr/bin/env python3
"""Requests out of the admin API's own OpenAPI document, valid and not, to a cluster: schemathesis finds no 500, nothing that answers
otherwise than the document says, nothing malformed that is taken, and nothing that is answered without the token.

    tests/openapi.py --binary target/release/asterism

Makes a virtual environment for the package. Ends with 0 and a loud line where it cannot be had. Only loopback; stops what it started.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from clusters import Cluster, python_with, skipped

PACKAGE = "schemathesis==4.32.5"
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "negative_data_rejection", "ignored_auth"]
# A stream without an end, and the end of the cluster.
LEFT_OUT = ["/api/v1/events", "/api/v1/shutdown"]
SECURITY = '[security]\ntoken_file = "token"\n'


def skip(why):
    skipped(f"the OpenAPI document was not held against a cluster: {why}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--examples", type=int, default=12, help="requests of each kind for each operation")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="asterism-openapi-") as folder:
        folder = pathlib.Path(folder)
        python = python_with([PACKAGE], folder, skip)
        cluster = Cluster(given.binary, folder, "openapi", sections=SECURITY)
        cluster.secret("token", "moon\n")
        with cluster:
            admin = f"http://{cluster.record()['admin']}"
            request = urllib.request.Request(f"{admin}/api/openapi.json", headers={"authorization": "Bearer moon"})
            (folder / "openapi.json").write_bytes(urllib.request.urlopen(request, timeout=60).read())
            run = [python.parent / "st", "run", folder / "openapi.json", "--url", admin, "-H", "Authorization: Bearer moon",
                   "--checks", ",".join(CHECKS), "--max-examples", str(given.examples), "--seed", "1", "--request-timeout", "60",
                   "--continue-on-failure", "--suppress-health-check", "all", "--no-color"]
            for path in LEFT_OUT:
                run += ["--exclude-path", path]
            ended = subprocess.run(run, cwd=folder, timeout=600)
            alive = urllib.request.urlopen(f"{admin}/livez", timeout=60).status
    sys.exit(ended.returncode or alive != 200)


if __name__ == "__main__":
    main()
