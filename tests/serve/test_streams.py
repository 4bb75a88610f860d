#!/usr/bin/env python3
"""Streamed text is unstreamed text, byte for byte; an answer does not depend on what else is answered."""
import array, concurrent.futures, json, os, random, subprocess, sys, tempfile
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from serving import *

slow = "asan" in STRATA or "tsan" in STRATA
PATH = "/v1/chat/completions"


def streamed(reply):
    text, tokens = "", []
    for _, data in reply.events()[:-1]:
        choice = json.loads(data)["choices"][0]
        text += choice["delta"].get("content", "")
        tokens += [(t["token"], t["logprob"]) for t in (choice["logprobs"] or {}).get("content", [])]
    return text, tokens


with Server(os.path.join(KIT, "qwen2.gguf"), "--cpu", "ref", "--kv-type", "f32", "-t", 2) as s:
    @test
    def two_hundred_seeded_requests():
        rng = random.Random(19)
        def one(i):
            r = random.Random(i)
            body = ask("".join(r.choices("abcdefgh ijk?é🙂", k=r.randint(1, 60))), seed=i, temperature=r.choice([0, 0.7, 1.5, 3]),
                       top_p=r.choice([0.5, 1]), top_k=r.choice([0, 40]), max_tokens=r.randint(1, 48), logprobs=True,
                       ignore_eos=r.random() < 0.5, stop=r.choice([None, ["e", "a"], [" t"], "th"]),
                       repeat_penalty=r.choice([1, 1.3]), presence_penalty=r.choice([0, 1]))
            whole = s.post(PATH, body).json["choices"][0]
            text, tokens = streamed(s.post(PATH, {**body, "stream": True}))
            assert whole["message"]["content"] == text, (i, whole, text)
            assert [(t["token"], t["logprob"]) for t in whole["logprobs"]["content"]] == tokens, i
            return text
        with concurrent.futures.ThreadPoolExecutor(6) as pool: texts = list(pool.map(one, range(40 if slow else 200)))
        assert len(set(texts)) > len(texts) // 3, "the requests differ"

    @test
    def a_seed_is_a_seed():
        body = ask("Is it?", seed=5, temperature=2, max_tokens=30, ignore_eos=True)
        first = s.post(PATH, body).json["choices"][0]["message"]["content"]
        assert s.post(PATH, body).json["choices"][0]["message"]["content"] == first
        assert s.post(PATH, {**body, "seed": 6}).json["choices"][0]["message"]["content"] != first
        choices = s.post(PATH, {**body, "n": 3}).json["choices"]
        assert choices[0]["message"]["content"] == first and choices[1]["message"]["content"] != first

def output_of(command, *options):
    return subprocess.run([STRATA, command, "-m", SMOLLM2, *options], check=True, capture_output=True).stdout


def float32_margin(question, tokens, other):
    """By how much the last of an answer's tokens is likelier than another one, without rounded activations."""
    def ids(text): return output_of("tokenize", "-p", text).split()
    with tempfile.NamedTemporaryFile("w") as chat:
        json.dump({**ask(question), "add_generation_prompt": True}, chat)
        chat.flush()
        prompt = output_of("template", "--args", chat.name, "--ids").split()
    prefix = prompt + (ids("".join(tokens[:-1])) if tokens[:-1] else [])
    logits = array.array("f", output_of("logits", "--cpu", "ref", "--kv-type", "f32", "--ids", b",".join(prefix).decode(), "-o", "-"))
    last = logits[-(len(logits) // len(prefix)):]
    return abs(last[int(ids(tokens[-1])[0])] - last[int(ids(other)[0])])


if os.path.exists(SMOLLM2) and not slow:
    with Server(SMOLLM2, "-c", 1024, "--parallel", 8) as s:
        @test
        def a_greedy_answer_is_the_same_beside_seven_others():
            questions = ["Why is the sky blue?", "Name three rivers.", "What is a prime number?", "Write a haiku.", "Who was Ada Lovelace?",
                         "How do magnets work?", "Tell me a joke.", "What is the capital of France?"]
            def answer(question):
                d = s.post(PATH, ask(question, temperature=0, max_tokens=24, logprobs=True, top_logprobs=2)).json["choices"][0]
                return [(t["token"], t["top_logprobs"][0]["logprob"] - t["top_logprobs"][1]["logprob"]) for t in d["logprobs"]["content"]]
            alone = [answer(q) for q in questions]
            with concurrent.futures.ThreadPoolExecutor(8) as pool: beside = list(pool.map(answer, questions))
            # One row and several are rounded differently: they may choose another token where one of them, or float32, is not sure.
            for question, one, other in zip(questions, alone, beside):
                sure = next((i for i, pair in enumerate(zip(one, other)) if min(margin for _, margin in pair) < 0.1), len(one))
                tokens, others = [t for t, _ in one[:sure]], [t for t, _ in other[:sure]]
                at = next((i for i, pair in enumerate(zip(tokens, others)) if pair[0] != pair[1]), None)
                assert at is not None or len(tokens) == len(others), (one, other)
                assert at is None or float32_margin(question, tokens[:at + 1], others[at]) < 0.1, (one, other)
else:
    skip("a greedy answer is the same beside seven others", "the default model is not in the cache, or under a sanitizer")

finish()
