/* Writes a routing trace, through a buffer of the writer: the token path allocates nothing. */
#include "moe/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

enum { BUFFER_BYTES = 1 << 18, WEIGHT_SIZE = 40 };

struct st_trace_writer {
    FILE *file;
    int failure;         /* the first errno */
    uint64_t *expert_bytes; /* [layers] */
    uint32_t layers;
    char *path;
    char buffer[BUFFER_BYTES];
};

static void note(st_trace_writer *writer, bool written)
{
    if (!written && !writer->failure) writer->failure = errno ? errno : EIO;
}

/* A name is one word of the header. */
static void print_name(st_trace_writer *writer, const char *key, const char *name)
{
    bool written = fprintf(writer->file, " %s=", key) > 0;
    for (; *name; name++) written = written && fputc(*name > 0x20 && *name < 0x7f ? *name : '_', writer->file) != EOF;
    note(writer, written);
}

static void print_header(st_trace_writer *writer, const st_trace_shape *shape)
{
    note(writer, fputs("# route_trace v1\n#", writer->file) != EOF);
    print_name(writer, "model", shape->model);
    print_name(writer, "arch", shape->arch);
    note(writer, fprintf(writer->file, " n_layer=%" PRIu32 " n_expert=%" PRIu32 " n_expert_used=%" PRIu32 "\n",
                         shape->layers, shape->experts, shape->used) > 0);
    for (uint32_t i = 0; i < shape->layers; i++)
        note(writer, fprintf(writer->file, "# layer=%" PRIu32 " expert_bytes=%" PRIu64 " dense_bytes=%" PRIu64 "\n", i,
                             shape->expert_bytes[i], shape->dense_bytes[i]) > 0);
    note(writer, fputs("turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n", writer->file) != EOF);
}

static void free_writer(st_trace_writer *writer)
{
    st_free(writer->expert_bytes);
    st_free(writer->path);
    st_free(writer);
}

strata_status st_trace_writer_open(const char *path, const st_trace_shape *shape, st_trace_writer **out,
                                   strata_error *error)
{
    st_trace_writer *writer = st_alloc_zero(1, sizeof *writer);
    if (!writer) return st_error_memory(error, sizeof *writer, "the routing trace");
    writer->layers = shape->layers;
    writer->path = st_strndup(path, strlen(path));
    writer->expert_bytes = st_alloc_array(shape->layers, sizeof *writer->expert_bytes);
    if (!writer->path || !writer->expert_bytes) {
        free_writer(writer);
        return st_error_memory(error, shape->layers * sizeof *writer->expert_bytes, "the routing trace");
    }
    memcpy(writer->expert_bytes, shape->expert_bytes, shape->layers * sizeof *writer->expert_bytes);
    writer->file = fopen(path, "we");
    if (!writer->file) {
        strata_status status = st_error_set(error, STRATA_RUNTIME, NULL, "%s: cannot write the routing trace: %s", path,
                                            strerror(errno));
        free_writer(writer);
        return status;
    }
    setvbuf(writer->file, writer->buffer, _IOFBF, sizeof writer->buffer);
    print_header(writer, shape);
    *out = writer;
    return STRATA_OK;
}

/* Nine significant digits restore the same float. The decimal point is a dot in every locale. */
static const char *weight_text(float weight, char out[WEIGHT_SIZE])
{
    snprintf(out, WEIGHT_SIZE, "%.9g", weight > 0.0f && isfinite(weight) ? (double)weight : 0.0);
    for (char *c = out; *c; c++)
        if (!strchr("0123456789e+-", *c)) *c = '.';
    return out;
}

void st_trace_writer_event(st_trace_writer *writer, const st_trace_event *event, const uint32_t *experts,
                           const float *weights, const bool *resident)
{
    if (event->layer >= writer->layers) return;
    for (uint32_t i = 0; i < event->count && !writer->failure; i++) {
        bool here = resident && resident[i];
        char weight[WEIGHT_SIZE];
        note(writer,
             fprintf(writer->file, "%" PRIu32 ",%d,%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%s,%d,%" PRIu64 "\n",
                     event->turn, event->decode, event->step, event->layer, i, experts[i],
                     weight_text(weights ? weights[i] : 0.0f, weight), here,
                     here ? (uint64_t)0 : writer->expert_bytes[event->layer]) > 0);
    }
}

strata_status st_trace_writer_close(st_trace_writer *writer, strata_error *error)
{
    if (!writer) return STRATA_OK;
    strata_status status = STRATA_OK;
    errno = 0;
    note(writer, fflush(writer->file) == 0);
    note(writer, fclose(writer->file) == 0);
    if (writer->failure)
        status = st_error_set(error, STRATA_RUNTIME, "is the disk full?", "%s: writing the routing trace failed: %s",
                              writer->path, strerror(writer->failure));
    free_writer(writer);
    return status;
}
