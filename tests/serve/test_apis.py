#!/usr/bin/env python3
"""Anthropic's, Responses' and Ollama's APIs, reasoning, and prompts that come back, with scripted models."""
import concurrent.futures, json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import scripted
from serving import *

HELLO = ["Hello", ",", " wor", "ld", "!"]
TEXT = "Hello, world!"
THOUGHTS = ["<think>", "\nLet", " me", " see.", "\n\n", "So", " </", "b>", "\n", "</think>", " \n", "\nIt", " is", " so."]
REASONING, ANSWER = "Let me see.\n\nSo </b>", "It is so."
scripted.write(model("hello"), HELLO)
scripted.write(model("think"), THOUGHTS, template=scripted.THINK)
scripted.write(model("opened"), THOUGHTS[1:], template=scripted.OPENED)
scripted.write(model("unopened"), HELLO, template=scripted.THINK)
scripted.write(model("breaks"), ["It", " was", " a", " dark"], broken=" was")
TOOLS = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + scripted.CHAT
scripted.write(model("tools"), HELLO, template=TOOLS)
scripted.write(model("channel"), ["<|channel|>", "thoughts", "<|message|>", "Hm", "mm", "<|end_|>"], template=scripted.CHANNEL)


def messages(text, **more): return ask(text, max_tokens=100, **more)


def anthropic_text(events, kind="text"):
    return "".join(d["delta"].get(kind, "") for _, d in events if d["type"] == "content_block_delta")


def events_of(reply): return [(name, json.loads(data)) for name, data in reply.events()]


with Server(model("hello")) as s:
    @test
    def a_message_is_whole():
        d = s.post("/v1/messages?beta=true", messages("hi", system="Be kind.")).json
        assert d["type"] == "message" and d["role"] == "assistant" and d["id"].startswith("msg_"), d
        assert d["content"] == [{"type": "text", "text": TEXT}] and d["stop_reason"] == "end_turn" and d["stop_sequence"] is None
        assert d["usage"]["input_tokens"] == len("hi") + len("Be kind.") + 5 and d["usage"]["output_tokens"] == len(HELLO)

    @test
    def message_events_are_in_order():
        r = s.post("/v1/messages", messages("hi", stream=True))
        events = events_of(r)
        assert all(name == d["type"] for name, d in events)
        names = [name for name, _ in events]
        assert names == ["message_start", "content_block_start"] + ["content_block_delta"] * len(HELLO) + [
            "content_block_stop", "message_delta", "message_stop"], names
        assert events[0][1]["message"]["usage"]["input_tokens"] == len("hi") + 3
        assert events[0][1]["message"]["content"] == []
        assert anthropic_text(events) == TEXT
        assert events[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
        assert events[-2][1]["usage"]["output_tokens"] == len(HELLO)

    @test
    def stop_sequences_are_named():
        d = s.post("/v1/messages", messages("hi", stop_sequences=["zz", "o, w"])).json
        assert d["content"][0]["text"] == "Hell" and d["stop_reason"] == "stop_sequence" and d["stop_sequence"] == "o, w"
        assert s.post("/v1/messages", ask("hi", max_tokens=2)).json["stop_reason"] == "max_tokens"

    @test
    def count_tokens_is_what_a_message_uses():
        for body in [ask("hi"), ask("hi", system="Be kind."), {"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                     "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]},
                                  {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]}]:
            counted = s.post("/v1/messages/count_tokens", body).json["input_tokens"]
            usage = s.post("/v1/messages", {**body, "max_tokens": 4}).json["usage"]
            assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"], (counted, usage)

    @test
    def message_errors_have_their_types():
        for body, field in [(ask("hi"), "max_tokens"), ({"max_tokens": 3}, "messages"), (messages("hi", temperature=-1), "temperature"),
                            (messages("hi", tool_choice={"type": "any"}), "tool_choice"),
                            (messages("hi", output_config={"format": {"type": "json_schema"}}), "output_config.format")]:
            r = s.post("/v1/messages", body)
            assert r.status == 400 and r.json["type"] == "error" and r.json["error"]["type"] == "invalid_request_error", r.text
            assert field in r.json["error"]["message"], r.text
        r = s.post("/v1/messages", messages("x" * 9000))
        assert r.status == 400 and "prompt is too long: 9003 tokens > 4096 maximum" in r.json["error"]["message"], r.text
        assert s.post("/v1/messages", messages("hi", model="claude-9")).json["error"]["type"] == "not_found_error"
        r = s.post("/v1/messages", {"max_tokens": 3, "messages": [{"role": "user", "content": [{"type": "image"}]}]})
        assert r.status == 400 and "messages[0].content" in r.json["error"]["message"]

    @test
    def agents_fields_are_accepted():
        r = s.post("/v1/messages?beta=true", messages(
            "hi", metadata={"user_id": "x"}, thinking={"type": "enabled", "budget_tokens": 1024}, stream=False,
            context_management={"edits": []}, tools=[{"name": "Read", "description": "d", "input_schema": {"type": "object"}},
            {"type": "web_search_20250305", "name": "web_search"}], tool_choice={"type": "auto"},
            system=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]),
            headers={"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "any"})
        assert r.status == 200, r.text

    @test
    def the_billing_header_is_dropped():
        first = s.post("/v1/messages", messages("hi", system=[{"type": "text", "text": "x-anthropic-billing-header: cc=1; cch=abc;"},
                                                              {"type": "text", "text": "Be kind."}])).json["usage"]
        assert first["input_tokens"] + first["cache_read_input_tokens"] == len("hi") + len("Be kind.") + 5, first
        only = s.post("/v1/messages", messages("hi", system="x-anthropic-billing-header: z")).json["usage"]
        assert only["input_tokens"] + only["cache_read_input_tokens"] == len("hi") + 3, only

    @test
    def tool_results_are_messages_of_their_own():
        history = [{"role": "user", "content": "go"},
                   {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "out"},
                                                {"type": "text", "text": "on"}]}]
        count = s.post("/v1/messages/count_tokens", {"messages": history}).json["input_tokens"]
        assert count == len("go") + len("") + len("out") + len("on") + 4 * 2 + 1, count

    @test
    def a_begun_answer_is_continued():
        body = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello<|assistant|>"}]}
        usage = s.post("/v1/chat/completions", body).json["usage"]
        assert usage["prompt_tokens"] == len("hi") + 3 + len("Hello<|assistant|>"), usage

    @test
    def responses_are_whole_and_streamed():
        d = s.post("/v1/responses", {"input": "hi", "instructions": "Be kind.", "store": False, "include": []}).json
        assert d["object"] == "response" and d["status"] == "completed" and d["id"].startswith("resp_"), d
        assert d["output"][0]["content"][0]["text"] == TEXT and d["usage"]["output_tokens"] == len(HELLO)
        assert d["usage"]["input_tokens"] == len("hi") + len("Be kind.") + 5
        events = events_of(s.post("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
                                                    "stream": True}))
        names = [name for name, _ in events]
        assert names == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"] + [
            "response.output_text.delta"] * len(HELLO) + ["response.output_text.done", "response.content_part.done",
            "response.output_item.done", "response.completed"], names
        assert [d["sequence_number"] for _, d in events] == list(range(len(events)))
        assert "".join(d["delta"] for n, d in events if n == "response.output_text.delta") == TEXT
        final = events[-1][1]["response"]
        assert final["output"][0]["content"][0]["text"] == TEXT and final["id"] == events[0][1]["response"]["id"]
        r = s.post("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}})
        assert r.status == 400 and r.json["error"]["param"] == "text.format", r.text
        r = s.post("/v1/responses", {"input": "hi", "previous_response_id": "resp_1"})
        assert r.status == 400 and r.json["error"]["param"] == "previous_response_id"
        cut = s.post("/v1/responses", {"input": "hi", "max_output_tokens": 2}).json
        assert cut["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"}

    @test
    def responses_take_a_history_of_items():
        d = s.post("/v1/responses", {"input": [
            {"type": "message", "role": "user", "content": "go"},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "out"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
            {"type": "message", "role": "user", "content": "on"}],
            "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}]}).json
        assert d["usage"]["input_tokens"] == len("go" "" "out" "so" "on") + 5 * 2 + 1, d["usage"]
        r = s.post("/v1/responses", {"input": [{"type": "computer_call_output"}]})
        assert r.status == 400, r.text

    @test
    def ollama_chats_and_generates():
        lines = s.post("/api/chat", ask("hi", model="hello:latest")).lines()
        assert "".join(d["message"]["content"] for d in lines) == TEXT and lines[0]["message"]["role"] == "assistant"
        assert [d["done"] for d in lines] == [False] * len(HELLO) + [True]
        last = lines[-1]
        assert last["done_reason"] == "stop" and last["eval_count"] == len(HELLO) and last["prompt_eval_count"] == len("hi") + 3
        assert last["total_duration"] > 0
        d = s.post("/api/chat", ask("hi", stream=False, options={"num_predict": 2, "temperature": 0, "num_ctx": 99})).json
        assert d["message"]["content"] == "Hello," and d["done_reason"] == "length"
        assert s.post("/api/generate", {"prompt": "hi", "system": "x", "stream": False}).json["response"] == TEXT
        assert s.post("/api/generate", {"prompt": "<|assistant|>", "raw": True, "stream": False}).json["prompt_eval_count"] == 1
        assert "".join(d["response"] for d in s.post("/api/generate", {"prompt": "hi"}).lines()) == TEXT
        r = s.ask("POST", "/api/generate", '{"prompt": "hi", "stream": false}', headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert r.status == 200, "curl -d sends another type"

    @test
    def ollama_lists():
        assert s.get("/api/tags").json["models"][0]["name"] == "hello"
        assert s.get("/api/ps").json["models"][0]["context_length"] == 4096
        assert s.get("/api/version").json["version"]
        assert s.post("/api/show", {"model": "hello"}).json["model_info"]["llama.context_length"] == 4096
        assert s.post("/api/show", {"model": "x"}).status == 404
        for body in [ask("hi", format="json"), ask("hi", options={"temperature": "hot"}),
                     {"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}]:
            r = s.post("/api/chat", body)
            assert r.status == 400 and isinstance(r.json["error"], str), r.text

    @test
    def pages_and_properties():
        page = s.get("/")
        assert page.status == 200 and "hello" in page.text and "unsafe-inline" not in page.headers["Content-Security-Policy"]
        props = s.get("/props").json
        assert props["context"] == 4096 and props["sessions"] == 8 and props["plan"]["context"] == 4096, props
        assert work.name not in s.get("/props").text, "no path of this machine"

    @test
    def metrics_count_what_happens():
        def pages(m): return {k: v for k, v in m.items() if k.startswith('strata_kv_pages{pool="0"')}
        body = ask("x" * 300, max_tokens=4)
        before = s.checked_metrics()
        assert s.post("/v1/chat/completions", body).status == 200
        first = s.checked_metrics()
        assert s.post("/v1/chat/completions", body).status == 200
        second = s.checked_metrics()
        assert s.post("/v1/chat/completions", ask("hi", temperature=-1)).status == 400
        cached = 'strata_kv_pages{pool="0",state="cached"}'
        until = time.monotonic() + 10
        third = s.checked_metrics()
        while (third["strata_sessions"] or third[cached] < 4) and time.monotonic() < until: # a session ends after its last byte
            time.sleep(0.02)
            third = s.checked_metrics()
        def more(name, a, b): return b["strata_" + name] - a["strata_" + name]
        for a, b in (before, first), (first, second):
            assert more("prompt_tokens_total", a, b) == 303 and more("answer_tokens_total", a, b) == 4
            assert more("time_to_first_token_seconds_count", a, b) == 1 and more("token_gap_seconds_count", a, b) == 3
            assert more("batch_answers_sum", a, b) == 3, "the last token of an answer is not run"
            assert more("requests_refused_total", a, b) == 0 and more("requests_total", a, b) == 2, "and one for /metrics"
        assert more("batch_rows_sum", before, first) >= 303 and more("batch_rows_count", before, first) >= 4
        assert more("prompt_tokens_reused_total", first, second) >= 256 and more("prefix_hits_total", first, second) == 1
        assert more("batch_rows_sum", first, second) <= 303 - 256 + 3
        assert more("requests_refused_total", second, third) == 1
        assert all(m["strata_requests_running"] == m["strata_requests_queued"] == m["strata_sessions"] == 0 for m in (before, third))
        assert len(pages(before)) == 3 and sum(pages(before).values()) == sum(pages(second).values()) > 0
        assert third[cached] >= 4, pages(third)
        owners = [v for k, v in second.items() if k.startswith('strata_memory_bytes{device="')]
        assert len(owners) >= 3 and sum(v > 0 for v in owners) >= 2, owners
        assert not any("expert" in k for k in second), "a model without routed experts"


with Server(os.path.join(KIT, "qwen3moe.gguf"), "--device", "sim", "--vram", "1G", "-g", "all", "--moe", "cache", "--expert-slots", 3,
            "-c", 256) as s:
    @test
    def experts_are_counted():
        before = s.checked_metrics()
        assert s.post("/v1/completions", {"prompt": "hello", "max_tokens": 20, "ignore_eos": True}).status == 200
        after = s.checked_metrics()
        more = {k: after[k] - before[k] for k in after if k.startswith("strata_expert_")}
        assert more["strata_expert_hits_total"] > 0 and more["strata_expert_misses_total"] > 0, more
        assert more["strata_expert_uploads_total"] > 0 and more["strata_expert_upload_bytes_total"] > 0, more


with Server(model("breaks"), "--parallel", 2) as s:
    @test
    def a_failure_in_a_stream_is_told_and_the_next_request_works():
        def last(path, body):
            r = s.post(path, {**body, "stream": True})
            assert r.status == 200, r.text
            return r
        (name, data), end = last("/v1/chat/completions", ask("hi")).events()[-2:]
        assert end == (None, "[DONE]") and name is None and json.loads(data)["error"]["type"] == "server_error", data
        assert '"content":"It"' in last("/v1/chat/completions", ask("hi")).text, "and what came before"
        name, data = last("/v1/messages", messages("hi")).events()[-1]
        assert name == "error" and json.loads(data) == {"type": "error", "error": {**json.loads(data)["error"], "type": "api_error"}}, data
        name, data = last("/v1/responses", {"input": "hi"}).events()[-1]
        assert name in ("error", "response.failed"), (name, data)
        assert isinstance(last("/api/chat", ask("hi")).lines()[-1]["error"], str)
        for path, body in ("/v1/chat/completions", ask("hi")), ("/v1/messages", messages("hi")), ("/v1/chat/completions", ask("hi", n=2)):
            r = s.post(path, body)
            assert r.status == 500 and "error" in r.json, (r.status, r.text)
            assert "NaN" not in r.text and "log" in r.text, "clients learn the kind of failure alone"
        assert "/v1/chat/completions: " in s.stderr() and "NaN" in s.stderr(), s.stderr()
        assert s.post("/v1/chat/completions", ask("hi", max_tokens=2)).json["choices"][0]["message"]["content"] == "It was"
        m = s.checked_metrics()
        assert m["strata_sessions"] == m["strata_requests_running"] == m["strata_requests_queued"] == 0, m

    @test
    def a_failure_is_its_own_requests():
        def one(i):
            r = s.post("/v1/chat/completions", ask(f"hi {i}", **({} if i % 3 else {"max_tokens": 2})))
            return r.status == (500 if i % 3 else 200)
        with concurrent.futures.ThreadPoolExecutor(6) as pool: assert all(pool.map(one, range(60)))

with Server(model("tools")) as s:
    @test
    def tools_are_rendered_by_the_template():
        tool = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}
        plain = s.post("/v1/chat/completions", ask("hi")).json["usage"]["prompt_tokens"]
        assert s.post("/v1/chat/completions", ask("hi", tools=[tool])).json["usage"]["prompt_tokens"] == plain + len("look")
        count = lambda **more: s.post("/v1/messages/count_tokens", ask("hi", **more)).json["input_tokens"]
        assert count(tools=[{"name": "look", "description": "d", "input_schema": {"type": "object"}}]) == count() + len("look")
        r = s.post("/v1/responses", {"input": "hi", "tools": [{"type": "function", "name": "look", "parameters": {}}, {"type": "web_search"}]})
        assert r.json["usage"]["input_tokens"] == plain + len("look"), r.text
        r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c1", "content": "out"}]})
        assert r.status == 200, r.text


def both(s, body):
    """(reasoning, content) unstreamed and streamed, by OpenAI's and by Anthropic's API."""
    message = s.post("/v1/chat/completions", body).json["choices"][0]["message"]
    yield message.get("reasoning_content", ""), message["content"]
    chunks = [json.loads(d)["choices"][0]["delta"] for _, d in s.post("/v1/chat/completions", {**body, "stream": True}).events()[:-1]]
    yield "".join(c.get("reasoning_content", "") for c in chunks), "".join(c.get("content", "") for c in chunks)
    blocks = s.post("/v1/messages", {**body, "max_tokens": 100}).json["content"]
    yield "".join(b.get("thinking", "") for b in blocks), "".join(b.get("text", "") for b in blocks)
    events = events_of(s.post("/v1/messages", {**body, "max_tokens": 100, "stream": True}))
    yield anthropic_text(events, "thinking"), anthropic_text(events)
    ollama = s.post("/api/chat", body).lines()
    yield "".join(d["message"].get("thinking", "") for d in ollama), "".join(d["message"]["content"] for d in ollama)
    output = s.post("/v1/responses", {"input": body["messages"], **{k: v for k, v in body.items() if k != "messages"}}).json["output"]
    yield tuple("".join(i["content"][0]["text"] for i in output if i["type"] == kind) for kind in ("reasoning", "message"))


for name in "think", "opened":
    with Server(model(name)) as s:
        @test
        def reasoning_and_content_are_told_apart():
            props = s.get("/props").json["reasoning"]
            assert props == {"open": "<think>", "close": "</think>"}, props
            for found in both(s, ask("hi")): assert found == (REASONING, ANSWER), found

        @test
        def thinking_blocks_are_in_order():
            events = events_of(s.post("/v1/messages", messages("hi", stream=True)))
            starts = [(d["index"], d["content_block"]["type"]) for n, d in events if n == "content_block_start"]
            assert starts == [(0, "thinking"), (1, "text")], starts
            order = [n for n, _ in events if n != "content_block_delta"]
            assert order == ["message_start", "content_block_start", "content_block_stop", "content_block_start",
                             "content_block_stop", "message_delta", "message_stop"], order
            for n, d in events:
                if n == "content_block_delta":
                    assert d["delta"]["type"] in (("thinking_delta", "signature_delta") if d["index"] == 0 else ("text_delta",)), d
            items = [d["item"]["type"] for n, d in events_of(s.post("/v1/responses", {"input": "hi", "stream": True}))
                     if n == "response.output_item.done"]
            assert items == ["reasoning", "message"], items

        @test
        def cut_reasoning_is_reasoning():
            d = s.post("/v1/chat/completions", ask("hi", max_tokens=3)).json["choices"][0]
            assert d["message"]["content"] == "" and d["message"]["reasoning_content"].startswith("Let me"), d
            assert d["finish_reason"] == "length"

        @test
        def stop_strings_are_of_the_content():
            d = s.post("/v1/chat/completions", ask("hi", stop=["me", "is so"])).json["choices"][0]["message"]
            assert d["reasoning_content"] == REASONING and d["content"] == "It ", d

with Server(model("unopened")) as s:
    @test
    def an_answer_without_reasoning_is_content():
        for found in both(s, ask("hi")): assert found == ("", TEXT), found

    @test
    def template_arguments_are_passed_through():
        more = s.post("/v1/chat/completions", ask("hi", chat_template_kwargs={"enable_thinking": False})).json["usage"]
        assert more["prompt_tokens"] == len("hi") + 3 + len("\n\n\n\n") + 2, more
        more = s.post("/v1/messages", messages("hi", thinking={"type": "disabled"})).json["usage"]
        assert more["input_tokens"] + more["cache_read_input_tokens"] == len("hi") + 3 + len("\n\n\n\n") + 2, more
        assert s.post("/v1/chat/completions", ask("hi", chat_template_kwargs=[])).status == 400

with Server(model("channel")) as s:
    @test
    def marks_may_be_control_tokens():
        props = s.get("/props").json["reasoning"]
        assert props["open"] == "<|channel|>thoughts<|message|>", props
        for found in both(s, ask("hi")): assert found == ("Hmmm<|end_|>", ""), found

finish()
