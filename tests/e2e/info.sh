#!/bin/bash
# strata info: model cards of every model of the kit, of vocabularies, of unusual files, and errors for other files.
. "$(dirname "$0")/tap"

# --- every model of the kit, as text and as JSON
for file in "$kit"/*.gguf "$kit"/*/*.gguf; do
    name=${file#"$kit"/}
    case $name in llama.expect.gguf) ;; *.expect.gguf) continue ;; esac # they are all alike
    run info "$file" --tensors
    check "$name: text" test "$code" = 0
    cp "$work/out" "$work/text"
    run info --json --tensors "$file"
    check "$name: JSON adds up, and text has the same tensors" python3 - "$work/out" "$work/text" <<'PYTHON'
import json, os, sys
card, text = json.load(open(sys.argv[1])), open(sys.argv[2]).read().splitlines()
tensors, types = card["tensors"], card["tensor_types"]
assert card["tensor_count"] == len(tensors) == sum(t["tensors"] for t in types)
assert card["tensor_bytes"] == sum(t["bytes"] for t in tensors) == sum(t["bytes"] for t in types)
assert card["file_bytes"] == os.path.getsize(card["path"]) >= card["tensor_bytes"]
assert card["gguf_version"] == 3 and card["files"] == 1
lines = {l.split()[0]: l.split() for l in text if l.strip()}
for tensor in tensors:
    line, shape = lines[tensor["name"]], " x ".join(map(str, tensor["shape"])).split()
    assert line[1] == tensor["type"] and line[2:2 + len(shape)] == shape, line
    assert [int(n.replace(",", "")) for n in line[-2:]] == [tensor["bytes"], tensor["offset"]], line
PYTHON
done

# --- the fields
run info --json "$kit/qwen3moe.gguf"
check "architecture and sizes" json 'd["architecture"] == "qwen3moe" and d["layers"] >= 4 and d["embedding_length"] == 64
    and d["context_length"] == 512 and d["expert_count"] >= d["expert_used_count"] >= 1 and d["head_count"] >= d["head_count_kv"]'
check "parameters and quantisation" json 'd["quantisation"] == "F32" and d["bits_per_parameter"] == 32.0
    and d["parameters"] * 4 == d["tensor_bytes"]'
check "the tokenizer" json 'd["tokenizer"]["supported"] and d["tokenizer"]["kind"] == "bpe" and d["tokenizer"]["pre"] == "qwen2"
    and d["tokenizer"]["vocabulary_size"] == 320 and d["tokenizer"]["adds_bos"] == False
    and d["tokenizer"]["bos"]["id"] == 286 and d["tokenizer"]["eos"]["id"] == 288 and d["tokenizer"]["eos"]["text"] == "<|im_end|>"'
check "the chat template" json 'd["chat_template"]["bytes"] > 100'
check "no list of tensors unless asked" json '"tensors" not in d'
run info "$kit/qwen3moe.gguf"
for text in "architecture    qwen3moe" "context         512 tokens" "embedding       64" "experts" "tokenizer       bpe (qwen2), 320 tokens" \
    "EOS             288 <|im_end|>" "chat template   " "GGUF version 3" "F32, 32.00 bits each"; do
    check "text has: $text" out_has "$text"
done
run info --json "$kit/gemma4-e.gguf"
check "a value per layer is an array" json 'd["feed_forward_length"] == [128, 128, 128, 256, 256, 256]'
run info "$kit/gemma4-e.gguf"
check "a value per layer is a range" out_has "128 to 256, depending on the layer"
run info --json "$kit/tokenizer/llama-spm.vocab.gguf"
check "a vocabulary alone" json 'd["tensor_count"] == 0 == d["parameters"] and d["tensor_types"] == [] and d["layers"] == 32
    and "quantisation" not in d and d["tokenizer"]["kind"] == "spm" and d["tokenizer"]["bos"] == {"id": 1, "text": "<s>"}
    and d["tokenizer"]["adds_bos"] and d["chat_template"] is None'
run info "$kit/tokenizer/llama-spm.vocab.gguf"
check "a vocabulary alone, as text" out_has "none: no tensors"
run info --json "$kit/quant/rows.gguf"
check "every tensor type has a row" json 'len(d["tensor_types"]) >= 20 and d["tokenizer"] is None'
run info "$kit/llama.expect.gguf"
check "an unknown architecture still has a model card" out_has "architecture    golden"

# --- the program
for model in llama qwen35moe gemma4-e; do
    run info --program "$kit/$model.gguf"
    cp "$work/out" "$work/text"
    run info --program --json "$kit/$model.gguf"
    check "$model: the program, the same as text and as JSON" python3 - "$work/out" "$work/text" <<'PYTHON'
import json, sys
card, text = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
program = card["program"]
assert text.endswith("".join("  %s\n" % op["text"] for op in program)) and "%d operations\n" % len(program) in text
assert program[0]["operation"] == "embed" and program[0]["layer"] is None
assert sum(op["operation"] == "attention" for op in program) >= 1
assert {op["layer"] for op in program if op["layer"] is not None} == set(range(max(op["layer"] or 0 for op in program) + 1))
assert all(op["operation"] in op["text"] and "\n" not in op["text"] for op in program)
PYTHON
done
check "no program unless asked" eval 'run info --json "$kit/llama.gguf"; json "\"program\" not in d"'
fails "the program of an unknown architecture lists the known ones" 3 "architecture golden: expected one of llama, " \
    info --program "$kit/llama.expect.gguf"
fails "the program of a vocabulary alone" 3 "found a file without tensors" info --program --json "$kit/tokenizer/gpt-2.vocab.gguf"

# --- generated files
cat >"$work/make.py" <<'PYTHON'
import struct, sys
def text(t):
    t = t if isinstance(t, bytes) else t.encode()
    return struct.pack("<Q", len(t)) + t
def value(v):
    if isinstance(v, bool): return struct.pack("<I?", 7, v)
    if isinstance(v, int): return struct.pack("<II", 4, v)
    if isinstance(v, (str, bytes)): return struct.pack("<I", 8) + text(v)
    if v and isinstance(v[0], int): return struct.pack("<IIQ", 9, 4, len(v)) + b"".join(struct.pack("<I", x) for x in v)
    return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
keys = eval(sys.argv[2])
open(sys.argv[1], "wb").write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) +
                              b"".join(text(k) + value(v) for k, v in keys.items()))
PYTHON
make_file() { python3 "$work/make.py" "$work/made.gguf" "$1"; }
make_file '{"general.architecture": "new thing", "new thing.block_count": 7, "tokenizer.ggml.model": "wonder", "tokenizer.ggml.tokens": ["a", "b"]}'
run info --json "$work/made.gguf"
check "an unknown tokenizer is part of the model card" json 'd["tokenizer"]["supported"] == False and d["tokenizer"]["model"] == "wonder"
    and d["tokenizer"]["vocabulary_size"] == 2 and "wonder" in d["tokenizer"]["problem"] and d["layers"] == 7'
run info "$work/made.gguf"
check "an unknown tokenizer, as text" out_has "wonder, 2 tokens, unsupported"
fails "tokenizing with it is exit code 3" 3 "wonder" tokenize -m "$work/made.gguf" -p x
make_file '{"general.architecture": "x", "general.name": b"evil\x1b[2J\xc2\x9b\x07 name \xff", "general.license": "a\nb"}'
run info "$work/made.gguf"
check "a name cannot drive the terminal" out_has "evil?[2J?? name"
check "a name cannot add a line" out_has "licence         a?b"
run info --json "$work/made.gguf"
check "a name that is not UTF-8 is repaired" json 'd["name"] == "evil\x1b[2J\x9b\x07 name \ufffd"'
make_file '{"general.architecture": "x", "x.attention.head_count": list(range(5000))}'
run info --json "$work/made.gguf"
check "a huge array is left out" json '"head_count" not in d'

# --- files that are not models: exit code 3
fails "a missing file" 3 "$work/none.gguf" info "$work/none.gguf"
check "a missing file: hint" err_has "hint: check the path"
fails "a directory" 3 "found a directory" info "$work"
fails "a device" 3 "/dev/null" info /dev/null
: >"$work/empty.gguf"
fails "an empty file" 3 "$work/empty.gguf" info "$work/empty.gguf"
fails "a text file" 3 "$kit/README.md" info "$kit/README.md"
head -c 5000 "$kit/llama.gguf" >"$work/cut.gguf"
fails "a truncated file" 3 "$work/cut.gguf" info "$work/cut.gguf"
head -c -1 "$kit/llama.gguf" >"$work/cut.gguf"
fails "a file that lacks one byte" 3 "$work/cut.gguf" info --json "$work/cut.gguf"

# --- not enough memory: exit code 4 (a sanitizer needs the address space for itself)
if nm "$strata" 2>/dev/null | grep -q __asan_init; then
    skip "no address space is exit code 4" "a build with sanitizers"
else
    truncate -s 8G "$work/huge.gguf"
    (ulimit -v 1000000 && exec "$strata" info "$work/huge.gguf") >"$work/out" 2>"$work/err"
    code=$?
    check "no address space is exit code 4" failed_as 4 "Cannot allocate memory"
fi
finish
