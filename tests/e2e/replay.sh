#!/bin/bash
# strata replay: a recorded routing against the policies, as a table, as JSON and as a chart.
. "$(dirname "$0")/tap"
trace=tests/data/traces/excerpt.route.csv
profile="--device-profile rtx-4070-ti+ddr5-5600"
field() { # POLICY SLOTS FIELD: of the row in $work/out
    python3 -c 'import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
print([r for r in rows if r["policy"] == sys.argv[2] and r["slots"] == int(sys.argv[3])][0][sys.argv[4]])' "$work/out" "$@"
}
above() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > b) }'; }

# --- the table
run replay $trace $profile --slots 8,32
check "replay" test "$code" = 0
check "the model" out_has "Qwen3-30B-A3B-Q4_K_M.gguf: 48 layers, 6 of 128 experts used; 128 tokens decoded"
check "the devices" out_has "rtx-4070-ti (378 GB/s) and ddr5-5600 (65 GB/s)"
for policy in blend lru slru lfu optimum; do
    check "$policy has a row for each size" test "$(grep -cE "^$policy " "$work/out")" = 2
done
check "one policy is the default" test "$(grep -cE '^[a-z]+ +\* ' "$work/out")" = 2
check "the hit rate of LRU" grep -qE "^lru +32 +66\.19 % +2\.03 " "$work/out"

# --- JSON
run replay $trace $profile --json
check "all sizes and policies" python3 -c 'import json, sys
replay = json.load(open(sys.argv[1]))
assert sorted({r["slots"] for r in replay["rows"]}) == [8, 16, 32, 48, 64, 96]
assert len(replay["rows"]) == 30
assert {r["policy"] for r in replay["rows"] if r["default"]} == {"blend"}
for r in replay["rows"]:
    assert set(r) == {"policy", "default", "slots", "hit_rate", "uploads", "decode_tps"}
    assert 0 < r["hit_rate"] < 1 and 0 < r["uploads"] < 6 and r["decode_tps"] > replay["cpu_tps"]
    best = [b for b in replay["rows"] if b["policy"] == "optimum" and b["slots"] == r["slots"]][0]
    assert r["hit_rate"] <= best["hit_rate"]' "$work/out"
all=$(field lru 32 uploads) default=$(field blend 32 hit_rate)
run replay $trace $profile --json --policy lru --slots 32 --budget 0.5
check "uploads keep to the budget" above 0.6 "$(field lru 32 uploads)"
run replay $trace $profile --json --policy lru --slots 32 --admission second
check "the second touch halves the uploads" above "$all * 0.7" "$(field lru 32 uploads)"
run replay $trace $profile --json --slots 32 --upload-cost 5
check "the gate stops uploads that cost too much" above "$default" "$(field blend 32 hit_rate)"
run replay ../shared/traces/qwen.route.csv $profile --json --slots 32 --policy blend
if [ "$code" = 0 ]; then
    check "the default's uploads" above 0.85 "$(field blend 32 uploads)"
    check "the default's hits" above "$(field blend 32 hit_rate)" 0.825
else
    skip "a whole recording" "../shared/traces not found"
fi

# --- the chart
run replay $trace $profile --svg "$work/chart.svg"
check "a chart, and the table" eval 'test "$code" = 0 && out_has "hit rate"'
check "the chart is XML with a line for each policy" python3 -c 'import sys, xml.dom.minidom
svg = xml.dom.minidom.parse(sys.argv[1]).documentElement
text = [t.firstChild.data for t in svg.getElementsByTagName("text")]
assert svg.tagName == "svg" and svg.getAttribute("xmlns")
assert {"blend", "lru", "slru", "lfu", "optimum", "hit rate", "100 %"} <= set(text), text' "$work/chart.svg"
run replay $trace $profile --svg -
check "with a chart on standard output, the table is not printed" eval 'head -c 4 "$work/out" | grep -q "<svg" && ! out_has "uploads"'
sed 's/model=[^ ]*/model=<a\&b>/' $trace >"$work/odd.csv"
run replay "$work/odd.csv" $profile --svg "$work/odd.svg"
check "names are escaped" python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$work/odd.svg"

# --- errors
fails "no trace" 2 "replay: expected TRACE" replay
fails "a missing trace" 3 "/nowhere" replay /nowhere
fails "unknown policy" 2 "--policy: expected blend, lru, slru, lfu, optimum, found mru" replay $trace --policy mru
fails "too many slots" 2 "from 1 to 128" replay $trace --slots 129
fails "no slots" 2 "from 1 to 128" replay $trace --slots 0,8
fails "unknown profile" 2 "abacus" replay $trace --device-profile abacus
fails "wrong admission" 2 "--admission" replay $trace --admission third
sed '100s/,[0-9]*,/,x,/' $trace >"$work/bad.csv"
fails "an error names its line" 1 "bad.csv: line 100: expected" replay "$work/bad.csv"
head -c 20 $trace >"$work/cut.csv"
fails "a truncated trace" 1 "cut.csv: line" replay "$work/cut.csv"
fails "a chart that cannot be written" 1 "/nowhere/x.svg" replay $trace --svg /nowhere/x.svg
finish
