#!/bin/bash
# The program itself: help, usage errors, exit codes, output that cannot be written, colours, man page, completions.
. "$(dirname "$0")/tap"
commands="run info plan devices logits perplexity bench tokenize detokenize template replay serve version help"

# --- help and version
run --help
check "--help exits 0" test "$code" = 0
for command in $commands; do check "--help lists $command" grep -qE "^  $command " "$work/out"; done
for exit_code in 0 1 2 3 4 5 6 130; do check "--help lists exit code $exit_code" grep -qE "^  $exit_code +[a-z]" "$work/out"; done
cp "$work/out" "$work/help"
run help
check "help is --help" cmp "$work/out" "$work/help"
run -h
check "-h is --help" cmp "$work/out" "$work/help"
for command in $commands; do
    run help "$command"
    check "help $command" out_has "Usage: strata $command"
    cp "$work/out" "$work/help"
    run "$command" --help
    check "$command --help is the same" cmp "$work/out" "$work/help"
    check "help $command keeps to 80 columns" awk 'length > 80 { exit 1 }' "$work/out"
done
run version
check "version" out_is "strata 0.1.0
"
run --version
check "--version" out_is "strata 0.1.0
"

# --- wrong usage: exit code 2, an error line and a hint
fails "no command" 2 "expected a command"
fails "unknown command" 2 'unknown command "zzz"' zzz
fails "unknown command: the nearest" 2 "hint: did you mean tokenize?" tokenise
fails "unknown command of help" 2 "did you mean info?" help nfo
fails "option before the command" 2 "options come after the command" --json info x
fails "unknown option" 2 "info: unknown option --frobnicate" info --frobnicate x
fails "unknown option: the nearest" 2 "did you mean --json?" info --jsno x
fails "unknown option: the nearest (swap)" 2 "did you mean --tensors?" info --tensosr x
fails "unknown option with a value" 2 "unknown option --promt" tokenize --promt=x
fails "unknown short option" 2 "unknown option -x" info -x y
fails "an option of another command" 2 "unknown option --bos" info --bos x
fails "an empty long name" 2 "unknown option --" info --=x
fails "a very long name" 2 "unknown option --xxx" info "--$(printf 'x%.0s' {1..5000})"
fails "missing operand" 2 "replay: expected TRACE" replay
fails "too many operands" 2 'unexpected argument "b"' info a b
fails "an operand of a command without operands" 2 'unexpected argument "now"' version now
fails "missing argument" 2 "--model: expected FILE" tokenize -p x -m
fails "argument of a flag" 2 "--tensors: expected no argument" info --tensors=yes x
fails "wrong word" 2 '--color: expected WHEN, found "blue"' info --color blue x
XDG_CACHE_HOME=$work fails "missing model" 2 "tokenize: expected a model, found none" tokenize -p x
fails "control characters are not echoed" 2 'unknown command "?[31mx"' $'\e[31mx'
for date in 2026-02-30 2026-13-01 2026-00-10 26-01-01 2026-1-1 1970-01-01 1969-12-31 2026-01-01x "" 20260101 2026-01--1; do
    fails "wrong date '$date'" 2 "--now: expected YYYY-MM-DD" template --template x --args y --now "$date"
done
STRATA_COLOR=blue fails "a wrong variable is named" 2 "STRATA_COLOR: expected WHEN" info x

# --- output that cannot be written
"$strata" --help >/dev/full 2>"$work/err"
check "a full disk is exit code 1" test $? = 1
check "a full disk is reported" err_has "strata: error: standard output: cannot write: No space left on device"
"$strata" info "$kit/llama.gguf" --tensors --json >/dev/full 2>"$work/err"
check "a full disk after much output is exit code 1" test $? = 1
"$strata" --help >&- 2>"$work/err"
check "a closed standard output is exit code 1" test $? = 1

# --- interrupted: started by Python, because a shell's background jobs ignore the signal
check "SIGINT is exit code 130" python3 - "$strata" "$kit/tokenizer/gpt-2.vocab.gguf" <<'PYTHON'
import signal, subprocess, sys
program = subprocess.Popen([sys.argv[1], "tokenize", "-m", sys.argv[2], "--jsonl"], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE)
program.stdin.write(b'"a"\n')
program.stdin.flush()
assert program.stdout.readline() == b"[64]\n"
program.send_signal(signal.SIGINT)
assert program.wait() == 130
PYTHON

# --- colours
escape=$(printf '\033')
colored() { grep -q "$escape" "$work/out"; }
not_colored() { ! colored; }
run info "$kit/llama.gguf"
check "no colours in a file" not_colored
run info --color always "$kit/llama.gguf"
check "--color always" colored
STRATA_COLOR=always run info "$kit/llama.gguf"
check "STRATA_COLOR sets --color" colored
STRATA_COLOR=always run info --color=never "$kit/llama.gguf"
check "an option overrides its environment variable" not_colored
TERM=xterm terminal info "$kit/llama.gguf"
check "colours on a terminal" colored
check "bars on a terminal" out_has "█"
TERM=xterm NO_COLOR=1 terminal info "$kit/llama.gguf"
check "NO_COLOR" not_colored
TERM=xterm NO_COLOR= terminal info "$kit/llama.gguf"
check "an empty NO_COLOR is ignored" colored
TERM=dumb terminal info "$kit/llama.gguf"
check "TERM=dumb" not_colored
TERM=xterm LC_ALL=C terminal info "$kit/llama.gguf"
check "no bars without UTF-8" eval '! out_has "█"'

# --- the man page and the completions have every option of the help
"$strata" --print-man >"$work/strata.1"
if command -v groff >/dev/null; then
    groff -man -ww -Tutf8 -z "$work/strata.1" >"$work/out" 2>&1
    check "the man page formats without warnings" out_empty
    groff -man -Tascii -P-c -P-u -P-b -P-o "$work/strata.1" >"$work/man" 2>/dev/null
else
    skip "the man page formats without warnings" "groff not found"
    sed 's/\\-/-/g; s/\\f[BIR]//g' "$work/strata.1" >"$work/man"
fi
for shell in bash zsh fish; do "$strata" --print-completion $shell >"$work/complete.$shell"; done
fails "completion for an unknown shell" 2 "expected bash, zsh or fish" --print-completion ksh
check "the bash completion parses" bash -n "$work/complete.bash"
if command -v zsh >/dev/null; then check "the zsh completion parses" zsh -n "$work/complete.zsh"
else skip "the zsh completion parses" "zsh not found"; fi
if command -v fish >/dev/null; then check "the fish completion parses" fish -n "$work/complete.fish"
else skip "the fish completion parses" "fish not found"; fi
pages_have_all() {
    local command option
    for command in $commands; do
        for option in $("$strata" help "$command" | sed -nE 's/^  (-.,|   ) --([a-z-]+).*/\2/p'); do
            [ "$option" = help ] || grep -qE -e "--$option\b" "$work/man" || { echo "man: $option"; return 1; }
            sed -n "/^        $command)/p" "$work/complete.bash" | grep -qE -e "--$option\b" || { echo "bash: $option"; return 1; }
            sed -n "/^            $command)/,/;;/p" "$work/complete.zsh" | grep -qE -e "--$option\b" || { echo "zsh: $option"; return 1; }
            grep -qE "from $command' -l $option\b" "$work/complete.fish" || { echo "fish: $option"; return 1; }
        done
        for option in $("$strata" help "$command" | sed -nE 's/^ +\(also (.*)\)$/\1/p'); do
            grep -qE -e "(^|[ ,])$option\b" "$work/man" || { echo "man: $option"; return 1; }
            sed -n "/^        $command)/p" "$work/complete.bash" | grep -qE -e " $option\b" || { echo "bash: $option"; return 1; }
            sed -n "/^            $command)/,/;;/p" "$work/complete.zsh" | grep -qE -e ",$option\b" || { echo "zsh: $option"; return 1; }
            grep -qE -e "from $command' .* -[lo] $(echo "$option" | sed 's/^-*//')\b" "$work/complete.fish" || { echo "fish: $option"; return 1; }
        done
    done
}
check "man page and completions have every option" pages_have_all
complete_words() { # WORDS...: what bash would offer for the last one
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _strata; echo "${COMPREPLY[*]}"' - "$work/complete.bash" "$@"
}
check "bash completes a command" test "$(complete_words strata in)" = info
check "bash completes an option" test "$(complete_words strata info --te)" = --tensors
check "bash completes the argument of --color" test "$(complete_words strata info --color al)" = always
check "bash completes a file" test "$(complete_words strata run -f README.m)" = README.md
check "bash completes a trace" test "$(complete_words strata replay README.m)" = README.md
mkdir "$work/models" && touch "$work/models/one.gguf" "$work/models/one.txt"
for words in "run -m" "run" "info" "plan --vram 12G -m" "bench"; do
    check "bash completes a model: $words" test "$(complete_words strata $words "$work/models/o")" = "$work/models/one.gguf"
done
check "bash completes a profile" test "$(complete_words strata plan --device-profile rtx-40)" = \
    "rtx-4060 rtx-4060-ti-16gb rtx-4070 rtx-4070-ti rtx-4080 rtx-4090"
profiles_in_all() {
    local name shell
    for name in $("$strata" devices --json | python3 -c 'import json, sys; print(*(p["name"] for p in json.load(sys.stdin)["profiles"]))'); do
        for shell in bash zsh fish; do grep -qw -e "$name" "$work/complete.$shell" || { echo "$shell: $name"; return 1; }; done
    done
}
check "all shells offer every profile" profiles_in_all
if command -v fish >/dev/null; then
    offers() { fish -c "source $work/complete.fish; cd $work/models; complete -C '$1'" | cut -f1 | grep -qx -e "$2"; }
    check "fish completes a model" offers "strata run -m " one.gguf
    check "fish completes an operand" offers "strata info " one.gguf
    check "fish completes a profile" offers "strata plan --device-profile rtx-50" rtx-5090
fi
check "bash completes a word of the table" test "$(complete_words strata run --kv-type q)" = q8_0
check "bash completes another spelling" test "$(complete_words strata run -sy)" = -sys
check "bash completes nothing for a number" test -z "$(complete_words strata run -n '')"
check "bash knows which --ids takes an argument" test "$(complete_words strata template --ids --ar)" = --args
finish
