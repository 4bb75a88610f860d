#!/bin/bash
# make install and uninstall: every file in its place and none left; programs in C and C++ on the installed libraries, with
# nothing but pkg-config.
. "$(dirname "$0")/tap"
unset MAKEFLAGS MAKELEVEL MFLAGS
if [ ! -f build/libstrata.so ]; then
    skip "make install" "make all has not been run"
    finish
fi
prefix=$work/prefix
run_make() {
    make "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
}
run_make install PREFIX="$prefix"
check "make install" test "$code" = 0
check "it is quiet" test "$(wc -l <"$work/out")" = 1
for file in bin/strata lib/libstrata.a lib/libstrata.so.0 lib/pkgconfig/strata.pc include/strata.h share/man/man1/strata.1 \
    share/bash-completion/completions/strata share/zsh/site-functions/_strata share/fish/vendor_completions.d/strata.fish \
    share/doc/strata/README.md share/doc/strata/docs/plan.md share/doc/strata/docs/example.c; do
    check "$file" test -s "$prefix/$file"
done
check "the program runs" eval '[ "$("$prefix/bin/strata" version)" = "$("$strata" version)" ]'
check "the shared library has a soname" eval 'readelf -d "$prefix/lib/libstrata.so" | grep -q "SONAME.*\[libstrata.so.0\]"'
check "and exports the public names alone" eval '! nm -D --defined-only "$prefix/lib/libstrata.so" | grep -v " strata_"'
declared=$(grep -oE '\bstrata_[a-z_]+\(' strata.h | tr -d '(' | sort -u)
exports_all() {
    local name
    for name in $declared; do
        nm -D --defined-only "$prefix/lib/libstrata.so" | grep -qw "$name" || { echo "$name"; return 1; }
    done
}
check "all that the header declares" exports_all

# --- programs on the installed library
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
check "pkg-config knows the version" eval '[ "strata $(pkg-config --modversion strata)" = "$("$strata" version)" ]'
answers() { # PROGRAM
    "$1" "$kit/llama.gguf" 'Is "it" \ so?' >"$work/out" 2>"$work/err" && grep -qE '^\([1-9][0-9]* tokens in [0-9.]+ s\)$' "$work/out"
}
flags="$(pkg-config --cflags --libs strata)"
check "C, shared" gcc -std=c11 -Wall -Wextra -Werror docs/example.c $flags -o "$work/shared"
check "it needs the shared library" eval 'readelf -d "$work/shared" | grep -q "NEEDED.*libstrata.so.0"'
check "it answers plain text" env LD_LIBRARY_PATH="$prefix/lib" bash -c "$(declare -f answers); work='$work' kit='$kit'; answers '$work/shared'"
check "C, static" gcc -std=c11 -static-pie docs/example.c -Wl,-Bstatic $(pkg-config --cflags --libs --static strata) -o "$work/static"
if [ -x "$work/static" ]; then check "it answers" answers "$work/static"; fi
if command -v g++ >/dev/null; then
    cat >"$work/program.cpp" <<'CPP'
#include <strata.h>
#include <cstdio>
int main(int, char **argv)
{
    strata_placement placement = STRATA_PLACEMENT_DEFAULT;
    strata_engine_options options{};
    options.placement = &placement;
    options.context = 64;
    strata_error error;
    strata_model *model = nullptr;
    char *plan = nullptr;
    strata_status status = strata_model_open(argv[1], nullptr, &model, &error);
    if (status == STRATA_OK) status = strata_plan(model, &options, &plan, &error);
    std::puts(status == STRATA_OK ? plan : error.message);
    strata_free(plan);
    strata_model_close(model);
    return strata_status_exit_code(status);
}
CPP
    check "C++" g++ -std=c++20 -Wall -Wextra -Werror "$work/program.cpp" $flags -o "$work/program"
    LD_LIBRARY_PATH=$prefix/lib "$work/program" "$kit/llama.gguf" >"$work/out"
    check "it plans" json 'd["context"] == 64'
    check "the example is C++, too" g++ -std=c++20 -x c++ docs/example.c -x none $flags -o "$work/example"
else
    skip "C++" "g++ not found"
fi

# --- the shared library finds a plugin of its own
plugin=build/release/tests/plugin/libstrata-cuda.so
if [ -f "$plugin" ]; then
    cp "$plugin" "$prefix/lib/strata/libstrata-cuda.so"
    mkdir "$work/elsewhere" && mv "$work/shared" "$work/elsewhere/shared"
    LD_LIBRARY_PATH=$prefix/lib "$work/elsewhere/shared" "$kit/llama.gguf" "x" >"$work/out" 2>"$work/err"
    check "a program elsewhere finds the plugin of the installed library" eval '! err_has "no GPU"'
else
    skip "a program elsewhere finds the plugin" "make test builds the plugin"
fi

# --- uninstall
run_make uninstall PREFIX="$prefix"
check "make uninstall" test "$code" = 0
check "nothing is left" eval '[ -z "$(find "$prefix" ! -type d)" ]'
check "no folder of strata's own is left" eval '[ -z "$(find "$prefix" -name "strata*")" ]'
run_make install DESTDIR="$work/stage" PREFIX=/usr
check "DESTDIR is no part of strata.pc" grep -qx "prefix=/usr" "$work/stage/usr/lib/pkgconfig/strata.pc"

# --- the build is parallel and quiet
cores=$(nproc)
check "as many jobs as cores" eval 'make -n all V=1 >/dev/null && make -p -n 2>/dev/null | grep -q "^MAKEFLAGS = .*-j$cores"'
run_make all
check "a build without work prints nothing" eval '[ $code = 0 ] && out_empty && err_empty'
finish
