// The console: looks at the admin API every two seconds, follows its events and those of jobs that run, and asks questions. All that
// comes from outside goes into the page as text.

const LOOK_EVERY = 2000;
const KEPT = 150;
/// Looks that a chart has room for at least.
const SHORTEST = 30;
const FOLLOWED = 2;
const EVENTS = 200;
const DRAWN = /^job-[0-9a-f]{32}$/;
const METHODS = ["", "dense", "star", "pulsar", "apb", "ring", "ulysses", "chain", "anchor", "streaming", "minference", "flexprefill"];
const TOKEN = "asterism-token";
/// The model that comes with the program.
const EMBEDDED = "asterism-7m";

const at = (id) => document.getElementById(id);

function made(name, settings = {}, ...children) {
  const svg = ["svg", "line", "rect", "text", "path", "g"].includes(name);
  const found = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(settings)) found.setAttribute(key, value);
  found.append(...children);
  return found;
}

/// The API, with the token where there is one.
async function ask(path, settings = {}) {
  const headers = { ...settings.headers };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.authorization = `Bearer ${token}`;
  if (settings.body) headers["content-type"] = "application/json";
  const answer = await fetch(path, { ...settings, headers });
  if (answer.status === 401) {
    const error = new Error("the token is not the cluster's");
    error.locked = true;
    throw error;
  }
  if (!answer.ok) {
    const body = await answer.json().catch(() => null);
    throw new Error(body?.error?.message ?? `the cluster answered ${answer.status}`);
  }
  return answer;
}

const list = async (path) => (await ask(path)).json();

/// Each line of an answer that comes by and by.
async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n");
    rest = whole.pop();
    yield* whole;
  }
}

/// Each event of a job, to its end.
async function follow(id, heard) {
  const answer = await ask(`api/v1/jobs/${encodeURIComponent(id)}/events`);
  for await (const line of lines(answer)) if (line.trim()) heard(JSON.parse(line));
}

// ---- numbers as people read them

const count = (value) => Math.round(value).toLocaleString("en");

function bytes(value) {
  const power = value >= 1024 ? Math.min(4, Math.floor(Math.log2(value) / 10)) : 0;
  return `${(value / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function left(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// ---- events, as the cluster tells them

const SAID = {
  job_submitted: (e) => `job ${e.job} submitted: ${e.method} of ${count(e.context_tokens)} + ${count(e.query_tokens)} tokens`,
  job_started: (e) => `job ${e.job} started after ${e.queue_s.toFixed(2)} s`,
  job_ended: (e) => `job ${e.job} ${e.state.toLowerCase()}${e.code ? `: ${e.code}` : ""} in ${e.timings.total_s.toFixed(2)} s`,
  session_created: (e) => `session ${e.session} created: ${e.method} of ${count(e.tokens)} tokens`,
  session_ready: (e) => `session ${e.session} is ready`,
  session_failed: (e) => `session ${e.session} failed: ${e.code}`,
  append_failed: (e) => `nothing was appended to session ${e.session}: ${e.code}`,
  session_ended: (e) => `session ${e.session} ${e.expired ? "expired" : "was dropped"}`,
  node_joined: (e) => `node ${e.node} joined`,
  host_joined: (e) => `host ${e.host} joined as ${e.role}${e.incarnation > 1 ? ", started again" : ""}`,
  host_ready: (e) => `host ${e.host} is ready`,
  host_suspect: (e) => `host ${e.host} is suspect, silent for ${e.silent_s.toFixed(2)} s: ${e.cause}`,
  host_back: (e) => `host ${e.host} is heard again after ${e.silent_s.toFixed(2)} s`,
  host_lost: (e) => `host ${e.host} is lost (${e.reason}): ${e.cause}`,
  host_left: (e) => `host ${e.host} ended, as it was asked to`,
  host_slow: (e) => `host ${e.host} is slow: ${e.work} takes it ${e.times.toFixed(1)} times as long as ${e.than}`,
  host_no_longer_slow: (e) => `host ${e.host} is no longer slow`,
  host_scheduled: (e) => `host ${e.host} is ${e.scheduling}`,
  host_replaced: (e) => `host ${e.spare} takes the place of ${e.host}`,
  numerics_mixed: (e) => `${e.what} has hosts whose results differ: ${e.host}`,
  shards_reencoded: (e) => `${count(e.shards)} shards of context ${e.context} encoded again in ${e.took_s.toFixed(2)} s`,
  shards_moved: (e) => `${count(e.shards)} shards of context ${e.context} moved in ${e.took_s.toFixed(2)} s`,
  events_missed: () => "events before this are not kept any more",
};

function tell(event) {
  const when = new Date(event.time * 1000);
  const events = at("events");
  const time = made("time", { datetime: when.toISOString() }, when.toLocaleTimeString("en-GB"));
  events.prepend(made("li", {}, time, SAID[event.event]?.(event) ?? event.event));
  while (events.children.length > EVENTS) events.lastChild.remove();
}

let listening = false;
let last = "";

/// What happened lately and what happens, until the connection breaks: the next goes on behind it.
async function listen() {
  if (listening) return;
  listening = true;
  try {
    const answer = await ask("api/v1/events", last ? { headers: { "last-event-id": last } } : {});
    for await (const line of lines(answer)) {
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice("data: ".length));
      last = event.id;
      tell(event);
    }
  } catch {
    // The next look says what is wrong.
  }
  listening = false;
}

// ---- what hosts encode, as events of jobs say

const following = new Map();

function watch(jobs) {
  const running = jobs.filter((job) => job.state === "RUNNING").slice(0, FOLLOWED);
  for (const job of running) {
    if (following.has(job.id)) continue;
    const progress = new Map();
    following.set(job.id, progress);
    const heard = (event) => {
      if (event.event === "progress") event.hosts.forEach((host) => progress.set(host.host, host));
    };
    follow(job.id, heard).catch(() => {}).finally(() => following.delete(job.id));
  }
}

function encoding(sessions) {
  const all = [...following.values()].flatMap((progress) => [...progress.values()]);
  all.push(...sessions.flatMap((session) => session.progress ?? []));
  const of = new Map();
  for (const host of all) {
    const sum = of.get(host.host) ?? { done: 0, total: 0 };
    of.set(host.host, { done: sum.done + host.done_tokens, total: sum.total + host.total_tokens });
  }
  return of;
}

function bar(name, { done, total }) {
  const label = `${name}: ${count(done)} of ${count(total)} tokens encoded`;
  return [made("progress", { value: done, max: Math.max(total, 1), "aria-label": label }), ` ${count(done)} / ${count(total)}`];
}

// ---- tables

/// Rows in the place of those before, but only where something changed: what is read or selected stays.
function fill(table, rows) {
  const fresh = rows.map((cells) => {
    const [head, ...rest] = cells.map((cell) => (typeof cell === "object" && !Array.isArray(cell) ? cell : { of: cell }));
    const cell = (name, { of, style }) => made(name, style ? { class: style } : {}, ...[of].flat());
    const first = cell("th", head);
    first.setAttribute("scope", "row");
    return made("tr", {}, first, ...rest.map((one) => cell("td", one)));
  });
  const old = [...table.children];
  fresh.forEach((row, place) => {
    if (!old[place]) table.append(row);
    else if (!old[place].isEqualNode(row)) old[place].replaceWith(row);
  });
  old.slice(fresh.length).forEach((row) => row.remove());
}

const number = (of) => ({ of: String(of), style: "number" });
/// An id that was drawn goes by its beginning.
const named = (id) => (DRAWN.test(id) ? { of: made("abbr", { title: id }, `${id.slice(0, 12)}…`) } : id);

function showHosts(hosts, progress) {
  fill(at("hosts"), hosts.map((host) => {
    const scheduling = (host.scheduling === "open" ? "" : `, ${host.scheduling}`) + (host.slow ? ", slow" : "");
    const now = progress.get(host.name);
    return [host.name, host.role, { of: host.health + scheduling, style: host.health }, { of: now ? bar(host.name, now) : "" },
      number(bytes(host.kv_bytes)), number(host.shards), number(host.restarts), host.device, host.node];
  }));
}

function showJobs(topology, jobs) {
  at("queue").textContent = `${topology.jobs_running} running, ${topology.jobs_pending} waiting`;
  fill(at("jobs"), jobs.map((job) => {
    const state = job.state === "RUNNING" && job.phase ? job.phase : job.state.toLowerCase();
    const style = job.state.toLowerCase();
    return [named(job.id), { of: state, style }, job.method, number(count(job.context_tokens)), number(count(job.generated_tokens)),
      number(job.timings.total_s.toFixed(1))];
  }));
}

function showSessions(sessions) {
  fill(at("sessions"), sessions.length === 0 ? [["none", "", "", "", "", "", ""]] : sessions.map((session) => [session.name, { of: session.state, style: session.state }, session.method,
    number(count(session.context_tokens)), number(bytes(session.kv_bytes)), number(session.hits), number(left(session.expires_s))]));
  const select = at("session");
  const names = ["", ...sessions.filter((session) => session.state === "ready").map((session) => session.name)];
  if (names.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => made("option", { value: name }, name ? `session ${name}` : "the document below")));
    select.value = names.includes(chosen) ? chosen : "";
    chooseSession();
  }
}

// ---- the topology: supervisor, query hosts, context hosts

function showTopology(topology, progress) {
  const [wide, tall, across] = [1200, 54, 8];
  const groups = [
    topology.hosts.filter((host) => host.role === "query"),
    topology.hosts.filter((host) => host.role === "context"),
    topology.hosts.filter((host) => host.role === "spare"),
  ];
  const rows = groups.flatMap((group) => Array.from({ length: Math.ceil(group.length / across) }, (_, row) =>
    group.slice(row * across, (row + 1) * across)));
  const places = new Map([["supervisor", [wide / 2, 26]]]);
  rows.forEach((row, y) => row.forEach((host, x) =>
    places.set(host.name, [(wide * (x + 0.5)) / row.length, 26 + (y + 1) * (tall + 22)])));
  const line = (from, to, busy) => {
    const [[x1, y1], [x2, y2]] = [places.get(from), places.get(to)];
    return made("line", { x1, y1, x2, y2, class: busy ? "link busy" : "link" });
  };
  const [queries, contexts] = groups;
  const answering = topology.jobs_running > 0;
  const links = topology.hosts.filter((host) => host.health === "ready").flatMap((host) =>
    host.role === "context" ? queries.map((query) => line(query.name, host.name, answering)) : [line("supervisor", host.name, false)]);
  const box = (name, said, style, share = 0) => {
    const [x, y] = places.get(name);
    const width = Math.min(160, (wide / across) - 10);
    const frame = { x: x - width / 2, y: y - 20, height: 40, rx: 6 };
    return made("g", {}, made("rect", { ...frame, width, class: `host ${style}` }),
      made("rect", { ...frame, width: width * share, class: "done" }),
      made("text", { x, y: y - 2, "text-anchor": "middle" }, name), made("text", { x, y: y + 13, "text-anchor": "middle", class: "quiet" }, said));
  };
  const boxes = topology.hosts.map((host) => {
    const now = progress.get(host.name);
    return box(host.name, `${host.role}, ${host.health}`, host.health, now?.total ? now.done / now.total : 0);
  });
  const svg = at("topology");
  svg.setAttribute("viewBox", `0 0 ${wide} ${52 + rows.length * (tall + 22)}`);
  svg.replaceChildren(...links, box("supervisor", `${topology.jobs_running} running, ${topology.jobs_pending} waiting`, "ready"), ...boxes);
  const down = topology.hosts.filter((host) => host.health !== "ready").map((host) => `${host.name} ${host.health}`);
  svg.setAttribute("aria-label", `Topology: a supervisor, ${queries.length} query hosts and ${contexts.length} context hosts, each context host `
    + `linked with each query host; ${down.length ? `not ready: ${down.join(", ")}` : "all ready"}`);
}

// ---- charts, from the metrics

const CHARTS = [
  { title: "Tokens generated a second", of: (now, before) => [rate("asterism_generation_tokens_total", now, before)], show: (v) => v.toFixed(1) },
  { title: "Tokens encoded a second", of: (now, before) => [rate("asterism_phase1_tokens_total", now, before)], show: count },
  { title: "Jobs: running, waiting", of: (now) => [now.sum("asterism_requests_running"), now.sum("asterism_requests_waiting")], show: count },
  { title: "First token: median, p90", of: (now, _, minute) => [0.5, 0.9].map((share) => quantile(share, now, minute)),
    show: (v) => `${v.toFixed(1)} s` },
];
const looks = [];

function parsed(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels, value] = /^([a-z0-9_]+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (name) values.set(name, [...(values.get(name) ?? []), [labels ?? "", Number(value)]]);
  }
  const of = (name) => values.get(name) ?? [];
  return { when: performance.now() / 1000, of, sum: (name) => of(name).reduce((sum, [, value]) => sum + value, 0) };
}

/// A second over the last ten; nothing where a supervisor was started again.
function rate(name, now, before) {
  const more = now.sum(name) - before.sum(name);
  return before !== now && more >= 0 ? more / (now.when - before.when) : 0;
}

/// Of the requests between two looks, as the buckets say; none where there were none.
function quantile(share, now, before) {
  const buckets = new Map();
  const add = (look, sign) => look.of("asterism_time_to_first_token_seconds_bucket").forEach(([labels, value]) => {
    const bound = Number(/le="([^"]+)"/.exec(labels)[1].replace("+Inf", "Infinity"));
    buckets.set(bound, (buckets.get(bound) ?? 0) + sign * value);
  });
  add(now, 1);
  if (before !== now) add(before, -1);
  const bounds = [...buckets.keys()].sort((a, b) => a - b);
  const wanted = share * (buckets.get(Infinity) ?? 0);
  if (!(wanted > 0)) return null;
  const found = bounds.findIndex((bound) => buckets.get(bound) >= wanted);
  const [low, high] = [bounds[found - 1] ?? 0, bounds[found]];
  if (high === Infinity) return low;
  const below = buckets.get(bounds[found - 1]) ?? 0;
  return low + ((high - low) * (wanted - below)) / (buckets.get(high) - below);
}

function showCharts(text) {
  const look = parsed(text);
  const older = (seconds) => looks.find((known) => known.when >= look.when - seconds) ?? look;
  look.points = CHARTS.map((chart) => chart.of(look, older(10), older(60)));
  looks.push(look);
  if (looks.length > KEPT) looks.shift();
  const [wide, tall, span] = [300, 150, Math.max(looks.length, SHORTEST)];
  CHARTS.forEach((chart, place) => {
    const points = looks.map((known) => known.points[place]);
    const most = Math.max(...points.flat().filter((value) => value !== null), 1e-9);
    const curve = (which) => {
      let path = "";
      points.forEach((values, x) => {
        if (values[which] === null) return;
        const right = ((span - points.length + x) / (span - 1)) * wide;
        path += `${path ? "L" : "M"}${right.toFixed(1)} ${(tall - 2 - (values[which] / most) * (tall - 16)).toFixed(1)}`;
      });
      return made("path", { d: path || "M0 0", class: which ? "curve second" : "curve" });
    };
    const now = points.at(-1).map((value) => (value === null ? "none" : chart.show(value))).join(", ");
    const svg = made("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `${chart.title}: now ${now}, at most ${chart.show(most)}` },
      made("line", { x1: 0, x2: wide, y1: tall - 2, y2: tall - 2, class: "axis" }), made("line", { x1: 0, x2: wide, y1: 14, y2: 14, class: "axis" }),
      made("text", { x: 2, y: 11, class: "quiet" }, most > 1e-9 ? chart.show(most) : ""), ...points.at(-1).map((_, which) => curve(which)));
    const figure = made("figure", {}, made("figcaption", {}, chart.title, made("b", {}, now)), svg);
    const old = at("charts").children[place];
    if (old) old.replaceWith(figure);
    else at("charts").append(figure);
  });
}

// ---- asking

let asked = null;

function chooseSession() {
  const about = at("session").value !== "";
  at("document").disabled = about;
  at("method").disabled = about;
}

async function question(event) {
  event.preventDefault();
  const session = at("session").value;
  const request = { query: at("question").value, max_tokens: Number(at("most").value) };
  if (session) request.session = session;
  else request.context = at("document").value;
  const method = at("method").value;
  if (method && !session) request.method = { [method]: {} };
  const [answer, phase, progress] = [at("answer"), at("phase"), at("progress")];
  at("note").hidden = true;
  answer.textContent = "";
  answer.className = "";
  progress.replaceChildren();
  at("go").disabled = true;
  at("stop").disabled = false;
  const heard = (told) => {
    if (told.event === "phase") phase.textContent = told.phase;
    if (told.event === "waiting" && told.waiting) phase.textContent = "waiting";
    if (told.event === "token") answer.append(told.text);
    if (told.event === "progress") {
      progress.replaceChildren(...told.hosts.map((host) =>
        made("div", {}, host.host, ...bar(host.host, { done: host.done_tokens, total: host.total_tokens }))));
    }
    if (told.event === "finished") finished(told.status);
  };
  try {
    phase.textContent = "submitting";
    asked = (await (await ask("api/v1/jobs", { method: "POST", body: JSON.stringify(request) })).json()).id;
    await follow(asked, heard);
  } catch (error) {
    failed(error.message);
  }
  asked = null;
  at("go").disabled = false;
  at("stop").disabled = true;
}

function failed(message) {
  at("phase").textContent = "failed";
  at("answer").className = "failed";
  at("answer").textContent = message;
}

function finished(status) {
  at("progress").replaceChildren();
  if (status.error) return failed(status.error.message);
  if (status.text) at("answer").textContent = status.text;
  at("note").hidden = status.model !== EMBEDDED;
  const { queue_s, encode_s, query_s, decode_s, total_s } = status.timings;
  at("phase").textContent = `${status.state.toLowerCase()}: ${status.method} of ${count(status.context_tokens)} + ${count(status.query_tokens)} tokens, `
    + `${count(status.generated_tokens)} generated in ${total_s.toFixed(2)} s (queued ${queue_s.toFixed(2)}, encoding ${encode_s.toFixed(2)}, `
    + `question ${query_s.toFixed(2)}, decoding ${decode_s.toFixed(2)})`;
}

async function stop() {
  if (asked) await ask(`api/v1/jobs/${encodeURIComponent(asked)}`, { method: "DELETE" }).catch((error) => failed(error.message));
}

// ---- looking

let latest = 0;

async function look() {
  const number = ++latest;
  try {
    const [topology, jobs, sessions, metrics] = await Promise.all(
      [list("api/v1/topology"), list("api/v1/jobs?limit=50"), list("api/v1/sessions?limit=100"), ask("metrics").then((answer) => answer.text())]);
    if (number !== latest) return;
    at("door").hidden = true;
    at("main").hidden = false;
    at("cluster").textContent = topology.name;
    const models = (topology.models ?? []).map((model) => model.answers ? model.name : `${model.name} (does not answer)`);
    at("about").textContent = `${models.join(", ") || topology.model}, ${topology.method}, version ${topology.version}`;
    const ready = topology.hosts.filter((host) => host.health === "ready").length;
    say(topology.ready ? "ready" : "suspect", `${ready} of ${topology.hosts.length} hosts ready`);
    watch(jobs);
    const progress = encoding(sessions);
    showTopology(topology, progress);
    showHosts(topology.hosts, progress);
    showJobs(topology, jobs);
    showSessions(sessions);
    showCharts(metrics);
    listen();
  } catch (error) {
    if (number !== latest) return;
    say("dead", error.locked ? "locked" : "not reached");
    if (error.locked) {
      at("refused").textContent = sessionStorage.getItem(TOKEN) ? error.message : "";
      sessionStorage.removeItem(TOKEN);
      if (at("door").hidden) {
        at("door").hidden = false;
        at("main").hidden = true;
        at("token").focus();
      }
      return;
    }
  }
  setTimeout(() => number === latest && look(), LOOK_EVERY);
}

function say(style, text) {
  const state = at("state");
  state.className = style;
  if (state.textContent !== text) state.textContent = text;
}

at("method").append(...METHODS.map((name) => made("option", { value: name }, name || "the cluster's")));
at("question-form").addEventListener("submit", question);
at("session").addEventListener("change", chooseSession);
at("stop").addEventListener("click", stop);
at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value.trim());
  at("token").value = "";
  look();
});
look();
