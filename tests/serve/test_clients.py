#!/usr/bin/env python3
"""The clients that people use: openai, anthropic and ollama (clients.txt), against scripted models and SmolLM2."""
import os, subprocess, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../support"))
try:
    import anthropic, ollama, openai
except ImportError:
    if os.environ.get("STRATA_CLIENTS"): raise
    found = subprocess.run([os.path.join(HERE, "../../tools/clients")], stdout=subprocess.PIPE, text=True)
    if found.returncode != 0:
        print("ok 1 - the real clients # SKIP they are not installed (tools/clients)\n1..1")
        sys.exit(0)
    os.environ["STRATA_CLIENTS"] = "1"
    os.execv(found.stdout.strip(), [found.stdout.strip(), os.path.abspath(__file__)])
import scripted
from serving import *

HELLO = ["Hello", ",", " wor", "ld", "! ", b"\xf0\x9f", b"\x99\x82", " b", "ye"]
TEXT = "Hello, world! 🙂 bye"
THOUGHTS = ["<think>", "\nLet", " me", " see.", "\n", "</think>", "\n\n", "It", " is", " so."]
scripted.write(model("hello"), HELLO)
scripted.write(model("think"), THOUGHTS, template=scripted.THINK)


def clients(s):
    return (openai.OpenAI(base_url=s.url + "/v1", api_key="any", max_retries=0),
            anthropic.Anthropic(base_url=s.url, api_key="any", max_retries=0), ollama.Client(host=s.url))


def user(text): return [{"role": "user", "content": text}]


with Server(model("hello")) as s:
    oa, an, ol = clients(s)

    @test
    def openai_chats():
        r = oa.chat.completions.create(model="hello", messages=user("hi"), logprobs=True, top_logprobs=2, seed=1)
        assert r.choices[0].message.content == TEXT and r.choices[0].finish_reason == "stop"
        assert r.usage.completion_tokens == len(HELLO) and r.usage.prompt_tokens_details.cached_tokens == 0
        assert [t.token for t in r.choices[0].logprobs.content][0] == "Hello"
        assert len(r.choices[0].logprobs.content[0].top_logprobs) == 2

    @test
    def openai_streams():
        text, usage = "", None
        for chunk in oa.chat.completions.create(model="hello", messages=user("hi"), stream=True, stream_options={"include_usage": True}):
            if chunk.choices: text += chunk.choices[0].delta.content or ""
            if chunk.usage: usage = chunk.usage
        assert text == TEXT and usage.completion_tokens == len(HELLO)
        with oa.chat.completions.stream(model="hello", messages=user("hi")) as stream:
            for _ in stream: pass
            assert stream.get_final_completion().choices[0].message.content == TEXT

    @test
    def openai_stops_across_tokens():
        r = oa.chat.completions.create(model="hello", messages=user("hi"), stop=["o, w"])
        assert r.choices[0].message.content == "Hell"

    @test
    def openai_completes_and_lists():
        assert oa.completions.create(model="hello", prompt="<|assistant|>").choices[0].text == TEXT
        assert [m.id for m in oa.models.list()] == ["hello"] and oa.models.retrieve("hello").id == "hello"

    @test
    def openai_responds():
        r = oa.responses.create(model="hello", input="hi")
        assert r.output_text == TEXT and r.status == "completed" and r.usage.output_tokens == len(HELLO)
        with oa.responses.stream(model="hello", input="hi") as stream:
            deltas = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            assert deltas == TEXT and stream.get_final_response().output_text == TEXT

    @test
    def openai_errors_have_their_types():
        def fails(kind, call):
            try: call()
            except kind as e: return e
            raise AssertionError("no " + kind.__name__)
        create = lambda **more: oa.chat.completions.create(**{"model": "hello", "messages": user("hi"), **more})
        e = fails(openai.BadRequestError, lambda: create(temperature=-1))
        assert e.param == "temperature" and e.type == "invalid_request_error"
        assert fails(openai.BadRequestError, lambda: create(messages=user("x" * 5000))).code == "context_length_exceeded"
        assert fails(openai.NotFoundError, lambda: create(model="other")).code == "model_not_found"
        fails(anthropic.BadRequestError, lambda: an.messages.create(model="hello", messages=user("hi"), max_tokens=3, extra_body={"temperature": -1}))
        fails(anthropic.NotFoundError, lambda: an.messages.create(model="other", messages=user("hi"), max_tokens=3))
        assert fails(ollama.ResponseError, lambda: ol.chat(model="other", messages=user("hi"))).status_code == 404

    @test
    def anthropic_messages():
        r = an.messages.create(model="hello", messages=user("hi"), max_tokens=50, system="Be kind.")
        assert r.content[0].text == TEXT and r.stop_reason == "end_turn" and r.usage.output_tokens == len(HELLO)
        counted = an.messages.count_tokens(model="hello", messages=user("hi"), system="Be kind.").input_tokens
        assert counted == r.usage.input_tokens + r.usage.cache_read_input_tokens
        r = an.messages.create(model="hello", messages=user("hi"), max_tokens=50, stop_sequences=["rld"])
        assert r.content[0].text == "Hello, wo" and r.stop_reason == "stop_sequence" and r.stop_sequence == "rld"

    @test
    def anthropic_streams():
        with an.messages.stream(model="hello", messages=user("hi"), max_tokens=50) as stream:
            assert "".join(stream.text_stream) == TEXT
            final = stream.get_final_message()
            assert final.content[0].text == TEXT and final.usage.input_tokens == 5 and final.usage.output_tokens == len(HELLO)

    @test
    def ollama_talks():
        assert ol.chat(model="hello", messages=user("hi")).message.content == TEXT
        parts = list(ol.chat(model="hello", messages=user("hi"), stream=True))
        assert "".join(p.message.content for p in parts) == TEXT and parts[-1].done and parts[-1].eval_count == len(HELLO)
        assert ol.generate(model="hello", prompt="hi").response == TEXT
        assert ol.list().models[0].model == "hello" and ol.show("hello").details.format == "gguf"
        assert ol.ps().models[0].context_length == 4096

scripted.write(model("breaks"), ["It", " was", " a", " dark"], broken=" was")
with Server(model("breaks")) as s:
    oa, an, ol = clients(s)

    @test
    def a_failure_in_a_stream_raises():
        def raised(kind, stream):
            try:
                for _ in stream(): pass
            except kind as e: return e
            raise AssertionError("no " + kind.__name__)
        raised(openai.APIError, lambda: oa.chat.completions.create(model="breaks", messages=user("hi"), stream=True))
        raised(anthropic.APIError, lambda: an.messages.create(model="breaks", messages=user("hi"), max_tokens=9, stream=True))
        raised(ollama.ResponseError, lambda: ol.chat(model="breaks", messages=user("hi"), stream=True))

with Server(model("think")) as s:
    oa, an, ol = clients(s)

    @test
    def reasoning_reaches_the_clients():
        message = oa.chat.completions.create(model="think", messages=user("hi")).choices[0].message
        assert message.reasoning_content == "Let me see." and message.content == "It is so."
        with an.messages.stream(model="think", messages=user("hi"), max_tokens=50,
                                thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
            final = stream.get_final_message()
        assert [(b.type, getattr(b, b.type)) for b in final.content] == [("thinking", "Let me see."), ("text", "It is so.")]
        r = ol.chat(model="think", messages=user("hi"), think=True)
        assert r.message.thinking == "Let me see." and r.message.content == "It is so."
        output = oa.responses.create(model="think", input="hi").output
        assert [o.type for o in output] == ["reasoning", "message"] and output[0].content[0].text == "Let me see."

if os.path.exists(SMOLLM2) and "asan" not in STRATA and "tsan" not in STRATA:
    with Server(SMOLLM2, "-c", 2048, "--parallel", 8, "--alias", "smollm2") as s:
        oa, an, ol = clients(s)

        @test
        def smollm2_says_the_same_to_all():
            ask = lambda: oa.chat.completions.create(model="smollm2", messages=user("Name three colours."), temperature=0, max_tokens=24)
            text = ask().choices[0].message.content
            assert len(text) > 20
            again = ask()
            assert again.choices[0].message.content == text
            assert an.messages.create(model="smollm2", messages=user("Name three colours."), max_tokens=24,
                                      extra_body={"temperature": 0}).content[0].text == text
            assert ol.chat(model="smollm2", messages=user("Name three colours."), options={"temperature": 0, "num_predict": 24}).message.content == text

        @test
        def smollm2_reuses_a_conversation():
            talk = user("Tell me a story about a dragon and a lake. " * 8)
            first = oa.chat.completions.create(model="smollm2", messages=talk, temperature=0, max_tokens=80)
            talk += [{"role": "assistant", "content": first.choices[0].message.content}, *user("Go on.")]
            second = oa.chat.completions.create(model="smollm2", messages=talk, temperature=0, max_tokens=8)
            had = first.usage.total_tokens
            assert second.usage.prompt_tokens_details.cached_tokens >= had - 128, (had, second.usage)
else:
    for name in "smollm2 says the same to all", "smollm2 reuses a conversation":
        skip(name, "not in the cache (tools/fetch-model downloads it), or under a sanitizer")

finish()
