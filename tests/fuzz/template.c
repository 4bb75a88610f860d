/* Fuzzes the template engine: the input is the template's source, a NUL byte, and the arguments as JSON. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Limits that keep a run short but still reach the whole engine. */
static const st_template_limits limits = {
    .source_bytes_max = 1 << 16,
    .steps_max = 20000,
    .depth_max = 50,
    .output_bytes_max = 1 << 18,
    .memory_bytes_max = 1 << 24,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *end = size ? memchr(text, '\0', size) : NULL;
    st_str source = {text, end ? (size_t)(end - text) : size};
    st_template *made = NULL;
    json_t *args = NULL;
    st_rendering rendering = {0};
    strata_error error;
    if (st_template_new(source, &limits, &made, &error) != STRATA_OK) return 0;
    if (!end || st_template_parse_args(end + 1, size - source.length - 1, &args, &error) != STRATA_OK)
        args = json_object();
    if (st_template_render(made, args, 1794700800, &rendering, &error) == STRATA_OK) {
        if (rendering.text.length != rendering.foreign.length || rendering.text.length > limits.output_bytes_max)
            abort();
    }
    st_rendering_free(&rendering);
    st_template_free(made);
    json_decref(args);
    return 0;
}
