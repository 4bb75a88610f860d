#!/bin/bash
# Habits of other programs: llama.cpp's options, ways to name a model, sizes, prompts from several places, output for pipes.
. "$(dirname "$0")/tap"
export PYTHONDONTWRITEBYTECODE=1
cache=${XDG_CACHE_HOME:-$HOME/.cache}
export XDG_CACHE_HOME=$work/cache HOME=$work/home
model=$kit/qwen2.gguf
short="-n 4 --temp 0 --ignore-eos --cpu ref --kv-type f32"
prompt_tokens() { sed -nE 's/^strata: prompt: ([0-9]+) tokens?.*/\1/p' "$work/err"; }

# --- llama.cpp's options: mapped, accepted with a reason, refused with another way
run run -m "$model" -p "Is it?" -n 4 --temp 0 --ignore-eos --cpu ref --kv-type q8_0
cp "$work/out" "$work/q8"
run run -m "$model" -p "Is it?" -n 4 --temp 0 --ignore-eos --cpu ref -ctk q8_0 -ctv q8_0 -v
check "-ctk and -ctv of one type are --kv-type" eval '[ $code = 0 ] && cmp "$work/out" "$work/q8" && err_has "KV cache Q8_0"'
fails "-ctk and -ctv of two types" 2 "hint: give one type for both: --kv-type q8_0" run -m "$model" -p x -ctk q8_0 -ctv f16
fails "-ctk with an unknown type" 2 'run: -ctk: expected TYPE, found "q4_0"' run -m "$model" -p x -ctk q4_0
run plan "$kit/qwen3moe.gguf" --vram 1GiB --json -cmoe
check "-cmoe is --moe cpu" json 'd["experts"]["mode"] == "cpu"'
run run -m "$model" --raw -p "ab" $short
cp "$work/out" "$work/raw"
run run -m "$model" -no-cnv -p "ab" $short
check "-no-cnv is --raw" cmp "$work/out" "$work/raw"
run run -m "$model" -p "Is it?" $short
cp "$work/out" "$work/answer"
for option in -fa "-fa on" "-fa 1" --flash-attn --flash-attn=off -cnv --interactive --jinja --mlock --no-mmap "-ub 64" "-tb 2" \
    --no-warmup "--keep 4" --no-display-prompt -if -st; do
    run run -m "$model" -p "Is it?" $short $option
    check "$option is accepted, with the reason" eval '[ $code = 0 ] && cmp "$work/out" "$work/answer" &&
        err_has "strata: note: $(echo "$option" | sed "s/[ =].*//") is not needed: "'
done
run run -m "$model" -p "Is it?" $short -q -fa
check "-q: without the reason" eval '[ $code = 0 ] && err_empty'
while IFS='|' read -r option text; do
    fails "$option is refused, with another way" 2 "hint: $text" run -m "$model" -p x $option
done <<'ROWS'
-hf owner/repository|strata does not download models
-mu https://example.com/model.gguf|strata does not download models
-ot exps=CPU|use --n-cpu-moe N
-nkvo|use -g N
-sm layer|strata uses one GPU
-mg 1|use --device cuda:N
--grammar x|strata cannot constrain answers
--lora x|strata cannot apply adapters
--mirostat 2|use --temp with
-md x|strata has no speculative decoding yet
--list-devices|use strata devices
ROWS
fails "an option of llama.cpp without its argument" 2 "-ub: expected N, found nothing" run -m "$model" -p x -ub
fails "-prompt is not -p rompt" 2 "did you mean --prompt?" run -m "$model" -prompt x
fails "-temp is not -t emp" 2 "did you mean --temp?" run -m "$model" -p x -temp 0
run run -m "$model" -p "Is it?" --temp 0 --ignore-eos --cpu ref --kv-type f32 -n4
check "a short option with its argument attached" cmp "$work/out" "$work/answer"
run run -m="$model" -p "Is it?" --temp 0 --ignore-eos --cpu ref --kv-type f32 -n=4
check "or behind an equals sign" cmp "$work/out" "$work/answer"
fails "no such option of a command that loads no model" 2 "info: unknown option -fa" info "$model" -fa
knows_all() {
    local word
    for word in -ngl -fa -ctk -ctv -hf -cnv -no-cnv -sys -ot -ncmoe --mlock --no-mmap \
        --jinja --interactive -b -ub --n-gpu-layers --cache-type-k --flash-attn --reverse-prompt -np --n-predict -t -c -s; do
        if "$strata" run $word x 2>&1 </dev/null | grep "unknown option"; then return 1; fi
    done
}
check "every common option of llama.cpp is known" knows_all
"$strata" --print-man | sed 's/\\-/-/g' >"$work/man"
check "the man page lists the table" python3 - cli/llama.def "$work/man" <<'PYTHON'
import re, sys
rows = re.findall(r'^(?:SETS|NEEDLESS|REFUSED)\("([^"]+)"', open(sys.argv[1]).read(), re.M)
page = open(sys.argv[2]).read()
assert len(rows) > 60
missing = [row for row in rows if "\\fB" + row + "\\fR" not in page]
assert not missing, missing
words = " ".join(rows).split()
assert len(words) == len(set(words)), [word for word in words if words.count(word) > 1]
PYTHON

# --- commands of other programs
fails "a model without a command" 2 "hint: did you mean strata run some/model.gguf?" some/model.gguf
fails "an option without a command" 2 "hint: options come after the command: strata run -m FILE" -m x
for row in "chat|strata run FILE" "show|strata info FILE" "pull|strata does not download models" "list|strata info FILE" \
    "ps|no service in the background" "stop|Ctrl-C ends" "rm|remove the file" "quantize|does not write models" "embed|no embeddings"; do
    fails "strata ${row%%|*}" 2 "${row#*|}" "${row%%|*}" x
    fails "strata help ${row%%|*}" 2 "${row#*|}" help "${row%%|*}"
done
fails "an option of another program is no typing error" 2 "hint: see strata help run" run -m "$model" -p x --format json
fails "-c 4k" 2 "hint: did you mean 4096?" run -m "$model" -p x -c 4k
fails "-p with -f" 2 "hint: -p TEXT <FILE asks about the text of a file" run -m "$model" -p x -f "$0"
fails "a text without -f" 2 "hint: give the text: -f FILE" perplexity "$0"

# --- layers and GPUs
run plan "$model" --vram 1GiB --json -ngl 99
check "-ngl 99 is all layers" json 'd["layers"]["device"] == d["layers"]["total"] and any("99 asked for" in line for line in d["why"])'
run plan "$model" --vram 1GiB --json -ngl all
check "-ngl all is all layers" json 'd["layers"]["device"] == d["layers"]["total"]'
run plan "$model" --vram 1GiB --json -ngl auto
check "-ngl auto is the default" json 'any(line.endswith("(all fit)") for line in d["why"])'
fails "--device CUDA0" 2 "hint: cuda:0 is the first NVIDIA GPU" run -m "$model" -p x -dev CUDA0
run run -m "$model" -p x -n 1 --device sim --vram 1GiB -ngl 99
check "and a note says so" eval '[ $code = 0 ] && err_has "strata: -g 99 is all of the model'"'"'s 4 layers"'
fails "a plan for a GPU that is not there: exit 5" 5 "-g 99 asks for a GPU, and no GPU was found" plan "$model" -ngl 99
check "and how to describe one" err_has "hint: describe a GPU that the machine does not have with --vram or --device-profile"
while IFS='|' read -r option text; do
    fails "$option without a GPU: exit 5" 5 "asks for a GPU, and none can be used: " run -m "$model" -p x $option
    check "$option: and what to do" eval 'err_has "$text" && ! err_has "model file"'
done <<'ROWS'
-ngl 99|without -g the model runs on the CPU
--vram 1G|without --vram the model runs on the CPU
--device-profile rtx-4090|without --device-profile the model runs on the CPU
--device cuda|--device cpu uses no GPU
ROWS
fails "--device cpu with layers on a GPU" 2 "--device cpu: expected no GPU, found -g 99" run -m "$model" -p x --device cpu -ngl 99
check "and what to do" err_has "hint: leave one of them out"
fails "--device cpu with a GPU's memory" 2 "--device cpu: expected no GPU, found --vram" run -m "$model" -p x --device cpu --vram 1G

# --- threads and context
for count in 0 -1; do
    run run -m "$model" -p "Is it?" $short -t $count
    check "-t $count is the default" cmp "$work/out" "$work/answer"
done
run run -m "$model" -p "Is it?" $short -t $(($(getconf _NPROCESSORS_ONLN) + 1))
check "more threads than the machine runs: a note" eval 'cmp "$work/out" "$work/answer" && err_has "note: -t $(($(getconf _NPROCESSORS_ONLN) + 1)) is slow"'
for json in "" --json; do
    run plan "$model" -c 131072 $json
    check "plan $json says that -c is longer than the model's maximum" eval '[ $code = 0 ] && err_has "tokens, the model'"'"'s maximum, instead of 131072"'
done
run plan "$model" --vram 1GiB
check "the bottleneck is no lack of memory" grep -qE '^  bottleneck +(reading|hand-overs|the link|arithmetic|small operations)' "$work/out"

# --- ways to name a model
run run "$model" -p "Is it?" $short
check "run MODEL" cmp "$work/out" "$work/answer"
STRATA_MODEL=$model run run -p "Is it?" $short
check "STRATA_MODEL" cmp "$work/out" "$work/answer"
for name in llama3.2 llama3.2:1b hf.co/owner/repository https://example.com/model.gguf; do
    fails "a model by name: $name" 3 "hint: a model is a GGUF file; strata does not download models" run "$name" -p x
done
fails "a file that does not exist" 3 "hint: check the path" run "$work/no.gguf" -p x
fails "two models" 2 "expected one model, found $model and -m $model" run "$model" -m "$model" -p x
fails "a prompt without -p" 2 "hint: a prompt is the argument of -p" run "$model" "Is it?"
echo "1" >"$work/ids"
echo '{"messages": [{"role": "user", "content": "Is it?"}]}' >"$work/args"
for command in "info --json" "plan --json" "tokenize -p x" "detokenize --ids 1" "template --args $work/args" "logits --ids 1,2 -o $work/logits" \
    "perplexity --ids-file $kit/README.md" "bench -p 1 -n 0 -r 1"; do
    [ "${command%% *}" = perplexity ] && { seq 64 >"$work/many"; command="perplexity --ids-file $work/many -c 32"; }
    run $command "$model"
    check "${command%% *} MODEL" test "$code" = 0
    run $command -m "$model"
    check "${command%% *} -m MODEL" test "$code" = 0
    STRATA_MODEL=$model run $command
    check "${command%% *} with STRATA_MODEL" test "$code" = 0
    fails "${command%% *} without a model" 2 "${command%% *}: expected " $command
done
fails "without a model: how to get one" 2 '`make run` downloads a small model' run -p x
file=$(sed -nE 's/^model=(.*)/\1/p' tools/fetch-model)
mkdir -p "$XDG_CACHE_HOME/strata" && cp "$model" "$XDG_CACHE_HOME/strata/$file"
for name in "$file" SmolLM2-135M-Instruct smollm2; do
    fails "the downloaded model by name: $name" 3 "hint: did you mean $XDG_CACHE_HOME/strata/$file?" run "$name" -p x
done
run run -p "Is it?" $short
check "without a model: the downloaded one, with a note" eval 'cmp "$work/out" "$work/answer" && err_has "note: no model was given: $XDG_CACHE_HOME/strata/$file"'
rm -r "$XDG_CACHE_HOME/strata"
MODEL=$model tools/run-default -p "Is it?" $short >"$work/out" 2>"$work/err" </dev/null
check "make run MODEL=… runs that model" cmp "$work/out" "$work/answer"
run run -m "$model" -p "Why is the sky blue?" $short
cp "$work/out" "$work/sky"
MODEL=$model tools/run-default $short >"$work/out" 2>"$work/err" </dev/null
check "make run </dev/null asks a question of its own" cmp "$work/out" "$work/sky"
echo "Is it?" | MODEL=$model tools/run-default $short >"$work/out" 2>"$work/err"
check "but not if there is input" cmp "$work/out" "$work/answer"
check "make run passes MODEL on" eval 'make -n run MODEL="a b" | grep -q "MODEL='"'a b'"' tools/run-default"'

# --- sizes
while IFS='|' read -r size bytes; do
    run plan "$model" --json --vram "$size"
    check "--vram $size" json "d['devices'][1]['capacity_bytes'] == $bytes"
done <<'ROWS'
12G|12 << 30
12g|12 << 30
12GiB|12 << 30
12GB|12 * 10 ** 9
1536M|1536 << 20
12884901888|12 << 30
ROWS
for size in 12 1 1048575; do fails "--vram $size has no unit" 2 "--vram: expected SIZE, found \"$size\"" plan "$model" --vram $size; done
fails "and the likely one is named" 2 "hint: did you mean 12GiB?" plan "$model" --vram 12
fails "a number as nvidia-smi prints it" 2 "hint: did you mean 12288MiB?" plan "$model" --vram 12288
run plan "$model" --json --vram 1G --margin 0
check "0 needs no unit" json 'd["devices"][1]["margin_bytes"] == 0'

# --- prompts: -p, standard input, both, neither
printf 'Explain:\n\nsome\ninput' >"$work/prompt"
run run "$model" -f "$work/prompt" $short
cp "$work/out" "$work/both"
tokens=$(prompt_tokens)
printf 'some\ninput\n' | "$strata" run "$model" -p "Explain:" $short >"$work/out" 2>"$work/err"
check "-p and standard input: prompt, blank line, input" eval 'cmp "$work/out" "$work/both" && [ "$(prompt_tokens)" = "$tokens" ]'
: | "$strata" run "$model" -p "Is it?" $short >"$work/out" 2>"$work/err"
check "-p and empty input: the prompt alone" cmp "$work/out" "$work/answer"
: >"$work/empty"
for input in /dev/null "$work/empty"; do
    "$strata" run "$model" $short >"$work/out" 2>"$work/err" <"$input"
    code=$?
    check "no prompt and $input as input: exit 2" failed_as 2 "run: expected a prompt, found empty input"
done

# --- output
run run "$model" -p "Is it?" $short --json --seed 5
check "--json" eval '[ $code = 0 ] && json "d[\"answer\"] == open(\"$work/answer\").read() and d[\"finish\"] == \"length\" and d[\"tokens\"] == 4
    and d[\"seconds\"] > 0 and d[\"seed\"] == 5 and d[\"reused\"] == 0 and d[\"prompt_tokens\"] > 4 and not d[\"simulated\"]"'
check "--json: one line, and no statistics" eval '[ "$(wc -l <"$work/out")" = 1 ] && err_empty'
run run "$model" -p "Is it?" --json --temp 0 --logit-bias 288+1000
check "--json: the answer's end" json 'd["finish"] == "end" and d["answer"] == "" and d["tokens"] == 0'
run run "$model" -p "Is it?" --json -c 64 --temp 0 --logit-bias 65+1000
check "--json: a full context" json 'd["finish"] == "context"'
run run "$model" -p "Is it?" $short --json
check "docs/json.md has the fields of run --json" python3 - "$work/out" docs/json.md <<'PYTHON'
import json, sys
section = open(sys.argv[2]).read().split("## `strata run --json`")[1].split("\n## ")[0]
assert all("`%s`" % field in section for field in json.load(open(sys.argv[1])))
PYTHON
run_noted run "$model" -p "Is it?" $short --quiet
check "--quiet: the answer alone" eval 'cmp "$work/out" "$work/answer" && err_empty'
run run "$model" -p "Is it?" $short
check "a line says that -n cut the answer" err_has "strata: the answer was cut after 4 tokens (-n 4)"
run run "$model" -p "Is it?" -n 20 --ignore-eos
cp "$work/out" "$work/random"
seed=$(sed -nE 's/.*; seed ([0-9]+);.*/\1/p' "$work/err")
run run "$model" -p "Is it?" -n 20 --ignore-eos --seed "${seed:-1}"
check "the seed of the statistics repeats the answer" eval '[ -n "$seed" ] && cmp "$work/out" "$work/random"'
newline=$("$strata" tokenize "$model" -p $'\n')
run run "$model" -p "Is it?" --temp 0 --logit-bias "$newline+1000" -n 5 -r '\n' --json
check "-r '\\n' is a newline" json 'd["answer"] == "" and d["finish"] == "end"'
run run "$model" -p "Is it?" --temp 0 --logit-bias "$newline+1000" -n 5 -r '\\n' --json
check "-r '\\\\n' is a backslash and an n" json 'd["answer"] == "\n" * 5'
TERM=dumb terminal run "$model" -p "Is it?" --temp 0 --logit-bias 65+1000 -n 5
check "a newline before the statistics on a terminal" grep -qE '^AAAAA.?$' "$work/out"
"$strata" run "$model" -p "Is it?" --temp 0 --logit-bias 65+1000 -n 5 --device cpu >"$work/out" 2>&1 </dev/null
check "and in a log of both" grep -qx AAAAA "$work/out"
check "| head ends silently" eval '"$strata" run "$model" -p x --temp 0 --logit-bias 65+1000 -q 2>"$work/err" | head -c 3 >"$work/out"; out_is AAA && err_empty'
run_unread --print-man
check "a closed pipe ends it as it ends other programs" eval '[ $code = 243 ] && err_empty' # -13: SIGPIPE
run run "$model" -p "Is it?" $short --device sim --vram 1GiB
check "--device sim: every rate is marked" eval '[ "$(grep -oE "[0-9.]+ (t|GB)/s( simulated)?" "$work/err" | grep -vc simulated)" = 0 ] && err_has "t/s simulated"'

# --- the README's first screen
check "the README says where models come from, which run, and what is missing" python3 - README.md src/model/arch.c src/quant/dequant.h <<'PYTHON'
import re, sys
readme, arch, types = (open(path).read() for path in sys.argv[1:])
screen = "\n".join(readme.split("\n")[:30])
commands = screen.index("make test")
for word in "GGUF", "Hugging Face", "~/.cache/strata", "Families that run", "Quantisations", "What is missing", "strata run FILE":
    assert screen.index(word) > commands or word == "GGUF", word
families = {"llama": "Llama", "qwen2": "Qwen 2", "qwen3": "3", "qwen2moe": "2 MoE", "qwen3moe": "3 MoE", "olmoe": "OLMoE",
            "llama4": "Llama 4", "gemma4": "Gemma 3 and 4", "qwen35": "3.5", "qwen35moe": "3.5", "glm4moe": "GLM 4.5",
            "minimax-m2": "MiniMax M2", "ernie4_5-moe": "ERNIE 4.5 MoE", "bailingmoe2": "Ling 2", "hunyuan-moe": "Hunyuan MoE",
            "granite": "Granite", "granitemoe": "Granite", "granitehybrid": "Granite", "smollm3": "SmolLM3", "seed_oss": "Seed-OSS",
            "mistral3": "Mistral 3", "gemma3": "Gemma 3 and 4", "olmo2": "OLMo 2", "exaone4": "EXAONE 4", "cohere2": "Command A",
            "phi3": "Phi 3 and 4", "gpt-oss": "gpt-oss", "deepseek2": "DeepSeek V2 and V3", "qwen3next": "3 Next",
            "kimi-linear": "Kimi", "nemotron_h": "Nemotron H", "nemotron_h_moe": "Nemotron H", "lfm2": "LFM2", "lfm2moe": "LFM2"}
for name in re.findall(r'\.name = "([^"]+)"', arch):
    assert families[name] in screen, name # a new family: name it in the README
for name in re.findall(r"X\((\w+), ", types):
    covered = name in screen or re.fullmatch(r"Q[2-6]_K|IQ\w+", name) or name in ("I8", "I16", "I32", "I64", "F64", "TQ1_0", "TQ2_0", "NVFP4")
    assert covered, name
PYTHON
finish
