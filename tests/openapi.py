#!/usr/bin/env python3
"""Requests out of the OpenAPI documents of the admin API and of OpenAI's, valid and not, to a cluster: schemathesis finds no 500,
nothing that answers otherwise than the document says, and, at the admin API, nothing malformed that is taken, and nothing that is answered
without the token.

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
# OpenAI's API answers 504 to a job's own time-out and 507 where there is no room, and refuses 500 by not having it in its document.
API_CHECKS = ["status_code_conformance", "content_type_conformance", "response_schema_conformance", "ignored_auth"]
# SHA-256 of "moon".
KEYS = "alice 9e78b43ea00edcac8299e0cc8df7f6f913078171335f733a21d5d911b6999132 64\n"
# A stream without an end, and the end of the cluster.
LEFT_OUT = ["/api/v1/events", "/api/v1/shutdown"]
# An answer is as long as a quarter of what the model takes, where a request does not say.
SECTIONS = '[security]\ntoken_file = "token"\n[model]\nmax_context_tokens = 256\n'


def skip(why):
    skipped(f"the OpenAPI documents were not held against a cluster: {why}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", type=pathlib.Path, required=True)
    arguments.add_argument("--examples", type=int, default=12, help="requests of each kind for each operation")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="asterism-openapi-") as folder:
        folder = pathlib.Path(folder)
        python = python_with([PACKAGE], folder, skip)
        api_lines = f'listen = "127.0.0.1:0"\napi_key_file = "{folder}/keys"\n'
        cluster = Cluster(given.binary, folder, "openapi", sections=SECTIONS, api=api_lines)
        cluster.secret("token", "moon\n")
        cluster.secret("keys", KEYS)
        with cluster:
            record = cluster.record()
            admin, api = f"http://{record['admin']}", f"http://{record['api']}"
            failed = False
            for address, path, checks in [(admin, "/api/openapi.json", CHECKS), (api, "/openapi.json", API_CHECKS)]:
                request = urllib.request.Request(f"{address}{path}", headers={"authorization": "Bearer moon"})
                (folder / "openapi.json").write_bytes(urllib.request.urlopen(request, timeout=60).read())
                run = [python.parent / "st", "run", folder / "openapi.json", "--url", address, "-H", "Authorization: Bearer moon",
                       "--checks", ",".join(checks), "--max-examples", str(given.examples), "--seed", "1", "--request-timeout", "60",
                       "--continue-on-failure", "--suppress-health-check", "all", "--no-color"]
                for left_out in LEFT_OUT if address == admin else []:
                    run += ["--exclude-path", left_out]
                failed |= subprocess.run(run, cwd=folder, timeout=600).returncode != 0
            alive = urllib.request.urlopen(f"{admin}/livez", timeout=60).status
    sys.exit(failed or alive != 200)


if __name__ == "__main__":
    main()
