#include "fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "limits.h"

typedef struct field field;
typedef bool read_field(const field *f, json_t *value, server_parameters *p, server_fail *fail);

struct field {
    const char *path;
    unsigned apis;
    read_field *read;
    size_t offset;
    double low, high;
};

/* ---- kinds of fields ------------------------------------------------------------------------------------------- */

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

static bool read_REAL(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    double number = json_number_value(value);
    if (!json_is_number(value))
        return server_refuse(fail, FAULT_INVALID, f->path, "%s: expected a number, found %s", f->path,
                             type_name(value));
    if (!(number >= f->low && number <= f->high))
        return server_refuse(fail, FAULT_INVALID, f->path, "%s: expected a number from %g to %g, found %g", f->path,
                             f->low, f->high, number);
    memcpy((char *)p + f->offset, &number, sizeof number);
    return true;
}

/* A real without a fraction is an integer, too: some clients write 1.0. */
static bool whole_number(const json_t *value, int64_t *out)
{
    double real = json_real_value(value);
    if (json_is_integer(value)) *out = json_integer_value(value);
    else if (json_is_real(value) && real == trunc(real) && fabs(real) < 9e15) *out = (int64_t)real;
    else return false;
    return true;
}

static bool read_INTEGER(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    int64_t number;
    if (!whole_number(value, &number))
        return server_refuse(fail, FAULT_INVALID, f->path, "%s: expected an integer, found %s", f->path,
                             type_name(value));
    if ((double)number < f->low || (double)number > f->high)
        return server_refuse(fail, FAULT_INVALID, f->path, "%s: expected an integer from %.0f to %.0f, found %lld",
                             f->path, f->low, f->high, (long long)number);
    memcpy((char *)p + f->offset, &number, sizeof number);
    return true;
}

static bool read_COUNT(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    int64_t number;
    if (whole_number(value, &number) && (number == -1 || number == -2)) {
        number = -1;
        memcpy((char *)p + f->offset, &number, sizeof number);
        return true;
    }
    return read_INTEGER(f, value, p, fail);
}

static bool read_BOOL(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    if (!json_is_boolean(value))
        return server_refuse(fail, FAULT_INVALID, f->path, "%s: expected true or false, found %s", f->path,
                             type_name(value));
    bool set = json_is_true(value);
    memcpy((char *)p + f->offset, &set, sizeof set);
    return true;
}

static bool add_stop(const field *f, const json_t *value, server_parameters *p, server_fail *fail)
{
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    if (!text)
        return server_refuse(fail, FAULT_INVALID, f->path, "%s: expected a string or an array of strings, found %s",
                             f->path, type_name(value));
    if (length > LIMIT_STOP_BYTES || memchr(text, '\0', length))
        return server_refuse(fail, FAULT_INVALID, f->path,
                             "%s: expected strings of at most %d bytes without NUL, found %zu bytes", f->path,
                             LIMIT_STOP_BYTES, length);
    if (length == 0) return true; /* clients send "" for none */
    p->stops[p->stop_count] = server_copy(text, length);
    if (!p->stops[p->stop_count]) return server_refuse(fail, FAULT_BUSY, NULL, "no memory for the request");
    p->stop_count++;
    return true;
}

static bool read_STOPS(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count > LIMIT_STOPS)
        return server_refuse(fail, FAULT_INVALID, f->path, "%s: expected at most %d strings, found %zu", f->path,
                             LIMIT_STOPS, count);
    if (!p->stops) p->stops = calloc(LIMIT_STOPS, sizeof *p->stops);
    if (!p->stops) return server_refuse(fail, FAULT_BUSY, NULL, "no memory for the request");
    bool good = true;
    for (size_t i = 0; good && i < count; i++)
        good = add_stop(f, json_is_array(value) ? json_array_get(value, i) : value, p, fail);
    return good;
}

/* A token id as the key of an object. */
static bool token_id(const char *text, int64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 9 || text[digits]) return false;
    *out = atoll(text);
    return true;
}

static bool read_BIASES(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    const char *key;
    json_t *bias;
    if (!json_is_object(value) || json_object_size(value) > LIMIT_BIASES)
        return server_refuse(fail, FAULT_INVALID, f->path,
                             "%s: expected an object of at most %d token ids with numbers, found %s", f->path,
                             LIMIT_BIASES, type_name(value));
    p->biases = calloc(json_object_size(value) + 1, sizeof *p->biases);
    if (!p->biases) return server_refuse(fail, FAULT_BUSY, NULL, "no memory for the request");
    json_object_foreach(value, key, bias) {
        int64_t id;
        double number = json_number_value(bias);
        if (!token_id(key, &id) || !json_is_number(bias) || !(number >= f->low && number <= f->high))
            return server_refuse(fail, FAULT_INVALID, f->path,
                                 "%s: expected token ids with numbers from %g to %g, found \"%.20s\"", f->path, f->low,
                                 f->high, key);
        p->biases[p->bias_count++] = (strata_bias){.token = (strata_token)id,
                                                   /* −100 means never in OpenAI's API */
                                                   .bias = number <= -100.0 ? -INFINITY : (float)number};
    }
    return true;
}

static bool read_REFUSED(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    (void)p;
    bool empty = json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
                 (json_is_array(value) && json_array_size(value) == 0) ||
                 (json_is_object(value) && json_object_size(value) == 0);
    return empty || server_refuse(fail, FAULT_INVALID, f->path, "%s: this server does not support it; leave it out",
                                  f->path);
}

/* The string, or the type of the object. */
static const char *word_of(const json_t *value)
{
    const char *word = json_string_value(json_is_object(value) ? json_object_get(value, "type") : value);
    return word ? word : "";
}

static bool read_TEXT_ONLY(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    (void)p;
    const char *word = word_of(value);
    return strcmp(word, "text") == 0 ||
           server_refuse(fail, FAULT_INVALID, f->path,
                         "%s: expected text, found \"%.40s\": this server does not support structured answers", f->path,
                         word);
}

static bool read_AUTO_ONLY(const field *f, json_t *value, server_parameters *p, server_fail *fail)
{
    (void)p;
    const char *word = word_of(value);
    return strcmp(word, "auto") == 0 || strcmp(word, "none") == 0 ||
           server_refuse(fail, FAULT_INVALID, f->path,
                         "%s: expected auto or none, found \"%.40s\": this server cannot force a tool call", f->path,
                         word);
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

#define CHAT API_CHAT
#define COMPLETION API_COMPLETION
#define RESPONSE API_RESPONSE
#define MESSAGE API_MESSAGE
#define OLLAMA API_OLLAMA
static const field fields[] = {
#define FIELD(path, apis, kind, member, low, high)                                                                   \
    {path, (apis), read_##kind, offsetof(server_parameters, member), low, high},
#include "fields.def"
};

json_t *server_field(const json_t *body, const char *path)
{
    char name[64];
    json_t *value = NULL;
    for (const json_t *at = body; at; at = value) {
        size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        value = json_object_get(at, name);
        if (!path[length]) return json_is_null(value) ? NULL : value;
        path += length + 1;
    }
    return NULL;
}

bool server_fields_read(const json_t *body, unsigned api, server_parameters *p, server_fail *fail)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *f = &fields[i];
        json_t *value = f->apis & api ? server_field(body, f->path) : NULL;
        if (value && !f->read(f, value, p, fail)) return false;
    }
    return true;
}

void server_parameters_default(server_parameters *p)
{
    static const strata_sampling s = STRATA_SAMPLING_DEFAULT;
    *p = (server_parameters){.temperature = s.temperature, .top_p = s.top_p, .min_p = s.min_p,
                             .repeat_penalty = s.repeat_penalty, .top_k = s.top_k,
                             .penalty_tokens = s.penalty_tokens, .seed = -1, .max_tokens = -1, .n = 1,
                             .top_logprobs = -1};
}

void server_parameters_free(server_parameters *p)
{
    for (size_t i = 0; i < p->stop_count; i++) free(p->stops[i]);
    free(p->stops);
    free(p->biases);
    *p = (server_parameters){0};
}

/* ---- bodies ---------------------------------------------------------------------------------------------------- */

/* jansson recurses up to 2,048 levels; the templates and this server want fewer. */
static bool is_shallow(const char *text, size_t length)
{
    size_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\') i++;
            else if (c == '"') quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > LIMIT_JSON_DEPTH) return false;
        } else if (c == '}' || c == ']') {
            if (depth > 0) depth--;
        }
    }
    return true;
}

json_t *server_body_parse(const char *text, size_t length, server_fail *fail)
{
    json_error_t where;
    if (length == 0) {
        server_refuse(fail, FAULT_INVALID, NULL, "the body: expected a JSON object, found nothing");
        return NULL;
    }
    if (!is_shallow(text, length)) {
        server_refuse(fail, FAULT_INVALID, NULL, "the body: expected at most %d nested levels", LIMIT_JSON_DEPTH);
        return NULL;
    }
    json_t *body = json_loadb(text, length, JSON_ALLOW_NUL, &where);
    if (!body)
        server_refuse(fail, FAULT_INVALID, NULL, "the body is not valid JSON: line %d, column %d: %s", where.line,
                      where.column, where.text);
    if (body && !json_is_object(body)) {
        server_refuse(fail, FAULT_INVALID, NULL, "the body: expected a JSON object, found %s", type_name(body));
        json_decref(body);
        return NULL;
    }
    return body;
}
