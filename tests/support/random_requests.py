"""Random requests to every API: each gets an answer with a status that fits, and no error tells of the machine."""
import json, random, re
from serving import ask

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/api/chat", "/api/generate",
         "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/api/show"]
NUMBERS = ["temperature", "top_p", "min_p", "top_k", "repeat_penalty", "presence_penalty", "frequency_penalty", "max_tokens", "n",
           "top_logprobs", "repeat_last_n", "max_completion_tokens", "max_output_tokens", "seed"]
FIELDS = [*NUMBERS, "stop", "stop_sequences", "stream", "logit_bias", "tools", "tool_choice", "response_format", "messages", "model",
          "stream_options", "chat_template_kwargs", "logprobs", "thinking", "system", "input", "prompt", "options", "think", "format",
          "content", "tokens", "instructions", "text", "echo", "ignore_eos", "suffix", "raw", "keep_alive", "metadata"]
VALUES = [None, 0, -1, 1, 2, 2**31, 2**63 - 1, -2**63, 0.5, -0.0, 1e308, "", "x", "\u0000", "\ud83d\ude42" * 3, [], {}, [[]], [0], ["x"],
          {"type": "text"}, {"a": {"b": []}}, [{"role": "user", "content": "y"}], [{"role": "assistant", "content": None}],
          [{"role": "user", "content": [{"type": "text", "text": "z"}]}], True, False]
MACHINE = re.compile(r"0x[0-9a-f]{4,}|/(tmp|home|root|usr|etc|work)/|\.[ch]:\d|gguf")  # pointers, paths, sources


def body_of(rng):
    body = {**ask("hi"), "prompt": "hi", "input": "hi", "content": "hi", "tokens": [1], "max_tokens": 3, "max_output_tokens": 3,
            "options": {"num_predict": 3}}
    for _ in range(rng.randint(1, 3)): body[rng.choice(FIELDS)] = rng.choice(VALUES)
    if rng.random() < 0.2: body["options"] = {"num_predict": 3, rng.choice(FIELDS): rng.choice(VALUES)}
    data = json.dumps(body).encode()
    if rng.random() < 0.1:  # not JSON any more, or other JSON
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice([b"", b"\xff", b'"', b"[", b"}", b"\\", b"1e999"]) + data[at + rng.randrange(3):]
    return data


def send(s, count, seed):
    """Returns how many of each status there were."""
    print(f"# {count} random requests, seed {seed}", flush=True)
    rng, c, found = random.Random(seed), s.connect(), {}
    for i in range(count):
        path, data = rng.choice(PATHS), body_of(rng)
        r = s.post(path, data, connection=c)
        assert r.status in (200, 400, 404), (i, path, data, r.status, r.text)
        assert r.status == 200 or not MACHINE.search(r.text), (i, path, data, r.text)
        found[r.status] = found.get(r.status, 0) + 1
        if r.headers.get("Connection") == "close":
            c.close()
            c = s.connect()
    c.close()
    return found
