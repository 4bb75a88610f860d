#!/bin/bash
# docs/example.c: builds with the public header and the library alone, and runs.
. "$(dirname "$0")/tap"
library=$(dirname "$strata")/libstrata.a flags=
if nm "$strata" 2>/dev/null | grep -q __asan_init; then flags=-fsanitize=address,undefined; fi
check "it is short" test "$(wc -l <docs/example.c)" -lt 100
mkdir "$work/include"
cp strata.h "$work/include"
check "it builds without a warning" gcc -std=c11 -Wall -Wextra -Werror $flags docs/example.c -I "$work/include" "$library" \
    -lpcre2-8 -lutf8proc -ljansson -lm -lpthread -o "$work/example"
"$work/example" "$kit/llama.gguf" 'Is "it" \ so?' >"$work/out" 2>"$work/err"
code=$?
check "it runs" test "$code" = 0
check "it prints an answer" grep -qE '^\([1-9][0-9]* tokens in [0-9.]+ s\)$' "$work/out"
"$work/example" "$work/none.gguf" 'Is "it" \ so?' >"$work/out" 2>"$work/err"
code=$?
check "an error has its exit code and message" eval '[ "$code" = 3 ] && err_has "none.gguf"'
finish
