"""Checks dashboards against the types that Grafana publishes on npm: the TypeScript compiler reads each as one of them. Asks
no Grafana."""

import json
import shutil
import subprocess
import tempfile
import pathlib

PACKAGES = ["@grafana/schema@13.2.3", "typescript@5.9.3"]
TYPES = "./node_modules/@grafana/schema/dist/types/raw"
# What Grafana's types call the options of these panels; those of a line have settings of their own.
PANELS = {"timeseries": "timeseries", "stat": "stat", "heatmap": "heatmap", "state-timeline": "statetimeline", "table": "table"}
CUSTOM = ["timeseries", "statetimeline"]
# JSON has words and numbers where TypeScript has names of an enumeration.
PLAIN = """type Plain<T> = T extends string ? `${T}` : T extends number ? number : T extends boolean ? T
  : unknown extends T ? T : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""


def source(paths):
    """A program whose types are right where the dashboards are."""
    lines = [f"import type {{ Dashboard, Panel }} from '{TYPES}/dashboard/x/types.gen';"]
    lines += [f"import type * as {name} from '{TYPES}/composable/{name}/panelcfg/x/types.gen';" for name in PANELS.values()]
    lines.append(PLAIN)
    for path in paths:
        dashboard, name = json.loads(path.read_text()), path.stem
        lines.append(f"const {name}: Plain<Omit<Dashboard, 'panels'>> = {json.dumps(dashboard | {'panels': None}, indent=1)};"
                     .replace(' "panels": null', "").replace(",\n};", "\n};"))
        for panel in dashboard["panels"]:
            at, kind = f"{name}_{panel['id']}", PANELS[panel["type"]]
            custom = panel["fieldConfig"]["defaults"].get("custom")
            lines.append(f"const {at}: Plain<Panel> = {json.dumps(panel, indent=1)};")
            lines.append(f"const {at}_options: Plain<Partial<{kind}.Options>> = {json.dumps(panel['options'])};")
            if custom is not None:
                assert kind in CUSTOM, f"{kind} has no settings of a field"
                lines.append(f"const {at}_custom: Plain<{kind}.FieldConfig> = {json.dumps(custom)};")
    return "\n".join(lines) + "\nexport {};\n"


def check(folder):
    """What is wrong with the dashboards of a folder."""
    if not shutil.which("npm"):
        print("SKIPPED: no npm on this machine, so dashboards are not checked against Grafana's types")
        return []
    with tempfile.TemporaryDirectory(prefix="asterism-schema-") as place:
        place = pathlib.Path(place)
        (place / "package.json").write_text("{}")
        got = subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES], cwd=place,
                             capture_output=True, text=True)
        if got.returncode:
            print(f"SKIPPED: dashboards are not checked against Grafana's types, npm does not give them:\n{got.stderr[-500:]}")
            return []
        paths = sorted(folder.glob("*.json"))
        (place / "dashboards.ts").write_text(source(paths))
        command = ["npx", "tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler",
                   "dashboards.ts"]
        read = subprocess.run(command, cwd=place, capture_output=True, text=True)
    print(f"{len(paths)} dashboards read as {PACKAGES[0]}'s types: {'good' if not read.returncode else 'bad'}")
    return read.stdout.splitlines() if read.returncode else []
