#!/bin/bash
# make and make run build the CUDA plugin where nvcc and a GPU are found, and say so. The compilers, nvcc and nvidia-smi are
# stand-ins that write what they are asked for: nothing is compiled.
. "$(dirname "$0")/tap"
unset MAKEFLAGS MAKELEVEL MFLAGS NVCC CUDA_ARCHS
build=$work/build bin=$work/bin
mkdir -p "$bin" "$build" "$work/cache/strata"
touch "$build/.deps-build" # no package is installed
cat >"$bin/compiler" <<SH
#!/bin/bash
echo "\${0##*/} \$*" >>"$work/calls"
out=\$1
[ "\${0##*/}" = ar ] && out=\$2
while [ \$# -gt 0 ]; do
    [ "\$1" = -o ] && out=\$2
    shift
done
printf '#!/bin/sh\necho "%s \$*"\n' "\$out" >"\$out"
chmod +x "\$out"
SH
printf '#!/bin/sh\n[ -f "%s/gpu" ] || exit 9\necho "GPU 0: some GPU"\ncase $* in *compute_cap*) echo 8.9 ;; esac\n' "$work" >"$bin/nvidia-smi"
chmod +x "$bin"/*
for name in gcc ar nvcc; do cp "$bin/compiler" "$bin/$name"; done
export XDG_CACHE_HOME=$work/cache STRATA=$build/strata
truncate -s 98362432 "$work/cache/strata/SmolLM2-135M-Instruct.Q4_1.gguf" # present
plugin=$build/libstrata-cuda.so
note="nvcc and a GPU were found: building the CUDA plugin"
run_make() {
    : >"$work/calls"
    PATH=$bin:$PATH make BUILD="$build" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
}
without_plugin() { [ "$code" = 0 ] && [ -x "$build/strata" ] && [ ! -e "$plugin" ] && ! out_has "$note"; }

run_make
check "no GPU: the program without the plugin" without_plugin
touch "$work/gpu"
run_make NVCC="$work/no-nvcc"
check "no nvcc: the program without the plugin" without_plugin
run_make
check "nvcc and a GPU: the plugin" test "$code" = 0 -a -f "$plugin"
check "a line says so" out_has "$note"
check "compiled for the GPU found" grep -q "^nvcc .*-gencode arch=compute_89,code=sm_89 .*matmul.cu" "$work/calls"
run_make
check "nothing is built twice" test "$code" = 0 -a ! -s "$work/calls"
check "and no line says so" test "$(grep -c "CUDA plugin" "$work/out")" = 0
rm -rf "$plugin" "$build/cuda"
run_make run PROMPT="a prompt"
check "make run builds it, too" test "$code" = 0 -a -f "$plugin"
check "make run says so" out_has "$note"
check "make run runs the model" out_has "-p a prompt"
finish
