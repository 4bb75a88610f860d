#!/bin/bash
# strata plan on full-size files of large models, for a desktop and a workstation: a plan that fits, or a refusal with the bytes that
# are missing. The files are holes with a directory.
. "$(dirname "$0")/tap"
export XDG_CACHE_HOME="$work/cache" # no measurement of this machine
writer=build/release/tests/unit/test_plan_real
if [ ! -x $writer ]; then
    skip "full-size models" "$writer has not been built"
    finish
fi
check "sparse files of five models" $writer --write "$work"
check "they take no disk space" eval '[ "$(du -cm "$work"/*.gguf | tail -1 | cut -f1)" -lt 64 ]'

cat >"$work/fits.py" <<'PYTHON'
import json, sys
d = json.load(open(sys.argv[1]))
assert [x["kind"] for x in d["devices"]] == ["host", "card"]
assert [x["capacity_bytes"] for x in d["devices"]] == [int(sys.argv[3]) << 30, int(sys.argv[2]) << 30], d["devices"]
for x in d["devices"]:
    assert x["planned_bytes"] + x["margin_bytes"] + x["free_bytes"] == x["capacity_bytes"] and x["free_bytes"] >= 0, x
    assert sum(x["owners"].values()) == x["planned_bytes"], x
# every form has kernels on the GPU: no attention is left to the CPU
assert d["layers"]["device"] == d["layers"]["total"] and d["context"] >= 4096, d["layers"]
assert d["experts"]["mode"] in ("resident", "cache", "cpu") and d["predicted"]["decode_tps"] > 0
PYTHON

# planned MODEL VRAM RAM: whether there is a plan; refused MODEL VRAM RAM: a refusal with a number of bytes
planned() {
    run plan "$work/$1.gguf" --json --vram "$2GiB" --ram "$3GiB"
    check "$1 in $2 GiB + $3 GiB" eval "[ $code = 0 ] && python3 \"\$work/fits.py\" \"\$work/out\" $2 $3"
}
refused() {
    run plan "$work/$1.gguf" --vram "$2GiB" --ram "$3GiB"
    check "$1 does not fit into $2 GiB + $3 GiB" eval "[ $code = 4 ] && grep -qE '[0-9,]{11,} bytes are missing' \"\$work/err\""
}
planned gpt-oss-120b 12 64
planned GLM-4.5-Air 12 64
refused DeepSeek-V3 12 64
refused MiniMax-M2 12 64
planned Qwen3-Next-80B 12 64
planned gpt-oss-120b 24 192
planned GLM-4.5-Air 24 192
refused DeepSeek-V3 24 192
planned MiniMax-M2 24 192
planned Qwen3-Next-80B 24 192

# the hint of the refusal holds
run plan "$work/DeepSeek-V3.gguf" --json --vram 24GiB --ram 192GiB --disk
check "DeepSeek-V3 with its weights in the file" json 'd["layers"]["device"] > 0 and d["predicted"]["limit"] == "the disk"'

# a described GPU states what its backend runs; one that no backend runs on is planned for as if it ran everything
run plan "$work/gpt-oss-120b.gguf" --json --device-profile rtx-4090+ddr5-5600 --ram 192GiB
check "gpt-oss-120b on a described rtx-4090" json 'd["layers"]["device"] == 36 and d["devices"][1]["name"] == "rtx-4090"'
run plan "$work/gpt-oss-120b.gguf" --json --device-profile rx-7900-xtx+ddr5-5600 --ram 192GiB
check "gpt-oss-120b on a described rx-7900-xtx" json 'd["layers"]["device"] == 36'
finish
