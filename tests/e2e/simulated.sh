#!/bin/bash
# --device sim: every command says "simulated" beside its figures, and in its JSON.
. "$(dirname "$0")/tap"
sim="--device sim --vram 1GiB"
model=$kit/llama.gguf
few="-p 8 -n 4"
# unmarked STREAM REGEX: the figures that have no "simulated" behind them.
unmarked() { grep -oE "$2( simulated)?" "$work/$1" | grep -v simulated; }

# --- bench
run bench -m "$model" $few $sim
check "bench: every row is marked" eval '[ $code = 0 ] && [ "$(grep -cE "^(pp8|tg4) simulated +[0-9]" "$work/out")" = 2 ]'
check "bench: the machine's rates and the first token" eval '! unmarked out "[0-9.]+ (GB/s|Gop/s)" &&
    grep -qE "the first token [0-9.]+ s simulated later" "$work/out"'
check "bench: memory" eval '! grep -E "^memory" "$work/out" | grep -oE "(weights|KV|scratch) [0-9.]+ [kMG]?B( simulated)?" | grep -v simulated'
check "bench: why it takes long" err_has "note: this CPU computes what the simulated GPU would"
run bench -m "$model" $few -d 40 --parallel 1,2 $sim
check "bench: rows at a depth, and of several conversations" eval '[ "$(grep -cE "^(pp8 @ d40|tg4@[12] @ d40) simulated +[0-9]" "$work/out")" = 3 ]'
run bench -m "$model" $few --parallel 1,2 $sim --json
check "bench --parallel: predictions of all conversations together" json 'all(r["predicted_tps"] > 0 for r in d["rows"]) and
    d["rows"][2]["predicted_tps"] > d["rows"][1]["predicted_tps"]'
run bench -m "$model" $few $sim --json
check "bench --json" json 'd["simulated"] is True and all(r["repetitions"] == 1 for r in d["rows"])'
run bench -m "$model" $few -r 1 --json
check "bench --json without a simulated GPU" json 'd["simulated"] is False'
run bench -m "$model" $few $sim --profile
check "bench --profile: what the table holds" out_has "those of the simulated GPU are not measured"
fails "bench --mixed measures real time" 2 "bench: --mixed measures real time, which a simulated GPU does not have" bench -m "$model" --mixed -p 32 $sim
fails "bench --ops, too" 2 "bench: --ops measures real time" bench -m "$model" --ops $sim

# --- run
run run "$model" -p x -n 3 $sim -v
check "run: every rate and time" eval '[ $code = 0 ] && ! unmarked err "[0-9.]+ (t/s|GB/s|s)\b" && err_has "t/s simulated"'
check "run: memory" eval '[ "$(grep -oE "(weights|KV|scratch) [0-9.]+ [kMG]?B simulated" "$work/err" | wc -l)" = 6 ] && ! err_has " mapped"'
run run "$model" -p x -n 3 $sim --trace-memory
check "run --trace-memory" eval '! grep "^strata: memory: " "$work/err" | grep -vqE "used simulated +[0-9,]+ free simulated$" && err_has "memory: end"'
run run "$model" -p x -n 3 $sim --profile
check "run --profile" err_has "those of the simulated GPU are not measured"
run run "$kit/qwen3moe.gguf" -p x -n 3 $sim --expert-stats
check "run --expert-stats" err_has "routed experts, simulated:"
run run "$model" -p x -n 3 $sim --json
check "run --json" json 'd["simulated"] is True'

# --- perplexity
seq 64 >"$work/ids"
run perplexity "$model" --ids-file "$work/ids" $sim
check "perplexity" eval 'grep -qE "^perplexity [0-9.]+ ± [0-9.]+ simulated .*\(nll [0-9.]+ simulated," "$work/out" && err_has "note: this CPU computes"'
run perplexity "$model" --ids-file "$work/ids" $sim --json
check "perplexity --json: the simulated time" json 'd["simulated"] is True and 0 < d["seconds"] < 0.01'
run perplexity "$model" --ids-file "$work/ids" --json
check "perplexity --json without a simulated GPU" json 'd["simulated"] is False'

# --- plan and devices
run plan "$model" $sim --ram 8GiB
check "plan: rates, times and the GPU's memory" eval '! sed "/^  *[0-9,]* /d" "$work/out" | grep -oE "[0-9.]+ (t/s|s from)( simulated)?" | grep -v simulated &&
    head -1 "$work/out" | grep -qE "of simulated GPU memory" && grep -qx "GPU: unnamed, simulated" "$work/out"'
run plan "$model" $sim --json
check "plan --json" json 'd["simulated"] is True'
run plan "$model" --vram 1GiB --json
check "plan --json of a GPU that is described" json 'd["simulated"] is False'
run devices $sim
check "devices" grep -qx "GPU unnamed, simulated" "$work/out"
finish
