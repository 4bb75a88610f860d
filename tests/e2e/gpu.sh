#!/bin/bash
# The program with and without a GPU: with the plugin of the CUDA backend, built on a fake CUDA, beside it or without.
# The fake runs no kernels, so the model's answers are meaningless.
. "$(dirname "$0")/tap"
export XDG_CACHE_HOME="$work/cache"
model="$kit/qwen3.gguf"
plugin=build/release/tests/plugin/libstrata-cuda.so
mkdir -p "$work/with" "$work/without"
cp "$strata" "$work/with/strata" && cp "$strata" "$work/without/strata"
check "the plugin exists (make test builds it)" cp "$plugin" "$work/with/libstrata-cuda.so"
for library in "$plugin" build/libstrata-cuda.so; do # the second one where nvcc is found
    [ ! -e "$library" ] || check "$library exports one symbol" [ "$(nm -D --defined-only "$library" | awk '{ print $3 }')" = st_backend_plugin ]
done
logits() { run_noted logits -m "$model" --ids 1,2,3 -o "$work/logits" "$@"; }
says() { grep -qF -- "$1" "$work/$2"; }

# --- without a plugin
strata=$work/without/strata
logits
check "without a GPU the model runs on the CPU" test $code -eq 0
check "a note names the missing GPU" says "note: no GPU: libstrata-cuda.so not found" err
check "the note is one line" test "$(grep -c . "$work/err")" -eq 1
for option in "-g 1" "--vram 1GiB" "--device cuda" "--device cuda:1" "--device-profile rtx-4070-ti"; do
    logits $option
    check "$option asks for a GPU: exit 5" test $code -eq 5
    check "$option: the error says what is missing" says " asks for a GPU, and none can be used: libstrata-cuda.so not found" err
done
for option in "-g 0" "--device cpu" "--device sim --vram 1GiB"; do
    logits $option
    check "$option needs no GPU and prints no note" test $code -eq 0 -a ! -s "$work/err"
done
run plan "$model" --vram 1GiB --json
check "a plan needs no GPU" test $code -eq 0 -a ! -s "$work/err"
cp build/release/strata "$work/without/libstrata-cuda.so"
logits --device cuda
check "a library that is not a plugin: exit 5" test $code -eq 5
rm "$work/without/libstrata-cuda.so"

# --- with a GPU
strata=$work/with/strata
run devices
check "devices shows the GPU" says "fake GPU" out
check "devices shows its rates" says "hand-over" out
check "devices shows the time of a hand-over within a launch" says "there and back" out
check "nothing is stored without --probe" test ! -e "$work/cache/strata/devices.json"
run plan "$model" --json
check "plan plans for the GPU" python3 -c '
import json, sys
d = json.load(open(sys.argv[1]))
card = d["devices"][1]
assert card["name"] == "fake GPU" and card["capacity_bytes"] == 16 << 30, card
assert card["owners"]["runtime"] == 502 << 20, card  # with the page tables of pinned copies of KV pages
assert d["layers"]["device"] == d["layers"]["total"], d["layers"]' "$work/out"
run plan "$model" --vram 1GiB --json
check "--vram makes it a small one" python3 -c '
import json, sys
card = json.load(open(sys.argv[1]))["devices"][1]
assert card["name"] == "fake GPU" and card["capacity_bytes"] == 1 << 30 and card["owners"]["runtime"] == 502 << 20, card' "$work/out"
run plan "$model" --vram 64GiB --json
check "--vram does not make it a larger one" python3 -c '
import json, sys
assert json.load(open(sys.argv[1]))["devices"][1]["capacity_bytes"] == 16 << 30' "$work/out"
run plan "$kit/qwen3moe.gguf" --moe cache --expert-slots 3 --json
check "page tables of a pinned file are the runtime's" python3 -c '
import json, sys
assert json.load(open(sys.argv[1]))["devices"][1]["owners"]["runtime"] == 502 << 20' "$work/out"
logits --trace-memory
check "the GPU is used by default" test $code -eq 0
check "the GPU holds the weights" says "fake GPU" err
logits --trace-memory -g 0
check "-g 0 does not use the GPU" test $code -eq 0 -a "$(grep -c 'fake GPU' "$work/err")" -eq 0
logits --device cuda:3
check "a missing GPU: exit 5" test $code -eq 5
check "the error names its number" says "CUDA GPU 3 not found" err
logits --vram 520MiB
check "a --vram that leaves no room is not a crash" test $code -eq 0 -o $code -eq 4
# another process takes all of the 16,384 MiB that the context leaves, between planning and loading
STRATA_FAKE_TAKEN_MIB=15884 logits --trace-memory
check "memory taken between planning and loading: a smaller plan" test $code -eq 0
STRATA_FAKE_TAKEN_MIB=15884 logits -g -1
check "-g layers that no longer fit: exit 4" test $code -eq 4
check "the error has the numbers" grep -qE "bytes asked for, [0-9]+ of [0-9]+ are free" "$work/err"
for options in "--moe cache --expert-slots 3" "--moe resident" "--moe cpu"; do
    run logits -m "$kit/qwen3moe.gguf" --ids 1,2,3 -o "$work/logits" $options
    check "experts on the GPU: $options" test $code -eq 0
done
finish
