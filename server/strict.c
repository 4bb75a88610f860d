/* Requests that two parties could read differently, which libmicrohttpd lets pass: where one ends, whom it is for. */
#include <string.h>
#include <strings.h>

#include "http_internal.h"

/* Headers that a request may have once. */
enum { HOST, LENGTH, CODING, ONCE_COUNT };
static const char *const once[ONCE_COUNT] = {"Host", "Content-Length", "Transfer-Encoding"};

typedef struct strict {
    unsigned counts[ONCE_COUNT];
    http_fault fault; /* the first that was found */
} strict;

static void blame(strict *s, unsigned status, const char *message)
{
    if (!s->fault.message) s->fault = (http_fault){status, message};
}

static bool is_name(const char *name, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f) return false;
    return length > 0;
}

static enum MHD_Result check_header(void *context, enum MHD_ValueKind kind, const char *name, size_t name_length,
                                    const char *value, size_t value_length)
{
    strict *s = context;
    (void)kind;
    (void)value_length;
    if (!is_name(name, name_length)) blame(s, MHD_HTTP_BAD_REQUEST, "the name of a header is malformed");
    for (size_t i = 0; i < ONCE_COUNT; i++)
        if (strcasecmp(name, once[i]) == 0 && ++s->counts[i] > 1)
            blame(s, MHD_HTTP_BAD_REQUEST, "expected Host, Content-Length and Transfer-Encoding once at most");
    if (strcasecmp(name, once[CODING]) == 0 && (!value || strcasecmp(value, "chunked") != 0))
        blame(s, MHD_HTTP_BAD_REQUEST, "Transfer-Encoding: expected chunked");
    if (strcasecmp(name, "Expect") == 0 && (!value || strcasecmp(value, "100-continue") != 0))
        blame(s, MHD_HTTP_EXPECTATION_FAILED, "Expect: expected 100-continue");
    return MHD_YES;
}

http_fault http_strict(struct MHD_Connection *mhd)
{
    strict s = {0};
    (void)MHD_get_connection_values_n(mhd, MHD_HEADER_KIND, check_header, &s);
    if (s.counts[LENGTH] && s.counts[CODING])
        blame(&s, MHD_HTTP_BAD_REQUEST, "expected Content-Length or Transfer-Encoding, found both");
    return s.fault;
}
