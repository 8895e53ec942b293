"""Draws every panel of every dashboard from what Prometheus told, without a Grafana: a page of SVG, and headless Chromium's picture of
it. Plain on purpose: lines, bars, numbers, cells; axes in the panel's unit."""

import html
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

COLOURS = ["#3b7dd8", "#e0813b", "#3f9e5f", "#c0504d", "#8b6cc1", "#8c6d46", "#d17ab0", "#7a7a7a", "#a9a339", "#3aa7b5"]
WORDS = {"green": "#3f9e5f", "orange": "#e0813b", "red": "#c0504d", "transparent": "none"}
UNIT_WIDTH, UNIT_HEIGHT, WIDTH = 50, 26, 1200
STYLE = """body{margin:0;background:#f4f5f5;font:12px 'DejaVu Sans',sans-serif;color:#24292e}
.panel{position:absolute;background:#fff;border:1px solid #d8d9da;box-sizing:border-box;padding:6px 8px;overflow:hidden}
h2{font-size:12px;margin:0 0 2px;font-weight:bold}.empty{color:#c0504d;font-size:20px;padding:30px}
.legend{font-size:10px;line-height:14px;height:28px;overflow:hidden}.legend i{display:inline-block;width:10px;height:3px;margin:0 4px 3px 10px}
.big{font-size:34px;font-weight:bold;text-align:center;padding-top:14px}td,th{padding:3px 10px;text-align:left;border-bottom:1px solid #ddd}
h1{position:absolute;left:8px;top:6px;font-size:16px;margin:0}"""


def shown(value, unit):
    """A number as the axis of a unit shows it."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "Bps"):
        power = min(4, int(math.log(abs(value), 1024))) if abs(value) >= 1 else 0
        return f"{value / 1024 ** power:.3g} {['', 'Ki', 'Mi', 'Gi', 'Ti'][power]}B{'/s' if unit == 'Bps' else ''}"
    if unit == "s":
        for factor, word in [(1, "s"), (1e-3, "ms"), (1e-6, "µs")]:
            if abs(value) >= factor or factor == 1e-6:
                return f"{value / factor:.3g} {word}" if value else "0 s"
    if unit == "reqps":
        return f"{value:.3g} req/s"
    if unit == "d":
        return f"{value:.4g} d"
    return f"{value / 1000:.4g} K" if abs(value) >= 1000 else f"{value:.3g}"


def label(pattern, metric):
    for name, value in metric.items():
        pattern = pattern.replace("{{" + name + "}}", value)
    return pattern or "value"


def numbers(series):
    """Times and values that are numbers."""
    values = series.get("values") or [series["value"]]
    return [(float(at), float(value)) for at, value in values if value not in ("NaN", "+Inf", "-Inf")]


def ticks(low, high, log, unit):
    if unit in ("bytes", "Bps") and not log and high >= 1024:
        factor = 1024 ** int(math.log(high, 1024))
        return [factor * tick for tick in ticks(low / factor, high / factor, False, "none")]
    if log:
        return [10.0 ** power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    span = high - low or 1
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 5)
    return [low + step * at for at in range(int(span / step + 1e-9) + 1)]


def stacked(lines):
    """Each line on top of those before it, at the times of all of them."""
    times, below, found = sorted({at for _, points in lines for at, _ in points}), {}, []
    for name, points in lines:
        of = dict(points)
        base = [(at, below.get(at, 0.0)) for at in times]
        below = {at: below.get(at, 0.0) + of.get(at, 0.0) for at in times}
        found.append((name, [(at, below[at]) for at in times], base))
    return found


def chart(panel, lines, size):
    width, height = size
    defaults = panel["fieldConfig"]["defaults"]
    custom, unit = defaults["custom"], defaults["unit"]
    log, stack = custom["scaleDistribution"]["type"] == "log", custom["stacking"]["mode"] == "normal"
    if log:
        lines = [(name, [(at, value) for at, value in points if value > 0]) for name, points in lines]
    drawn = stacked(lines) if stack else [(name, points, None) for name, points in lines]
    values = [value for _, points, _ in drawn for _, value in points]
    times = [at for _, points, _ in drawn for at, _ in points]
    if not values:
        return '<div class="empty">No data</div>'
    low = min(values) if log else min(0.0, min(values))
    high = max(max(values), defaults.get("max", 0)) or 1.0
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high * 1.0001))
    else:
        high *= 1.05
    left, right, top, bottom = 70, 6, 9, 16
    scale = math.log10 if log else float
    begin, end = min(times), max(times)
    x = lambda at: left + (at - begin) / ((end - begin) or 1) * (width - left - right)
    y = lambda value: height - bottom - (scale(value) - scale(low)) / (scale(high) - scale(low)) * (height - top - bottom)
    parts = [f'<svg width="{width}" height="{height}">']
    for tick in ticks(low, high, log, unit):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#e3e4e5"/>'
                     f'<text x="{left - 6}" y="{y(tick) + 3:.1f}" text-anchor="end" font-size="10">{shown(tick, unit)}</text>')
    for at in range(5):
        when = begin + (end - begin) * at / 4
        anchor = "middle" if at < 4 else "end"
        parts.append(f'<text x="{x(when):.1f}" y="{height - 3}" font-size="9" text-anchor="{anchor}">{when - begin:.0f} s</text>')
    for at, (_, points, base) in enumerate(drawn):
        colour = COLOURS[at % len(COLOURS)]
        if custom["drawStyle"] == "bars":
            wide = max(2.0, (width - left - right) / (len({at for at, _ in points}) or 1) - 1)
            under = dict(base or [])
            parts += [f'<rect x="{x(when) - wide / 2:.1f}" width="{wide:.1f}" y="{y(value):.1f}" '
                      f'height="{max(0.0, y(under.get(when, low)) - y(value)):.1f}" fill="{colour}" fill-opacity=".7"/>'
                      for when, value in points if value > under.get(when, 0.0)]
            continue
        path = " ".join(f"{x(when):.1f},{y(value):.1f}" for when, value in points)
        if stack:
            back = " ".join(f"{x(when):.1f},{y(value):.1f}" for when, value in reversed(base))
            parts.append(f'<polygon points="{path} {back}" fill="{colour}" fill-opacity=".6"/>')
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    if custom["thresholdsStyle"]["mode"] != "off":
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is not None and low <= step["value"] <= high:
                at = f'{y(step["value"]):.1f}'
                parts.append(f'<line x1="{left}" x2="{width - right}" y1="{at}" y2="{at}" stroke="{WORDS[step["color"]]}" '
                             'stroke-dasharray="6 4"/>')
    names = "".join(f'<span><i style="background:{COLOURS[at % len(COLOURS)]}"></i>{html.escape(name)}</span>'
                    for at, (name, _, _) in enumerate(drawn))
    return "".join(parts) + f'</svg><div class="legend">{names}</div>'


def stat(panel, lines):
    defaults, value = panel["fieldConfig"]["defaults"], lines[0][1][-1][1]
    steps = [step for step in defaults["thresholds"]["steps"] if step["value"] is None or value >= step["value"]]
    text = shown(round(value, defaults.get("decimals", 3)), defaults["unit"])
    return f'<div class="big" style="color:{WORDS[steps[-1]["color"]]}">{text}</div>'


def cells(panel, lines, size):
    """A heatmap: each bucket less the one below it."""
    width, height = size
    height += 28
    ordered = sorted(lines, key=lambda line: float(line[0].replace("+Inf", "inf")))
    times, rows, below = sorted({at for _, points in lines for at, _ in points}), [], {}
    for name, points in ordered:
        of = dict(points)
        rows.append((name, {at: max(0.0, of.get(at, 0.0) - below.get(at, 0.0)) for at in times}))
        below = of
    most = max(value for _, row in rows for value in row.values()) or 1.0
    left, wide, tall = 70, (width - 76) / len(times), (height - 20) / len(rows)
    parts = [f'<svg width="{width}" height="{height}">']
    for at, (name, row) in enumerate(rows):
        top = height - 18 - (at + 1) * tall
        parts.append(f'<text x="{left - 6}" y="{top + tall / 2 + 3:.1f}" text-anchor="end" font-size="9">{name}</text>')
        parts += [f'<rect x="{left + column * wide:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall - 1:.1f}" fill="#2f6fc1" '
                  f'fill-opacity="{math.sqrt(row[when] / most):.2f}"/>' for column, when in enumerate(times) if row[when] > 0]
    return "".join(parts) + "</svg>"


def states(panel, lines, size):
    width, height = size
    mappings = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    times = [at for _, points in lines for at, _ in points]
    begin, end, left = min(times), max(times), 90
    tall = (height + 20) / len(lines)
    parts = [f'<svg width="{width}" height="{height + 28}">']
    for row, (name, points) in enumerate(sorted(lines)):
        parts.append(f'<text x="{left - 8}" y="{(row + .6) * tall:.1f}" text-anchor="end">{html.escape(name)}</text>')
        for (when, value), (until, _) in zip(points, points[1:]):
            x = left + (when - begin) / (end - begin) * (width - left)
            wide = (until - when) / (end - begin) * (width - left)
            parts.append(f'<rect x="{x:.1f}" y="{row * tall + 4:.1f}" width="{wide + .5:.1f}" height="{tall - 8:.1f}" '
                         f'fill="{WORDS[mappings[str(int(value))]["color"]]}"/>')
    return "".join(parts) + "</svg>"


def table(panel, told):
    hidden = panel["transformations"][0]["options"]["excludeByName"]
    rows = [{name: value for name, value in series["metric"].items() if name not in hidden} for series in told]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row.values()) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def body(panel, told, size):
    kind = panel["type"]
    lines = [(label(target["legendFormat"], series["metric"]), numbers(series))
             for target in panel["targets"] for series in told[target["refId"]]]
    if not any(points for _, points in lines):
        return '<div class="empty">No data</div>'
    if kind == "table":
        return table(panel, told[panel["targets"][0]["refId"]])
    return {"stat": lambda: stat(panel, lines), "heatmap": lambda: cells(panel, lines, size),
            "state-timeline": lambda: states(panel, lines, size)}.get(kind, lambda: chart(panel, lines, size))()


def page(dashboard, told):
    parts, deepest = [f"<h1>{html.escape(dashboard['title'])}</h1>"], 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        x, y = place["x"] * UNIT_WIDTH, place["y"] * UNIT_HEIGHT + 32
        width, height = place["w"] * UNIT_WIDTH - 6, place["h"] * UNIT_HEIGHT - 6
        deepest = max(deepest, y + height)
        of = {ref: series for (number, ref), series in told.items() if number == panel["id"]}
        inner = body(panel, of, (width - 18, height - 58))
        parts.append(f'<div class="panel" style="left:{x + 3}px;top:{y}px;width:{width}px;height:{height}px">'
                     f"<h2>{html.escape(panel['title'])}</h2>{inner}</div>")
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{''.join(parts)}", deepest + 8


def draw(folder, told):
    """A picture of each dashboard, beside it."""
    browser = next((found for name in ["chromium", "chromium-browser", "google-chrome"] if (found := shutil.which(name))), None)
    if not browser:
        sys.exit("pictures need chromium: apt-get install chromium")
    for path in sorted(folder.glob("*.json")):
        of = {(number, ref): series for (name, number, ref), series in told.items() if name == path.stem}
        text, height = page(json.loads(path.read_text()), of)
        with tempfile.TemporaryDirectory() as place:
            source = pathlib.Path(place) / "page.html"
            source.write_text(text)
            subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                            f"--window-size={WIDTH},{height}", f"--user-data-dir={place}/profile",
                            f"--screenshot={path.with_suffix('.png')}", source.as_uri()], check=True, capture_output=True, timeout=120)
        print(f"{path.with_suffix('.png').name}: {path.with_suffix('.png').stat().st_size / 1024:.0f} KiB")
