#!/bin/bash
# The server's tests with a program under a sanitizer: SANITIZER (asan, the default, or tsan). A report fails the test of the
# server that made it, because the server then ends with another exit code than 0.
cd "$(dirname "$0")/../.." || exit 1
export STRATA=build/${SANITIZER:-asan}/strata TSAN_OPTIONS=exitcode=66
failed=0
for name in openai apis prefix clients http streams; do
    output=$(timeout 500 "tests/serve/test_$name.py" 2>&1)
    code=$?
    grep -E '^(not )?ok\b|^# ' <<<"$output"
    if [ $code -ne 0 ]; then
        failed=1
        grep -q '^not ok' <<<"$output" || { echo "not ok - $name ended with exit code $code"; tail -30 <<<"$output" | sed 's/^/# /'; }
    fi
done
exit $failed
