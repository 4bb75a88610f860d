/* Fuzzes the GGUF reader: any bytes open as a consistent file or are refused with a typed error. */
#include "base/error.h"
#include "support/gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_gguf *gguf = NULL;
    strata_error error = {0};
    strata_status status = st_gguf_open_memory("fuzz.gguf", data, size, &gguf, &error);
    if (status == STRATA_OK) {
        (void)gguf_walk(gguf);
        st_gguf_close(gguf);
    } else if (gguf || error.status != status || (status != STRATA_FORMAT && status != STRATA_UNSUPPORTED)) {
        __builtin_trap();
    }
    return 0;
}
