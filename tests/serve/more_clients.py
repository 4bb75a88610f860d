#!/usr/bin/env python3
"""Libraries on top of the clients: langchain-openai and litellm, each in an environment of its own, because they need different
versions of others. For make check: they are large."""
import os, subprocess, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../support"))
library = os.environ.get("STRATA_LIBRARY")
if not library:
    codes = []
    for name in "langchain", "litellm":
        found = subprocess.run([os.path.join(HERE, "../../tools/clients"), name], stdout=subprocess.PIPE, text=True)
        if found.returncode != 0: print(f"ok - {name} # SKIP it is not installed (tools/clients {name})", flush=True)
        else: codes.append(subprocess.run([found.stdout.strip(), os.path.abspath(__file__)], env={**os.environ, "STRATA_LIBRARY": name}).returncode)
    sys.exit(max(codes, default=0))
import scripted
from serving import *

TEXT = "Hello, world!"
scripted.write(model("hello"), ["Hello", ",", " wor", "ld", "!"])
USER = [{"role": "user", "content": "hi"}]


def langchain(s):
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(base_url=s.url + "/v1", api_key="any", model="hello", temperature=0, max_retries=0)
    assert chat.invoke("hi").content == TEXT
    assert "".join(part.content for part in chat.stream("hi")) == TEXT


def litellm(s):
    import litellm
    for name, base in ("openai/hello", s.url + "/v1"), ("anthropic/hello", s.url), ("ollama_chat/hello", s.url):
        ask = lambda **more: litellm.completion(model=name, api_base=base, api_key="any", messages=USER, max_tokens=50, **more)
        assert ask().choices[0].message.content == TEXT, name
        assert "".join(part.choices[0].delta.content or "" for part in ask(stream=True)) == TEXT, name


with Server(model("hello")) as s:
    @test
    def a_library_gets_its_answers(): globals()[library](s)

finish()
