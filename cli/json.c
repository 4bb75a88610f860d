/* Fields of the library's JSON. */
#include <string.h>

#include "cli.h"

uint64_t cli_number_of(const json_t *object, const char *field)
{
    json_int_t value = json_integer_value(json_object_get(object, field));
    return value > 0 ? (uint64_t)value : 0;
}

double cli_real_of(const json_t *object, const char *field)
{
    return json_number_value(json_object_get(object, field));
}

const char *cli_text_of(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

bool cli_text_is(const json_t *object, const char *field, const char *text)
{
    return strcmp(cli_text_of(object, field), text) == 0;
}
