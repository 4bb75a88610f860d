#!/usr/bin/env python3
"""Mixed load on one server for STRATA_SOAK_SECONDS (600): chats that grow, streams, cancels, errors, several choices, all APIs.
Memory and file descriptors must not grow after the first fifth of the time. Before that, STRATA_SOAK_REQUESTS (100,000) random
requests."""
import os, random, socket, sys, threading
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import random_requests, scripted
from serving import *

seconds = float(os.environ.get("STRATA_SOAK_SECONDS", 600))
GROWTH_BYTES = 4 << 20
scripted.write(model("soak"), [f"word{i} " for i in range(60)], context=16384)
end, counts, failures = 0.0, {}, []


def chat(s, rng):
    talk = ask(f"{rng.randrange(50)} " + "x" * rng.randrange(400))["messages"]
    for _ in range(rng.randrange(1, 5)):
        r = s.post("/v1/chat/completions", {"messages": talk, "n": rng.choice([1, 1, 2])})
        assert r.status in (200, 503), r.text
        if r.status == 503: return
        talk += [{"role": "assistant", "content": r.json["choices"][0]["message"]["content"]}, *ask("more")["messages"]]


def stream(s, rng):
    path = rng.choice(["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/api/generate", "/v1/completions"])
    r = s.post(path, {**ask("hi"), "input": "hi", "prompt": "hi<|assistant|>", "max_tokens": rng.randrange(1, 80), "stream": True})
    assert r.status in (200, 503), r.text


def cancel(s, rng):
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        body = json.dumps(ask("y" * rng.randrange(2000), stream=rng.random() < 0.5)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        data = head.encode() + body
        c.sendall(data[:rng.choice([len(data), len(data), rng.randrange(len(data))])])
        time.sleep(rng.choice([0, 0.001, 0.01]))


def wrong(s, rng):
    r = s.post(rng.choice(["/v1/chat/completions", "/v1/messages", "/nowhere"]), ask("hi", temperature=-1))
    assert r.status in (400, 404, 503), r.text


def look(s, rng): assert s.get(rng.choice(["/metrics", "/props", "/v1/models", "/health", "/"])).status in (200, 503)


def load(s, seed):
    rng = random.Random(seed)
    while time.monotonic() < end and not failures:
        kind = rng.choice([chat, chat, stream, stream, cancel, wrong, look])
        try:
            kind(s, rng)
            counts[kind.__name__] = counts.get(kind.__name__, 0) + 1
        except Exception as e:
            failures.append(repr(e))


def slope(samples):
    """The least-squares line through [(seconds, bytes)], as bytes per hour."""
    t, b = [sum(column) / len(samples) for column in zip(*samples)]
    spread = sum((x - t) ** 2 for x, _ in samples)
    return sum((x - t) * (y - b) for x, y in samples) / spread * 3600 if spread else 0.0


@test
def random_requests_get_an_answer():
    with Server(model("soak")) as s:
        found = random_requests.send(s, int(os.environ.get("STRATA_SOAK_REQUESTS", 100000)), random.randrange(1 << 32))
        print(f"# statuses {found}")


@test
def memory_and_files_stay_constant():
    global end
    end = time.monotonic() + seconds
    with Server(model("soak"), "--parallel", 4) as s:
        threads = [threading.Thread(target=load, args=(s, i)) for i in range(8)]
        for t in threads: t.start()
        time.sleep(seconds / 5)
        before, files, samples = s.resident_bytes(), s.files(), []
        while time.monotonic() < end and not failures:
            samples.append((time.monotonic(), s.resident_bytes()))
            time.sleep(min(1, seconds / 100))
        for t in threads: t.join()
        wait_until(lambda: s.metrics()["strata_requests_running"] == 0, 10)
        time.sleep(1)
        after = s.resident_bytes()
        print(f"# {sum(counts.values())} requests {counts}; memory {before >> 10} KiB, then {after >> 10} KiB; files {files}, then {s.files()}")
        print(f"# memory grows by {slope(samples) / (1 << 20):.3f} MiB an hour; the last half by "
              f"{slope(samples[len(samples) // 2:]) / (1 << 20):.3f}")
        assert not failures, failures
        assert after < before + GROWTH_BYTES and s.files() <= files + 2
        m = s.metrics()
        assert m["strata_sessions"] == 0 and m['strata_kv_pages{pool="0",state="held"}'] == 0


finish()
