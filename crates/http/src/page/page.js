// The page of a daemon. It makes JSON-RPC calls to `rpc`, as every client does, and keeps a bounded history.
"use strict";

const INTERVAL_MS = 1000;
const HISTORY = 120; // looks that sparklines and the heat map show
const PAGE_ROWS = 50;
const MAX_EVENTS = 500;
const INVENTORY_MS = 2000; // what exists is asked for no more often
const TIMEOUT_MS = 10000;
const MOST_CALLS = 512; // in one batch; the daemon takes 1,024
const RESTART_MS = 5000; // a daemon whose beginning moves by more is another one

const $ = (id) => document.getElementById(id);
const make = (tag, text, attributes = {}) => {
  const element = document.createElement(tag);
  if (text !== null && text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };

let token = null; // kept in this page alone, never in storage
let last = null; // the last answer of raceline_get_activity
let began = null; // when its daemon began, by the browser's clock
let rates = new Map();
let inventory = { subsystems: [], bdevs: new Map(), remote: [], limits: new Map(), at: 0, event: -1 };
let events = [];
let nextEvent = 0;
let journal = null;
let paused = false;
let callId = 0;

// Calls.

// The answers to all requests, in their order; the daemon refuses a batch of more than 1,024 calls as a whole.
async function post(requests) {
  const answers = [];
  for (let first = 0; first < requests.length; first += MOST_CALLS) {
    answers.push(...await batch(requests.slice(first, first + MOST_CALLS)));
  }
  return answers;
}

async function batch(requests) {
  const headers = { "Content-Type": "application/json" };
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  const numbered = requests.map(([method, params]) => ({ jsonrpc: "2.0", id: ++callId, method, ...(params && { params }) }));
  const response = await fetch("rpc", {
    method: "POST", headers, body: JSON.stringify(numbered), cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (!response.ok) throw new Error(`${response.status}: ${(await response.text()).trim()}`);
  const list = await response.json();
  if (!Array.isArray(list)) throw new Error(list.error ? sentence(list.error) : "the daemon's answer is no list");
  const answers = new Map(list.map((answer) => [answer.id, answer]));
  return numbered.map(({ id }) => answers.get(id) || { error: { message: "no answer" } });
}

// What an error of the daemon says.
function sentence({ message, data }) {
  return data ? `${message}: ${typeof data === "string" ? data : JSON.stringify(data)}` : message;
}

async function call(method, params) {
  const [answer] = await post([[method, params]]);
  if (answer.error) throw new Error(sentence(answer.error));
  return answer.result;
}

// Numbers as text.

const short = (n) => n >= 1e10 ? `${(n / 1e9).toFixed(1)}G` : n >= 1e7 ? `${(n / 1e6).toFixed(2)}M`
  : n >= 1e5 ? `${(n / 1e3).toFixed(1)}k` : n >= 10 || n === 0 ? n.toFixed(0) : n.toFixed(1);
const mib = (n) => { const m = n / 1048576; return m >= 100 || m === 0 ? m.toFixed(0) : m < 0.1 ? m.toFixed(3) : m.toFixed(1); };
const three = (n) => n >= 99.95 ? n.toFixed(0) : n >= 9.995 ? n.toFixed(1) : n.toFixed(2);
const time = (ns) => ns === null || ns === undefined ? "-" : ns >= 1e9 ? `${three(ns / 1e9)} s`
  : ns >= 1e6 ? `${three(ns / 1e6)} ms` : `${three(ns / 1e3)} us`;
const size = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${Number.isInteger(bytes) ? bytes : bytes.toFixed(1)} ${units[unit]}`;
};
const percent = (share) => `${(share * 100).toFixed(1)} %`;

// Rates between two answers.

const delta = (now, before) => before === undefined || now < before ? now : now - before;

function percentile(borders, counts, share) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all === 0) return null;
  let before = 0;
  for (let at = 0; at < counts.length; at += 1) {
    if (before + counts[at] >= all * share && counts[at] > 0) {
      const low = at > 0 ? borders[at - 1] : 0;
      const high = at < borders.length ? borders[at] : low;
      return low + (high - low) * (all * share - before) / counts[at];
    }
    before += counts[at];
  }
  return null;
}

function compare(now, before) {
  const past = before === null ? { time_ns: now.time_ns - 1e9, cpu_ns: now.cpu_ns, bdevs: now.bdevs, hosts: now.hosts, cores: now.cores, latency: now.latency } : before;
  const seconds = Math.max((now.time_ns - past.time_ns) / 1e9, 1e-3);
  const total = { iops: 0, read: 0, write: 0, ns: 0, timed: 0 };
  const devices = new Map();
  for (const [name, row] of Object.entries(now.bdevs)) {
    const old = past.bdevs[name] || [];
    const d = (at) => delta(row[at], old[at]) / seconds;
    const timed = d(0) + d(1);
    const one = { iops: timed + d(2), read: d(3), write: d(4), average: d(5) + d(6) > 0 ? (d(5) + d(6)) / Math.max(timed, 1e-9) : null, errors: row[7] };
    devices.set(name, one);
    total.iops += one.iops; total.read += one.read; total.write += one.write;
    total.ns += d(5) + d(6); total.timed += timed;
  }
  const counts = now.latency.counts.map((count, at) => delta(count, past.latency.counts[at]));
  const key = (host) => `${host.subnqn}\n${host.hostnqn}`;
  const oldHosts = new Map(past.hosts.map((host) => [key(host), host.statistics]));
  const hosts = now.hosts.map((host) => {
    const old = oldHosts.get(key(host)) || {};
    const d = (name) => delta(host.statistics[name], old[name]) / seconds;
    return { ...host, iops: d("num_read_ops") + d("num_write_ops"), read: d("bytes_read"), write: d("bytes_written"), errors: host.statistics.errors };
  });
  const oldCores = new Map(past.cores.map((core) => [core.name, core]));
  const cores = now.cores.map((core) => {
    const old = oldCores.get(core.name) || {};
    const d = (name) => delta(core[name], old[name]) / seconds;
    return { name: core.name, useful: Math.min(d("busy_ns") / 1e9, 1), turns: d("turns"), received: d("received_bytes"), sent: d("sent_bytes"), longest: core.longest_ns };
  });
  const useful = cores.reduce((sum, core) => sum + core.useful, 0);
  return {
    devices, hosts, cores, counts, iops: total.iops, read: total.read, write: total.write,
    average: total.ns > 0 ? total.ns / Math.max(total.timed, 1e-9) : null,
    p50: percentile(now.latency.borders_ns, counts, 0.5), p99: percentile(now.latency.borders_ns, counts, 0.99),
    spent: delta(now.cpu_ns, past.cpu_ns) / 1e9 / seconds, useful,
  };
}

// Totals with their history.

const tiles = [
  ["IOPS", (now) => short(now.iops), "", (now) => now.iops],
  ["Read", (now) => mib(now.read), "MiB/s", (now) => now.read],
  ["Write", (now) => mib(now.write), "MiB/s", (now) => now.write],
  ["Latency, average", (now) => time(now.average), "", (now) => now.average || 0],
  ["Latency, P50 / P99", (now) => now.p50 === null ? "-" : `${time(now.p50)} / ${time(now.p99)}`, "", (now) => now.p99 || 0],
  ["CPU spent / useful", (now) => `${(now.spent * 100).toFixed(0)} / ${(now.useful * 100).toFixed(0)}`, "%", (now) => now.spent],
].map(([name, text, unit, value]) => ({ name, text, unit, value, history: new Float64Array(HISTORY), drawn: 0 }));

function buildTiles() {
  for (const tile of tiles) {
    const box = make("div");
    tile.dd = make("dd", null);
    tile.number = make("span", "-");
    tile.dd.append(tile.number, " ", make("small", tile.unit));
    tile.canvas = make("canvas", null, { width: HISTORY * 2, height: 26, "aria-hidden": "true" });
    box.append(make("dt", tile.name), tile.dd);
    tile.dd.append(tile.canvas);
    $("tiles").append(box);
  }
}

function drawTiles(now) {
  const color = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  for (const tile of tiles) {
    set(tile.number, tile.text(now));
    tile.history.copyWithin(0, 1);
    tile.history[HISTORY - 1] = tile.value(now);
    const most = Math.max(...tile.history);
    if (most === 0 && tile.drawn === 0) continue; // nothing there, as before
    tile.drawn = most;
    const context = tile.canvas.getContext("2d");
    const { width, height } = tile.canvas;
    context.clearRect(0, 0, width, height);
    context.strokeStyle = color;
    context.lineWidth = 1.5;
    context.beginPath();
    tile.history.forEach((value, at) => context.lineTo(at * 2 + 1, height - 1 - (most > 0 ? value / most : 0) * (height - 3)));
    context.stroke();
  }
}

// The heat map: a ring of columns.

const heat = [];

function addHeat(counts) {
  if (heat.length === 0 && counts.every((count) => count === 0)) return;
  heat.push(counts);
  if (heat.length > HISTORY) heat.shift();
}

function drawHeat() {
  const map = $("map");
  const context = map.getContext("2d");
  const rows = last.latency.counts.length;
  if (map.height !== rows * 4) map.height = rows * 4; // whole points, so that there is nothing between two rows
  const [width, height] = [map.width / HISTORY, map.height / rows];
  const color = getComputedStyle(document.documentElement).getPropertyValue("--heat");
  context.clearRect(0, 0, map.width, map.height);
  const most = Math.max(1, ...heat.map((counts) => Math.max(...counts)));
  heat.forEach((counts, column) => counts.forEach((count, row) => {
    if (count === 0) return;
    context.fillStyle = `rgba(${color}, ${0.15 + 0.85 * Math.log1p(count) / Math.log1p(most)})`;
    context.fillRect((HISTORY - heat.length + column) * width, map.height - (row + 1) * height, width, height);
  }));
  const text = last.latency.devices === 0
    ? "No device has a histogram: Unlock changes, then Measure latencies."
    : `${last.latency.devices} devices. Now P50 ${time(rates.p50)}, P99 ${time(rates.p99)}.`;
  set($("heat-text"), text);
  map.setAttribute("aria-label", `Latency heat map. ${text}`);
}

// Views: columns are [title, kind, value for sorting, text].

const name = (title, value) => ({ title, number: false, value, text: value });
const number = (title, value, text = (n) => String(n)) => ({ title, number: true, value, text: (row) => text(value(row)) });
const io = [
  number("IOPS", (row) => row.iops, short), number("Read MiB/s", (row) => row.read, mib), number("Write MiB/s", (row) => row.write, mib),
];
const idle = { iops: 0, read: 0, write: 0, average: null, errors: 0 };
const deviceRates = (device) => (rates.devices && rates.devices.get(device)) || idle;
const sizeOf = (device) => { const bdev = inventory.bdevs.get(device); return bdev ? bdev.num_blocks * bdev.block_size : 0; };
const scheme = ({ trtype }) => /rdma/i.test(trtype || "") ? "rdma://" : "";
const address = (at) => scheme(at) + (at.traddr.includes(":") ? `[${at.traddr}]:${at.trsvcid}` : `${at.traddr}:${at.trsvcid}`);
const average = number("Average", (row) => row.average ?? -1, (ns) => time(ns < 0 ? null : ns));
const errors = number("Errors", (row) => row.errors);
const LIMITS = [["rw_ios_per_sec", "IOPS"], ["rw_mbytes_per_sec", "MiB/s"], ["r_mbytes_per_sec", "Read MiB/s"], ["w_mbytes_per_sec", "Write MiB/s"]];
const limitOf = (device, member) => (inventory.limits.get(device) || {})[member] || 0;
const limit = ({ device }) => LIMITS.filter(([member]) => limitOf(device, member) > 0)
  .map(([member, unit]) => `${limitOf(device, member)} ${unit.replace(/^(Read|Write)/, (word) => word.toLowerCase())}`).join(", ");

const views = {
  namespaces: {
    title: "Namespaces",
    key: (row) => `${row.nqn} ${row.nsid}`,
    rows: () => inventory.subsystems.flatMap((subsystem) => (subsystem.namespaces || []).map((ns) => ({
      nqn: subsystem.nqn, nsid: ns.nsid, device: ns.bdev_name, bytes: sizeOf(ns.bdev_name), ...deviceRates(ns.bdev_name),
    }))),
    columns: [name("Subsystem", (row) => row.nqn), number("NSID", (row) => row.nsid), name("Device", (row) => row.device),
      number("Size", (row) => row.bytes, size), ...io, average, name("Limits", limit), errors],
    actions: [["Add namespace", addNamespace]],
    rowActions: [["Limit", (row) => throttle(row.device)], ["Remove", removeNamespace]],
  },
  devices: {
    title: "Devices",
    key: (row) => row.device,
    rows: () => [...inventory.bdevs.values()].map((bdev) => ({
      device: bdev.name, kind: bdev.product_name, bytes: sizeOf(bdev.name), used: bdev.claimed, ...deviceRates(bdev.name),
    })),
    columns: [name("Device", (row) => row.device), name("Kind", (row) => row.kind), number("Size", (row) => row.bytes, size),
      ...io, average, name("Limits", limit), errors],
    actions: [["Add device", addDevice], ["Measure latencies", measure]],
    rowActions: [["Limit", (row) => throttle(row.device)], ["Resize", resize], ["Remove", removeDevice]],
  },
  subsystems: {
    title: "Subsystems",
    key: (row) => row.nqn,
    rows: () => inventory.subsystems.map((subsystem) => {
      const sum = { iops: 0, read: 0, write: 0, errors: 0, connected: 0 };
      for (const host of rates.hosts || []) {
        if (host.subnqn !== subsystem.nqn) continue;
        for (const part of ["iops", "read", "write", "errors"]) sum[part] += host[part];
        sum.connected += host.controllers > 0 ? 1 : 0;
      }
      return { nqn: subsystem.nqn, serial: subsystem.serial_number || "", count: (subsystem.namespaces || []).length,
        listeners: (subsystem.listen_addresses || []).map(address).join(" "),
        hosts: subsystem.allow_any_host ? "any" : String((subsystem.hosts || []).length), ...sum };
    }),
    columns: [name("Subsystem", (row) => row.nqn), name("Serial", (row) => row.serial), number("Namespaces", (row) => row.count),
      name("Listens at", (row) => row.listeners), name("May connect", (row) => row.hosts), number("Connected", (row) => row.connected), ...io, errors],
    actions: [["Add subsystem", addSubsystem]],
    rowActions: [["Listen", addListener], ["Allow host", allowHost], ["Remove", removeSubsystem]],
  },
  hosts: {
    title: "Hosts",
    key: (row) => `${row.subnqn} ${row.hostnqn}`,
    rows: () => rates.hosts || [],
    columns: [name("Host", (row) => row.hostnqn), name("Subsystem", (row) => row.subnqn), number("Controllers", (row) => row.controllers),
      number("Queues", (row) => row.io_qpairs), ...io, errors],
    actions: [], rowActions: [],
  },
  paths: {
    title: "Remote paths",
    key: (row) => `${row.controller} ${row.place} ${row.at}`,
    rows: () => inventory.remote.flatMap((controller) => (controller.ctrlrs || []).map((path, at) => ({
      at, controller: controller.name, state: path.state || "", subsystem: (path.trid || {}).subnqn || "",
      place: path.trid ? (path.trid.trsvcid ? address(path.trid) : path.trid.traddr) : "", cntlid: path.cntlid ?? "",
    }))),
    columns: [name("Controller", (row) => row.controller), name("State", (row) => row.state), name("Address", (row) => row.place),
      name("Subsystem", (row) => row.subsystem), name("CNTLID", (row) => String(row.cntlid))],
    actions: [], rowActions: [],
  },
  cores: {
    title: "Cores",
    key: (row) => row.name,
    rows: () => rates.cores || [],
    columns: [name("Core", (row) => row.name), number("Useful", (row) => row.useful, percent), number("Turns/s", (row) => row.turns, short),
      number("In MiB/s", (row) => row.received, mib), number("Out MiB/s", (row) => row.sent, mib), number("Longest turn", (row) => row.longest, time)],
    actions: [], rowActions: [],
  },
  latency: { title: "Latency", key: () => "", rows: () => [], columns: [], actions: [["Measure latencies", measure]], rowActions: [] },
  events: {
    title: "Events",
    key: (row) => row.seq,
    rows: () => events,
    columns: [number("No.", (row) => row.seq), name("Time", (row) => new Date(row.time_ms).toISOString().replace("T", " ").replace("Z", "")),
      name("Severity", (row) => row.severity), name("Kind", (row) => row.kind), { ...name("What", (row) => row.what), long: true }],
    actions: [], rowActions: [], order: [0, true],
  },
};

let view = "namespaces";
const shown = Object.fromEntries(Object.keys(views).map((id) => [id, { order: views[id].order || [0, false], page: 0, filter: "" }]));

function buildTabs() {
  for (const [id, { title }] of Object.entries(views)) {
    const tab = make("button", title, { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": "panel" });
    tab.addEventListener("click", () => show(id));
    $("tabs").append(tab);
  }
  $("tabs").addEventListener("keydown", (event) => {
    const ids = Object.keys(views);
    const at = ids.indexOf(view);
    const to = { ArrowRight: at + 1, ArrowLeft: at + ids.length - 1, Home: 0, End: ids.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(ids[to % ids.length]);
    $(`tab-${view}`).focus();
  });
}

function show(id) {
  view = id;
  for (const other of Object.keys(views)) {
    $(`tab-${other}`).setAttribute("aria-selected", String(other === id));
    $(`tab-${other}`).tabIndex = other === id ? 0 : -1;
  }
  $("panel").setAttribute("aria-labelledby", `tab-${id}`);
  const isHeat = id === "latency";
  $("heat").hidden = !isHeat;
  $("scroll").hidden = isHeat;
  $("filter").value = shown[id].filter;
  $("filter").closest("label").hidden = isHeat;
  document.querySelector(".pager").hidden = isHeat;
  buildHead();
  buildActions();
  $("body").replaceChildren();
  draw();
}

function buildHead() {
  const { columns, rowActions, title } = views[view];
  set($("caption"), title);
  $("scroll").setAttribute("aria-label", title);
  const row = make("tr");
  const [sorted, down] = shown[view].order;
  columns.forEach((column, at) => {
    const th = make("th", null, { scope: "col", "aria-sort": at === sorted ? (down ? "descending" : "ascending") : "none" });
    if (column.number) th.className = "number";
    const button = make("button", column.title + (at === sorted ? (down ? " \u25be" : " \u25b4") : ""), { type: "button" });
    button.addEventListener("click", () => {
      const [was, wasDown] = shown[view].order;
      shown[view].order = [at, at === was ? !wasDown : column.number];
      buildHead();
      draw();
      $("head").querySelectorAll("button")[at].focus();
    });
    th.append(button);
    row.append(th);
  });
  if (token !== null && rowActions.length > 0) row.append(make("th", "Change", { scope: "col" }));
  $("head").replaceChildren(row);
}

function buildActions() {
  const buttons = views[view].actions.map(([title, work]) => {
    const button = make("button", title, { type: "button", class: "main" });
    button.addEventListener("click", () => work());
    return button;
  });
  $("actions").replaceChildren(...(token === null ? [] : buttons));
}

const byName = new Intl.Collator("en", { numeric: true });

// Rows stay as long as they are shown: only texts that have changed are set.
function draw() {
  if (last === null) return;
  if (view === "latency") { drawHeat(); return; }
  const { columns, key, rowActions } = views[view];
  const state = shown[view];
  let rows = views[view].rows();
  const wanted = state.filter.toLowerCase();
  if (wanted) rows = rows.filter((row) => columns.some((column) => !column.number && column.text(row).toLowerCase().includes(wanted)));
  const [at, down] = state.order;
  const value = columns[at].value;
  rows.sort((one, two) => {
    const [a, b] = [value(one), value(two)];
    const order = typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0;
    return (down ? -order : order) || byName.compare(key(one), key(two));
  });
  const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS));
  state.page = Math.min(state.page, pages - 1);
  const first = state.page * PAGE_ROWS;
  const seen = rows.slice(first, first + PAGE_ROWS);
  set($("range"), rows.length === 0 ? "none" : `${first + 1} to ${first + seen.length} of ${rows.length}`);
  permitPages(state.page > 0, state.page < pages - 1);
  const body = $("body");
  const changes = token !== null && rowActions.length > 0;
  arrangeRows(seen, key, () => buildRow(columns, changes && rowActions));
  seen.forEach((row, index) => {
    const tr = body.rows[index];
    tr.row = row;
    columns.forEach((column, cell) => {
      const text = column.text(row);
      set(tr.cells[cell], text);
      if (column.title === "Severity") tr.cells[cell].className = text;
    });
    if (changes && tr.named !== key(row)) {
      tr.named = key(row);
      tr.lastElementChild.querySelectorAll("button").forEach((button) => button.setAttribute("aria-label", `${button.textContent} ${key(row)}`));
    }
  });
}

// A button that has the focus gives it to another one before it is of no more use.
function permitPages(back, forward) {
  const held = document.activeElement;
  for (const id of ["first", "previous"]) $(id).disabled = !back;
  for (const id of ["next", "last"]) $(id).disabled = !forward;
  if (!held || !held.disabled || !held.closest(".pager")) return;
  (back ? $("previous") : forward ? $("next") : $("scroll")).focus();
}

// Makes as many rows as are seen. The row that has the focus, or had it before a dialog opened, stays with its object: the
// others move around it. If its object is not seen any more, no other object gets the focus.
function arrangeRows(seen, key, build) {
  const body = $("body");
  const focused = $("dialog").open ? opener : document.activeElement;
  const held = focused && focused.closest("#body tr");
  const to = held ? seen.findIndex((row) => key(row) === key(held.row)) : -1;
  if (held && to < 0) {
    held.remove();
    if (!$("dialog").open) $("scroll").focus();
  }
  while (body.rows.length < seen.length) body.append(build());
  if (to >= 0) {
    while (held.sectionRowIndex > to) held.after(body.rows[to]);
    while (held.sectionRowIndex < to) held.before(body.lastElementChild);
  }
  while (body.rows.length > seen.length) body.lastElementChild.remove();
}

function buildRow(columns, rowActions) {
  const tr = make("tr");
  columns.forEach((column, cell) => {
    const td = cell === 0 ? make("th", "", { scope: "row" }) : make("td", "");
    if (column.number) td.className = "number";
    if (column.long) td.className = "long";
    tr.append(td);
  });
  if (rowActions) {
    const td = make("td");
    for (const [title, work] of rowActions) {
      const button = make("button", title, { type: "button" });
      button.addEventListener("click", () => work(tr.row));
      td.append(button);
    }
    tr.append(td);
  }
  return tr;
}

// Looks.

async function look() {
  const [answer] = await post([["raceline_get_activity"]]);
  if (answer.error) throw new Error(answer.error.message);
  const now = answer.result;
  // A daemon that was started anew while nobody looked may by now run for longer than the one before had.
  const nowBegan = Date.now() - now.time_ns / 1e6;
  const isNew = began !== null && (now.time_ns < last.time_ns || Math.abs(nowBegan - began) > RESTART_MS);
  rates = compare(now, isNew ? null : last);
  last = now;
  began = nowBegan;
  if (isNew) {
    [events, nextEvent] = [[], 0];
    [inventory.at, inventory.event] = [0, -1];
  }
  if (now.next_event !== nextEvent) await readEvents();
  if (inventory.event !== now.next_event && Date.now() - inventory.at >= INVENTORY_MS) await readInventory(now.next_event);
  addHeat(rates.counts);
}

async function readEvents() {
  let batch = await call("raceline_get_events", { since: nextEvent, max: 1000 });
  if (journal !== null && journal !== batch.journal) {
    // The numbers of another daemon say nothing about this one's.
    events = [];
    if (nextEvent > 0) batch = await call("raceline_get_events", { since: 0, max: 1000 });
  }
  journal = batch.journal;
  nextEvent = batch.next;
  const facts = (event) => Object.entries(event.fields)
    .filter(([field]) => event.kind !== "change" || (field !== "method" && field !== "outcome"))
    .map(([field, value]) => `  ${field}=${value}`).join("");
  const missed = batch.missed > 0 && events.length > 0
    ? [{ seq: 0, time_ms: Date.now(), severity: "warning", kind: "missed", what: `${batch.missed} events are no longer kept` }] : [];
  const read = batch.events.map((event) => ({
    seq: event.seq, time_ms: event.time_ms, severity: event.severity, kind: event.kind, what: event.message + facts(event),
  }));
  events = events.concat(missed, read).slice(-MAX_EVENTS);
}

async function readInventory(event) {
  const [subsystems, bdevs, remote, limits] = await post([
    ["nvmf_get_subsystems"], ["bdev_get_bdevs"], ["bdev_nvme_get_controllers"], ["nvmf_get_qos_limits"],
  ]);
  if (subsystems.error || bdevs.error) throw new Error((subsystems.error || bdevs.error).message);
  inventory = {
    subsystems: subsystems.result.filter((it) => it.subtype !== "Discovery"),
    bdevs: new Map(bdevs.result.map((it) => [it.name, it])),
    remote: remote.result || [],
    limits: new Map((limits.result || []).filter((it) => it.type === "bdev").map((it) => [it.name, it])),
    at: Date.now(), event,
  };
}

function tell(state, text) {
  $("state").dataset.state = state;
  set($("state"), text);
}

async function turn() {
  // A page that nobody sees asks for nothing.
  if (!document.hidden && !paused) {
    try {
      await look();
      tell("live", "live");
      drawTiles(rates);
      draw();
    } catch (error) {
      tell("lost", `no answer: ${error.message}`);
    }
  }
  setTimeout(turn, INTERVAL_MS);
}

// Changes.

let submit = null;
let opener = null; // what has the focus again when the dialog closes

// Asks for fields ([id, label, default, hint or choices]) and does the work with them.
function ask(title, fields, work, button = "OK") {
  set($("dialog-title"), title);
  set($("refused"), "");
  set($("ok"), button);
  $("fields").replaceChildren(...fields.map(([id, label, value, hint]) => {
    const box = make("label", label);
    let input;
    if (Array.isArray(hint)) {
      input = make("select", null, { name: id });
      input.append(...hint.map((choice) => make("option", choice, { value: choice })));
    } else {
      input = make("input", null, { name: id, type: id === "token" ? "password" : "text", autocomplete: "off", spellcheck: "false" });
    }
    input.value = value;
    box.append(input);
    if (typeof hint === "string") box.append(make("small", hint));
    return box;
  }));
  submit = async () => {
    const values = Object.fromEntries([...$("fields").querySelectorAll("input, select")].map((input) => [input.name, input.value.trim()]));
    await work(values);
  };
  opener = document.activeElement;
  $("dialog").showModal();
}

// The browser gives the focus back to what had it. If that is gone, the table gets it, unless something else has it by now.
function closed() {
  const isNowhere = !document.activeElement || document.activeElement === document.body;
  if (opener && !opener.isConnected && isNowhere) $("scroll").focus();
}

async function submitted(event) {
  event.preventDefault();
  $("ok").disabled = true;
  try {
    await submit();
    $("dialog").close();
    inventory.event = -1;
    inventory.at = 0;
    await look();
    draw();
  } catch (error) {
    set($("refused"), error.message);
  }
  $("ok").disabled = false;
}

function bytes(text) {
  const match = /^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?$/i.exec(text);
  if (!match) throw new Error(`${text || "nothing"} is no size: write 512M or 4G`);
  return Math.round(Number(match[1]) * 1024 ** " KMGT".indexOf(match[2].toUpperCase() || " "));
}

const lines = (text) => Object.fromEntries(Object.entries(text).filter(([, value]) => value !== ""));

function addDevice() {
  ask("Add device", [["kind", "Kind", "memory", ["memory", "null", "file"]], ["name", "Name", "", ""],
    ["size", "Size", "1G", "of memory and null devices"], ["path", "Path", "", "of a file or block device of the daemon's machine"]],
  async ({ kind, name: named, size: wanted, path }) => {
    if (kind === "file") return call("bdev_aio_create", { name: named, filename: path, block_size: 512 });
    const params = { name: named, block_size: 512, num_blocks: Math.floor(bytes(wanted) / 512) };
    return call(kind === "null" ? "bdev_null_create" : "bdev_malloc_create", params);
  }, "Add");
}

function removeDevice({ device, kind }) {
  const methods = [[/null/i, "bdev_null_delete"], [/malloc/i, "bdev_malloc_delete"], [/uring/i, "bdev_uring_delete"], [/aio/i, "bdev_aio_delete"]];
  const found = methods.find(([pattern]) => pattern.test(kind));
  ask(`Remove device ${device}?`, [], () => {
    if (!found) throw new Error(`a device of the kind ${kind} is removed with raceline bdev rm`);
    return call(found[1], { name: device });
  }, "Remove");
}

function resize({ device, kind, bytes: now }) {
  const isNull = /null/i.test(kind);
  const before = size(now).replace(" ", "");
  ask(`Resize ${device}`, isNull ? [["size", "New size", before, "of whole MiB"]] : [],
    async ({ size: wanted }) => {
      // The size that is shown may be rounded.
      if (wanted === before) return;
      if (isNull) return call("bdev_null_resize", { name: device, new_size: Math.ceil(bytes(wanted) / 1048576) });
      if (/uring/i.test(kind)) return call("bdev_uring_rescan", { name: device });
      if (/aio/i.test(kind)) return call("bdev_aio_rescan", { name: device });
      throw new Error(`a device of the kind ${kind} has the size of what it stands on`);
    }, isNull ? "Resize" : "Look at its file again");
}

// Only what was changed is sent: a limit that somebody else has changed meanwhile stays as it is.
function throttle(device) {
  const before = Object.fromEntries(LIMITS.map(([member]) => [member, String(limitOf(device, member))]));
  ask(`Limit ${device}`, LIMITS.map(([member, unit], at) => [member, unit, before[member], at === 0 ? "0 is no limit" : ""]),
    async (values) => {
      const changed = Object.entries(values).filter(([member, value]) => value !== before[member]);
      const wrong = changed.find(([, value]) => !/^\d+$/.test(value));
      if (wrong) throw new Error(`${wrong[1] || "nothing"} is no number`);
      if (changed.length === 0) return;
      await call("bdev_set_qos_limit", { name: device, ...Object.fromEntries(changed.map(([member, value]) => [member, Number(value)])) });
    }, "Limit");
}

function addSubsystem() {
  ask("Add subsystem", [["nqn", "NQN", "nqn.", ""], ["serial_number", "Serial number", "", ""], ["any", "Who may connect", "listed hosts", ["listed hosts", "any host"]]],
    ({ nqn, serial_number, any }) => call("nvmf_create_subsystem", { ...lines({ nqn, serial_number }), allow_any_host: any === "any host" }), "Add");
}

function removeSubsystem({ nqn }) {
  ask(`Remove ${nqn}? Its hosts lose their connections.`, [], () => call("nvmf_delete_subsystem", { nqn }), "Remove");
}

function addListener({ nqn }) {
  ask(`Listen for ${nqn}`, [["traddr", "Address", "127.0.0.1", ""], ["trsvcid", "Port", "4420", ""], ["trtype", "Transport", "TCP", ["TCP", "RDMA"]]], async ({ traddr, trsvcid, trtype }) => {
    const adrfam = traddr.includes(":") ? "IPv6" : "IPv4";
    const [made] = await post([["nvmf_create_transport", { trtype }]]);
    const listen_address = { trtype, adrfam, traddr, trsvcid };
    return call("nvmf_subsystem_add_listener", { nqn, listen_address }).catch((error) => {
      throw made.error && /transport/i.test(error.message) ? new Error(made.error.message) : error;
    });
  }, "Listen");
}

function allowHost({ nqn }) {
  ask(`Let a host connect to ${nqn}`, [["host", "NQN of the host", "nqn.", ""]], ({ host }) => call("nvmf_subsystem_add_host", { nqn, host }), "Allow");
}

function addNamespace() {
  const subsystems = inventory.subsystems.map((it) => it.nqn);
  const devices = [...inventory.bdevs.keys()];
  ask("Add namespace", [["nqn", "Subsystem", subsystems[0] || "", subsystems], ["bdev_name", "Device", devices[0] || "", devices]],
    ({ nqn, bdev_name }) => call("nvmf_subsystem_add_ns", { nqn, namespace: { bdev_name } }), "Add");
}

function removeNamespace({ nqn, nsid }) {
  ask(`Remove namespace ${nsid} of ${nqn}? Its data stay on the device.`, [], () => call("nvmf_subsystem_remove_ns", { nqn, nsid }), "Remove");
}

function measure() {
  const names = [...inventory.bdevs.keys()];
  ask(`Measure the latencies of ${names.length} devices`, [["enable", "Histograms", "on", ["on", "off"]]], async ({ enable }) => {
    const answers = await post(names.map((device) => ["bdev_enable_histogram", { name: device, enable: enable === "on" }]));
    const refused = answers.find((answer) => answer.error);
    if (refused) throw new Error(sentence(refused.error));
  });
}

function unlock() {
  if (token !== null) {
    token = null;
    unlocked();
    return;
  }
  ask("Unlock changes", [["token", "Token", "", "the daemon's HTTP token; this page forgets it when it is closed"]], async (values) => {
    token = values.token;
    try {
      const { role } = await call("raceline_get_caller");
      if (role !== "admin") throw new Error("this token may look but not change: --http-token names the file of the one that may");
    } catch (error) {
      token = null;
      throw error;
    }
    unlocked();
  }, "Unlock");
}

function unlocked() {
  set($("unlock"), token === null ? "Unlock changes" : "Lock changes");
  show(view);
}

function theme(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

function start() {
  buildTiles();
  buildTabs();
  show(view);
  $("filter").addEventListener("input", () => { shown[view].filter = $("filter").value; shown[view].page = 0; draw(); });
  const pages = { first: () => 0, previous: (page) => page - 1, next: (page) => page + 1, last: () => Infinity };
  for (const [id, to] of Object.entries(pages)) {
    $(id).addEventListener("click", () => { shown[view].page = to(shown[view].page); draw(); });
  }
  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    if (paused) tell("paused", "paused");
  });
  $("theme").addEventListener("change", () => theme($("theme").value));
  $("unlock").addEventListener("click", unlock);
  $("cancel").addEventListener("click", () => $("dialog").close());
  $("form").addEventListener("submit", submitted);
  $("dialog").addEventListener("close", closed);
  call("spdk_get_version").then((version) => set($("about"), `${(version.server || version).version} on ${location.host}`), () => {});
  turn();
}

start();
