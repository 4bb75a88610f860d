#!/bin/bash
# strata run: which prompt it takes and what becomes of it; and the real default model, where it is in the cache.
. "$(dirname "$0")/tap"
model=$kit/qwen2.gguf

run run -m "$model" -p "Is it?"
check "-p" out_has "Is it?<|im_end|>"
check "the card" out_has "architecture    qwen2"
check "the number of tokens" grep -qE '^[0-9]+ tokens$' "$work/out"
check "it says that it does not generate" err_has "this version does not generate yet"
check "in one line" test "$(wc -l <"$work/err")" = 1
ids=$(tail -1 "$work/out")
echo '{"messages": [{"role": "user", "content": "Is it?"}], "add_generation_prompt": true}' >"$work/args"
run template -m "$model" --args "$work/args" --ids
check "the ids are the template's" test "$(cat "$work/out")" = "$ids"
check "the count is right" test "$(wc -w <"$work/out")" = "$(echo "$ids" | wc -w)"
printf 'From a pipe\nof two lines\n' | "$strata" run -m "$model" >"$work/out" 2>/dev/null
check "standard input" grep -qxF "of two lines<|im_end|>" "$work/out"
run run -m "$model"
check "nothing at all: a question of its own" out_has "Why is the sky blue?"
run run -m "$model" -p ""
check "an empty -p is an empty prompt" eval '[ "$code" = 0 ] && ! out_has "sky"'
printf 'a\xffb' | "$strata" run -m "$model" >"$work/out" 2>"$work/err"
code=$?
check "a prompt that is not UTF-8" failed_as 1 "expected a prompt in UTF-8"
run run -m "$kit/tokenizer/llama-spm.vocab.gguf" -p "Hello <s>"
check "without a template the text stands as it is" grep -qxF "Hello <s>" "$work/out"
check "without a template the vocabulary's BOS is first" test "$(tail -1 "$work/out" | cut -d' ' -f1,2)" = "1 15043"
check "and text is text" eval '[ "$(tail -1 "$work/out" | tr " " "\n" | grep -cx 1)" = 1 ]'
fails "no model" 2 "expected --model" run -p x
fails "a missing model" 3 "none.gguf" run -m none.gguf -p x

# --- the real default model
default=${XDG_CACHE_HOME:-$HOME/.cache}/strata/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -f "$default" ]; then
    run info --json "$default"
    check "the default model's card" json 'd["file_bytes"] == 98362432 and d["architecture"] == "llama" and d["layers"] == 30
        and d["quantisation"] == "Q4_1" and d["tokenizer"]["pre"] == "smollm" and d["tokenizer"]["supported"]
        and d["tokenizer"]["vocabulary_size"] == 49152 and d["parameters"] == 134515008'
    run tokenize -m "$default" -f "$kit/smollm2/text.txt" --json
    cp "$work/out" "$work/ids"
    check "the default model's ids of a text" python3 -c 'import json, sys
sys.exit(json.load(open(sys.argv[1])) != json.load(open(sys.argv[2]))["tokens"])' "$work/ids" "$kit/smollm2/expect.json"
    check "the default model's prompts" python3 - "$strata" "$default" "$kit/smollm2/expect.json" <<'PYTHON'
import json, subprocess, sys
strata, model, expect = sys.argv[1:]
for chat in json.load(open(expect))["chats"]:
    args = json.dumps({"messages": chat["messages"], "add_generation_prompt": True}).encode()
    command = [strata, "template", "-m", model, "--args", "-"]
    text = subprocess.run(command, input=args, capture_output=True, check=True).stdout.decode()
    ids = [int(i) for i in subprocess.run(command + ["--ids"], input=args, capture_output=True, check=True).stdout.split()]
    assert text == chat["prompt"], text
    assert ids == chat["ids"], ids
PYTHON
    run run -m "$default" -p "Why is the sky blue?"
    check "the README shows what it prints" eval 'for line in 1 2 5 6; do sed -n "${line}p" "$work/out"; done >"$work/some"
        tail -1 "$work/out" >>"$work/some"; [ "$(grep -cxFf "$work/some" README.md)" = 5 ]'
else
    for name in card "ids of a text" prompts "output in the README"; do skip "the default model's $name" "it is not in the cache (make run fetches it)"; done
fi
finish
