/* Frames of streams: server-sent events. An event's JSON is one line, because every control character in its strings is
 * escaped. */
#ifndef SERVER_SSE_H
#define SERVER_SSE_H

#include "buf.h"

/* An event: its JSON goes between begin and end. `name` NULL: no event line. */
void server_sse_begin(server_buf *out, const char *name);
void server_sse_end(server_buf *out);
void server_sse_done(server_buf *out); /* OpenAI's last event */
void server_sse_comment(server_buf *out, const char *text);

#endif
