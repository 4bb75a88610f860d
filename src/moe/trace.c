#include "moe/trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "base/file.h"

static const char columns[] = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes";

typedef struct row {
    uint32_t turn, step, layer, slot, expert, line;
    bool decode;
    float weight;
} row;

typedef struct reader {
    const char *where;
    const char *at, *end;  /* of the text that is not read yet */
    st_str text;           /* of the current line */
    uint32_t line;
    st_trace *trace;
    bool has_shape;
    row *rows;
    size_t count, capacity;
    strata_error *error;
} reader;

static strata_status refuse(const reader *r, uint32_t line, const char *expected, st_str found)
{
    enum { SHOWN = 80 };
    int length = found.length < SHOWN ? (int)found.length : SHOWN;
    return st_error_set(r->error, STRATA_INPUT, "a trace is what options.record_routing writes (docs/experts.md)",
                        "%s: line %" PRIu32 ": expected %s, found \"%.*s\"", r->where, line, expected, length,
                        found.data ? found.data : "");
}

static bool next_line(reader *r)
{
    if (r->at == r->end || r->line == UINT32_MAX) return false;
    const char *stop = memchr(r->at, '\n', (size_t)(r->end - r->at));
    const char *after = stop ? stop + 1 : r->end;
    r->text = (st_str){r->at, (size_t)((stop ? stop : r->end) - r->at)};
    if (r->text.length && r->text.data[r->text.length - 1] == '\r') r->text.length--;
    r->at = after;
    r->line++;
    return true;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* All of `text` must be digits, and the number at most `maximum`. */
static bool parse_number(st_str text, uint64_t maximum, uint64_t *out)
{
    uint64_t value = 0;
    if (text.length == 0) return false;
    for (size_t i = 0; i < text.length; i++) {
        unsigned digit = (unsigned)(unsigned char)text.data[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit, &value)) return false;
    }
    if (value > maximum) return false;
    *out = value;
    return true;
}

static size_t count_digits(st_str text, size_t at)
{
    size_t count = 0;
    while (at + count < text.length && text.data[at + count] >= '0' && text.data[at + count] <= '9') count++;
    return count;
}

/* 0.221297, 1, 6.1e-05: finite, not negative. strtod would use the locale's decimal point. */
static bool parse_weight(st_str text, float *out)
{
    size_t whole = count_digits(text, 0), at = whole, fraction = 0;
    double value = 0.0;
    int64_t exponent = 0;
    if (at < text.length && text.data[at] == '.') {
        fraction = count_digits(text, at + 1);
        at += 1 + fraction;
    }
    if (whole + fraction == 0 || whole + fraction > 300) return false;
    for (size_t i = 0; i < at; i++)
        if (text.data[i] != '.') value = value * 10.0 + (text.data[i] - '0');
    if (at < text.length && (text.data[at] == 'e' || text.data[at] == 'E')) {
        uint64_t digits;
        bool negative = ++at < text.length && text.data[at] == '-';
        if (at < text.length && (text.data[at] == '-' || text.data[at] == '+')) at++;
        if (!parse_number((st_str){text.data + at, text.length - at}, 400, &digits)) return false;
        exponent = negative ? -(int64_t)digits : (int64_t)digits;
        at = text.length;
    }
    value *= pow(10.0, (double)(exponent - (int64_t)fraction));
    if (at != text.length || !(value <= 1e6)) return false;
    *out = (float)value;
    return true;
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* The value of " key=" in the line, up to the next blank. */
static bool find_key(st_str line, const char *key, st_str *out)
{
    size_t length = strlen(key);
    for (size_t i = 1; i + length < line.length; i++) {
        if (line.data[i - 1] != ' ' || memcmp(line.data + i, key, length) != 0 || line.data[i + length] != '=')
            continue;
        const char *value = line.data + i + length + 1;
        size_t left = line.length - (i + length + 1);
        const char *blank = memchr(value, ' ', left);
        *out = (st_str){value, blank ? (size_t)(blank - value) : left};
        return true;
    }
    return false;
}

static bool find_number(st_str line, const char *key, uint64_t maximum, uint64_t *out)
{
    st_str text;
    return find_key(line, key, &text) && parse_number(text, maximum, out);
}

static void copy_name(st_str line, const char *key, char out[ST_TRACE_NAME_SIZE])
{
    st_str text = {0};
    if (!find_key(line, key, &text)) return;
    size_t length = text.length < ST_TRACE_NAME_SIZE - 1 ? text.length : ST_TRACE_NAME_SIZE - 1;
    for (size_t i = 0; i < length; i++) out[i] = text.data[i] > 0x20 && text.data[i] < 0x7f ? text.data[i] : '?';
    out[length] = '\0';
}

static strata_status read_shape(reader *r)
{
    st_trace_shape *shape = &r->trace->shape;
    uint64_t layers, experts, used;
    if (!find_number(r->text, "n_layer", ST_TRACE_LAYERS_MAX, &layers) || layers == 0 ||
        !find_number(r->text, "n_expert", ST_TRACE_EXPERTS_MAX, &experts) || experts == 0 ||
        !find_number(r->text, "n_expert_used", ST_TRACE_USED_MAX, &used) || used == 0 || used > experts || r->has_shape)
        return refuse(r, r->line, "one line with n_layer, n_expert and n_expert_used (at most n_expert)",
                      r->text);
    copy_name(r->text, "model", shape->model);
    copy_name(r->text, "arch", shape->arch);
    shape->layers = (uint32_t)layers;
    shape->experts = (uint32_t)experts;
    shape->used = (uint32_t)used;
    shape->expert_bytes = st_alloc_zero(layers, sizeof *shape->expert_bytes);
    shape->dense_bytes = st_alloc_zero(layers, sizeof *shape->dense_bytes);
    r->has_shape = true;
    if (shape->expert_bytes && shape->dense_bytes) return STRATA_OK;
    return st_error_memory(r->error, layers * sizeof *shape->expert_bytes, "the trace");
}

static strata_status read_layer(reader *r)
{
    const uint64_t most = (uint64_t)1 << 50;
    uint64_t layer, expert_bytes, dense_bytes;
    if (!r->has_shape) return refuse(r, r->line, "the line with n_layer before any layer", r->text);
    if (!find_number(r->text, "layer", r->trace->shape.layers - 1, &layer) ||
        !find_number(r->text, "expert_bytes", most, &expert_bytes) ||
        !find_number(r->text, "dense_bytes", most, &dense_bytes))
        return refuse(r, r->line, "layer, expert_bytes and dense_bytes of a layer of the model", r->text);
    r->trace->shape.expert_bytes[layer] = expert_bytes;
    r->trace->shape.dense_bytes[layer] = dense_bytes;
    return STRATA_OK;
}

static strata_status read_header(reader *r)
{
    if (!next_line(r) || !st_str_is(r->text, "# route_trace v1"))
        return refuse(r, 1, "# route_trace v1", r->text);
    while (next_line(r)) {
        st_str value;
        strata_status status = STRATA_OK;
        if (st_str_is(r->text, columns))
            return r->has_shape ? STRATA_OK : refuse(r, r->line, "the model's shape", r->text);
        if (r->text.length == 0 || r->text.data[0] != '#') return refuse(r, r->line, columns, r->text);
        if (find_key(r->text, "n_layer", &value)) status = read_shape(r);
        else if (find_key(r->text, "layer", &value)) status = read_layer(r);
        if (status != STRATA_OK) return status;
    }
    return refuse(r, r->line, columns, ST_STR("the end of the file"));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum {
    COLUMN_TURN, COLUMN_PHASE, COLUMN_STEP, COLUMN_LAYER, COLUMN_SLOT, COLUMN_EXPERT, COLUMN_WEIGHT, COLUMN_RESIDENCY,
    COLUMN_BYTES, COLUMN_COUNT
};

static bool split(st_str line, st_str fields[COLUMN_COUNT])
{
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        const char *comma = line.length ? memchr(line.data, ',', line.length) : NULL;
        if ((comma != NULL) != (i + 1 < COLUMN_COUNT)) return false;
        size_t length = comma ? (size_t)(comma - line.data) : line.length;
        fields[i] = (st_str){line.data, length};
        line = (st_str){line.data + length + (comma != NULL), line.length - length - (comma != NULL)};
    }
    return true;
}

static bool parse_row(const reader *r, row *out, const char **expected)
{
    const st_trace_shape *shape = &r->trace->shape;
    st_str fields[COLUMN_COUNT];
    *expected = columns;
    if (!split(r->text, fields)) return false;
    const struct { const char *expected; uint64_t maximum; } limits[COLUMN_COUNT] = {
        [COLUMN_TURN] = {"a turn", UINT32_MAX - 1},
        [COLUMN_PHASE] = {"phase 0 or 1", 1},
        [COLUMN_STEP] = {"a step", UINT32_MAX - 1},
        [COLUMN_LAYER] = {"a layer of the model", shape->layers - 1},
        [COLUMN_SLOT] = {"a slot below n_expert_used", shape->used - 1},
        [COLUMN_EXPERT] = {"an expert of the model", shape->experts - 1},
        [COLUMN_RESIDENCY] = {"a residency", UINT32_MAX},
        [COLUMN_BYTES] = {"a number of bytes", (uint64_t)1 << 50},
    };
    uint64_t numbers[COLUMN_COUNT] = {0};
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        *expected = i == COLUMN_WEIGHT ? "a weight" : limits[i].expected;
        if (i == COLUMN_WEIGHT ? !parse_weight(fields[i], &out->weight)
                               : !parse_number(fields[i], limits[i].maximum, &numbers[i])) return false;
    }
    out->turn = (uint32_t)numbers[COLUMN_TURN];
    out->decode = numbers[COLUMN_PHASE] == 1;
    out->step = (uint32_t)numbers[COLUMN_STEP];
    out->layer = (uint32_t)numbers[COLUMN_LAYER];
    out->slot = (uint32_t)numbers[COLUMN_SLOT];
    out->expert = (uint32_t)numbers[COLUMN_EXPERT];
    out->line = r->line;
    *expected = "a layer whose expert_bytes the header gives";
    return shape->expert_bytes[out->layer] > 0;
}

static bool grow(reader *r)
{
    size_t capacity = r->capacity ? r->capacity : 1024, bytes;
    if (r->count < r->capacity) return true;
    if (!st_mul_size(capacity, 2, &capacity) || !st_mul_size(capacity, sizeof(row), &bytes)) return false;
    row *rows = st_realloc(r->rows, bytes);
    if (!rows) return false;
    r->rows = rows;
    r->capacity = capacity;
    return true;
}

static strata_status read_rows(reader *r)
{
    while (next_line(r)) {
        const char *expected;
        if (r->text.length == 0) continue;
        if (!grow(r)) return st_error_memory(r->error, r->capacity * 2 * sizeof(row), "the trace");
        if (!parse_row(r, &r->rows[r->count], &expected)) return refuse(r, r->line, expected, r->text);
        r->count++;
    }
    return r->count ? STRATA_OK : refuse(r, r->line, "rows", ST_STR("none"));
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static int compare_rows(const void *a, const void *b)
{
    const row *x = a, *y = b;
    if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
    return x->line < y->line ? -1 : x->line > y->line;
}

static bool same_token(const row *a, const row *b)
{
    return a->turn == b->turn && a->step == b->step;
}

/* An event's rows are of one phase, each slot and each expert once. */
static strata_status check_event(const reader *r, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        for (size_t j = first; j < i; j++)
            if (r->rows[i].slot == r->rows[j].slot || r->rows[i].expert == r->rows[j].expert)
                return refuse(r, r->rows[i].line, "each slot and each expert of a token and layer once",
                              ST_STR("a second one"));
        if (r->rows[i].decode != r->rows[first].decode)
            return refuse(r, r->rows[i].line, "one phase for all rows of a token and layer", ST_STR("both"));
    }
    return STRATA_OK;
}

static strata_status gather(reader *r)
{
    st_trace *trace = r->trace;
    const row *counted = NULL;
    qsort(r->rows, r->count, sizeof *r->rows, compare_rows);
    trace->events = st_alloc_array(r->count, sizeof *trace->events);
    trace->experts = st_alloc_array(r->count, sizeof *trace->experts);
    trace->weights = st_alloc_array(r->count, sizeof *trace->weights);
    if (!trace->events || !trace->experts || !trace->weights)
        return st_error_memory(r->error, r->count * sizeof *trace->events, "the trace");
    for (size_t first = 0, end; first < r->count; first = end) {
        const row *head = &r->rows[first];
        for (end = first; end < r->count && same_token(&r->rows[end], head) && r->rows[end].layer == head->layer;
             end++) {
            trace->experts[end] = r->rows[end].expert;
            trace->weights[end] = r->rows[end].weight;
            if (end - first > ST_TRACE_USED_MAX) break; /* some expert is there twice: check_event refuses it */
        }
        strata_status status = check_event(r, first, end);
        if (status != STRATA_OK) return status;
        trace->events[trace->event_count++] =
            (st_trace_event){.turn = head->turn, .step = head->step, .layer = head->layer, .decode = head->decode,
                             .count = (uint32_t)(end - first), .first = first};
        if (head->decode && (!counted || !same_token(counted, head))) {
            counted = head;
            trace->decode_tokens++;
        }
    }
    trace->row_count = r->count;
    return STRATA_OK;
}

strata_status st_trace_parse(const char *where, const char *text, size_t length, st_trace **out, strata_error *error)
{
    reader r = {.where = where, .at = text, .end = text ? text + length : text, .error = error};
    r.trace = st_alloc_zero(1, sizeof *r.trace);
    if (!r.trace) return st_error_memory(error, sizeof *r.trace, "the trace");
    strata_status status = read_header(&r);
    if (status == STRATA_OK) status = read_rows(&r);
    if (status == STRATA_OK) status = gather(&r);
    st_free(r.rows);
    if (status == STRATA_OK) *out = r.trace;
    else st_trace_free(r.trace);
    return status;
}

strata_status st_trace_read(const char *path, st_trace **out, strata_error *error)
{
    st_mapping file = {0};
    strata_status status = st_file_map(path, &file, error);
    if (status == STRATA_OK) status = st_trace_parse(path, (const char *)file.data, file.size, out, error);
    st_file_unmap(&file);
    return status;
}

void st_trace_free(st_trace *trace)
{
    if (!trace) return;
    st_free(trace->shape.expert_bytes);
    st_free(trace->shape.dense_bytes);
    st_free(trace->events);
    st_free(trace->experts);
    st_free(trace->weights);
    st_free(trace);
}
