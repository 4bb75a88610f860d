#!/bin/bash
# strata tokenize and detokenize: the kit's 317 texts round-trip, and errors in the input.
. "$(dirname "$0")/tap"
vocabulary=$kit/tokenizer/gpt-2.vocab.gguf

# --- the kit, line by line
for name in gpt-2 llama-spm; do
    python3 - "$kit/tokenizer" "$name" "$work" <<'PYTHON'
import json, sys
folder, name, work = sys.argv[1:]
texts, ids = json.load(open(folder + "/texts.json")), json.load(open("%s/%s.ids.json" % (folder, name)))
ids = ids if isinstance(ids, list) else ids["ids"]
open(work + "/texts.jsonl", "w").writelines(json.dumps(t) + "\n" for t in texts)
open(work + "/ids.jsonl", "w").writelines(json.dumps(i) + "\n" for i in ids)
PYTHON
    "$strata" tokenize -m "$kit/tokenizer/$name.vocab.gguf" --jsonl <"$work/texts.jsonl" >"$work/out" 2>"$work/err"
    check "$name: 317 lines" test "$(wc -l <"$work/out")" = 317
    check "$name: 317 of 317 match the kit" cmp "$work/out" "$work/ids.jsonl"
done
python3 -c 'import json, sys
for i in json.load(open(sys.argv[1])): print(json.dumps(i))' "$kit/tokenizer/gpt-2.ids.json" >"$work/ids.jsonl"
"$strata" detokenize -m "$vocabulary" --jsonl <"$work/ids.jsonl" >"$work/out" 2>"$work/err"
check "gpt-2: 317 of 317 detokenize to the text" python3 - "$work/out" "$kit/tokenizer/texts.json" <<'PYTHON'
import json, sys
got, texts = [json.loads(l) for l in open(sys.argv[1])], json.load(open(sys.argv[2]))
wrong = [(g, t) for g, t in zip(got, texts) if g != t]
assert len(got) == len(texts) == 317 and not wrong, wrong[:3]
PYTHON
check "each line is answered at once" python3 - "$strata" "$vocabulary" <<'PYTHON'
import subprocess, sys
program = subprocess.Popen([sys.argv[1], "tokenize", "-m", sys.argv[2], "--jsonl"], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE)
for text, ids in ((b'"Hello"', b"[15496]\n"), (b'""', b"[]\n"), (b'"a\\u0000b"', b"[64, 188, 65]\n")):
    program.stdin.write(text + b"\n")
    program.stdin.flush()
    got = program.stdout.readline()
    assert got == ids, got
program.stdin.close()
assert program.wait(10) == 0
PYTHON

# --- one text
run tokenize -m "$vocabulary" -p "Hello world"
check "ids on one line" out_is "15496 995
"
check "nothing on standard error" err_empty
run tokenize --model="$vocabulary" -p"Hello world" --json
check "--json" out_is "[15496, 995]
"
STRATA_MODEL=$vocabulary run tokenize -p "Hello world"
check "STRATA_MODEL sets --model" out_is "15496 995
"
run tokenize -m "$vocabulary" -p ""
check "no text" out_is "
"
run tokenize -m "$vocabulary" -p "" --json
check "no text, --json" out_is "[]
"
run tokenize -m "$vocabulary" -p --help
check "an argument may begin with a dash" out_is "438 16794
"
printf 'Hello\0 world\n' >"$work/text"
run tokenize -m "$vocabulary" -f "$work/text" --json
check "-f FILE" out_is "[15496, 188, 995, 198]
"
"$strata" tokenize -m "$vocabulary" -f - <"$work/text" >"$work/out"
check "-f - is standard input" out_is "15496 188 995 198
"
run tokenize -m "$vocabulary" -p "<|endoftext|>"
check "special tokens are recognised" out_is "50256
"
run tokenize -m "$vocabulary" -p "<|endoftext|>" --plain
check "--plain: special tokens are plain text" eval '[ "$code" = 0 ] && ! grep -q 50256 "$work/out"'
run tokenize -m "$kit/tokenizer/llama-spm.vocab.gguf" -p "Hello" --bos
check "--bos" out_is "1 15043
"
run tokenize -m "$vocabulary" -p "1234567" --pre-tokenizer llama-bpe
check "--pre-tokenizer" test "$code" = 0
cp "$work/out" "$work/other"
run tokenize -m "$vocabulary" -p "1234567"
check "--pre-tokenizer changes the ids" eval '! cmp -s "$work/out" "$work/other"'

# --- one list of ids
run detokenize -m "$vocabulary" --ids "15496, 995"
check "only the text is printed" out_is "Hello world"
run detokenize -m "$vocabulary" --ids 15496,995 --json
check "detokenize --json" out_is '"Hello world"
'
printf '15496\n\t995,198\n' >"$work/ids"
run detokenize -m "$vocabulary" -f "$work/ids"
check "ids from a file" out_is "Hello world
"
echo '[15496, 995]' >"$work/ids"
run detokenize -m "$vocabulary" -f "$work/ids"
check "a JSON array from a file" out_is "Hello world"
"$strata" tokenize -m "$vocabulary" -p "there and back: čtyři 😀" | "$strata" detokenize -m "$vocabulary" -f - >"$work/out"
check "tokenize and detokenize through a pipe" out_is "there and back: čtyři 😀"
run detokenize -m "$vocabulary" --ids ""
check "no ids" out_is ""
run detokenize -m "$vocabulary" --ids 50256
check "control tokens are written out" out_is "<|endoftext|>"

# --- errors
fails "no source" 2 "expected one of --prompt, --file and --jsonl, found 0" tokenize -m "$vocabulary"
fails "two sources" 2 "found 2" tokenize -m "$vocabulary" -p x -f y
fails "no source of ids" 2 "expected one of --ids, --file and --jsonl" detokenize -m "$vocabulary"
fails "a missing text is exit code 1" 1 "$work/none: cannot open" tokenize -m "$vocabulary" -f "$work/none"
fails "a missing model is exit code 3" 3 "none.gguf" tokenize -m none.gguf -p x
fails "an unknown pre-tokeniser is exit code 3" 3 "klingon" tokenize -m "$vocabulary" -p x --pre-tokenizer klingon
fails "--bos without a BOS token" 1 "BOS" tokenize -m "$vocabulary" -p x --bos
for ids in x 1,x -1 1.5 2147483648 99999999999999999999 +1 0x10 1e3 "[1" "[1.5]" '["1"]' "[-1]"; do
    fails "wrong ids $ids" 2 "--ids: " detokenize -m "$vocabulary" --ids "$ids"
done
fails "an id outside the vocabulary" 1 "50257" detokenize -m "$vocabulary" --ids 50257
echo "1 two" >"$work/ids"
fails "wrong ids in a file are exit code 1" 1 'found "two"' detokenize -m "$vocabulary" -f "$work/ids"
bad_line() { # NAME COMMAND TEXT LINES
    printf '%b' "$4" | "$strata" "$2" -m "$vocabulary" --jsonl >"$work/out" 2>"$work/err"
    code=$?
    check "--jsonl: $1" failed_after_one_line "$3"
}
failed_after_one_line() { [ "$code" = 1 ] && err_has "error: $1" && [ "$(wc -l <"$work/out")" = 1 ]; }
bad_line "not JSON" tokenize "line 2: expected JSON" '"a"\nb\n"c"\n'
bad_line "not a string" tokenize "line 2: expected a JSON string" '"a"\n[1]\n'
bad_line "a blank line" tokenize "line 2: expected JSON" '"a"\n\n"b"\n'
bad_line "more than one value" tokenize "line 2: expected JSON" '"a"\n"b" "c"\n'
bad_line "a lone surrogate" tokenize "line 2: expected JSON" '"a"\n"\\ud800"\n'
bad_line "not UTF-8" tokenize "line 2: expected JSON" '"a"\n"\xff"\n'
bad_line "not an array" detokenize "line 2: expected a JSON array" '[1]\n3\n'
bad_line "ids without brackets" detokenize "line 2: expected JSON" '[1]\n1 2\n'
bad_line "not an id" detokenize "line 2: item 1: expected an id" '[1]\n[1, -1]\n'
bad_line "an id outside the vocabulary" detokenize "line 2: " '[1]\n[50257]\n'
printf '"a"\n"b"' | "$strata" tokenize -m "$vocabulary" --jsonl >"$work/out"
check "--jsonl: a last line without a newline" out_is "[64]
[65]
"
finish
