"""For the tests of strata serve: starts servers, sends requests with the standard library alone, prints TAP."""
import http.client, json, os, re, signal, socket, subprocess, sys, tempfile, time, traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STRATA = os.path.abspath(os.environ.get("STRATA") or os.path.join(ROOT, "build/strata"))
KIT = os.path.join(ROOT, "tests/data/kit")
SMOLLM2 = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                       "strata/SmolLM2-135M-Instruct.Q4_1.gguf")
work = tempfile.TemporaryDirectory(prefix="strata-serve-")
results = []


def test(function):
    """Runs the function now, as one test; its name is the test's."""
    name = function.__name__.replace("_", " ")
    begun = time.monotonic()
    try:
        function()
        print(f"ok {len(results) + 1} - {name} ({time.monotonic() - begun:.1f} s)", flush=True)
        results.append(True)
    except Exception:
        print(f"not ok {len(results) + 1} - {name}", flush=True)
        print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()[-12:]), end="", flush=True)
        results.append(False)
    return function


def skip(name, why):
    print(f"ok {len(results) + 1} - {name} # SKIP {why}", flush=True)
    results.append(True)


def finish():
    print(f"1..{len(results)}")
    sys.exit(0 if results and all(results) else 1)


class Server:
    """strata serve on a free port. Leaving the block ends it with SIGTERM and checks how it ends."""

    def __init__(self, model, *options, env=None, wait=True, before=None):
        command = [STRATA, "serve", "-m", model, "--port", "0", *map(str, options)]
        environment = {**os.environ, **(env or {})}
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL, env=environment,
                                        preexec_fn=before)
        self.url, self.port = None, None
        if wait: self.ready()

    def stderr(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def ready(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = re.search(r" at (https?://\S+:(\d+)):", self.stderr())
            if found:
                self.url, self.port = found[1], int(found[2])
                return
            if self.process.poll() is not None: break
            time.sleep(0.01)
        raise AssertionError("the server did not start: " + self.stderr())

    def stop(self):
        if self.process.poll() is None: self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def __enter__(self): return self

    def __exit__(self, kind, *_):
        code = self.stop()
        if kind is None: assert code == 0, (code, self.stderr()[-2000:])
        elif code != 0: print("# the server ended with", code, "\n# " + self.stderr()[-1500:].replace("\n", "\n# "))

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, connection=None):
        """Returns a reply with status, headers, text and json."""
        c = connection or self.connect()
        head = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)): body = json.dumps(body)
        if isinstance(body, str): body = body.encode()
        if body is not None and "Content-Type" not in head: head["Content-Type"] = "application/json"
        c.request(method, path, body, {k: v for k, v in head.items() if v is not None})
        reply = c.getresponse()
        data = reply.read()
        if not connection: c.close()
        return Reply(reply.status, dict(reply.getheaders()), data)

    def get(self, path, **more): return self.ask("GET", path, **more)
    def post(self, path, body, **more): return self.ask("POST", path, body, **more)

    def metrics(self):
        text = self.get("/metrics").text
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}

    def checked_metrics(self):
        """The same after a check of the format: https://prometheus.io/docs/instrumenting/exposition_formats/"""
        r = self.get("/metrics")
        assert r.status == 200 and r.headers["Content-Type"] == "text/plain; version=0.0.4" and r.text.endswith("\n"), r.headers
        types, helped, found = {}, set(), {}
        for line in r.text.splitlines():
            if head := re.fullmatch(r"# (HELP|TYPE) (strata_[a-z_]+) (.+)", line):
                if head[1] == "HELP": helped.add(head[2])
                else:
                    assert head[2] in helped and head[2] not in types and head[3] in ("counter", "gauge", "histogram", "summary"), line
                    types[head[2]] = head[3]
                continue
            sample = re.fullmatch(r'(strata_[a-z_]+)(\{[a-z]+="[^"\\]*"(?:,[a-z]+="[^"\\]*")*\})? (-?[0-9.e+-]+)', line)
            assert sample and line.rsplit(" ", 1)[0] not in found, line
            name = re.sub("_(bucket|sum|count)$", "", sample[1])
            assert types.get(sample[1]) in ("counter", "gauge") or types.get(name) in ("histogram", "summary"), line
            assert types.get(sample[1]) != "counter" or sample[1].endswith("_total"), line
            found[line.rsplit(" ", 1)[0]] = float(sample[3])
        for name in (n for n, kind in types.items() if kind == "histogram"):
            buckets = [v for k, v in found.items() if k.startswith(name + "_bucket")]
            assert buckets == sorted(buckets) and found[name + '_bucket{le="+Inf"}'] == found[name + "_count"] == buckets[-1], name
        return found

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) * 1024

    def files(self): return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def raw(self, data, timeout=10):
        """Sends bytes and returns all that comes until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            return receive(s)


def receive(s):
    got = b""
    try:
        while block := s.recv(65536): got += block
    except OSError: pass
    return got


class Reply:
    def __init__(self, status, headers, data):
        self.status, self.headers, self.data = status, headers, data
        self.text = data.decode()  # strict: always UTF-8

    @property
    def json(self): return json.loads(self.text)

    def events(self):
        """[(name, data)] of a stream of server-sent events; comments are left out."""
        found = []
        for block in self.text.split("\n\n"):
            name, data = None, None
            for line in block.split("\n"):
                if line.startswith("event: "): name = line[7:]
                elif line.startswith("data: "): data = line[6:]
                else: assert line == "" or line.startswith(":"), line
            if data is not None: found.append((name, data))
        return found

    def lines(self): return [json.loads(line) for line in self.text.splitlines()]


def ask(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def model(name): return os.path.join(work.name, name + ".gguf")
