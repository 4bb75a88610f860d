"""Models that write a given text: one-hot embeddings, and an output matrix that makes the next token a function of the
last. The ordinary vocabulary is the 256 bytes, so a prompt never has the tokens of the script, which are sampled only."""
import math, struct

CHAT = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}")
# Keeps reasoning of answers after the last question, as many templates do.
THINK = ("{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
         "{% endif %}{% endfor %}"
         "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}"
         "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|end|>{% endfor %}"
         "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}"
         "<think>\n\n</think>\n\n{% endif %}{% endif %}")
# Opens the reasoning in the prompt, and removes it from old answers.
OPENED = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
          "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}")
# Marks by control tokens.
CHANNEL = ("{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and m.reasoning_content %}<|channel|>thoughts"
           "<|message|>{{ m.reasoning_content }}<|end|><|assistant|><|channel|>final<|message|>{% endif %}{{ m.content }}<|end|>"
           "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
CONTROL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|channel|>", "<|message|>"]
USER = ["<think>", "</think>"]
END = "<|end|>"


def byte_letters():
    """GPT-2's letters for the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 256
    for byte in range(256):
        letters[byte] = chr(byte) if byte in kept else chr(extra)
        extra += byte not in kept
    return letters


class Writer:
    def __init__(self):
        self.keys, self.count = b"", 0

    def text(self, value):
        data = value if isinstance(value, bytes) else value.encode()
        return struct.pack("<Q", len(data)) + data

    def key(self, name, kind, value):
        self.keys += self.text(name) + struct.pack("<I", kind) + value
        self.count += 1

    def u32(self, name, value): self.key(name, 4, struct.pack("<I", value))
    def f32(self, name, value): self.key(name, 6, struct.pack("<f", value))
    def flag(self, name, value): self.key(name, 7, struct.pack("<?", value))
    def string(self, name, value): self.key(name, 8, self.text(value))
    def strings(self, name, values):
        self.key(name, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(self.text, values)))
    def i32s(self, name, values):
        self.key(name, 9, struct.pack("<IQ", 5, len(values)) + struct.pack(f"<{len(values)}i", *values))


def tensor_data(rows, width, ones):
    """float32 rows with single values: {(row, column): value}."""
    import array
    data = array.array("f", bytes(4 * rows * width))
    for (row, column), value in ones.items():
        data[row * width + column] = value
    return data.tobytes()


def write(path, script, template=CHAT, loop=False, context=4096, name="scripted", broken=None):
    """`script`: the pieces of the answer: bytes, texts, or the text of a special token. With `loop` it never ends. The logits
    after the piece `broken` are not numbers: the engine fails."""
    letters = byte_letters()
    tokens = [letters[b] for b in range(256)] + CONTROL + USER
    types = [1] * 256 + [3] * len(CONTROL) + [4] * len(USER)
    special = {text: 256 + i for i, text in enumerate(CONTROL + USER)}
    ids = []
    for piece in script:
        if piece in special:
            ids.append(special[piece])
            continue
        data = piece if isinstance(piece, bytes) else piece.encode()
        ids.append(len(tokens))
        tokens.append("".join(letters[b] for b in data))
        types.append(1)
    assert len(set(ids)) == len(ids), "each token has one successor"
    vocab, width = len(tokens), (len(tokens) + 31) // 32 * 32
    chain = [special["<|assistant|>"]] + ids
    following = dict(zip(chain, ids))
    last = chain[-1]
    following[last] = ids[0] if loop else special[END]
    # The template may end its prompt with a newline or a mark.
    for start in [ord("\n"), special["<think>"]]:
        following.setdefault(start, ids[0])
    ones = {(following.get(t, special[END]), t): 10.0 for t in range(vocab)}
    w = Writer()
    w.string("general.architecture", "llama")
    w.string("general.name", name)
    for key, value in {"context_length": context, "embedding_length": width, "block_count": 1, "feed_forward_length": 32,
                       "attention.head_count": width // 32, "attention.head_count_kv": 1, "vocab_size": vocab,
                       "rope.dimension_count": 32}.items():
        w.u32("llama." + key, value)
    w.f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    w.string("tokenizer.ggml.model", "gpt2")
    w.string("tokenizer.ggml.pre", "gpt-2")
    w.strings("tokenizer.ggml.tokens", tokens)
    w.i32s("tokenizer.ggml.token_type", types)
    w.strings("tokenizer.ggml.merges", [])
    w.u32("tokenizer.ggml.eos_token_id", special[END])
    w.flag("tokenizer.ggml.add_bos_token", False)
    if template is not None: w.string("tokenizer.chat_template", template)
    none = {}
    broken_id = ids[script.index(broken)] if broken else -1
    tensors = [("token_embd.weight", width, vocab, {(t, t): math.nan if t == broken_id else 1.0 for t in range(vocab)}),
               ("output.weight", width, vocab, ones), ("output_norm.weight", width, 1, {(0, i): 1.0 for i in range(width)}),
               ("blk.0.attn_norm.weight", width, 1, none), ("blk.0.ffn_norm.weight", width, 1, none),
               ("blk.0.attn_q.weight", width, width, none), ("blk.0.attn_k.weight", width, 32, none),
               ("blk.0.attn_v.weight", width, 32, none), ("blk.0.attn_output.weight", width, width, none),
               ("blk.0.ffn_gate.weight", width, 32, none), ("blk.0.ffn_up.weight", width, 32, none),
               ("blk.0.ffn_down.weight", 32, width, none)]
    directory, data = b"", b""
    for tensor, columns, rows, values in tensors:
        shape = [columns] if rows == 1 else [columns, rows]
        directory += w.text(tensor) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        directory += struct.pack("<IQ", 0, len(data))
        data += tensor_data(rows, columns, values)
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), w.count) + w.keys + directory
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32) + data)
    return path
