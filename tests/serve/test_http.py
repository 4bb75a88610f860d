#!/usr/bin/env python3
"""The transport and who may ask: hosts, origins, keys, limits, hostile clients, cancelling, shutting down."""
import concurrent.futures, contextlib, json, os, random, resource, selectors, socket, ssl, struct, subprocess, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import random_requests, scripted
from serving import *

slow = "asan" in STRATA or "tsan" in STRATA
scripted.write(model("hello"), ["Hello", " there"])
scripted.write(model("loop"), [f"w{i} " for i in range(20)], loop=True, context=100000)
PATH = "/v1/chat/completions"
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)  # 1,000 connections


def request(body, path=PATH, more=""):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
            f"{more}\r\n").encode() + data


def status(reply): return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/") else None


def running(s):
    m = s.metrics()
    return m["strata_requests_running"] + m["strata_requests_queued"]


POST = b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps(ask("hi", max_tokens=2)).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
NEXT = GET + b"\r\n"
# What is sent and the statuses that come back, in order; None: closed without one.
HTTP = [
    ("a header of 64 KiB", GET + b"X: " + b"y" * 65536 + b"\r\n\r\n", [431]),
    ("10,000 headers", GET + b"".join(b"X%d: y\r\n" % i for i in range(10000)) + b"\r\n", [431]),
    ("a target of 64 KiB", b"GET /" + b"x" * 65536 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", [414]),
    ("length and chunks", POST + LENGTH + CHUNKED + b"\r\n" + CHUNKS, [400]),
    ("a request behind the length", POST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n" + CHUNKS + NEXT, [400]),
    ("two lengths", POST + b"Content-Length: 5\r\n" + LENGTH + b"\r\n" + BODY, [400]),
    ("a list of lengths", POST + b"Content-Length: 5, 5\r\n\r\nhello", [400]),
    ("a negative length", POST + b"Content-Length: -5\r\n\r\n" + BODY, [400]),
    ("a length with a sign", POST + b"Content-Length: +5\r\n\r\nhello", [400]),
    ("a length of 23 digits", POST + b"Content-Length: " + b"9" * 23 + b"\r\n\r\n" + BODY, [413]),
    ("an unknown coding", POST + b"Transfer-Encoding: gzip\r\n\r\n" + BODY, [400]),
    ("two codings", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS, [400]),
    ("two headers of codings", POST + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + CHUNKS, [400]),
    ("chunks", POST + CHUNKED + b"\r\n" + CHUNKS, [200]),
    ("a chunk with an extension", POST + CHUNKED + b"\r\n%x;a=b\r\n" % len(BODY) + BODY + b"\r\n0\r\nX: y\r\n\r\n", [200]),
    ("a chunk size that is no number", POST + CHUNKED + b"\r\nzz\r\n", [400]),
    ("a negative chunk size", POST + CHUNKED + b"\r\n-1\r\nx\r\n0\r\n\r\n", [400]),
    ("a chunk size of 19 digits", POST + CHUNKED + b"\r\n" + b"f" * 19 + b"\r\nx\r\n0\r\n\r\n", [413]),
    ("a chunk size with 0x", POST + CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n", [400]),
    ("a chunk longer than its size", POST + CHUNKED + b"\r\n2\r\nhello\r\n0\r\n\r\n", [400]),
    ("no chunk size", POST + CHUNKED + b"\r\n\r\nhello\r\n0\r\n\r\n", [400]),
    ("line feeds alone", b"GET /health HTTP/1.1\nHost: localhost\n\n", [200]),  # RFC 9112, 2.2: may be accepted
    ("empty lines before", b"\r\n\r\n" + NEXT, [200]),
    ("an absolute target", b"GET http://localhost/health HTTP/1.1\r\nHost: other.example\r\n\r\n", [200]),
    ("an absolute target elsewhere", b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n", [403]),
    ("an absolute target without a path", b"GET https://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n", [200]),
    ("an absolute target without a host", b"GET http:///health HTTP/1.1\r\nHost: localhost\r\n\r\n", [403]),
    ("HTTP/0.9", b"GET /health\r\n\r\n", [400]),
    ("HTTP/0.9 by name", b"GET /health HTTP/0.9\r\n\r\n", [505]),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505]),
    ("a version with a tail", b"GET /health HTTP/1.1x\r\nHost: localhost\r\n\r\n", [400]),
    ("no version and no target", b"NONSENSE\r\n\r\n", [None]),
    ("NUL in the target", b"GET /hea\0lth HTTP/1.1\r\nHost: localhost\r\n\r\n", [404]),  # the target ends there
    ("NUL in a header", GET + b"X: a\0b\r\n\r\n", [200]),  # and so does a value
    ("no host", b"GET /health HTTP/1.1\r\n\r\n", [400]),
    ("two hosts", GET + b"Host: evil.example\r\n\r\n", [400]),
    ("a space before the colon", POST + LENGTH[:14] + b" :" + LENGTH[15:] + b"\r\n" + BODY, [400]),
    ("a header without a colon", GET + b"nocolon\r\n\r\n", [400]),
    ("a wrong expectation", POST + b"Expect: bogus\r\n" + LENGTH + b"\r\n" + BODY, [417]),
    ("an expectation", POST + b"Expect: 100-continue\r\n" + LENGTH + b"\r\n" + BODY, [200]),
    ("a body of a GET", GET + b"Content-Length: 5\r\n\r\nhello" + NEXT, [200, 200]),
    ("pipelined requests", POST + LENGTH + b"\r\n" + BODY + NEXT + POST + CHUNKED + b"\r\n" + CHUNKS + NEXT, [200] * 4),
]


def statuses(s, data, count):
    """The statuses of the next `count` answers, or None when the server closes the connection before. Answers to one request may
    repeat the head (libmicrohttpd 0.9.75), and continue it."""
    with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
        try: c.sendall(data)
        except OSError: pass  # refused while it was sent
        got, found = b"", []
        while len(found) < count:
            try: block = c.recv(65536)
            except OSError: block = b""
            got += block
            found = [int(n) for n in re.findall(rb"HTTP/1.1 (\d+) (?!Continue)", got)]
            if not block: break
        return found[:count] or [None]


with Server(model("hello"), "--cors-origin", "https://page.example") as s:
    @test
    def health_and_unknown_paths():
        assert s.get("/health").json == {"status": "ok"}
        for path in "/v1/nothing", "/v1", "/v1/models/", "//", "/../etc/passwd", "/%00":
            r = s.get(path)
            assert r.status == 404 and "error" in r.json, (path, r.text)
        assert s.get("/v1/messages/other").json["type"] == "error"
        assert isinstance(s.get("/api/nothing").json["error"], str)
        r = s.get(PATH)
        assert r.status == 405 and r.headers["Allow"] == "POST"
        assert s.ask("DELETE", "/v1/models").status == 405
        r = s.ask("HEAD", "/")
        assert r.status == 200 and r.text == ""

    @test
    def foreign_hosts_are_refused():
        for host, code in [("evil.example", 403), ("localhost", 200), ("localhost:99", 200), ("127.0.0.1:1", 200), ("[::1]:8", 200),
                           ("a.localhost", 200), ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403), ("", 403)]:
            assert s.get("/health", headers={"Host": host}).status == code, host

    @test
    def foreign_origins_are_refused():
        for origin, code in [("https://evil.example", 403), ("null", 403), ("https://page.example", 200),
                             (f"http://127.0.0.1:{s.port}", 200), ("http://127.0.0.1:1", 403)]:
            r = s.post(PATH, ask("hi"), headers={"Origin": origin})
            assert r.status == code, (origin, r.status)
            assert r.headers.get("Access-Control-Allow-Origin") == ("https://page.example" if "page" in origin else None)
        r = s.post(PATH, {}, headers={"Origin": "https://page.example"})
        assert r.status == 400 and r.headers["Access-Control-Allow-Origin"] == "https://page.example", "errors, too"
        assert r.headers["Vary"] == "Origin"
        r = s.ask("OPTIONS", PATH, headers={"Origin": "https://page.example", "Access-Control-Request-Method": "POST"})
        assert r.status == 204 and "x-stainless-os" in r.headers["Access-Control-Allow-Headers"].lower()
        assert s.ask("OPTIONS", PATH, headers={"Origin": "https://evil.example"}).status == 403
        for type_ in "text/plain", "application/x-www-form-urlencoded", None:
            assert s.post(PATH, '{"a": 1}', headers={"Content-Type": type_}).status == 415, type_
        assert s.post("/api/chat", ask("hi"), headers={"Content-Type": "text/plain", "Origin": "https://page.example"}).status == 415

    @test
    def bodies_must_be_json_objects():
        for body in "", "{", "[]", "null", '"x"', "{}x", "\x00", "\ufeff{}", '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": nan}', "[" * 1000000:
            r = s.post(PATH, body)
            assert r.status == 400 and r.json["error"]["type"] == "invalid_request_error", (body[:20], r.text)
        assert s.post(PATH, b'{"messages": [{"role": "user", "content": "\xff"}]}').status == 400
        deep = '{"messages": [{"role": "user", "content": "x"}], "x": ' + "[" * 100 + "]" * 100 + "}"
        assert s.post(PATH, deep).status == 400
        many = json.dumps(ask("x", **{f"k{i}": i for i in range(200000)}))
        assert s.post(PATH, many).status == 200
        assert s.post(PATH, '{"n": 1, "n": 99, "messages": []}').json["error"]["param"] == "n", "the last of equal keys"
        for messages in None, {}, "x", [], [3], [{}], [{"role": "ghost", "content": ""}], [{"role": "user", "content": 3}], [{"role": 3}]:
            r = s.post(PATH, {"messages": messages})
            assert r.status == 400 and r.json["error"]["param"].startswith("messages"), (messages, r.text)
        assert s.post(PATH, {"messages": [{"role": "user", "content": "a\u0000b"}]}).status == 200

    NUMBERS = {"temperature": (0, 100, True), "top_p": (0, 1, True), "min_p": (0, 1, True), "top_k": (-1, 2147483647, False),
               "repeat_penalty": (0.02, 100, True), "presence_penalty": (-100, 100, True), "frequency_penalty": (-100, 100, True),
               "max_tokens": (1, 2147483647, False), "n": (1, 16, False), "top_logprobs": (0, 20, False), "repeat_last_n": (-1, 2147483647, False)}

    @test
    def every_number_at_and_beyond_its_limits():
        for field, (low, high, real) in NUMBERS.items():
            step = 1 if not real else 1e-3
            good = [low, high, None] + ([low + step] if low + step <= high else [])
            bad = [low - step if field != "max_tokens" else 0, high + step, "1", [], {}, True, -10**18, 10**18, 1e300]
            if not real: bad.append(low + 0.5)
            for value, code in [(v, 200) for v in good] + [(v, 400) for v in bad]:
                r = s.post(PATH, ask("hi", logprobs=True, **{field: value}))
                assert r.status == code, (field, value, r.status, r.text[:200])
                if code == 400: assert r.json["error"]["param"] == field, (field, value, r.text)
            assert s.post(PATH, '{"messages": [{"role": "user", "content": "x"}], "%s": 1e999}' % field).status == 400
        for field in "stream", "logprobs", "ignore_eos":
            for value in 1, "true", [], {}: assert s.post(PATH, ask("hi", **{field: value})).json["error"]["param"] == field
        for value in 3, [3], ["a"] * 33, ["x" * 2000], {"a": 1}: assert s.post(PATH, ask("hi", stop=value)).json["error"]["param"] == "stop"
        for value in [], {"x": 1}, {"1": "a"}, {"1": 1e9}, {"-1": 1}: assert s.post(PATH, ask("hi", logit_bias=value)).json["error"]["param"] == "logit_bias"
        assert s.post(PATH, ask("hi", max_tokens=-1)).status == 200 and s.post(PATH, ask("hi", seed=-3)).status == 200

    @test
    def random_requests_get_an_answer():
        found = random_requests.send(s, 300 if slow else 2000, 19)
        assert found[200] > 50 and found[400] > 50, found

    @test
    def bodies_have_a_limit():
        with socket.create_connection(("127.0.0.1", s.port), timeout=10) as c:
            c.sendall(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n")
            assert status(c.recv(4096)) == 413, "before the body"
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
            c.sendall(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            block = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
            for _ in range(40): c.sendall(block)
            c.sendall(b"0\r\n\r\n")
            assert status(c.recv(4096)) == 413
        for encoding in "gzip", "zstd":
            assert s.post(PATH, ask("hi"), headers={"Content-Encoding": encoding}).status == 415
        large = s.post(PATH, ask("x" * (4 << 20)), headers={"Expect": "100-continue"})
        assert large.status == 400 and large.json["error"]["code"] == "context_length_exceeded"

    @test
    def connections_are_kept_and_pipelined_and_old():
        c = s.connect()
        for _ in range(3): assert s.get("/health", connection=c).status == 200
        local = c.sock.getsockname()
        assert s.post(PATH, ask("hi"), connection=c).status == 200 and s.get("/v1/none", connection=c).status == 404
        assert s.post(PATH, ask("hi", n=99), connection=c).status == 400 and c.sock.getsockname() == local, "errors keep it open"
        c.close()
        two = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert s.raw(two).count(b'{"status":"ok"}') == 2
        assert b'{"status":"ok"}' in s.raw(b"GET /health HTTP/1.0\r\n\r\n")
        one = s.raw(request(ask("hi", stream=True), more="Connection: close\r\n"))
        assert b"chunked" in one and one.rstrip().endswith(b"0") and b"[DONE]" in one

with open(os.path.join(work.name, "keys"), "w") as keys: keys.write("# keys\nsecret-one\n\nsecret-two\n")
with Server(model("hello"), "--api-key-file", keys.name, "--host", "0.0.0.0", "--allow-host", "box.example", "-v") as s:
    @test
    def keys_are_checked():
        for header, code in [({}, 401), ({"Authorization": "Bearer secret-one"}, 200), ({"x-api-key": "secret-two"}, 200),
                             ({"Authorization": "Bearer secret-on"}, 401), ({"Authorization": "Bearer secret-onex"}, 401),
                             ({"Authorization": "Bearer "}, 401), ({"Authorization": "secret-one"}, 401), ({"x-api-key": ""}, 401),
                             ({"Authorization": "Bearer secret-onesecret-one"}, 401)]:
            for path in PATH, "/v1/messages":
                r = s.post(path, ask("hi", max_tokens=2), headers=header)
                assert r.status == code, (header, path, r.status)
        assert s.post(PATH, ask("hi")).json["error"]["code"] == "invalid_api_key"
        assert s.post("/v1/messages", {}).json["error"]["type"] == "authentication_error"
        assert s.get("/health").status == 200 and s.get("/").status == 200 and s.get("/metrics").status == 401
        assert s.get("/v1/none").status == 401
        assert s.ask("OPTIONS", PATH).status == 204
        assert s.get("/health", headers={"Host": "box.example"}).status == 200
        assert "secret" not in s.stderr() + s.get("/props", headers={"x-api-key": "secret-two"}).text


@test
def options_are_checked_before_loading():
    for options, text in [(["--host", "0.0.0.0"], "an API key is needed"), (["--api-key-file", "none"], "cannot read"),
                          (["--tls-cert", keys.name], "both --tls-cert and --tls-key"), (["--host", "nowhere.invalid"], "--host"),
                          (["--chat-template", "none"], "none"), (["--port", "99999"], "--port")]:
        r = subprocess.run([STRATA, "serve", "-m", model("hello"), "--port", "0", *options], capture_output=True, text=True)
        assert r.returncode in (1, 2, 3, 6) and text in r.stderr, (options, r)
    with contextlib.suppress(OSError): taken = socket.create_server(("127.0.0.1", 8080))  # else another program has it
    r = subprocess.run([STRATA, "serve", "-m", model("hello")], capture_output=True, text=True)
    assert r.returncode == 6 and "127.0.0.1 port 8080" in r.stderr, r
    with Server(model("hello"), "--host", "0.0.0.0", "--no-api-key") as s: assert s.post(PATH, ask("hi")).status == 200
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        r = subprocess.run([STRATA, "serve", "-m", model("hello"), "--port", port], capture_output=True, text=True)
        assert r.returncode == 6 and port in r.stderr and "hint" in r.stderr, r


def stream(s, body=None, path=PATH):
    c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
    c.sendall(request(body or ask("hi", stream=True), path))
    return c


def busy(s):
    """A stream that takes a session until it is closed; a thread reads it, or it would be cut off."""
    before = s.metrics()["strata_requests_running"]
    c = stream(s)
    wait_until(lambda: s.metrics()["strata_requests_running"] > before, 10)
    threading.Thread(target=receive, args=(c,), daemon=True).start()
    return c


def free_pages(s):
    return {k: v for k, v in s.metrics().items() if k.startswith("strata_kv_pages") and "held" in k}


with Server(model("loop"), "--parallel", 2, "-c", 50000) as s:
    @test
    def a_closed_connection_cancels_its_request():
        with stream(s) as c:
            while b"data:" not in c.recv(4096): pass
            wait_until(lambda: running(s) == 1, 5)
        wait_until(lambda: running(s) == 0, 5)
        with socket.create_connection(("127.0.0.1", s.port), timeout=30) as c:
            c.sendall(request(ask("hi")))  # unstreamed
            wait_until(lambda: running(s) == 1, 5)
        wait_until(lambda: running(s) == 0, 5)
        assert all(v == 0 for v in free_pages(s).values()), free_pages(s)

    @test
    def others_go_on_when_one_is_cancelled():
        with stream(s) as kept:
            for _ in range(5):
                with stream(s) as gone: gone.recv(100)
            got = b""
            while got.count(b"data:") < 200: got += kept.recv(65536)
        wait_until(lambda: running(s) == 0, 5)

    @test
    def waiting_requests_are_cancelled_and_answered_in_turn():
        with busy(s), busy(s):
            waiting = [stream(s) for _ in range(20)]
            wait_until(lambda: s.metrics()["strata_requests_queued"] == 20, 5)
            for c in waiting: assert b"200 OK" in c.recv(200), "the headers come at once"
            for c in waiting: c.close()
            wait_until(lambda: s.metrics()["strata_requests_queued"] == 0, 5)
        wait_until(lambda: running(s) == 0, 5)

    @test
    def a_short_prompt_passes_a_long_one_while_both_wait():
        with busy(s) as first, busy(s) as second:
            both = selectors.DefaultSelector()
            for name, text in ("long", "x" * 30000), ("short", "y"):
                c = stream(s, ask(text, stream=True, max_tokens=2))
                wait_until(lambda: s.metrics()["strata_requests_queued"] == len(both.get_map()) + 1, 5)
                assert b"200 OK" in c.recv(200)
                both.register(c, selectors.EVENT_READ, name)
            assert s.metrics()["strata_requests_running"] == 2
            second.close()  # one place is free
            answered = None
            while not answered:
                for key, _ in both.select(30):
                    if b'"content":"w' in key.fileobj.recv(65536): answered = key.data
            assert answered == "short", answered
            for key in [*both.get_map().values()]: key.fileobj.close()
        wait_until(lambda: running(s) == 0, 5)

    @test
    def choices_run_as_far_as_there_are_places():
        with stream(s, ask("hi", stream=True, n=5)) as c:
            threading.Thread(target=receive, args=(c,), daemon=True).start()
            wait_until(lambda: s.metrics()["strata_requests_running"] == 2, 5)
            for _ in range(10):
                m = s.metrics()
                assert m["strata_requests_running"] == 2 and m["strata_requests_queued"] == 0 and m["strata_sessions"] == 5, m
            c.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: running(s) == 0 and s.metrics()["strata_sessions"] == 0, 5)

    @test
    def a_full_queue_is_503():
        with busy(s), busy(s):
            waiting = [stream(s) for _ in range(256)]
            for c in waiting: assert b"200 OK" in c.recv(200)
            refused = []
            for path, body in [(PATH, ask("hi")), ("/v1/messages", ask("hi", max_tokens=1)), ("/api/chat", ask("hi"))]:
                r = s.post(path, body)
                assert r.status == 503 and r.headers["Retry-After"] == "2", (r.status, r.text)
                refused.append(r.json)
            assert refused[1]["error"]["type"] == "overloaded_error", refused
            for path in "/health", "/metrics", "/props", "/v1/models": assert s.get(path).status == 200, path
            assert s.metrics()["strata_requests_queued"] == 256 and s.metrics()["strata_requests_running"] == 2
            c, times = s.connect(), []
            for i in range(300 if slow else 2560):
                begun = time.monotonic()
                r = s.post(PATH, ask("hi"), connection=c)
                times.append(time.monotonic() - begun)
                assert r.status == 503 and "Retry-After" in r.headers
            times.sort()
            assert times[len(times) * 9 // 10] < (0.5 if slow else 0.05), times[-20:]
            for c in waiting: c.close()
        wait_until(lambda: running(s) == 0, 20)

    @test
    def cancels_at_random_moments_leak_nothing():
        rng = random.Random(7)
        def one(seed):
            r = random.Random(seed)
            c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
            streamed = r.random() < 0.7
            data = request(ask("y" * r.choice([1, 50, 3000]), stream=streamed, n=r.choice([1, 1, 1, 3])))
            cut = r.random()
            c.sendall(data if cut > 0.15 else data[:r.randint(1, len(data) - 1)])
            if cut > 0.3: time.sleep(r.choice([0, 0, 0.001, 0.003, 0.01]))
            if cut > 0.8 and streamed:
                try: c.recv(2000)
                except OSError: pass
            if r.random() < 0.5: c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
            elif r.random() < 0.3: c.shutdown(socket.SHUT_WR)
            c.close()
        def many(count):
            with concurrent.futures.ThreadPoolExecutor(8) as pool: list(pool.map(one, [rng.random() for _ in range(count)]))
            wait_until(lambda: running(s) == 0, 30)
        many(100)
        before, files = s.resident_bytes(), s.files()
        many(300 if slow else 2000)
        assert all(v == 0 for v in free_pages(s).values()), free_pages(s)
        assert s.metrics()["strata_sessions"] == 0
        wait_until(lambda: s.files() <= files + 2, 5)
        if not slow: assert s.resident_bytes() < before + (16 << 20), (before, s.resident_bytes())

    @test
    def malformed_http_is_refused_and_others_are_undisturbed():
        files, gaps = s.files(), []
        def listen(c):
            begun = time.monotonic()
            while c.recv(65536):
                gaps.append(time.monotonic() - begun)
                begun = time.monotonic()
        with stream(s) as other:
            threading.Thread(target=lambda: [listen(other)], daemon=True).start()
            for name, data, expected in HTTP:
                found = statuses(s, data, len(expected))
                assert found == expected, (name, found)
            heard = len(gaps)
            wait_until(lambda: len(gaps) > heard, 5)
            gaps.sort()
            assert gaps[len(gaps) * 99 // 100] < (2 if slow else 0.2) and gaps[-1] < 5, gaps[-10:]
            other.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: running(s) == 0 and s.files() <= files, 5)

    @test
    def a_cancelled_prompt_is_found_again():
        body = ask("z" * 12000, max_tokens=1)
        before = s.metrics()["strata_batch_rows_sum"]
        with socket.create_connection(("127.0.0.1", s.port), timeout=30) as c:
            c.sendall(request(body))
            wait_until(lambda: s.metrics()["strata_batch_rows_sum"] > before + 2000, 30)
        wait_until(lambda: running(s) == 0, 10)
        usage = s.post(PATH, body).json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 1900, usage

    @test
    def a_client_that_does_not_read_is_cut_off():
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            before = s.metrics()["strata_answer_tokens_total"]
            c.sendall(request(ask("hi", stream=True, logprobs=True, top_logprobs=20)))
            wait_until(lambda: s.metrics()["strata_answer_tokens_total"] > before and running(s) == 0, 60)
            assert s.metrics()["strata_answer_tokens_total"] < before + 20000, "before the context is full"

    @test
    def idle_connections_cost_little():
        idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(200 if slow else 1000)]
        for c in idle[::3]: c.sendall(b"GET /health HT")
        for c in idle[1::3]: c.sendall(request(ask("hi"))[:-5])
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            active = list(pool.map(lambda i: s.post(PATH, ask("hi", max_tokens=5)).status, range(200)))
        assert active == [200] * 200, active
        def used():
            with open(f"/proc/{s.process.pid}/stat") as f: return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))
        time.sleep(0.3)
        before = used()
        time.sleep(1)
        assert used() - before <= 2, "clock ticks of an idle server"
        for c in idle: c.close()
        wait_until(lambda: s.files() < 60, 10)

with Server(model("loop"), "-c", 50000, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))) as s:
    @test
    def few_file_descriptors():
        opened = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(100)]
        assert s.process.poll() is None
        for c in opened: c.close()
        wait_until(lambda: s.get("/health").status == 200, 10)
        assert s.post(PATH, ask("hi", max_tokens=3)).status == 200


with Server(model("loop"), "--timeout", 1, "--parallel", 1, "-c", 50000) as s:
    @test
    def slow_clients_are_cut_off_and_others_are_not():
        def trickle(data):
            with socket.create_connection(("127.0.0.1", s.port), timeout=10) as c:
                begun = time.monotonic()
                try:
                    for i in range(len(data)):
                        c.sendall(data[i:i + 1])
                        time.sleep(0.05)
                except OSError: pass
                assert time.monotonic() - begun < 8, "a byte now and then does not keep it open"
                return status(receive(c))
        full = request(ask("x" * 500))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            slow_ones = [pool.submit(trickle, full if i % 2 else b"X: " + full) for i in range(6)]
            while not all(f.done() for f in slow_ones):
                assert s.post(PATH, ask("hi", max_tokens=3)).status == 200
            assert [f.result() for f in slow_ones] == [408] * 6, [f.result() for f in slow_ones]
        with socket.create_connection(("127.0.0.1", s.port), timeout=10) as c:
            c.sendall(request(ask("x"))[:-5])  # and then silent
            assert status(receive(c)) == 408
        c = s.connect()
        assert s.get("/health", connection=c).status == 200 and receive(c.sock) == b"", "an idle one is closed without a word"
        wait_until(lambda: s.files() < 20, 5)

    @test
    def a_silent_stream_is_kept_alive():
        with busy(s):
            rows = [(PATH, ask("hi", stream=True), b": keep-alive\n\n"),
                    ("/v1/messages", ask("hi", stream=True, max_tokens=9), b": keep-alive\n\n"),
                    ("/api/chat", ask("hi"), b'"content":""},"done":false}\n')]
            waiting = [(stream(s, body, path), text) for path, body, text in rows]
            for c, text in waiting:
                got = b""
                while text not in got:
                    block = c.recv(4096)
                    assert block, got
                    got += block
                c.close()
        wait_until(lambda: running(s) == 0, 5)


@test
def sigterm_lets_running_answers_finish():
    with Server(model("hello")) as s: pass  # idle: exit code 0
    with Server(model("loop"), "-c", 50000) as s:
        with stream(s, ask("hi", stream=True, max_tokens=300 if slow else 3000)) as c:
            assert b"200 OK" in c.recv(1000)
            s.process.send_signal(signal.SIGTERM)
            got = receive(c)
            assert b"[DONE]" in got and b'"finish_reason":"length"' in got, got[-300:]
        assert s.process.wait(20) == 0


def listens(s):
    try:
        with socket.create_connection(("127.0.0.1", s.port), timeout=2): return True
    except OSError: return False


@test
def sigterm_refuses_what_comes_late():
    late = request(ask("hi"))
    with Server(model("loop"), "-c", 50000) as s, stream(s, ask("hi", stream=True)) as other:
        threading.Thread(target=receive, args=(other,), daemon=True).start()
        with socket.create_connection(("127.0.0.1", s.port), timeout=10) as c:
            c.sendall(late[:-5])
            wait_until(lambda: s.metrics()["strata_requests_running"] == 1)
            s.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not listens(s))  # it shuts down
            c.sendall(late[-5:])
            got = receive(c)
            assert status(got) == 503 and b"shutting down" in got, got
        other.close()
        assert s.process.wait(20) == 0


@test
def sigterm_waits_for_no_body():
    with Server(model("hello")) as s, socket.create_connection(("127.0.0.1", s.port), timeout=10) as c:
        c.sendall(request(ask("hi"), "/nowhere")[:-5])  # refused, once it is whole
        time.sleep(0.3)
        begun = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0 and time.monotonic() - begun < 8


def unread(s, **more):
    """A connection whose client has not read its answer, which is larger than what the kernel holds."""
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.settimeout(30)
    c.connect(("127.0.0.1", s.port))
    c.sendall(request(ask("hi", logprobs=True, top_logprobs=20, max_tokens=800, **more)))
    wait_until(lambda: s.metrics()["strata_answer_tokens_total"] == 800 and running(s) == 0)
    return c


@test
def sigterm_lets_slow_clients_read_the_end():
    for streamed, last in ((True, b"data: [DONE]\n\n\r\n0\r\n\r\n"), (False, b"}")):
        with Server(model("loop"), "-c", 50000) as s, unread(s, stream=streamed) as c:
            s.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert s.process.poll() is None
            got = receive(c)
            assert len(got) > 800000 and got.endswith(last), (streamed, len(got), got[-300:])
            assert s.process.wait(9) == 0


@test
def sigterm_ends_endless_and_unread_answers_after_a_while():
    with Server(model("loop"), "-c", 100000) as s, unread(s), stream(s, ask("hi", stream=True)) as c:
        c.recv(1000)
        begun = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        try:
            with socket.create_connection(("127.0.0.1", s.port), timeout=2) as other: assert other.recv(10) == b""
        except OSError: pass  # no new connections
        threading.Thread(target=receive, args=(c,), daemon=True).start()
        assert s.process.wait(40) == 0 and time.monotonic() - begun < 30


@test
def https():
    cert, key = os.path.join(work.name, "cert.pem"), os.path.join(work.name, "key.pem")
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                           "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], capture_output=True)
    assert made.returncode == 0, made.stderr
    with Server(model("hello"), "--tls-cert", cert, "--tls-key", key) as s:
        assert s.url.startswith("https://")
        context = ssl.create_default_context(cafile=cert)
        c = http.client.HTTPSConnection("127.0.0.1", s.port, context=context, timeout=20)
        r = s.post(PATH, ask("hi", stream=True), connection=c)
        assert r.status == 200 and "[DONE]" in r.text
        assert s.post(PATH, ask("hi"), connection=c).json["choices"][0]["message"]["content"] == "Hello there"


finish()
