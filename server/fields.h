/* Reads the numbers, flags and lists of a request into server_parameters, by the table fields.def. Owns their ranges
 * and the errors that name them. Knows no API beyond the bit of its rows. */
#ifndef SERVER_FIELDS_H
#define SERVER_FIELDS_H

#include <jansson.h>

#include "fault.h"
#include "strata.h"

/* Bits of the APIs in the table. */
enum { API_CHAT = 1, API_COMPLETION = 2, API_RESPONSE = 4, API_MESSAGE = 8, API_OLLAMA = 16 };

typedef struct server_parameters {
    double temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, penalty_tokens, seed;
    int64_t max_tokens; /* −1: no limit */
    int64_t n, top_logprobs; /* top_logprobs −1: not asked for */
    bool stream, include_usage, logprobs, echo, ignore_eos, ignored;
    char **stops; /* [stop_count] */
    size_t stop_count;
    strata_bias *biases; /* [bias_count] */
    size_t bias_count;
} server_parameters;

void server_parameters_default(server_parameters *parameters);
void server_parameters_free(server_parameters *parameters);

/* False: a field is wrong, and `fail` names it. */
bool server_fields_read(const json_t *body, unsigned api, server_parameters *parameters, server_fail *fail);

/* The value at a path with dots; NULL: missing or null. */
json_t *server_field(const json_t *body, const char *path);

/* Parses a request's body: a JSON object with limits on its depth; the last of equal keys wins. */
json_t *server_body_parse(const char *text, size_t length, server_fail *fail);

#endif
