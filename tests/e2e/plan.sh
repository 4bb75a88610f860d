#!/bin/bash
# strata plan and strata devices: bytes that add up for every model and placement, options, errors and their exit codes,
# text against JSON, profiles, and the stored measurement.
. "$(dirname "$0")/tap"
export XDG_CACHE_HOME="$work/cache" # no measurement of this machine
card="--vram 1GiB --ram 8GiB"
files=$(ls "$kit"/*.gguf | grep -v expect)

# --- every model of the kit, without a GPU, with one, and with some layers on it
cat >"$work/sums.py" <<'PYTHON'
import json, sys
d = json.load(open(sys.argv[1]))
kept = 0
for device in d["devices"]:
    assert sum(device["owners"].values()) == device["planned_bytes"], device
    assert all(bytes > 0 for bytes in device["owners"].values()), device
    assert device["planned_bytes"] + device["margin_bytes"] + device["free_bytes"] == device["capacity_bytes"], device
    kept += device["owners"].get("kv", 0) + device["owners"].get("recurrent state", 0)
assert kept == sum(layer["kv_bytes"] for layer in d["map"]) == sum(row["bytes"] for row in d["kv"])
assert sum(row["layers"] for row in d["kv"]) == len(d["map"])
assert [device["kind"] for device in d["devices"]] in (["host"], ["host", "card"])
layers = [layer for layer in d["map"] if not layer.get("nextn")]
assert d["layers"]["total"] == len(layers)
assert d["layers"]["device"] == sum(layer["attention"] == "card" for layer in layers)
assert d["context"] >= d["batch"] >= 1 and d["context"] <= d["model"]["context_length"]
assert d["predicted"]["decode_tps"] > 0 and d["predicted"]["prefill_tps"] > 0 and d["predicted"]["limit"]
assert d["predicted"]["estimate"] and d["predicted"]["depth"] <= d["context"]
assert d["why"] and all(isinstance(line, str) and line for line in d["why"] + d["lacking"])
assert ("experts" in d) == any("expert_count" in layer for layer in layers)
if "experts" in d:
    slots = [layer["expert_slots"] for layer in layers if "expert_count" in layer]
    assert abs(sum(slots) / len(slots) - d["experts"]["slots_per_layer"]) < 1e-6 or d["experts"]["mode"] == "resident"
    assert d["experts"]["mode"] in ("resident", "cache", "cpu") and 0 <= d["experts"]["resident_share"] <= 1
expected = {"0": 0, "1": 1, "-1": len(layers)}.get(sys.argv[2])
assert expected is None or d["layers"]["device"] == expected, d["layers"]
PYTHON
for file in $files; do
    name=$(basename "$file" .gguf)
    run plan "$file" --json
    check "$name: without a GPU" python3 "$work/sums.py" "$work/out" none
    check "$name: without a GPU there is one device" json 'len(d["devices"]) == 1 and d["layers"]["device"] == 0'
    for layers in 0 1 -1; do
        run plan "$file" --json $card -g $layers
        check "$name: -g $layers" python3 "$work/sums.py" "$work/out" $layers
    done
    run plan "$file" $card
    check "$name: text" eval '[ $code = 0 ] && err_empty && out_has "GPU: "'
done
for mode in resident cache cpu; do
    run plan "$kit/qwen3moe.gguf" --json $card --moe $mode
    check "--moe $mode" eval 'python3 "$work/sums.py" "$work/out" any && json "d[\"experts\"][\"mode\"] == \"$mode\""'
done

# --- options
run plan "$kit/qwen3.gguf" --json -c 999999999
check "-c above the model's maximum is reduced to it" json 'd["context"] == 512 and any("999,999,999" in line and "512" in line for line in d["why"])'
run plan "$kit/qwen3.gguf" --json -c 100 -b 7 --kv-type q8_0 -t 3 --parallel 2
check "all conversations together" json 'd["predicted"]["together_tps"] > d["predicted"]["decode_tps"]'
check "-c, -b, --kv-type, --parallel" json 'd["context"] == 100 and d["batch"] == 7 and d["kv_type"] == "q8_0" and d["sequences"] == 2'
check "the pool holds both contexts" json 'd["pool_tokens"] == 256 and all(r["positions"] >= 256 and
    r["bytes"] == r["layers"] * r["positions"] * r["position_bytes"] for r in d["kv"])'
check "and the reasons say so" json 'any(l == "pool: 256 tokens, a full context for each of 2 running conversations" for l in d["why"])'
run plan "$kit/qwen3.gguf" --parallel 3 -c 100
check "the pool in the text" out_has "pool            384 tokens shared by up to 3 running conversations"
run plan "$kit/qwen3.gguf" --json --vram 2MiB --overhead 0 --margin 0 -g -1 -c 256 --parallel 64
check "a pool that does not fit has as many contexts as fit" json '256 < d["pool_tokens"] < 64 * 256 and d["pool_tokens"] % 256 == 0 and
    any("shared by up to 64 running conversations" in l for l in d["why"])'
fails "no conversation" 2 "--parallel: expected a whole number from 1 to 64" plan "$kit/qwen3.gguf" --parallel 0
fails "too many conversations" 2 "--parallel: expected a whole number from 1 to 64" run -m "$kit/qwen3.gguf" --parallel 65
run plan "$kit/qwen35.gguf" --json
check "recurrent layers have restore points" json 'd["restore_bytes"] == d["devices"][0]["owners"]["restore points"] > 0'
run plan "$kit/qwen35.gguf" --restore-ram 1MiB
check "--restore-ram" eval 'out_has "restore points  1,048,576 bytes" && out_has "restore points: 1.00 MiB of RAM (as asked)"'
run plan "$kit/qwen35.gguf" --json --restore-ram 0
check "--restore-ram 0: none" json 'd["restore_bytes"] == 0 and "restore points" not in d["devices"][0]["owners"] and
    any(l.startswith("restore points: none, as asked") for l in d["why"])'
run plan "$kit/qwen3.gguf" --json --restore-ram 1MiB
check "full attention needs no restore points" json 'd["restore_bytes"] == 0 and any(l.startswith("restore points: none;") for l in d["why"])'
fails "a restore size that does not fit" 4 "bytes are missing" plan "$kit/qwen35.gguf" --ram 8GiB --restore-ram 9GiB
run plan "$kit/qwen3.gguf" --json $card
check "KV pages on a GPU have copies in RAM" json 'd["kv_ram_bytes"] == d["devices"][0]["owners"]["kv ram"] > 0 and
    any(l.startswith("kv ram: ") and "(default" in l for l in d["why"])'
run plan "$kit/qwen3.gguf" $card --kv-ram 1MiB
check "--kv-ram" eval 'out_has "kv ram          1,0" && out_has "(as asked): conversations that lose their pages"'
run plan "$kit/qwen3.gguf" --json $card --kv-ram 0
check "--kv-ram 0: none" json 'd["kv_ram_bytes"] == 0 and "kv ram" not in d["devices"][0]["owners"] and
    any(l.startswith("kv ram: none, as asked") for l in d["why"])'
run plan "$kit/qwen3.gguf" --json --kv-ram 1MiB -g 0
check "without KV on a GPU there is nothing to copy" json 'd["kv_ram_bytes"] == 0 and any(l.startswith("kv ram: none;") for l in d["why"])'
fails "more KV pages in RAM than fit" 4 "bytes are missing" plan "$kit/qwen3.gguf" $card --ram 8GiB --kv-ram 9GiB
run plan "$kit/qwen3.gguf" --json -c 0
check "-c 0 is the model's maximum" json 'd["context"] == 512'
run plan "$kit/qwen3.gguf" --json -c -1
check "-c -1 is the default: as many as fit" json 'd["context"] == 512 and any("context: 512, the model" in l for l in d["why"])'
run plan "$kit/qwen3.gguf" --json --vram 1234567890 --ram 9876543210 --margin 1MiB --ram-margin 2MB --overhead 3KiB
check "--vram and --ram are the capacities" json '[x["capacity_bytes"] for x in d["devices"]] == [9876543210, 1234567890] and
    [x["margin_bytes"] for x in d["devices"]] == [2000000, 1 << 20] and d["devices"][1]["owners"]["runtime"] == 3072'
run plan "$kit/qwen3.gguf" --json $card
check "the default margins" json '[x["margin_bytes"] for x in d["devices"]] == [4 << 30, 256 << 20]'
check "a described GPU is charged the driver's memory" json 'd["devices"][1]["owners"]["runtime"] == 500 << 20'
run plan "$kit/qwen3.gguf" --json --vram 1.5GiB
check "a size with a decimal point" json 'd["devices"][1]["capacity_bytes"] == 3 << 29'
for spelling in "-g" "-ngl" "--n-gpu-layers" "--gpu-layers"; do
    run plan "$kit/qwen3.gguf" --json $card $spelling 2
    check "$spelling 2" json 'd["layers"]["device"] == 2'
done
run plan "$kit/qwen3.gguf" --json $card --n-cpu-ffn 2
check "--n-cpu-ffn 2" json '[x["ffn"] for x in d["map"]] == ["host"] * 2 + ["card"] * (len(d["map"]) - 2)'
run plan "$kit/qwen3moe.gguf" --json $card --n-cpu-moe 2
check "--n-cpu-moe 2" json 'all((x["experts"] == "host" and x["expert_slots"] == 0) == (x["layer"] < 2) for x in d["map"])'
run plan "$kit/qwen3moe.gguf" --json $card --expert-slots 3 --moe cache
check "--expert-slots 3" json 'd["experts"]["slots_per_layer"] == 3.0 and all(x["expert_slots"] == 3 for x in d["map"])'
run plan "$kit/qwen35.gguf" --json --nextn
check "--nextn" json 'd["nextn"] and d["map"][-1]["nextn"] and not any("nextn" in x for x in d["map"][:-1])'
run plan -m "$kit/qwen3.gguf" --json --vram 1.5GiB
check "-m names the model, too" eval '[ $code = 0 ] && json "len(d[\"devices\"]) == 2"'
STRATA_MODEL=nothing.gguf run plan "$kit/qwen3.gguf" --json
check "a file that is given wins over STRATA_MODEL" test "$code" = 0

# --- refusals
fails "RAM too small is exit code 4, with the bytes" 4 "bytes are missing" plan "$kit/qwen3.gguf" --ram 100KiB
fails "a GPU too small for all layers" 4 "bytes are missing" plan "$kit/qwen3.gguf" --vram 520MiB --ram 8GiB -g -1
fails "layers without a GPU" 5 "-g 1 asks for a GPU, and no GPU was found" plan "$kit/qwen3.gguf" -g 1
fails "a missing NextN block" 2 "NextN" plan "$kit/qwen3.gguf" --nextn
fails "no file" 2 "plan: expected a model" plan --vram 1GiB
fails "a file that is not a model" 3 "" plan "$kit/README.md"
fails "a vocabulary alone" 3 "found a file without tensors" plan "$kit/tokenizer/gpt-2.vocab.gguf"
fails "a simulated GPU without a size" 2 "--device sim: expected a GPU to simulate" plan "$kit/qwen3.gguf" --device sim
fails "--device cpu with --vram" 2 "--device cpu: expected no GPU, found --vram" plan "$kit/qwen3.gguf" --device cpu --vram 1GiB
fails "an unknown device" 2 '--device: expected cpu, sim or cuda, found tpu' plan "$kit/qwen3.gguf" --device tpu
fails "an unknown mode" 2 '--moe: expected MODE, found "gpu"' plan "$kit/qwen3.gguf" --moe gpu
fails "an unknown profile lists the known" 2 "rtx-4070-ti, " plan "$kit/qwen3.gguf" --device-profile gtx-1
for size in 0 -1 12X 1e9 "" GiB 1.2.3GiB 99999999TiB "12 GiB x"; do
    fails "--vram '$size'" 2 "--vram: expected SIZE, found \"$size\"" plan "$kit/qwen3.gguf" --vram "$size"
done
fails "-c too long" 2 "--ctx-size: expected" plan "$kit/qwen3.gguf" -c 2147483648

# --- the library names its fields, the program its options
run plan "$kit/qwen3.gguf" --vram 2MiB --overhead 0 --margin 0 -g -1 -c 512
check "a hint names options" eval 'grep -qE "hint: would fit: -c [0-9]+, or --kv-type q8_0, or -g 3$" "$work/err" && ! grep -qE "(options|placement)\.[a-z]" "$work/err"'
run plan "$kit/qwen3.gguf" --json $card -g 0
check "the reasons of a plan name options" json 'any("-g 0" in line for line in d["why"]) and not any("placement." in line for line in d["why"])'
cp "$kit/README.md" "$work/options.context"
fails "a file's name is not translated as a field" 3 "$work/options.context" plan "$work/options.context"
fails "nor is a part of a name" 3 "options.context.gguf" plan options.context.gguf
check "no text of the library names an option" eval \
    '! grep -rnE "\"([^\"]*[ (])?--[a-z]|\"([^\"]*[ (])?-[cgtbnm][ :)]" src --include=*.c --include=*.h | grep -v "^src/chat/"'

# --- profiles
run plan "$kit/qwen3.gguf" --json --device-profile rtx-4060+ddr4-3200 --ram 8GiB
check "a profile by name" json '[x["name"] for x in d["devices"]] == ["ddr4-3200", "rtx-4060"] and
    d["devices"][1]["capacity_bytes"] == 8 << 30 and d["devices"][0]["capacity_bytes"] == 8 << 30'
run plan "$kit/qwen3.gguf" --json --device-profile rtx-4060+ddr4-3200 --device cpu
check "--device cpu ignores the profile's GPU" json '[x["name"] for x in d["devices"]] == ["ddr4-3200"]'
cat >"$work/profile.json" <<'JSON'
{"card": {"name": "mine", "vram": "2GiB", "memory_gb_per_s": 100, "source": "measured", "display": true, "overhead": 0},
 "host": {"name": "desk", "ram": "16GiB", "host_read_gb_per_s": 50, "ops_gop_per_s": 500, "source": "measured"}}
JSON
run plan "$kit/qwen3.gguf" --json --device-profile "$work/profile.json"
check "a profile from a file" json '[(x["name"], x["estimate"]) for x in d["devices"]] == [("desk", False), ("mine", False)] and
    not d["predicted"]["estimate"] and d["devices"][1]["margin_bytes"] == 768 << 20 and "runtime" not in d["devices"][1]["owners"]'
sed 's/"overhead"/"overheat"/' "$work/profile.json" >"$work/bad.json"
fails "a profile with an unknown field" 1 "card.overheat: a GPU has no such field" plan "$kit/qwen3.gguf" --device-profile "$work/bad.json"
fails "a missing profile" 1 "no.json" plan "$kit/qwen3.gguf" --device-profile "$work/no.json"

# --- text and JSON agree
cat >"$work/same.py" <<'PYTHON'
import json, re, sys
d, text = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
def line(label, number):
    assert re.search(r"(?m)^ .*\b%s +%s$" % (re.escape(label), "{:,}".format(number)), text), (label, number)
for device in d["devices"]:
    for owner, number in device["owners"].items(): line(owner, number)
    for field in ("planned", "margin", "free"): line(field, device[field + "_bytes"])
for row in d["kv"]:
    assert re.search(r"(?m)^  %s +%d .*%s$" % (row["kind"], row["layers"], "{:,}".format(row["bytes"])), text), row
assert all(why in text for why in d["why"]) and not any(lacking in text for lacking in d["lacking"])
assert "{:,} tokens".format(d["context"]) in text and "KV cache %s" % d["kv_type"] in text
assert "estimate: %.1f t/s" % d["predicted"]["decode_tps"] in text
verdict = text.split("\n")[0]
assert "about %.1f t/s, prompts %.0f t/s" % (d["predicted"]["decode_tps"], d["predicted"]["prefill_tps"]) in verdict, verdict
for device in d["devices"]:
    assert "%.1f of %.1f GiB" % (device["planned_bytes"] / 2**30, device["capacity_bytes"] / 2**30) in verdict, verdict
types = [row["kv_type"] for row in d["longest"]]
assert types[0] == d["kv_type"] and "q8_0" in types, types
for cell in d["alternatives"]:
    line = next(l for l in text.split("\n") if re.match("  +{:,} ".format(cell["context"]), l))
    assert ("%.1f / %.0f" % (cell["decode_tps"], cell["prefill_tps"]) if cell["fits"] else "does not fit") in line, (cell, line)
own = [c for c in d["alternatives"] if c["context"] == d["context"] and c["kv_type"] == d["kv_type"]]
assert len(own) == 1 and own[0]["decode_tps"] == d["predicted"]["decode_tps"], own
assert "%.2f s from disk, %.2f s from the page cache" % (d["load"]["disk_seconds"], d["load"]["cache_seconds"]) in text
if "hit_rate" in d.get("experts", {}):
    rate = "%.1f %%" % (100 * d["experts"]["hit_rate"])
    assert any(l.startswith("hit rate: " + rate) for l in d["why"]) and rate + " hit rate" in text
if "experts" in d and d["layers"]["device"]:
    assert any("experts: %s" % d["experts"]["mode"] in l for l in d["why"])
assert "kv type: %s" % d["kv_type"] in " ".join(d["why"])
bars = re.findall(r"(?m)^  \[(.{64})\]$", text)
assert len(bars) == len(d["devices"]) and all(ord(c) < 128 for bar in bars for c in bar), bars
PYTHON
for model in qwen3moe gemma4-e qwen35; do
    run plan "$kit/$model.gguf" --json $card --moe cache
    cp "$work/out" "$work/plan"
    run plan "$kit/$model.gguf" $card --moe cache
    check "$model: text and JSON are the same plan" python3 "$work/same.py" "$work/plan" "$work/out"
done
run plan "$kit/qwen3.gguf" $card -g 2
check "the layer map has a line for each run" eval 'out_has "  layers 0–1: attention, KV and feed-forward on the GPU" &&
    grep -qE "^  layers 2–[0-9]+: attention, KV and feed-forward on the CPU" "$work/out"'
run plan "$kit/qwen3.gguf" $card --explain -g 0
check "--explain" eval '[ $code = 0 ] && grep -qE "what did not fit|Everything fits" "$work/out"'
check "--explain names the option that helps most" out_has "the option that would help most"
run plan "$kit/qwen3.gguf" --vram 1GiB --ram 8GiB
check "which profile stands for --vram is said" out_has "unknown: those of the rtx-4070-ti stand for them (--device-profile names another GPU)"
check "and that the host was not measured" out_has "not measured: low estimates (strata devices --probe measures them)"
run plan "$kit/qwen3.gguf" --device-profile rx-7900-xtx --ram 8GiB
check "a GPU that strata cannot run on is marked in the verdict" eval 'head -1 "$work/out" | grep -qF "; strata cannot run on the rx-7900-xtx yet"'
run plan "$kit/qwen3moe.gguf" --device sim --vram 1GiB --ram 8GiB --explain -g 1
check "--device sim: every rate is marked" eval '! sed "/^  *[0-9,]* /d" "$work/out" | grep -E "[0-9] (t/s|s from)" | grep -vqE simulated && out_has "t/s simulated"'
run plan "$kit/qwen3moe.gguf" $card --json
check "why and headline give the same speed" json 'd["experts"]["mode"] == "resident" and any("experts: resident, at %.1f t/s" % d["predicted"]["decode_tps"] in l for l in d["why"])'
python3 -c 'import json, sys
json.dump({"machines": [{"strata": sys.argv[2], "format": 5, "operations": {}, "cpu": sys.argv[3], "cores": int(sys.argv[4]), "read_gb_per_s": 20, "int8_gop_per_s": 1,
    "batch_gop_per_s": 100, "spread": 0.25}]}, open(sys.argv[1], "w"))' "$work/busy.json" "$("$strata" version | cut -d" " -f2)" \
    "$("$strata" devices --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["host"]["name"])')" \
    "$("$strata" devices --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["host"]["cores"])')"
mkdir -p "$XDG_CACHE_HOME/strata" && cp "$work/busy.json" "$XDG_CACHE_HOME/strata/devices.json"
run plan "$kit/qwen3.gguf"
check "that the machine was busy when it was measured is said" out_has "measured on a busy machine: they varied by 25 %"
rm "$XDG_CACHE_HOME/strata/devices.json"
TERM=xterm LC_ALL=C.UTF-8 terminal plan "$kit/qwen3.gguf" $card
check "blocks and colours on a terminal" eval 'out_has "░" && grep -q "$(printf "\\033")" "$work/out"'
TERM=xterm LC_ALL=C terminal plan "$kit/qwen3.gguf" $card
check "letters without UTF-8" eval '! out_has "░" && out_has "rr"'

# --- devices
run devices --json
check "devices: this host, and no GPU" json 'd["host"]["kind"] == "host" and d["host"]["estimate"] and d["cards"] == [] and
    d["measurement"] is None and 0 < d["host"]["free_bytes"] <= d["host"]["total_bytes"]'
check "devices: the GPUs people have" json '{"rtx-3060", "rtx-3070", "rtx-3080", "rtx-3090", "rtx-4060-ti-16gb", "rtx-4070", "rtx-4080", "rtx-4090",
    "rtx-5060-ti-16gb", "rtx-5070", "rtx-5080", "rtx-5090", "rx-7900-xtx", "rx-9070-xt", "rtx-a6000", "arc-b580"} <= {p["name"] for p in d["profiles"]}'
check "docs/plan.md has a source for each GPU" python3 - "$work/out" docs/plan.md <<'PYTHON'
import json, sys
page = open(sys.argv[2]).read()
missing = [p["name"] for p in json.load(open(sys.argv[1]))["profiles"] if p["kind"] == "card" and "| `%s` |" % p["name"] not in page]
assert not missing, missing
PYTHON
check "devices: the profiles" json '{"rtx-3060", "rtx-4070-ti", "rtx-5090", "h200", "ddr4-3200", "ddr5-5600"} <= {p["name"] for p in d["profiles"]}'
run devices
check "devices: text" eval 'out_has "no GPU found" && out_has "strata devices --probe" && out_has "rtx-4070-ti"'
run devices --json --vram 12GiB --device-profile ddr5-5600 --ram 64GiB
check "devices that were described" json 'd["cards"][0]["total_bytes"] == 12 << 30 and d["host"]["free_bytes"] == 64 << 30'
run devices --probe --json
check "--probe measures and stores the result" json 'not d["host"]["estimate"] and d["host"]["memory_gb_per_s"] > 0 and
    0 < d["host"]["type_share"]["Q4_K"] <= 1 and d["measurement"].endswith("/strata/devices.json")'
cp "$work/out" "$work/probed"
run devices --json
check "the stored measurement is used" python3 -c 'import json, sys
a, b = (json.load(open(f))["host"] for f in sys.argv[1:])
assert a["memory_gb_per_s"] == b["memory_gb_per_s"] and a["ops_gop_per_s"] == b["ops_gop_per_s"]' "$work/probed" "$work/out"
run plan "$kit/qwen3.gguf" --json
check "a plan with measured rates is not an estimate" json 'not d["predicted"]["estimate"]'
echo garbage >"$XDG_CACHE_HOME/strata/devices.json"
run devices --json
check "a damaged measurement is ignored" json 'd["host"]["estimate"]'
finish
