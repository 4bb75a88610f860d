/* Rates of classes of operations as JSON: {"product": {"us": 3.1, "fill": 4e6}, …}. Fields that are 0 are absent. */
#include "backend/profiles.h"

#include <stdio.h>
#include <string.h>

typedef struct class_field {
    const char *name;
    size_t offset;    /* in st_class_rates */
    double unit;      /* what one of them is */
    double low, high; /* in the file's unit */
} class_field;

#define AT(member) offsetof(st_class_rates, member)
static const class_field fields[] = {
    {"us", AT(seconds), 1e-6, 0, ST_FILE_US_MAX},
    {"batch_us", AT(batch_seconds), 1e-6, 0, ST_FILE_US_MAX},
    {"deep_us", AT(deep_seconds), 1e-6, 0, ST_FILE_US_MAX},
    {"memory_share", AT(memory_share), 1, ST_FILE_SHARE_MIN, 1},
    {"op_share", AT(op_share), 1, ST_FILE_SHARE_MIN, 100}, /* of the products' rate: other kernels may be faster */
    {"fill", AT(fill), 1, 0, 1e9},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static json_t *class_json(const st_class_rates *rates)
{
    json_t *object = json_object();
    for (size_t i = 0; i < FIELDS; i++) {
        double value;
        memcpy(&value, (const char *)rates + fields[i].offset, sizeof value);
        if (!(value > 0.0)) continue;
        if (json_object_set_new(object, fields[i].name, json_real(value / fields[i].unit)) == 0) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

json_t *st_classes_json(const st_class_rates classes[ST_CLASS_COUNT])
{
    json_t *object = json_object();
    for (int i = 0; i < ST_CLASS_COUNT; i++) {
        json_t *rates = class_json(&classes[i]);
        if (rates && json_object_size(rates) == 0) {
            json_decref(rates);
            continue;
        }
        if (json_object_set_new(object, st_class_name((st_op_class)i), rates) == 0) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

static bool read_class(const char *name, json_t *object, st_class_rates *out, char *wrong, size_t size)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) return snprintf(wrong, size, "an object for %s", name), false;
    json_object_foreach(object, key, value) {
        size_t i = 0;
        while (i < FIELDS && strcmp(fields[i].name, key) != 0) i++;
        if (i == FIELDS)
            return snprintf(wrong, size, "%s with us, batch_us, deep_us, memory_share, op_share or fill", name), false;
        double number = json_number_value(value);
        if (!json_is_number(value) || !(number >= fields[i].low && number <= fields[i].high))
            return snprintf(wrong, size, "%s.%s from %g to %g", name, key, fields[i].low, fields[i].high), false;
        number *= fields[i].unit;
        memcpy((char *)out + fields[i].offset, &number, sizeof number);
    }
    return true;
}

bool st_classes_read(json_t *object, st_class_rates classes[ST_CLASS_COUNT], char *wrong, size_t size)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) return snprintf(wrong, size, "an object of classes of operations"), false;
    json_object_foreach(object, key, value) {
        int i = 0;
        while (i < ST_CLASS_COUNT && strcmp(st_class_name((st_op_class)i), key) != 0) i++;
        if (i == ST_CLASS_COUNT) return snprintf(wrong, size, "classes of operations"), false;
        if (!read_class(key, value, &classes[i], wrong, size)) return false;
    }
    return true;
}
