#!/bin/bash
# strata logits and strata perplexity: against the kit, against each other, and errors.
. "$(dirname "$0")/tap"
export PYTHONPATH=tests/e2e PYTHONDONTWRITEBYTECODE=1
vocab=320
exact="--cpu ref --kv-type f32"
ids_of() { python3 -c 'import golden, sys; print(*golden.tensors(sys.argv[1])["tokens"], sep="\n")' "$1"; }
# near FILE EXPECT TENSOR: the file's floats are the tensor's, to the error of another float32 implementation.
near() { python3 -c 'import golden, sys
error = golden.relative_error(golden.floats(sys.argv[1]), golden.tensors(sys.argv[2])[sys.argv[3]])
print(error)
sys.exit(not error <= 2e-5)' "$@"; }

# --- the kit
for family in llama qwen35 gemma4-e; do
    ids_of "$kit/$family.expect.gguf" >"$work/$family.ids"
    run logits -m "$kit/$family.gguf" --ids-file "$work/$family.ids" -o "$work/$family.bin" $exact
    check "$family: exit code 0, nothing on standard error" eval '[ "$code" = 0 ] && out_empty && err_empty'
    check "$family: a row of the vocabulary per id" test "$(stat -c %s "$work/$family.bin")" = $((48 * vocab * 4))
    check "$family: the logits of the kit" near "$work/$family.bin" "$kit/$family.expect.gguf" logits
done
for batch in 1 7; do
    run logits -m "$kit/qwen35.gguf" --ids-file "$work/qwen35.ids" -o "$work/out.bin" --batch $batch $exact
    check "in batches of $batch the logits are the same" near "$work/out.bin" "$kit/qwen35.expect.gguf" logits
done
run logits -m "$kit/qwen35.gguf" --ids-file "$work/qwen35.ids" -o "$work/mtp.bin" --mtp $exact
check "--mtp: one row fewer" test "$(stat -c %s "$work/mtp.bin")" = $((47 * vocab * 4))
check "--mtp: the NextN block of the kit" near "$work/mtp.bin" "$kit/qwen35.expect.gguf" mtp_logits
run logits -m "$kit/llama.gguf" --ids "$(tr '\n' ',' <"$work/llama.ids")" -o - $exact -t 1
check "--ids and -o -: the same on standard output" cmp "$work/out" "$work/llama.bin"
: >"$work/target"
ln -s target "$work/link"
run logits -m "$kit/llama.gguf" --ids 1,2,3 -o "$work/link" $exact
check "a link is followed, not replaced" eval '[ -L "$work/link" ] && [ "$(stat -c %s "$work/target")" = $((3 * vocab * 4)) ]'
run logits -m "$kit/llama.gguf" --ids-file "$work/llama.ids" -o "$work/kv.bin" --kv-type q8_0 -v
check "--kv-type and -v" eval '[ "$code" = 0 ] && err_has "KV cache Q8_0"'

# --- errors
fails "no ids" 2 "expected one of --ids and --ids-file, found neither" logits -m "$kit/llama.gguf" -o "$work/x"
fails "two lists of ids" 2 "found both" logits -m "$kit/llama.gguf" -o "$work/x" --ids 1 --ids-file "$work/llama.ids"
fails "no output" 2 "expected --output" logits -m "$kit/llama.gguf" --ids 1
fails "an id beyond the vocabulary" 1 "expected an id below 320, found 320" logits -m "$kit/llama.gguf" --ids 1,320 -o "$work/x"
fails "not an id" 2 'found "x"' logits -m "$kit/llama.gguf" --ids 1,x -o "$work/x"
: >"$work/empty"
fails "an empty list" 1 "expected ids, found none" logits -m "$kit/llama.gguf" --ids-file "$work/empty" -o "$work/x"
seq 1 300 | cat - <(seq 1 300) >"$work/many"
fails "more ids than the model's context: both numbers" 1 "has 600 tokens, the context holds 512" logits -m "$kit/llama.gguf" \
    --ids-file "$work/many" -o "$work/x"
fails "--mtp of a model without it" 2 "no NextN block" logits -m "$kit/llama.gguf" --ids 1,2 --mtp -o "$work/x"
fails "an unknown --cpu" 2 "--cpu nothing is not supported on this CPU" logits -m "$kit/llama.gguf" --ids 1,2 --cpu nothing -o "$work/x"
fails "a missing folder" 1 "cannot write" logits -m "$kit/llama.gguf" --ids 1 -o "$work/none/x"
fails "an unknown architecture" 3 "architecture golden: expected one of" logits -m "$kit/llama.expect.gguf" --ids 1 -o "$work/x"
check "no failure left a file" eval '! ls "$work" | grep -q "^x"'
"$strata" logits -m "$kit/llama.gguf" --ids 1 -o - >/dev/full 2>"$work/err"
check "a full disk is exit code 1" test $? = 1
if [ -w /dev/full ]; then
    run logits -m "$kit/llama.gguf" --ids 1 -o /dev/full
    check "a full device is exit code 1" eval '[ "$code" = 1 ] && err_has "No space left on device"'
fi

# --- perplexity against the logits
head -c 1400 "$kit/smollm2/text.txt" >"$work/text"
run tokenize -m "$kit/llama.gguf" -f "$work/text" --plain
tr ' ' '\n' <"$work/out" >"$work/all.ids"
run perplexity -m "$kit/llama.gguf" -f "$work/text" -c 100 --json $exact
check "perplexity --json" json 'd["chunk"] == 100 and d["perplexity"] > 1 and d["standard_error"] > 0'
cp "$work/out" "$work/score"
check "perplexity equals that of the chunks' logits" python3 - "$strata" "$kit/llama.gguf" "$work" $vocab "$exact" <<'PYTHON'
import golden, json, math, subprocess, sys
strata, model, work, vocab, exact = sys.argv[1:4] + [int(sys.argv[4]), sys.argv[5]]
ids, found = [int(i) for i in open(work + "/all.ids")], json.load(open(work + "/score"))
nll = []
for first in range(0, len(ids), 100):
    chunk = ids[first:first + 100]
    subprocess.run([strata, "logits", "-m", model, "--ids", ",".join(map(str, chunk)), "-o", work + "/chunk.bin"] + exact.split(),
                   check=True)
    rows = golden.floats(work + "/chunk.bin")
    for i, token in enumerate(chunk[1:]):
        row = rows[i * vocab:(i + 1) * vocab]
        high = max(row)
        nll.append(high + math.log(sum(math.exp(x - high) for x in row)) - row[token])
mean = sum(nll) / len(nll)
error = math.exp(mean) * math.sqrt((sum(x * x for x in nll) / len(nll) - mean * mean) / (len(nll) - 1))
assert found["tokens"] == len(ids) > 200 and found["scored"] == len(nll), found
assert abs(found["nll"] - mean) < 1e-6 and abs(found["perplexity"] / math.exp(mean) - 1) < 1e-6, (found, mean)
assert abs(found["standard_error"] / error - 1) < 1e-6, (found, error)
PYTHON
run perplexity -m "$kit/llama.gguf" -f "$work/text" -c 100
check "perplexity as text" grep -qE '^perplexity [0-9.]+ ± [0-9.]+ over [0-9]+ scored tokens of [0-9]+' "$work/out"
run perplexity -m "$kit/llama.gguf" --ids-file "$work/all.ids" -c 100000
check "a chunk longer than the model's context is reduced, with a note" err_has "the context is 512 tokens, the model's maximum, instead of 100000"
fails "perplexity of an empty text" 1 "expected at least two tokens, found 0" perplexity -m "$kit/llama.gguf" -f /dev/null
fails "perplexity without a file" 2 "expected one of --file and --ids-file" perplexity -m "$kit/llama.gguf"
fails "chunks of one token" 2 "--ctx-size: expected at least 2" perplexity -m "$kit/llama.gguf" -f "$work/text" -c 1

# --- an interrupt: exit code 130, and no file
check "SIGINT is exit code 130 and leaves no file" python3 - "$strata" "$work" "$exact" <<'PYTHON'
import os, signal, struct, subprocess, sys, time
strata, work, exact = sys.argv[1:]
data = bytearray(open("tests/data/kit/llama.gguf", "rb").read())
place = data.index(b"llama.context_length") + len("llama.context_length")
struct.pack_into("<I", data, place + 4, 65536) # time to be interrupted
open(work + "/long.gguf", "wb").write(data)
open(work + "/long.ids", "w").write("7\n" * 60000)
program = subprocess.Popen([strata, "logits", "-m", work + "/long.gguf", "--ids-file", work + "/long.ids", "-o",
                            work + "/stopped"] + exact.split())
def files(): return [name for name in os.listdir(work) if name.startswith("stopped")]
while not files(): time.sleep(0.01)
assert files() != ["stopped"]
program.send_signal(signal.SIGINT)
assert program.wait() == 130
assert not files(), files()
PYTHON
finish
