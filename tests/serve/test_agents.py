#!/usr/bin/env python3
"""A coding agent's 20 turns over Anthropic's API: billing header, tools, dropped reasoning, reminders. From the second turn
on at least nine tenths of each prompt are found in the KV cache, also where layers cannot go back."""
import json, os, random, struct, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from serving import *

# Keeps reasoning since the last question only, and takes a system message at the start only.
TEMPLATE = ("{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
            "{% endfor %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}"
            "{% endif %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n"
            "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
            "{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
with open(os.path.join(work.name, "template"), "w") as file: file.write(TEMPLATE)
WORDS = "the a file of to in test run code line error is was main return value list item read write open close".split()


def longer(name, context):
    """A copy of a golden model with a longer context."""
    data = open(os.path.join(KIT, name + ".gguf"), "rb").read()
    place = data.index(b".context_length") + len(b".context_length")
    assert struct.unpack_from("<I", data, place)[0] == 4, "a 32-bit number"
    with open(model(name), "wb") as file:
        file.write(data[:place + 4] + struct.pack("<I", context) + data[place + 8:])
    return model(name)


class Agent:
    def __init__(self, server, system_tokens, seed):
        self.server, self.rng, self.messages, self.turn = server, random.Random(seed), [], 0
        self.system = self.words(system_tokens)

    def words(self, tokens):
        """A text of about so many tokens."""
        text, step = "", max(1, tokens // 4)
        while self.count(text) < tokens: text += " ".join(self.rng.choices(WORDS, k=step)) + ".\n"
        return text

    def count(self, text): return len(self.server.post("/tokenize", {"content": text}).json["tokens"])

    def send(self):
        nonce = f"x-anthropic-billing-header: cc_version=2.1; cch={self.rng.randrange(1 << 32):08x};"
        body = {"system": [{"type": "text", "text": nonce}, {"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}],
                "messages": self.messages, "max_tokens": 12, "temperature": 0, "stream": self.turn % 2 == 0,
                "tools": [{"name": "Read", "description": "reads a file", "input_schema": {"type": "object"}}]}
        counted = self.server.post("/v1/messages/count_tokens", body).json["input_tokens"]
        r = self.server.post("/v1/messages?beta=true", body)
        assert r.status == 200, r.text
        if body["stream"]:
            events = [json.loads(d) for _, d in r.events()]
            usage = events[0]["message"]["usage"]
            text = "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta")
        else:
            usage, text = r.json["usage"], "".join(b.get("text", "") for b in r.json["content"])
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert counted == prompt, (counted, usage)
        return prompt, usage["cache_read_input_tokens"], text

    def user(self, tokens):
        content = [{"type": "text", "text": self.words(tokens)}]
        if self.turn % 3 == 1: content.insert(0, {"type": "text", "text": "<system-reminder>be brief</system-reminder>"})
        if self.turn % 7 == 5: self.messages.append({"role": "system", "content": "The files have changed."})
        self.messages.append({"role": "user", "content": content})

    def play(self):
        """One turn: a question, every other time a tool call with a result. Returns (prompt, reused) of its requests."""
        self.user(40)
        prompt, reused, text = self.send()
        found = [(prompt, reused)]
        thinking = {"type": "thinking", "thinking": f"thoughts {self.turn}", "signature": "strata"}
        if self.turn % 2:
            call = {"type": "tool_use", "id": f"t{self.turn}", "name": "Read", "input": {"path": f"f{self.turn}"}}
            self.messages.append({"role": "assistant", "content": [thinking, {"type": "text", "text": text}, call]})
            self.messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{self.turn}", "content": "ok"}]})
            prompt, reused, text = self.send()
            found.append((prompt, reused))
        self.messages.append({"role": "assistant", "content": [thinking, {"type": "text", "text": text}]})
        self.turn += 1
        return found


def replay(path, context, system, *options):
    with Server(path, "-c", context, "--chat-template", file.name, *options) as s:
        agent, before = Agent(s, system, 19), None
        for turn in range(20):
            for prompt, reused in agent.play():
                if before: assert prompt <= before * 1.05, (turn, before, prompt)
                if before: assert reused >= 0.9 * prompt, (turn, prompt, reused, s.stderr()[-600:])
                before = prompt


@test
def a_recurrent_model(): replay(longer("qwen35", 16384), 16384, 6000)


@test
def a_window_model(): replay(longer("gemma4-dense", 16384), 16384, 6000)


@test
def a_model_of_full_attention(): replay(longer("qwen3", 16384), 16384, 6000)


if os.path.exists(SMOLLM2):
    @test
    def smollm2(): replay(SMOLLM2, 8192, 3600)
else:
    skip("smollm2", "not in the cache (tools/fetch-model downloads it)")

finish()
