/* Models split over several files: X-00001-of-00003.gguf and so on. Each file has a directory of its own tensors and
 * three keys: split.no (from 0), split.count and split.tensors.count (of all files). */
#include <inttypes.h>

#include "gguf/directory.h"

enum { NUMBER_DIGITS = 5 };

static bool parse_number(const char *text, uint32_t *out)
{
    uint32_t value = 0;
    for (int i = 0; i < NUMBER_DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (uint32_t)(text[i] - '0');
    }
    *out = value;
    return true;
}

bool st_gguf_split_parse(const char *path, st_gguf_split_name *out)
{
    static const char form[] = "-00000-of-00000.gguf";
    size_t length = strlen(path), tail = sizeof form - 1;
    if (length < tail) return false;
    const char *end = path + length - tail;
    uint32_t number, count;
    if (end[0] != '-' || !parse_number(end + 1, &number) || memcmp(end + 6, "-of-", 4) != 0 ||
        !parse_number(end + 10, &count) || strcmp(end + 15, ".gguf") != 0)
        return false;
    /* Number 0 wraps to an index above any count. */
    *out = (st_gguf_split_name){.stem_length = length - tail, .index = number - 1, .count = count};
    return true;
}

/* The value of a split key, whose type known.c has checked; false if absent. */
static bool split_value(const st_gguf_file *file, const char *name, uint64_t *value)
{
    const st_gguf_key *key = st_gguf_file_key(file, st_str_from(name));
    return key && st_gguf_load_integer(key->type, key->data, value);
}

static strata_status check_alone(const st_gguf_file *file, uint64_t count, strata_error *error)
{
    st_gguf_place place = {.file = file, .kind = "key", .name = ST_STR("split.count")};
    if (count > 1)
        return st_gguf_fail(&place, STRATA_FORMAT,
                            "keep the files of a split together and by their names, such as NAME-00001-of-00003.gguf",
                            error, "expected a file by itself, as its name says, found one of %" PRIu64 " files",
                            count);
    uint64_t number = 0;
    place.name = ST_STR("split.no");
    if (split_value(file, "split.no", &number) && number != 0)
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error, "expected 0 in a file by itself, found %" PRIu64,
                            number);
    return STRATA_OK;
}

strata_status st_gguf_split_check(st_gguf_file *file, uint32_t count, strata_error *error)
{
    uint64_t found;
    bool has_count = split_value(file, "split.count", &found);
    if (!split_value(file, "split.tensors.count", &file->split_tensors)) file->split_tensors = UINT64_MAX;
    if (count == 1) {
        if (!has_count || found == 0) file->split_tensors = UINT64_MAX; /* merged from a split, or never split */
        return has_count ? check_alone(file, found, error) : STRATA_OK;
    }
    st_gguf_place place = {.file = file, .kind = "key", .name = ST_STR("split.count")};
    if (!has_count)
        return st_gguf_fail(&place, STRATA_FORMAT, "if the file is not part of a split, give it another name", error,
                            "expected %" PRIu32 ", as the file's name says, found no such key", count);
    if (found != count)
        return st_gguf_fail(&place, STRATA_FORMAT, "keep the names that the files of the split had", error,
                            "expected %" PRIu32 ", as the file's name says, found %" PRIu64, count, found);
    place.name = ST_STR("split.no");
    if (!split_value(file, "split.no", &found))
        return st_gguf_fail(&place, STRATA_FORMAT, NULL, error, "expected %" PRIu32 ", found no such key", file->index);
    if (found != file->index)
        return st_gguf_fail(&place, STRATA_FORMAT, "keep the names that the files of the split had", error,
                            "expected %" PRIu32 ", as the file's name says, found %" PRIu64, file->index, found);
    return STRATA_OK;
}

strata_status st_gguf_split_check_all(const st_gguf *gguf, strata_error *error)
{
    for (uint32_t i = 0; i < gguf->file_count; i++) {
        const st_gguf_file *file = &gguf->files[i];
        st_gguf_place place = {.file = file, .kind = "key", .name = ST_STR("split.tensors.count")};
        if (file->split_tensors != UINT64_MAX && file->split_tensors != gguf->tensor_count)
            return st_gguf_fail(&place, STRATA_FORMAT, NULL, error,
                                "expected %zu, the tensors of all files together, found %" PRIu64, gguf->tensor_count,
                                file->split_tensors);
        st_str expected = gguf->files[0].architecture;
        place.name = ST_STR("general.architecture");
        if (file->architecture.length && !st_str_equal(file->architecture, expected))
            return st_gguf_fail(&place, STRATA_FORMAT, "the files of the split are not of the same model", error,
                                "expected \"%.*s\" as in the first file, found \"%.*s\"", ST_STR_ARG(expected),
                                ST_STR_ARG(file->architecture));
    }
    return STRATA_OK;
}
