#include "sse.h"

void server_sse_begin(server_buf *out, const char *name)
{
    if (name) server_buf_printf(out, "event: %s\n", name);
    server_buf_text(out, "data: ");
}

void server_sse_end(server_buf *out)
{
    server_buf_text(out, "\n\n");
}

void server_sse_done(server_buf *out)
{
    server_buf_text(out, "data: [DONE]\n\n");
}

void server_sse_comment(server_buf *out, const char *text)
{
    server_buf_printf(out, ": %s\n\n", text);
}
