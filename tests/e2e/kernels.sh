#!/bin/bash
# Every CUDA kernel waits for the one before it (common.cuh: dependent launches), and every launch goes through st_cuda_start.
. "$(dirname "$0")/tap"

# Prints "FILE: KERNEL" for kernels that do not call st_cuda_begin or st_cuda_await at the outermost level before their first
# return, and counts all kernels in $work/kernels.
unsafe_kernels() {
    awk -v count="$work/kernels" '
        /__global__/ && !/^ *(\*|\/\*|\/\/)/ { name = $0; waiting = 1; kernels++; next_body = 1 }
        next_body && /^\{/ { next_body = 0; body = 1; next }
        body && waiting && /^    st_cuda_(begin|await)\(\);/ { waiting = 0 }
        body && waiting && /return/ { print FILENAME ": " name; waiting = body = 0 }
        body && /^\}/ { if (waiting) print FILENAME ": " name; body = waiting = 0 }
        END { print kernels + 0 >count }' "$@"
}
all_wait() {
    unsafe_kernels src/backend/cuda/*.cu src/backend/cuda/*.cuh >"$work/unsafe"
    cat "$work/unsafe"
    [ ! -s "$work/unsafe" ] && [ "$(cat "$work/kernels")" -ge 30 ]
}
finds() { [ "$(unsafe_kernels "$work/case.cu" | wc -l)" = "$1" ]; }
plain_launches() { grep -l '<<<\|cudaLaunchKernel' src/backend/cuda/*; }

check "every kernel waits for the one before it" all_wait
printf '__global__ void a(int *x)\n{\n    *x = 1;\n}\n' >"$work/case.cu"
check "a kernel that does not wait is found" finds 1
printf '__global__ void a(int *x)\n{\n    if (!x) return;\n    st_cuda_await();\n}\n' >"$work/case.cu"
check "a return before the wait is found" finds 1
printf '__global__ void a(int *x)\n{\n    if (x) {\n        st_cuda_await();\n    }\n}\n' >"$work/case.cu"
check "a wait under a condition is found" finds 1
printf 'template <int N>\n__global__ void a(int *x,\n    int *y)\n{\n    st_cuda_release();\n    st_cuda_await();\n    return;\n}\n' >"$work/case.cu"
check "a kernel that waits is not" finds 0
check "one function launches kernels" [ "$(plain_launches)" = src/backend/cuda/machine.cuh ]
finish
