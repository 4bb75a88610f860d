#!/bin/bash
# strata bench: rows and their fields, -p 0, -n 0 and -d, operations, profiles, and errors. Speeds are not judged.
. "$(dirname "$0")/tap"
few="-p 8 -n 4 -r 3"
sane() { json 'all(r["tps_min"] <= r["tps"] <= r["tps_max"] and r["tps_min"] > 0 and r["gop_per_s"] > 0 for r in d["rows"])'; }

# --- rows
for family in llama qwen35 gemma4-e olmoe; do
    run bench -m "$kit/$family.gguf" $few --json
    check "$family: exit code 0, nothing on standard error" eval '[ "$code" = 0 ] && err_empty'
    check "$family: a prompt and tokens one by one" json '[r["test"] for r in d["rows"]] == ["pp8", "tg4"]'
    check "$family: medians within their spread" sane
done
check "a row's fields" json 'all(set(r) == {"test", "tokens", "depth", "repetitions", "tps", "tps_min", "tps_max", "gb_per_s",
    "gop_per_s", "read_share", "int8_share", "predicted_tps", "ratio"} for r in d["rows"])'
check "tokens, depth and repetitions" json '[(r["tokens"], r["depth"], r["repetitions"]) for r in d["rows"]] == [(8, 0, 3), (4, 0, 3)]'
check "the machine's rates" json 'd["machine"]["read_bytes_per_s"] > 0 and set(d["machine"]) == {"read_bytes_per_s", "int8_ops_per_s"}'
check "shares are of the machine's rates" json 'd["rows"][0]["read_share"] is None and
    abs(d["rows"][1]["read_share"] / (d["rows"][1]["gb_per_s"] * 1e9 / d["machine"]["read_bytes_per_s"]) - 1) < 1e-9'
check "a token reads at least its weights" json 'd["rows"][1]["gb_per_s"] * 1e9 >= d["rows"][1]["tps"] * d["engine"]["bytes_per_token"]'
check "the engine, its memory and the load" json 'd["engine"]["scratch_bytes"] > 0 and "profile" not in d["engine"] and
    d["load_seconds"] > 0 and d["first_token_seconds"] > 0 and d["peak_bytes"] > d["engine"]["weight_bytes"]'
check "the context has the least length that the rows need" json 'd["engine"]["context"] == 8'
run bench -m "$kit/llama.gguf" $few --cpu ref --json
check "--cpu ref: no share of the int8 rate" json 'd["engine"]["kernels"] == "ref" and d["rows"][0]["int8_share"] is None'
run bench -m "$kit/llama.gguf" $few -t 1 -b 3 --kv-type q8_0 --json
check "-t, -b and --kv-type" json '(d["engine"]["threads"], d["engine"]["batch"], d["engine"]["kv_type"]) == (1, 3, "Q8_0")'

run bench -m "$kit/llama.gguf" $few -c 300 --json
check "-c: a longer context than the tests need" json 'd["engine"]["context"] == 300'
run bench -m "$kit/llama.gguf" $few -c -1 --json
check "-c -1: as many as fit" json 'd["engine"]["context"] == 512'
fails "-c: a shorter one" 2 "bench: --ctx-size: expected at least" bench -m "$kit/llama.gguf" $few -c 2

# --- predictions
run bench -m "$kit/llama.gguf" $few -d 40 --json
check "each row beside its prediction" json 'all(r["predicted_tps"] > 0 and abs(r["ratio"] * r["predicted_tps"] / r["tps"] - 1) < 1e-9
    for r in d["rows"])'
cat >"$work/slow.json" <<'JSON'
{"card": {"source": "measured", "vram": "1GiB", "memory_gb_per_s": 0.5, "ops_gop_per_s": 4, "link_up_gb_per_s": 0.025, "link_down_gb_per_s": 0.025},
 "host": {"source": "measured", "ram": "8GiB", "memory_gb_per_s": 0.06, "ops_gop_per_s": 0.2}}
JSON
for placed in "-g 0" "-g 2" "-g -1"; do
    run bench -m "$kit/llama.gguf" -p 64 -n 16 -r 2 --json --device sim --device-profile "$work/slow.json" $placed
    # matrices that are fetched for a prompt share the link with its values: a prediction adds up their times
    check "a simulated GPU takes the predicted time ($placed)" json 'all(abs(r["ratio"] - 1) <
        (0.05 if (d["engine"].get("plan") or {}).get("streamed") and r["test"] == "pp64" else 0.02) for r in d["rows"])'
    check "shares of the host's rates where it is alone ($placed)" json '(d["rows"][1]["read_share"] is None) == ("'"$placed"'" != "-g 0")'
done
run bench -m "$kit/qwen2moe.gguf" -p 0 -n 256 -r 1 --json --device sim --device-profile "$work/slow.json" --moe cache --expert-slots 2
check "decoding is predicted with the hit rate that was counted, here more than the plan's" json \
    'd["rows"][0]["predicted_tps"] > 1.05 * d["engine"]["plan"]["predicted"]["decode_tps"]'
run bench -m "$kit/qwen35moe.gguf" -p 0 -n 256 -r 1 --json --device sim --device-profile "$work/slow.json" --moe cache --expert-slots 2
check "… and with the uploads, without which it would be 6 % too fast" json 'abs(d["rows"][0]["ratio"] - 1) < 0.04 and d["engine"]["experts"]["uploads"] > 100'
check "the counts of experts are those of the end" json 'd["engine"]["experts"]["hits"] > 0 and d["engine"]["experts"]["misses"] > 0'
for tokens in 64 200; do
    run bench -m "$kit/qwen3moe.gguf" -p $tokens -n 0 -r 3 --json --device sim --device-profile "$work/slow.json" --moe cache --expert-slots 2
    check "a prompt of $tokens whose experts the CPU and the GPU divide takes the predicted time" json 'abs(d["rows"][0]["ratio"] - 1) < 0.15 and
        0 < d["engine"]["experts"]["fetches"] < d["engine"]["experts"]["misses"]'
done
# the first token, and the warm-up, are prompts as well
predicted_with() {
    run bench -m "$kit/qwen3moe.gguf" -p 32 -n 0 -r "$1" --json --device sim --device-profile "$work/slow.json" --moe cache --expert-slots 2
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["rows"][0]["predicted_tps"])' "$work/out"
}
check "prompts are predicted the same with one repetition and with eight" python3 -c 'import sys
once, often = map(float, sys.argv[1:])
sys.exit(not 0.97 < once / often < 1.03)' "$(predicted_with 1)" "$(predicted_with 8)"
run bench -m "$kit/llama.gguf" $few --device sim --vram 1GiB
check "dashes where a GPU is used" grep -qE '^tg4 simulated +[0-9.]+ +\([0-9.]+ – [0-9.]+\) +[0-9.]+ +[0-9.]+ +[0-9.]+ +- +[0-9.]+ +- *$' "$work/out"

# --- 0 leaves a row out
run bench -m "$kit/llama.gguf" -p 0 -n 3 -r 1 --json
check "-p 0" json '[r["test"] for r in d["rows"]] == ["tg3"]'
run bench -m "$kit/llama.gguf" -p 3 -n 0 -r 2 --json
check "-n 0" json '[r["test"] for r in d["rows"]] == ["pp3"]'
check "the median of two lies between them" json 'abs(d["rows"][0]["tps"] * 2 / (d["rows"][0]["tps_min"] + d["rows"][0]["tps_max"]) - 1) < 1e-9'
run bench -m "$kit/llama.gguf" -p 1 -n 1 -r 1 --json
check "one token" json 'len(d["rows"]) == 2'

# --- at a depth
for family in llama qwen35 gemma4-e llama4; do
    run bench -m "$kit/$family.gguf" $few -d 40 --json
    check "$family: -d" json '[(r["test"], r["depth"]) for r in d["rows"]] == [("pp8 @ d40", 40), ("tg4 @ d40", 40)]'
done
# --profile counts operations: the depth's own, and the warm-up's, are not among them
run bench -m "$kit/llama.gguf" $few -d 40 -b 4 --profile --json
check "the tokens before the depth are not timed" json '[[o["calls"] for o in r["profile"] if o["op"] == "embed"] for r in d["rows"]] == [[2 * 3], [4 * 3]]'
check "one row of logits per prompt and per token" json '[[o["calls"] for o in r["profile"] if o["op"] == "gather"] for r in d["rows"]] == [[3], [4 * 3]]'
run bench -m "$kit/qwen35.gguf" $few -d 40 --profile --json
check "restoring recurrent state is not timed" json \
    '[[o["calls"] for o in r["profile"] if o["op"] == "embed"] for r in d["rows"]] == [[3], [4 * 3]]'
steps='[o["calls"] // 3 for o in d["rows"][0]["profile"] if o["op"] == "embed"]'
run bench -m "$kit/llama.gguf" -p 200 -n 0 -r 3 --profile --json
check "full attention runs a prompt in whole batches" json "$steps == [1]"
run bench -m "$kit/qwen35.gguf" -p 200 -n 0 -r 3 --profile --json
check "recurrent layers stop for a restore point near the end" json "$steps == [2]"
run bench -m "$kit/qwen35.gguf" -p 200 -n 0 -r 3 --restore-ram 0 --profile --json
check "but not without restore points" json "$steps == [1] and d['engine']['restore_bytes'] == 0"
run bench -m "$kit/llama.gguf" $few -d 504 --json
check "to the end of the model's context" json 'd["engine"]["context"] == 512'

# --- a recorded routing
run run -m "$kit/qwen3moe.gguf" -p "hello hello hello" --raw -n 20 --temp 0 --record-routing "$work/own.csv"
for placed in "" "--device sim --vram 1GiB --moe resident" "--device sim --vram 1GiB --moe cache --expert-slots 4"; do
    # shellcheck disable=SC2086
    run bench -m "$kit/qwen3moe.gguf" --routing "$work/own.csv" -r 2 --json $placed
    check "--routing: its prompt, then its tokens behind the prompt ($placed)" json '[(r["test"], r["depth"]) for r in d["rows"]] ==
        [("pp14", 0), ("tg19 @ d14", 14)]'
done
check "the plan takes its hit rate" json 'd["engine"]["plan"]["experts"]["hit_source"] == "recorded"'
run bench -m "$kit/qwen3moe.gguf" --routing "$work/own.csv" -r 1 -p 0 -n 3 --record-routing "$work/again.csv" --json
check "--routing with fewer tokens" json '[r["test"] for r in d["rows"]] == ["tg3 @ d14"]'
run plan -m "$kit/qwen3moe.gguf" --routing "$work/own.csv" --vram 1GiB --moe cache --expert-slots 3 --json
check "plan --routing" json 'd["experts"]["hit_source"] == "recorded" and 0 < d["experts"]["hit_rate"] < 1'
head -200 "$work/own.csv" >"$work/short.csv"
sed 's/n_expert=16/n_expert=32/' "$work/own.csv" >"$work/wide.csv"
sed 's/n_layer=4/n_layer=5/' "$work/own.csv" >"$work/deep.csv"
sed 's/n_expert_used=4/n_expert_used=5/' "$work/own.csv" >"$work/many.csv"
sed '9s/.*/0,0,zero,0,0,6,0.5,0,1/' "$work/own.csv" >"$work/damaged.csv"
routed="bench -m $kit/qwen3moe.gguf -r 1 --routing"
fails "--routing: more tokens than recorded" 1 "expected at least 40 tokens of its decoding, found 19" $routed "$work/own.csv" -n 40
fails "--routing: a short file" 1 "expected at least 1 tokens of its decoding, found 0" $routed "$work/short.csv"
fails "--routing: experts of another model" 1 "wide.csv: expected 16 experts of a layer, found 32" $routed "$work/wide.csv"
fails "--routing: layers of another model" 1 "deep.csv: expected 4 layers, found 5" $routed "$work/deep.csv"
fails "--routing: more experts for each token" 1 "many.csv: expected at most 4 experts" $routed "$work/many.csv"
fails "--routing: a damaged file" 1 "damaged.csv: line 9: expected a step" $routed "$work/damaged.csv"
fails "--routing: no such file" 3 "none.csv" $routed "$work/none.csv"
fails "--routing with --depth" 2 "expected no --depth" $routed "$work/own.csv" -d 4
fails "--routing for a model without experts" 1 "expected at most 0 experts" bench -m "$kit/llama.gguf" --routing "$work/own.csv"

# --- for people
run bench -m "$kit/llama.gguf" $few -d 40
check "a table" grep -qE '^pp8 @ d40 +[0-9.]+ +\([0-9.]+ – [0-9.]+\) +[0-9.]+ +[0-9.]+ +- +- +[0-9.]+ ' "$work/out"
check "a row for tokens" grep -qE '^tg4 @ d40 +[0-9.]+ +\([0-9.]+ – [0-9.]+\) +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+ % +[0-9.]+ ' "$work/out"
check "the machine" grep -qE '^the machine: reads [0-9.]+ GB/s.*; kernels "[a-z0-9]+", [0-9]+ threads$' "$work/out"
check "the memory" grep -qE '^memory: weights .* mapped, KV .*, scratch .*, peak .*; loaded in [0-9.]+ s' "$work/out"
run bench -m "$kit/llama.gguf" $few --profile
check "--profile: a table for each test" eval '[ "$(grep -cE "^matmul +CPU +[0-9]+ +[0-9.]+ +[0-9.]+ %$" "$work/out")" = 2 ]'
run run -m "$kit/llama.gguf" -p hello -n 4 --profile -v
check "run --profile: on standard error" eval 'grep -qE "^attention +CPU +[0-9]+ +[0-9.]+ +[0-9.]+ %$" "$work/err" && err_has "scratch"'

# --- operations
run bench -m "$kit/llama.gguf" --ops --json
check "--ops --json" json 'set(d) == {"operations", "machine", "engine"}'
check "every operation at one row and at many" json 'all({o["rows"] for o in d["operations"] if (o["op"], o["type"]) == k} >= {1, 256}
    for k in {(o["op"], o["type"]) for o in d["operations"]})'
check "common types also in a small batch" json '{o["type"] for o in d["operations"] if o["rows"] == 64} == {"Q4_K", "Q6_K", "Q8_0"}'
check "matmul with every type" json '{"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "Q1_0", "Q2_0", "TQ1_0", "TQ2_0",
    "MXFP4", "NVFP4"} ==
    {o["type"] for o in d["operations"] if o["op"] == "matmul"}'
check "experts, attention, DeltaNet and rows" json '{"experts", "attention", "deltanet", "rms_norm", "rope", "add", "gated_act",
    "sigmoid_gate", "silu_gate", "softcap", "conv"} <= {o["op"] for o in d["operations"]}'
check "every operation took time" json 'all(o["seconds"] > 0 and o["gb_per_s"] > 0 and o["gop_per_s"] > 0 for o in d["operations"])'

# --- errors
XDG_CACHE_HOME=$work fails "no model" 2 "bench: expected a model" bench
fails "nothing to time" 2 "leave nothing to measure" bench -m "$kit/llama.gguf" -p 0 -n 0
fails "no repetitions" 2 "--repetitions: expected a whole number from 1" bench -m "$kit/llama.gguf" -r 0
fails "a prompt below zero" 2 "--prompt-tokens: expected" bench -m "$kit/llama.gguf" -p -1
fails "tokens that are not a number" 2 "--decode-tokens: expected" bench -m "$kit/llama.gguf" -n few
fails "an invalid depth" 2 "--depth: expected" bench -m "$kit/llama.gguf" -d 1e3
fails "unknown kernels" 2 "--cpu nothing is not supported on this CPU (supported: ref" bench -m "$kit/llama.gguf" --cpu nothing
fails "more than the model's context: both numbers" 1 "600 tokens of context are needed" bench -m "$kit/llama.gguf" \
    -p 100 -n 0 -d 500
fails "no such file" 3 "none.gguf" bench -m "$work/none.gguf"
finish
