#!/usr/bin/env python3
"""OpenAI's chat completions, completions and models, with scripted models."""
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import scripted
from serving import *

HELLO = ["Hello", ",", " wor", "ld", "! ", b"\xf0\x9f", b"\x99\x82", " b", "ye"]
TEXT = "Hello, world! 🙂 bye"
scripted.write(model("hello"), HELLO)
scripted.write(model("loop"), [f"w{i} " for i in range(20)], loop=True)


def chunks(reply):
    events = reply.events()
    assert events[-1] == (None, "[DONE]"), events[-1]
    return [json.loads(data) for name, data in events[:-1]]


def streamed_text(found, index=0):
    return "".join(c["delta"].get("content", "") for chunk in found for c in chunk["choices"] if c["index"] == index)


with Server(model("hello")) as s:
    @test
    def an_answer_is_whole():
        r = s.post("/v1/chat/completions", ask("hi"))
        d = r.json
        assert r.status == 200 and r.headers["Content-Type"] == "application/json", r.text
        assert d["object"] == "chat.completion" and d["model"] == "hello" and d["id"].startswith("chatcmpl-"), d
        choice = d["choices"][0]
        assert choice["message"]["content"] == TEXT and choice["message"]["role"] == "assistant", d
        assert choice["finish_reason"] == "stop" and choice["index"] == 0, d
        prompt = len("hi") + 3
        assert d["usage"]["prompt_tokens"] == prompt and d["usage"]["completion_tokens"] == len(HELLO), d
        assert d["usage"]["total_tokens"] == prompt + len(HELLO)

    @test
    def a_stream_has_the_same_text_and_the_fields_clients_need():
        r = s.post("/v1/chat/completions", ask("hi", stream=True))
        found = chunks(r)
        assert r.headers["Content-Type"].startswith("text/event-stream")
        assert streamed_text(found) == TEXT
        assert found[0]["choices"][0]["delta"]["role"] == "assistant"
        assert len({(c["id"], c["created"], c["model"], c["object"]) for c in found}) == 1
        assert found[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
        assert all(c["choices"][0]["finish_reason"] is None for c in found[:-1])
        assert all("usage" not in c and len(c["choices"]) == 1 for c in found)

    @test
    def usage_comes_only_when_asked_for():
        found = chunks(s.post("/v1/chat/completions", ask("hi", stream=True, stream_options={"include_usage": True})))
        assert found[-1]["choices"] == [] and found[-1]["usage"]["completion_tokens"] == len(HELLO)
        assert all(c["usage"] is None for c in found[:-1])

    @test
    def a_stop_string_across_tokens_ends_the_answer():
        for stop, text in [("lo, wo", "Hel"), (["zzz", "world"], "Hello, "), ("! 🙂", "Hello, world"), ("H", ""),
                           (["bye", "by"], "Hello, world! 🙂 "), ("byebye", TEXT)]:
            d = s.post("/v1/chat/completions", ask("hi", stop=stop)).json["choices"][0]
            assert d["message"]["content"] == text and d["finish_reason"] == "stop", (stop, d)
            found = chunks(s.post("/v1/chat/completions", ask("hi", stop=stop, stream=True)))
            assert streamed_text(found) == text, stop

    @test
    def length_is_named_and_a_cut_code_point_is_replaced():
        d = s.post("/v1/chat/completions", ask("hi", max_tokens=6)).json
        assert d["choices"][0]["finish_reason"] == "length" and d["usage"]["completion_tokens"] == 6
        assert d["choices"][0]["message"]["content"] == "Hello, world! \ufffd"
        assert s.post("/v1/chat/completions", ask("hi", max_completion_tokens=1)).json["choices"][0]["message"]["content"] == "Hello"

    @test
    def ignore_eos_goes_on():
        d = s.post("/v1/chat/completions", ask("hi", ignore_eos=True, max_tokens=30)).json
        assert d["choices"][0]["finish_reason"] == "length" and d["usage"]["completion_tokens"] == 30

    @test
    def several_choices():
        d = s.post("/v1/chat/completions", ask("hi", n=5)).json
        assert [c["index"] for c in d["choices"]] == [0, 1, 2, 3, 4]
        assert all(c["message"]["content"] == TEXT for c in d["choices"])
        assert d["usage"]["completion_tokens"] == 5 * len(HELLO)
        found = chunks(s.post("/v1/chat/completions", ask("hi", n=16, stream=True)))
        assert all(streamed_text(found, i) == TEXT for i in range(16))
        ends = [c["choices"][0]["index"] for c in found if c["choices"][0]["finish_reason"]]
        assert sorted(ends) == list(range(16))

    @test
    def logprobs():
        d = s.post("/v1/chat/completions", ask("hi", logprobs=True, top_logprobs=3)).json
        content = d["choices"][0]["logprobs"]["content"]
        assert len(content) == len(HELLO) and content[0]["token"] == "Hello" and -0.01 < content[0]["logprob"] <= 0
        assert content[0]["top_logprobs"][0]["token"] == "Hello" and len(content[0]["top_logprobs"]) == 3
        assert bytes(content[0]["bytes"]) == b"Hello"
        found = chunks(s.post("/v1/chat/completions", ask("hi", logprobs=True, stream=True)))
        tokens = [t["token"] for c in found if c["choices"][0]["logprobs"] for t in c["choices"][0]["logprobs"]["content"]]
        assert tokens == [t["token"] for t in content], tokens
        r = s.post("/v1/chat/completions", ask("hi", top_logprobs=3))
        assert r.status == 400 and r.json["error"]["param"] == "top_logprobs"

    @test
    def a_bias_chooses_a_token():
        bias = {str(ord("A")): 1000}
        d = s.post("/v1/chat/completions", ask("hi", logit_bias=bias, max_tokens=3, temperature=0)).json
        assert d["choices"][0]["message"]["content"] == "AAA"
        r = s.post("/v1/chat/completions", ask("hi", logit_bias={"99999": 1}))
        assert r.status == 400 and r.json["error"]["param"] == "logit_bias"

    @test
    def contents_may_be_parts_and_roles_may_be_new():
        d = s.post("/v1/chat/completions", {"messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}).json
        assert d["usage"]["prompt_tokens"] == len("Be brief.") + len("a\nb") + 5, d

    @test
    def unknown_fields_and_empty_lists_are_accepted():
        r = s.post("/v1/chat/completions", ask("hi", tools=[], user="me", store=False, metadata={"a": "b"}, seed=7,
                                               tool_choice="auto", frequency_penalty=0, response_format={"type": "text"},
                                               parallel_tool_calls=True, service_tier="auto", stop=None, n=None))
        assert r.status == 200, r.text

    @test
    def what_is_not_supported_is_named():
        for field, value in [("response_format", {"type": "json_object"}), ("tool_choice", "required"),
                             ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("grammar", "root ::= x"), ("json_schema", {"type": "object"}),
                             ("audio", {"voice": "a"})]:
            r = s.post("/v1/chat/completions", ask("hi", **{field: value}))
            assert r.status == 400 and r.json["error"]["param"] == field, r.text
            assert r.json["error"]["type"] == "invalid_request_error"
        r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})
        assert r.status == 400 and r.json["error"]["param"] == "messages[0].content", r.text

    @test
    def completions_continue_text():
        d = s.post("/v1/completions", {"prompt": "x<|assistant|>"}).json
        assert d["object"] == "text_completion" and d["choices"][0]["text"] == TEXT, d
        assert d["usage"]["prompt_tokens"] == 2
        r = s.post("/v1/completions", {"prompt": "<|assistant|>", "stream": True, "echo": True})
        found = chunks(r)
        assert "".join(c["choices"][0]["text"] for c in found) == "<|assistant|>" + TEXT
        d = s.post("/v1/completions", {"prompt": ["<|assistant|>", "a<|assistant|>"], "n": 2, "logprobs": 1}).json
        assert [c["text"] for c in d["choices"]] == [TEXT] * 4 and d["usage"]["prompt_tokens"] == 3
        assert d["choices"][3]["logprobs"]["tokens"][0] == "Hello"
        ids = s.post("/tokenize", {"content": "x<|assistant|>"}).json["tokens"]
        assert s.post("/v1/completions", {"prompt": ids}).json["choices"][0]["text"] == TEXT
        for wrong in [None, 3, [], [[]], [-1], [1 << 40], [1.5], ["x", 3], ["x"] * 17]:
            r = s.post("/v1/completions", {"prompt": wrong})
            assert r.status == 400 and r.json["error"]["param"] in ("prompt", "n"), (wrong, r.text)

    @test
    def models_are_listed():
        d = s.get("/v1/models").json
        assert d["object"] == "list" and d["data"][0]["id"] == "hello" and d["data"][0]["object"] == "model"
        assert s.get("/v1/models/hello").json["id"] == "hello"
        assert s.get("/v1/models/other%2Fname").status == 404

    @test
    def an_unknown_model_is_404():
        r = s.post("/v1/chat/completions", ask("hi", model="gpt-4o"))
        assert r.status == 404 and r.json["error"]["code"] == "model_not_found", r.text
        assert s.post("/v1/chat/completions", ask("hi", model="hello")).status == 200

    @test
    def a_prompt_must_fit_the_context():
        context = s.get("/v1/models").json["data"][0]["context_length"]
        for count, status in [(context - 1, 200), (context, 200), (context + 1, 400)]:
            r = s.post("/v1/chat/completions", ask("x" * (count - 3)))
            assert r.status == status, (count, r.text)
            if status == 200: assert r.json["choices"][0]["finish_reason"] == "length", r.text
        assert r.json["error"]["code"] == "context_length_exceeded" and "maximum context length" in r.json["error"]["message"]
        r = s.post("/v1/chat/completions", ask("x" * context, stream=True))
        assert r.status == 400, "the status comes before the stream"

    @test
    def tokens_go_both_ways():
        ids = s.post("/tokenize", {"content": "a🙂<|end|>"}).json["tokens"]
        assert len(ids) == 6 and s.post("/detokenize", {"tokens": ids}).json["content"] == "a🙂<|end|>"
        assert len(s.post("/tokenize", {"content": "<|end|>", "parse_special": False}).json["tokens"]) == 7
        assert s.post("/detokenize", {"tokens": [-1]}).status == 400
        assert s.post("/tokenize", {}).json["error"]["param"] == "content"

with Server(model("hello"), "--alias", "gpt-4o", "--alias", "*") as s:
    @test
    def aliases():
        d = s.post("/v1/chat/completions", ask("hi", model="whatever/you-like:latest")).json
        assert d["model"] == "whatever/you-like:latest"
        assert [m["id"] for m in s.get("/v1/models").json["data"]] == ["gpt-4o"]

with Server(model("loop"), "-c", 256) as s:
    @test
    def penalties_change_the_answer():
        def words(**more):
            d = s.post("/v1/chat/completions", ask("hi", max_tokens=50, temperature=0, **more)).json
            return d["choices"][0]["message"]["content"].split()
        plain = words()
        assert plain[20:40] == plain[:20] == [f"w{i}" for i in range(20)]
        for half in {"presence_penalty": 100}, {"frequency_penalty": 100}, {"repeat_penalty": 100}, {"presence_penalty": 5}:
            assert words(**half)[20] == "w0", "the model is too sure"
        for penalties in {"presence_penalty": 100, "frequency_penalty": 100}, {"repeat_penalty": 100, "presence_penalty": 5}:
            found = words(**penalties)
            assert found[:20] == plain[:20] and found[20] != "w0", (penalties, found)

    @test
    def a_full_context_ends_the_answer():
        d = s.post("/v1/chat/completions", ask("hi")).json
        assert d["choices"][0]["finish_reason"] == "length"
        assert d["usage"]["total_tokens"] in (256, 257), d["usage"]

finish()
