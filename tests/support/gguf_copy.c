#include "support/gguf_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"

void gguf_copy_open(gguf_copy *copy, const char *name)
{
    *copy = (gguf_copy){0};
    char file[128];
    snprintf(file, sizeof file, "%s.gguf", name);
    strata_error error;
    if (st_gguf_open(kit_path(file), &copy->source, &error) != STRATA_OK) fail_msg("%s", error.message);
    st_str family = ST_STR("");
    assert_int_equal(st_gguf_get_str(copy->source, "general.architecture", &family, NULL, NULL), STRATA_OK);
    snprintf(copy->prefix, sizeof copy->prefix, "%.*s", ST_STR_ARG(family));
    gguf_writer_begin(&copy->writer, 3);
    copy->tensors = st_alloc_zero(GGUF_COPY_TENSORS, sizeof *copy->tensors);
    assert_non_null(copy->tensors);
    for (size_t i = 0; i < st_gguf_tensor_count(copy->source); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(copy->source, i);
        char text[96];
        snprintf(text, sizeof text, "%.*s", ST_STR_ARG(tensor->name));
        gguf_copy_add(copy, text, tensor->type, tensor->dim_count, tensor->ne, tensor->data);
    }
}

void gguf_copy_close(gguf_copy *copy)
{
    gguf_writer_free(&copy->writer);
    st_free(copy->tensors);
    st_gguf_close(copy->source);
}

const char *gguf_copy_key(const gguf_copy *copy, const char *name)
{
    static char text[96];
    snprintf(text, sizeof text, "%s%s", name[0] == '.' ? copy->prefix : "", name);
    return text;
}

void gguf_copy_drop_key(gguf_copy *copy, const char *name)
{
    assert_true(copy->replaced_count < GGUF_COPY_KEYS);
    snprintf(copy->replaced[copy->replaced_count++], sizeof *copy->replaced, "%s", gguf_copy_key(copy, name));
}

void gguf_copy_drop_keys_of(gguf_copy *copy, const char *start)
{
    for (size_t i = 0; i < st_gguf_key_count(copy->source); i++) {
        st_str name = st_gguf_key_at(copy->source, i)->name;
        char text[96];
        snprintf(text, sizeof text, "%.*s", ST_STR_ARG(name));
        if (strncmp(text, start, strlen(start)) == 0) gguf_copy_drop_key(copy, text);
    }
}

void gguf_copy_set_u32(gguf_copy *copy, const char *name, uint32_t value)
{
    gguf_copy_drop_key(copy, name);
    gguf_write_key_u32(&copy->writer, gguf_copy_key(copy, name), value);
}

gguf_copy_tensor *gguf_copy_find(gguf_copy *copy, const char *name)
{
    for (size_t i = 0; i < copy->tensor_count; i++)
        if (strcmp(copy->tensors[i].name, name) == 0) return &copy->tensors[i];
    fail_msg("the copy has no tensor %s", name);
    return NULL;
}

void gguf_copy_remove(gguf_copy *copy, const char *name)
{
    gguf_copy_tensor *tensor = gguf_copy_find(copy, name);
    *tensor = copy->tensors[--copy->tensor_count];
}

gguf_copy_tensor *gguf_copy_add(gguf_copy *copy, const char *name, uint32_t type, uint32_t dim_count,
                                const uint64_t *ne, const void *data)
{
    assert_true(copy->tensor_count < GGUF_COPY_TENSORS);
    gguf_copy_tensor *tensor = &copy->tensors[copy->tensor_count++];
    *tensor = (gguf_copy_tensor){.type = type, .dim_count = dim_count, .data = data};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    for (uint32_t i = 0; i < 4; i++) tensor->ne[i] = i < dim_count ? ne[i] : 1;
    return tensor;
}

void gguf_copy_clear_tensors(gguf_copy *copy)
{
    copy->tensor_count = 0;
}

static bool is_replaced(const gguf_copy *copy, st_str name)
{
    for (size_t i = 0; i < copy->replaced_count; i++)
        if (st_str_is(name, copy->replaced[i])) return true;
    return false;
}

static void copy_keys(gguf_copy *copy)
{
    for (size_t i = 0; i < st_gguf_key_count(copy->source); i++) {
        const st_gguf_key *key = st_gguf_key_at(copy->source, i);
        if (is_replaced(copy, key->name)) continue;
        char text[96];
        snprintf(text, sizeof text, "%.*s", ST_STR_ARG(key->name));
        if (key->type == ST_GGUF_ARRAY) gguf_write_key_array(&copy->writer, text, key->item_type, key->count);
        else gguf_write_key(&copy->writer, text, key->type);
        st_buf_append(&copy->writer.out, key->data, key->data_bytes);
    }
}

void gguf_copy_finish(gguf_copy *copy, bool data)
{
    gguf_writer *writer = &copy->writer;
    copy_keys(copy);
    uint64_t *offsets = st_alloc_array(copy->tensor_count, sizeof *offsets);
    assert_non_null(offsets);
    for (size_t i = 0; i < copy->tensor_count; i++) {
        gguf_copy_tensor *tensor = &copy->tensors[i];
        offsets[i] = writer->data_bytes;
        gguf_write_tensor(writer, tensor->name, tensor->type, tensor->dim_count, tensor->ne);
        size_t row = 0;
        assert_true(st_type_row_bytes(st_type_find(tensor->type), tensor->ne[0], &row));
        tensor->bytes = row * (size_t)(tensor->ne[1] * tensor->ne[2] * tensor->ne[3]);
    }
    if (data) gguf_writer_finish(writer);
    else gguf_writer_finish_directory(writer);
    assert_false(writer->out.failed);
    char *start = writer->out.data + writer->out.length - writer->data_bytes;
    for (size_t i = 0; data && i < copy->tensor_count; i++)
        if (copy->tensors[i].data) memcpy(start + offsets[i], copy->tensors[i].data, copy->tensors[i].bytes);
    st_free(offsets);
}

void gguf_copy_save(const gguf_copy *copy, char path[64])
{
    snprintf(path, 64, "/tmp/strata-test-XXXXXX.gguf");
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    for (size_t done = 0; done < copy->writer.out.length;) {
        ssize_t got = write(fd, copy->writer.out.data + done, copy->writer.out.length - done);
        assert_true(got > 0);
        done += (size_t)got;
    }
    close(fd);
}
