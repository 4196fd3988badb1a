#!/usr/bin/env python3
"""Opens the page of a daemon in Chromium and uses it: check.py URL TOKEN PID FOLDER [axe.min.js].

Prints one line for each check: "ok NAME: what was seen", or "not ok NAME: why". It speaks the DevTools protocol over
two pipes, so it needs nothing beside Python and Chromium.
"""

import base64
import json
import os
import select
import socket
import subprocess
import sys
import time
import urllib.request

LIMIT_S = 60
NQN = "nqn.2026-01.io.raceline:page"
MADE = "nqn.2026-01.io.raceline:made"
HOST = "nqn.2026-01.io.raceline:page-host"
NAMESPACES = 1000
# The aims: a page is usable at once, and costs an idle daemon next to nothing. A quiet machine has to reach them; one that does
# other things may take so many times as much.
USABLE_AIM_MS = 1000
CPU_SECONDS = 4
CPU_AIM_PERCENT = 1.0
QUIET_LOAD = 0.5
USABLE_TIMES = 3
CPU_TIMES = 2
LOAD = os.getloadavg()[0] / (os.cpu_count() or 1)
# Looks at the memory of a page whose time a script makes pass, updates between two of them, and how often its daemon is started anew
# between two. Browsers call a page that is in the background once a minute, and one that is seen once a second. By default the
# page has 15 hours in the background; a week in the background has 10,080 updates (PAGE_WEEK_UPDATES=1680), and one in view
# 604,800 (PAGE_WEEK_UPDATES=100800).
WEEK_LOOKS = 6
WEEK_UPDATES = int(os.environ.get("PAGE_WEEK_UPDATES", "150"))
WEEK_UPDATE_S = 60 if WEEK_UPDATES * WEEK_LOOKS <= 7 * 24 * 60 else 1
WEEK_RESTARTS = 3
# What this is for the page, which the check has as its name.
WEEK_HOURS = WEEK_LOOKS * WEEK_UPDATES * WEEK_UPDATE_S // 3600
WEEK_NAME = "a-week" if WEEK_HOURS == 7 * 24 else f"{WEEK_HOURS}-hours"
# Updates of it that one wait has time for.
WEEK_STEP = 500
LEAK_BYTES = 64 << 10
# Nodes and listeners of a page are the same after each look, but for a few that the next collection takes.
LEAK_NODES = 100
LEAK_LISTENERS = 20
VIEWS = ["namespaces", "devices", "subsystems", "hosts", "paths", "cores", "latency", "events"]
# What a button of a view or of a row opens, once changes are unlocked.
DIALOGS = [("namespaces", "Add namespace"), ("namespaces", "Limit"), ("namespaces", "Remove"), ("devices", "Add device"),
           ("devices", "Measure latencies"), ("devices", "Resize"), ("subsystems", "Add subsystem"), ("subsystems", "Listen"),
           ("subsystems", "Allow host")]


# The daemon of a simulated week. A page whose timers would wait goes on at once, up to the update `until`. Each daemon
# begins 40,000 s before it answers first, so that one which replaces another has been there for longer than that was.
WEEK_SCRIPT = """
    // A timer of no time waits 4 ms after a few turns; a message does not.
    const turns = new MessageChannel();
    const waiting = [];
    turns.port1.onmessage = () => waiting.shift()();
    const soon = (work) => { waiting.push(work); turns.port2.postMessage(0); };
    const pause = window.setTimeout.bind(window);
    const realNow = Date.now.bind(Date);
    const daemon = window.daemon = { updates: 0, until: 0, silent: 0, journal: 1, base: 0,
      restart() { daemon.journal += 1; daemon.base = daemon.updates; daemon.until += 1; } };
    Date.now = () => daemon.updates * UPDATE_S * 1000 + 1.8e12;
    window.setTimeout = (work) => soon(function turn() { daemon.until > daemon.updates || daemon.silent > 0 ? work() : pause(turn, 20); });
    const numbers = [...Array(58).keys()];
    const runs = () => daemon.updates - daemon.base;
    const next = () => runs() * 3 + 5;
    const event = (seq) => ({ seq, time_ms: Date.now(), severity: 'info', kind: 'connect',
      message: `event ${seq} of ${daemon.journal} `, fields: { host: `nqn.h${seq}` } });
    const results = {
      raceline_get_activity: (n) => ({ time_ns: (daemon.journal * 40000 + runs() * UPDATE_S) * 1e9, cpu_ns: n * 1e7, next_event: next(), device_count: 200,
        cores: [0, 1].map((c) => ({ name: `core${c}`, busy_ns: n * 2e8, turns: n * 1000, received_bytes: n * 5000, sent_bytes: n, longest_ns: 9 })),
        hosts: numbers.map((h) => ({ subnqn: 'nqn.s', hostnqn: `nqn.h${h + n % 7}`, controllers: 1, io_qpairs: 2,
          statistics: { num_read_ops: n * h, num_write_ops: n, bytes_read: n * h * 4096, bytes_written: n, errors: 0 } })),
        bdevs: Object.fromEntries(numbers.map((d) => [`d${d + n % 5}`, [n * d, n, 0, n * d * 4096, n, n * 9e5, n, 0]])),
        latency: { borders_ns: numbers.slice(1).map((b) => 1000 * 1.33 ** b), counts: numbers.map((b) => n * b), devices: 3 } }),
      raceline_get_events: (n, { since }) => ({ journal: daemon.journal, next: next(), missed: n % 50 ? 0 : 2,
        events: [...Array(Math.max(0, next() - since)).keys()].slice(0, 1000).map((at) => event(since + at)) }),
      nvmf_get_subsystems: () => [{ nqn: 'nqn.s', subtype: 'NVMe', namespaces: numbers.map((d) => ({ nsid: d + 1, bdev_name: `d${d}` })) }],
      bdev_get_bdevs: () => numbers.map((d) => ({ name: `d${d}`, product_name: 'Null disk', num_blocks: 8, block_size: 512 })),
      bdev_nvme_get_controllers: () => [], nvmf_get_qos_limits: () => [], spdk_get_version: () => ({ version: 'x' }),
    };
    window.fetch = async (_, { body }) => {
      const calls = JSON.parse(body);
      if (daemon.silent > 0 && calls[0].method === 'raceline_get_activity') { daemon.silent -= 1; throw new TypeError('no daemon'); }
      if (calls[0].method === 'raceline_get_activity') daemon.updates += 1;
      return { ok: true, json: async () => calls.map(({ id, method, params }) => ({ id, result: results[method](daemon.updates, params) })) };
    };"""

# What axe has to find: a button without a name, and text that is hard to read.
WRONG_RULES = ["button-name", "color-contrast"]
WRONG_SCRIPT = """(() => {
    const wrong = Object.assign(document.createElement('div'), { id: 'wrong' });
    wrong.append(document.createElement('button'), Object.assign(document.createElement('p'), { textContent: 'grey on grey' }));
    Object.assign(wrong.lastChild.style, { color: '#777', background: '#888' });
    document.getElementById('main').prepend(wrong);
  })()"""


def judge(figure, aim, times, unit):
    """The figure beside its aim, and how it was judged; whether it is too much."""
    is_quiet = LOAD < QUIET_LOAD
    limit = aim if is_quiet else aim * times
    how = "strictly" if is_quiet else f"by {limit:g}{unit}"
    text = (f"{max(figure, 0):.4g}{unit} (the aim is {aim:g}{unit}; judged {how}, at a load of {LOAD:.2f} for each core, "
            f"where below {QUIET_LOAD} is quiet)")
    return text, figure > limit


class Browser:
    """A Chromium that is told what to do over descriptors 3 and 4."""

    def __init__(self, folder):
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()
        arguments = [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions",
            "--remote-debugging-pipe", "--js-flags=--expose-gc", f"--user-data-dir={folder}/profile", "about:blank",
        ]

        def descriptors():
            # Neither pipe may stand where the other has to go.
            reading, writing = os.dup(to_read), os.dup(to_write)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self.log = open(f"{folder}/chromium.log", "wb")
        self.process = subprocess.Popen(
            arguments, preexec_fn=descriptors, close_fds=False, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )
        os.close(to_read)
        os.close(to_write)
        self.number, self.buffer, self.events = 0, b"", []

    def call(self, method, session=None, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        until = time.monotonic() + LIMIT_S
        while True:
            message = self.receive(until, method)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def receive(self, until, what):
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.back], [], [], left)[0]:
                raise RuntimeError(f"{what}: no answer of the browser within {LIMIT_S} s")
            data = os.read(self.back, 1 << 20)
            if not data:
                raise RuntimeError(f"{what}: the browser has ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def end(self):
        self.process.kill()
        self.process.wait()


class Page:
    """A tab."""

    def __init__(self, browser, url, before=None, width=1280, height=900):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            self.call(f"{domain}.enable")
        self.size(width, height)
        if before:
            self.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.call("Page.navigate", url=url)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def js(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait(self, expression):
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            value = self.js(expression)
            if value:
                return value
            time.sleep(0.02)
        state = self.js("`${document.getElementById('state')?.textContent} | ${document.getElementById('range')?.textContent} "
                        "| ${document.getElementById('refused')?.textContent}`")
        raise RuntimeError(f"not within {LIMIT_S} s: {expression}; the page says {state}")

    def live(self):
        self.wait("document.getElementById('state')?.dataset.state === 'live'")

    def key(self, key, code=0, text=None, modifiers=0):
        for kind in ["keyDown", "keyUp"]:
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers, **extra)

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def heap(self):
        self.call("HeapProfiler.enable")
        self.call("HeapProfiler.collectGarbage")
        return self.call("Runtime.getHeapUsage")["usedSize"]

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)


class Run:
    """The checks, in their order."""

    def __init__(self, url, token, pid, folder, axe_file):
        self.url, self.token, self.pid, self.folder, self.axe_file = url, token, pid, folder, axe_file
        self.failed = 0

    def rpc(self, requests, token=None):
        numbered = [{"jsonrpc": "2.0", "id": i, "method": m, "params": p} for i, (m, p) in enumerate(requests)]
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/rpc", json.dumps(numbered).encode(), headers)
        answers = json.load(urllib.request.urlopen(request, timeout=LIMIT_S))
        wrong = [answer for answer in answers if "error" in answer]
        if wrong:
            raise RuntimeError(f"{requests[wrong[0]['id']]}: {wrong[0]['error']}")
        return [answer["result"] for answer in answers]

    def check(self, name, work):
        try:
            print(f"ok {name}: {work()}", flush=True)
        except Exception as error:  # every failure of a check is told, and the next check runs
            self.failed += 1
            print(f"not ok {name}: {error}", flush=True)

    def all(self):
        self.export()
        browser = Browser(self.folder)
        try:
            self.check("usable-at-once", lambda: self.usable(browser))
            page = Page(browser, self.url)
            page.live()
            self.judge(page)
            for name in ["keyboard", "namespaces", "looks", "axe", "batches", "changes", "dialogs", "by_tab", "tree", "typed", "exports", "heat", "quiet"]:
                if name != "axe" or self.axe_file:
                    self.check(name, lambda: getattr(self, name)(page))
            page.close()
            self.check("idle", lambda: self.idle(browser))
            self.check(WEEK_NAME, lambda: self.week(browser))
        finally:
            browser.end()
        return self.failed

    def export(self):
        """A subsystem with a thousand namespaces."""
        self.rpc([("nvmf_create_transport", {"trtype": "TCP"}),
                  ("nvmf_create_subsystem", {"nqn": NQN, "allow_any_host": True, "max_namespaces": NAMESPACES + 4})])
        for first in range(0, NAMESPACES, 100):
            names = [f"null{number:04}" for number in range(first, first + 100)]
            self.rpc([("bdev_null_create", {"name": n, "num_blocks": 2048, "block_size": 512}) for n in names]
                     + [("nvmf_subsystem_add_ns", {"nqn": NQN, "namespace": {"bdev_name": n}}) for n in names])

    def usable(self, browser):
        best = None
        for _ in range(3):
            page = Page(browser, self.url, before="""
                new MutationObserver((_, observer) => {
                  if (document.querySelectorAll('#body tr').length >= 50) {
                    window.usable = performance.now();
                    observer.disconnect();
                  }
                }).observe(document, { childList: true, subtree: true });""")
            took = page.wait("window.usable")
            page.close()
            best = took if best is None else min(best, took)
        text, is_late = judge(best, USABLE_AIM_MS, USABLE_TIMES, " ms")
        if is_late:
            raise RuntimeError(f"three times no rows before {text}")
        return f"rows of {NAMESPACES} namespaces after {text}"

    def namespaces(self, page):
        page.wait(f"document.getElementById('range').textContent === '1 to 50 of {NAMESPACES}'")
        page.js("document.getElementById('next').click()")
        page.wait(f"document.getElementById('range').textContent === '51 to 100 of {NAMESPACES}'")
        took = page.js("""(() => { const from = performance.now(); const filter = document.getElementById('filter');
            filter.value = 'null0777'; filter.dispatchEvent(new Event('input')); return performance.now() - from; })()""")
        page.wait("document.getElementById('range').textContent === '1 to 1 of 1'")
        page.js("""(() => { const filter = document.getElementById('filter'); filter.value = '';
            filter.dispatchEvent(new Event('input')); document.querySelectorAll('#head button')[1].click(); })()""")
        page.wait("document.querySelector('#body tr').cells[1].textContent === '1000'")
        page.js("document.querySelectorAll('#head button')[0].click(); document.getElementById('last').click()")
        page.wait(f"document.getElementById('range').textContent === '{NAMESPACES - 49} to {NAMESPACES} of {NAMESPACES}'")
        page.wait("document.getElementById('last').disabled && document.getElementById('next').disabled")
        page.js("document.getElementById('first').click()")
        page.wait(f"document.getElementById('range').textContent === '1 to 50 of {NAMESPACES}'")
        page.wait("document.getElementById('first').disabled && !document.getElementById('last').disabled")
        return f"pages, filter ({took:.1f} ms) and order"

    def keyboard(self, page):
        page.js("document.activeElement?.blur()")
        reached = []
        for _ in range(12):
            page.key("Tab", 9)
            reached.append(page.js("document.activeElement.id || document.activeElement.className"))
            if reached[-1] == "tab-namespaces":
                break
        if reached[0] != "skip" or reached[-1] != "tab-namespaces":
            raise RuntimeError(f"Tab goes to {reached}")
        page.key("ArrowRight", 39)
        page.wait("document.activeElement.id === 'tab-devices' && document.activeElement.ariaSelected === 'true'")
        page.key("End", 35)
        page.wait("document.activeElement.id === 'tab-events'")
        page.key("Home", 36)
        page.wait("document.activeElement.id === 'tab-namespaces'")
        return f"{len(reached)} stops to the views, arrows, Home and End"

    def looks(self, page):
        for theme, width in [("light", 1280), ("dark", 1280), ("light", 390)]:
            page.size(width, 900)
            page.js(f"theme('{theme}')")
            for view in VIEWS:
                page.js(f"show('{view}')")
                wide = page.js("document.documentElement.scrollWidth")
                if wide > width:
                    raise RuntimeError(f"{view} is {wide} points wide on a screen of {width}")
                page.picture(f"{self.folder}/{view}-{theme}-{width}.png")
        page.size(1280, 900)
        page.js("show('namespaces')")
        return f"{3 * len(VIEWS)} pictures"

    def judge(self, page):
        """Puts the rules of accessibility into the page."""
        if self.axe_file:
            with open(self.axe_file, encoding="utf-8") as file:
                page.js(file.read() + ";0")

    def violations(self, page, where):
        found = page.js("axe.run(document).then((r) => r.violations.map((v) => `${v.id}: ${v.nodes[0].html}`))")
        return [f"{where}: {one}" for one in found]

    def axe(self, page):
        """The rules find nothing in the page, and do find what is put into it against them."""
        page.js(WRONG_SCRIPT)
        found = " ".join(self.violations(page, "on purpose"))
        page.js("document.getElementById('wrong').remove()")
        if missed := [rule for rule in WRONG_RULES if rule not in found]:
            raise RuntimeError(f"axe does not find what is against {missed}, but: {found}")
        seen = []
        for theme in ["light", "dark"]:
            page.js(f"theme('{theme}')")
            for view in VIEWS:
                page.js(f"show('{view}')")
                seen += self.violations(page, f"{theme} {view}")
            page.js("document.getElementById('unlock').click()")
            page.wait("document.getElementById('dialog').open")
            seen += self.violations(page, f"{theme} token")
            page.js("document.getElementById('cancel').click()")
            self.closed(page)
        page.js("theme('auto'); show('namespaces')")
        if seen:
            raise RuntimeError("; ".join(seen))
        return f"no violation, in {len(VIEWS)} views and the token's form, light and dark; it finds {' and '.join(WRONG_RULES)}"

    def batches(self, page):
        """More calls than the daemon takes in a batch, and what it says of such a batch."""
        calls = 1300
        got = page.js(f"""post(Array.from({{ length: {calls} }}, (_, at) => at % 2 ? ["log_get_level"] : ["bdev_get_bdevs", {{ name: "null0000" }}]))
            .then((answers) => answers.filter((it, at) => at % 2 ? it.result === "NOTICE" : it.result[0].name === "null0000").length)""")
        if got != calls:
            raise RuntimeError(f"{got} of {calls} calls were answered")
        said = page.js("batch(Array(1025).fill(['log_get_level'])).then(() => 'nothing', (error) => error.message)")
        if "one batch may have 1024" not in said:
            raise RuntimeError(f"the page says of a batch that is refused: {said}")
        return f"{calls} calls are answered in their order; of a batch that is refused, the daemon's own sentence is shown"

    def changes(self, page):
        if page.js("document.querySelectorAll('#actions button, #body button').length") != 0:
            raise RuntimeError("there are buttons for changes before there is a token")
        self.form(page, "document.getElementById('unlock').click()", token="wrong-token-wrong-token-wrong-token")
        page.wait("document.getElementById('refused').textContent.includes('401')")
        if self.axe_file:
            seen = []
            for theme in ["light", "dark"]:
                page.js(f"theme('{theme}')")
                seen += self.violations(page, f"{theme} refused token")
            page.js("theme('auto')")
            if seen:
                raise RuntimeError("; ".join(seen))
        [before] = self.rpc([("raceline_get_events", {"since": 2 ** 64 - 1})])
        self.fill(page, token=self.token)
        page.wait("document.querySelectorAll('#actions button').length === 1 && !document.getElementById('dialog').open")
        [after] = self.rpc([("raceline_get_events", {"since": before["next"]})])
        if made := [event for event in after["events"] if event["kind"] == "change"]:
            raise RuntimeError(f"to unlock changes has changed something: {made}")
        page.js("show('devices')")
        self.form(page, "document.querySelector('#actions button').click()", kind="null", name="made", size="64M")
        self.closed(page)
        page.js("(() => { const f = document.getElementById('filter'); f.value = 'made'; f.dispatchEvent(new Event('input')); })()")
        page.wait("document.querySelector('#body tr')?.cells[2].textContent === '64 MiB'")
        button = "[...document.querySelectorAll('#body button')].find((b) => b.textContent === '%s').click()"
        self.form(page, button % "Limit", rw_ios_per_sec="5000")
        self.closed(page)
        page.wait("document.querySelector('#body tr')?.cells[7].textContent === '5000 IOPS'")
        # Another limit leaves the first one as it is.
        self.form(page, button % "Limit", rw_mbytes_per_sec="10")
        self.closed(page)
        page.wait("document.querySelector('#body tr')?.cells[7].textContent === '5000 IOPS, 10 MiB/s'")
        self.form(page, button % "Limit", rw_mbytes_per_sec="0")
        self.closed(page)
        page.wait("document.querySelector('#body tr')?.cells[7].textContent === '5000 IOPS'")
        self.form(page, button % "Resize", size="128M")
        self.closed(page)
        page.wait("document.querySelector('#body tr')?.cells[2].textContent === '128 MiB'")
        self.form(page, button % "Remove")
        self.closed(page)
        page.wait("document.getElementById('range').textContent === 'none'")
        self.unfilter(page)
        return "a wrong token is refused; add, limit, resize and remove work with the right one"

    def unfilter(self, page):
        page.js("(() => { const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input')); })()")

    def opened(self, page, view, title):
        """Opens a dialog as those do who have no mouse."""
        page.js(f"show('{view}')")
        find = f"[...document.querySelectorAll('#actions button, #body button')].find((b) => b.textContent === '{title}')"
        is_open = "document.getElementById('dialog').open && document.getElementById('dialog').contains(document.activeElement)"
        for _ in range(5):
            page.wait(f"{find} !== undefined")
            page.js(f"{find}.focus()")
            page.key("Enter", 13, "\r")
            # (a row whose object goes at that moment takes its button along, and the focus goes to the table)
            page.wait(f"({is_open}) || document.activeElement !== {find}")
            if page.js(is_open):
                break
        page.wait(is_open)
        return f"document.activeElement === {find}"

    def dialogs(self, page):
        """Each has a name, keeps the focus, obeys the rules, and Escape ends it and changes nothing."""
        seen = []
        for theme in ["light", "dark"]:
            page.js(f"theme('{theme}')")
            if self.axe_file:
                for view in dict(DIALOGS):
                    page.js(f"show('{view}')")
                    page.wait("document.querySelectorAll('#actions button, #body button').length > 0")
                    seen += self.violations(page, f"{theme} {view} with buttons")
            for view, title in DIALOGS:
                came_from = self.opened(page, view, title)
                if self.axe_file:
                    seen += self.violations(page, f"{theme} {view} {title}")
                page.picture(f"{self.folder}/dialog-{view}-{title.replace(' ', '-')}-{theme}.png")
                for _ in range(12):
                    page.key("Tab", 9)
                    # (beyond a dialog's last element comes the browser's own bar, where the page has no focus)
                    if not page.js("document.activeElement === document.body || document.getElementById('dialog').contains(document.activeElement)"):
                        raise RuntimeError(f"{title}: Tab leaves the dialog for the page behind it")
                page.key("Escape", 27)
                page.wait("!document.getElementById('dialog').open")
                page.wait(came_from)
        page.js("theme('auto')")
        if seen:
            raise RuntimeError("; ".join(seen))
        return f"{len(DIALOGS)} dialogs, light and dark: by keyboard, with the focus back where it was"

    def tab_to(self, page, wanted, most=60, back=False):
        """Tab, until the script `wanted` is true; the stops on the way, by their ids or names."""
        stops = []
        for _ in range(most):
            page.key("Tab", 9, modifiers=8 if back else 0)
            stop, is_there = page.js("(() => { const e = document.activeElement; "
                                     f"return [e.id || e.ariaLabel || e.textContent.slice(0, 40), !!({wanted})]; }})()")
            stops.append(stop)
            if is_there:
                return stops
        raise RuntimeError(f"Tab does not come to {wanted}, but to {stops}")

    def by_tab(self, page):
        """Real keys walk through the page, filter, turn pages, sort and open a dialog; the focus stays with its object."""
        range_is = "document.getElementById('range').textContent === '%s'"
        row = "document.activeElement.closest('#body tr')?.row.nsid"
        page.js("show('namespaces'); shown.namespaces.order = [0, false]; show('namespaces'); document.activeElement?.blur()")
        page.wait(range_is % f"1 to 50 of {NAMESPACES}")
        # The walk begins at the first link, which `keyboard` reaches from the top of the page.
        page.js("document.querySelector('.skip').focus()")
        stops = self.tab_to(page, f"e.textContent === 'Remove' && {row} === 1")
        heads = page.js("[...document.querySelectorAll('#head button')].map((button) => button.textContent.slice(0, 40))")
        wanted = (["pause", "theme", "unlock", "tab-namespaces", "panel", "filter", "Add namespace", "next", "last", "scroll"] + heads
                  + [f"{title} {NQN} 1" for title in ["Limit", "Remove"]])
        if stops != wanted:
            raise RuntimeError(f"Tab goes to {stops} and not to {wanted}")
        self.tab_to(page, "e.id === 'filter'", back=True)
        page.call("Input.insertText", text="null0777")
        page.wait(range_is % "1 to 1 of 1")
        for _ in "null0777":
            page.key("Backspace", 8)
        page.wait(range_is % f"1 to 50 of {NAMESPACES}")
        self.tab_to(page, "e.id === 'next'")
        page.key("Enter", 13, "\r")
        page.wait(range_is % f"51 to 100 of {NAMESPACES}")
        self.tab_to(page, "e.id === 'last'")
        page.key(" ", 32, " ")
        page.wait(range_is % f"{NAMESPACES - 49} to {NAMESPACES} of {NAMESPACES}")
        if (held := page.js("document.activeElement.id")) != "previous":
            raise RuntimeError(f"the button of the last page is of no more use, and the focus is at {held!r}")
        self.tab_to(page, "e.id === 'first'", back=True)
        page.key("Enter", 13, "\r")
        page.wait(range_is % f"1 to 50 of {NAMESPACES}")
        self.tab_to(page, "e.closest('#head') && e.textContent.startsWith('NSID')")
        for sort, first in [("descending", NAMESPACES), ("ascending", 1), ("descending", NAMESPACES)]:
            page.key("Enter", 13, "\r")
            page.wait(f"document.activeElement.closest('th')?.ariaSort === '{sort}' && document.querySelector('#body tr').row.nsid === {first}")
        self.tab_to(page, f"e.textContent === 'Limit' && {row} === {NAMESPACES}")
        page.key("Enter", 13, "\r")
        page.wait("document.getElementById('dialog').contains(document.activeElement)")
        self.moved(page, row)
        return (f"{len(stops)} stops to a row; filter, pages, order and a dialog by keys; the focus stays with its object when rows "
                "move, beside a dialog, too, and goes to the table when the object goes")

    def change(self, page, requests):
        """Changes the daemon; the page need not wait until it may ask again for what there is."""
        self.rpc(requests)
        page.js("inventory.at = 0")

    def moved(self, page, row):
        """A dialog of the first row is open: rows come before it, and go."""
        names = ["early0", "early1"]
        last = NAMESPACES + len(names)
        add = [("nvmf_subsystem_add_ns", {"nqn": NQN, "namespace": {"bdev_name": n}}) for n in names]
        nulls = [("bdev_null_create", {"name": n, "num_blocks": 2048, "block_size": 512}) for n in names]
        self.change(page, [nulls[0], add[0]])
        page.wait(f"document.querySelector('#body tr').row.nsid === {NAMESPACES + 1}")
        page.key("Escape", 27)
        page.wait("!document.getElementById('dialog').open")
        if (held := page.js(row)) != NAMESPACES:
            raise RuntimeError(f"after the dialog of namespace {NAMESPACES} the focus is at {held}")
        self.change(page, [nulls[1], add[1]])
        page.wait(f"document.querySelector('#body tr').row.nsid === {last}")
        label = page.js("document.activeElement.ariaLabel")
        if (held := page.js(row)) != NAMESPACES or label != f"Limit {NQN} {NAMESPACES}":
            raise RuntimeError(f"a row came before namespace {NAMESPACES}, and the focus is at {held} ({label})")
        order = page.js("[...document.querySelectorAll('#body tr')].map((one) => Number(one.cells[1].textContent))")
        if order != list(range(last, last - 50, -1)):
            raise RuntimeError(f"the rows stand as {order}")
        self.tab_to(page, f"e.textContent === 'Limit' && {row} === {last}", back=True)
        self.change(page, [("nvmf_subsystem_remove_ns", {"nqn": NQN, "nsid": last})])
        page.wait(f"document.querySelector('#body tr').row.nsid === {last - 1}")
        if (held := page.js("document.activeElement.id")) != "scroll":
            raise RuntimeError(f"the object with the focus has gone, and the focus is at {held!r} ({page.js(row)})")
        self.change(page, [("nvmf_subsystem_remove_ns", {"nqn": NQN, "nsid": last - 1})] + [("bdev_null_delete", {"name": n}) for n in names])
        page.wait(f"document.querySelector('#body tr').row.nsid === {NAMESPACES}")

    def roles(self, page):
        """What those see who cannot see: (role, name, properties) of all nodes."""
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", ""),
                 {one["name"]: one["value"].get("value") for one in node.get("properties", [])})
                for node in nodes if not node.get("ignored") and "role" in node]

    def tree(self, page):
        """The tree of accessibility has the parts of the page by their roles and names."""
        page.call("Accessibility.enable")
        page.js("show('namespaces')")
        titles = page.js("views.namespaces.columns.map((column) => column.title)")
        seen = self.roles(page)
        count = len(seen)

        def has(role, name, **properties):
            for one_role, one_name, one in seen:
                if one_role == role and one_name.startswith(name) and all(one.get(k) == v for k, v in properties.items()):
                    return
            raise RuntimeError(f"no {role} {name!r} with {properties}; there are {[o[1:] for o in seen if o[0] == role][:20]}")

        for role, name in [("table", "Namespaces"), ("region", "Namespaces"), ("tablist", "Views"), ("searchbox", "Filter"),
                           ("button", f"Limit {NQN} "), ("rowheader", NQN)]:
            has(role, name)
        has("tab", "Namespaces", selected=True)
        has("tab", "Events", selected=False)
        has("status", "", live="polite")
        for title in titles:
            has("columnheader", title)
        sorts = page.js("[...document.querySelectorAll('#head th[aria-sort]')].map((th) => th.ariaSort)")
        if len(sorts) != len(titles) or sorted(set(sorts)) != ["descending", "none"] or sorts.count("none") != len(sorts) - 1:
            raise RuntimeError(f"the columns say of the order: {sorts}")
        page.js("show('events')")
        seen = self.roles(page)
        has("table", "Events")
        for title in ["No.", "Time", "Severity", "Kind", "What"]:
            has("columnheader", title)
        self.opened(page, "devices", "Add device")
        page.js("document.querySelector('#fields [name=size]').value = 'none'; document.getElementById('form').requestSubmit()")
        page.wait("document.getElementById('refused').textContent.includes('none is no size')")
        seen = self.roles(page)
        has("dialog", "Add device", modal=True)
        has("alert", "", live="assertive")
        if not any(role in ("StaticText", "alert") and "none is no size" in name for role, name, _ in seen):
            raise RuntimeError("the refusal is not in the tree")
        page.key("Escape", 27)
        page.wait("!document.getElementById('dialog').open")
        page.call("Accessibility.disable")
        return f"{count} nodes: tables, {len(titles)} columns with their order, views, a dialog, live regions"

    def typed(self, page):
        """A device is made by keys alone."""
        self.opened(page, "devices", "Add device")
        order = [("name", "typed"), ("size", "32M")]
        for name, text in order:
            for _ in range(8):
                if page.js("document.activeElement.name") == name:
                    break
                page.key("Tab", 9)
            page.js("document.activeElement.select()")
            page.call("Input.insertText", text=text)
        page.key("Enter", 13, "\r")
        self.closed(page)
        page.wait("inventory.bdevs.get('typed')?.num_blocks === 65536")
        kind = page.js("inventory.bdevs.get('typed').product_name")
        if "alloc" not in kind:
            raise RuntimeError(f"it is a {kind}")
        return "a memory device, with Tab, letters and Enter"

    def exports(self, page):
        """A subsystem with a file and the device of `typed`, a listener and a host."""
        with open(f"{self.folder}/disk.img", "wb") as file:
            file.truncate(16 << 20)
        action = "[...document.querySelectorAll('#actions button, #body button')].find((b) => b.textContent === '%s').click()"
        page.js("show('devices')")
        self.form(page, action % "Add device", kind="file", name="disk", path=f"{self.folder}/disk.img")
        self.closed(page)
        page.js("show('subsystems')")
        self.form(page, action % "Add subsystem", nqn=MADE, serial_number="PAGE1")
        self.closed(page)
        page.js(f"(() => {{ const f = document.getElementById('filter'); f.value = '{MADE}'; f.dispatchEvent(new Event('input')); }})()")
        page.wait("document.querySelectorAll('#body tr').length === 1")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.form(page, action % "Listen", traddr="127.0.0.1", trsvcid=str(self.port))
        self.closed(page)
        self.form(page, action % "Allow host", host=HOST)
        self.closed(page)
        page.wait(f"document.querySelector('#body tr')?.cells[3].textContent === '127.0.0.1:{self.port}'")
        self.unfilter(page)
        page.js("show('namespaces')")
        for device in ["disk", "typed"]:
            self.form(page, action % "Add namespace", nqn=MADE, bdev_name=device)
            self.closed(page)
        [seen] = self.rpc([("nvmf_get_subsystems", {"nqn": MADE})])
        devices = [namespace["bdev_name"] for namespace in seen[0]["namespaces"]]
        hosts = [host["nqn"] for host in seen[0]["hosts"]]
        if (devices, hosts, seen[0]["serial_number"]) != (["disk", "typed"], [HOST], "PAGE1"):
            raise RuntimeError(f"the daemon has {seen[0]}")
        return "a file and memory in a new subsystem, with a listener and a host"

    def heat(self, page):
        """What a host reads is seen: rates, the host, and the heat map."""
        action = "[...document.querySelectorAll('#actions button')].find((b) => b.textContent === 'Measure latencies').click()"
        page.js("show('latency')")
        if page.js("heat.length") != 0:
            raise RuntimeError("there is a heat map before anything is measured")
        self.form(page, action, enable="on")
        self.closed(page)
        load = subprocess.Popen(
            [os.environ["RACELINE"], "perf", "-a", "127.0.0.1", "-s", str(self.port), "-n", MADE, "-q", HOST, "--namespace", "2",
             "--rw", "randread", "--bs", "4k", "--iodepth", "4", "--runtime", "20"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            page.wait("rates.iops > 100 && rates.p99 > 0 && heat.length > 3")
            page.wait("document.getElementById('heat-text').textContent.includes('Now P50')")
            drawn = page.js("""(() => { const map = document.getElementById('map');
                const data = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
                let count = 0; for (let at = 3; at < data.length; at += 4) count += data[at] > 0 ? 1 : 0; return count; })()""")
            if drawn < 12:
                raise RuntimeError(f"the heat map has {drawn} points")
            if self.axe_file and (seen := self.violations(page, "heat map")):
                raise RuntimeError("; ".join(seen))
            page.picture(f"{self.folder}/heat.png")
            page.js("show('hosts')")
            page.wait(f"[...document.querySelectorAll('#body tr')].some((row) => row.textContent.includes('{HOST}'))")
            iops = page.js("rates.iops")
        except Exception as error:
            load.kill()
            raise RuntimeError(f"{error}; perf said {load.communicate()[1].decode()[:300]}")
        load.kill()
        load.communicate()
        page.js("show('latency')")
        self.form(page, action, enable="off")
        self.closed(page)
        page.js("document.getElementById('unlock').click()")
        page.wait("document.querySelectorAll('#actions button').length === 0")
        return f"{iops:.0f} reads a second are seen, {drawn} points of the map"

    def form(self, page, opens, **values):
        page.js(opens)
        page.wait("document.getElementById('dialog').open")
        self.fill(page, **values)

    def fill(self, page, **values):
        page.js(f"""(() => {{ for (const [name, value] of Object.entries({json.dumps(values)}))
            document.querySelector(`#fields [name=${{name}}]`).value = value;
            document.getElementById('form').requestSubmit(); }})()""")

    def closed(self, page):
        page.wait("!document.getElementById('dialog').open && !document.getElementById('ok').disabled")

    def quiet(self, page):
        """The browser had nothing to complain about, but for the answer to the wrong token."""
        bad = []
        for event in page.browser.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                bad.append(json.dumps(params["exceptionDetails"])[:300])
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                text = params["entry"]["text"]
                if "401" not in text:
                    bad.append(text)
        if bad:
            raise RuntimeError("; ".join(bad))
        return "no complaint"

    def cpu(self):
        """CPU time of the daemon so far, in seconds."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def spent(self):
        before, began = self.cpu(), time.monotonic()
        time.sleep(CPU_SECONDS)
        return (self.cpu() - before) / (time.monotonic() - began) * 100

    def idle(self, browser):
        best = None
        for _ in range(3):
            alone = self.spent()
            page = Page(browser, self.url)
            page.live()
            time.sleep(1)
            more = self.spent() - alone
            page.close()
            best = more if best is None else min(best, more)
            if best <= CPU_AIM_PERCENT:
                break
        text, is_much = judge(best, CPU_AIM_PERCENT, CPU_TIMES, " %")
        if is_much:
            raise RuntimeError(f"three times, an open page costs of the idle daemon's core {text}")
        return f"an open page costs of the idle daemon's core {text}"

    def week(self, browser):
        """Answers come from a script, and a second takes no time: memory must not grow with them."""
        page = Page(browser, self.url, before=f"const UPDATE_S = {WEEK_UPDATE_S};{WEEK_SCRIPT}")
        page.wait("typeof show === 'function' && window.daemon && document.readyState === 'complete'")
        sizes, counters = [], []
        for look in range(1, WEEK_LOOKS + 1):
            view = ["namespaces", "events", "hosts", "latency"][look % 4]
            page.js(f"show('{view}')")
            for part in range(1, WEEK_RESTARTS + 1):
                self.weekdays(page, (look - 1) * WEEK_UPDATES + WEEK_UPDATES * part // WEEK_RESTARTS)
            page.js("show('namespaces')")
            sizes.append(page.heap())
            counters.append(page.call("Memory.getDOMCounters"))
        bounds = page.js("[events.length <= MAX_EVENTS, heat.length <= HISTORY, "
                         "tiles.every((tile) => tile.history.length === HISTORY), inventory.bdevs.size <= 58]")
        nodes = page.js("document.getElementsByTagName('*').length")
        page.close()
        if bounds != [True] * 4:
            raise RuntimeError(f"events, heat map, sparklines and devices within their bounds: {bounds}")
        # Code that is compiled later and caches grow now and then; what leaks grows each time.
        kinds = [("memory", sizes, LEAK_BYTES)] + [(name, [one[name] for one in counters], most)
                                                   for name, most in [("nodes", LEAK_NODES), ("jsEventListeners", LEAK_LISTENERS)]]
        for name, seen, most in kinds:
            if all(later - earlier > most for earlier, later in zip(seen, seen[1:])):
                raise RuntimeError(f"{name}: grows with every {WEEK_UPDATES} updates: {seen}")
        if nodes > 3000:
            raise RuntimeError(f"the page has {nodes} elements")
        return (f"{WEEK_LOOKS * WEEK_UPDATES} updates, one in {WEEK_UPDATE_S} s, of {WEEK_LOOKS * WEEK_RESTARTS + 1} daemons, heap {sizes[0] >> 10} KiB to "
                f"{sizes[-1] >> 10} KiB, {nodes} elements, {counters[0]['nodes']} nodes to {counters[-1]['nodes']}, "
                f"{counters[0]['jsEventListeners']} listeners to {counters[-1]['jsEventListeners']}")

    def weekdays(self, page, until):
        """Updates up to a number, then another daemon, which the page must notice."""
        page.js(f"daemon.until = {until}")
        done = page.js("daemon.updates")
        while done < until:
            # Thousands of updates take longer than one wait; a page that stands still does not.
            page.wait(f"daemon.updates >= {min(done + WEEK_STEP, until)}")
            done = page.js("daemon.updates")
        page.js("daemon.silent = 3")
        page.wait("daemon.silent === 0 || document.getElementById('state').dataset.state === 'lost'")
        page.js("daemon.restart()")
        page.wait("document.getElementById('state').textContent === 'live' && daemon.silent === 0")
        page.wait("journal === daemon.journal")
        first, strange = page.js("[Math.min(...events.map((event) => event.seq)), "
                                 "events.filter((event) => !event.what.includes(` of ${daemon.journal} `)).length]")
        if first != 0 or strange > 0:
            raise RuntimeError(f"after a restart the first event is number {first}, and {strange} are of another daemon")


def main():
    url, token, pid, folder, *axe = sys.argv[1:]
    run = Run(url, token, int(pid), folder, axe[0] if axe else None)
    sys.exit(1 if run.all() else 0)


if __name__ == "__main__":
    main()
