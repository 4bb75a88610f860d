#include "support/mutate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { CASES_MAX = 2048 };

static mutate_case cases[CASES_MAX];
static size_t case_count;

mutate_case *mutate_add(mutate_build *build, unsigned statuses, const char *message, const char *name, ...)
{
    if (case_count == CASES_MAX) {
        fprintf(stderr, "mutate: the table is full\n");
        exit(1);
    }
    mutate_case *row = &cases[case_count++];
    *row = (mutate_case){.build = build, .statuses = statuses};
    snprintf(row->message, sizeof row->message, "%s", message);
    va_list args;
    va_start(args, name);
    vsnprintf(row->name, sizeof row->name, name, args);
    va_end(args);
    return row;
}

const mutate_case *mutate_cases(size_t *count)
{
    if (case_count == 0) {
        mutate_add_patches();
        mutate_add_files();
        mutate_add_known();
    }
    *count = case_count;
    return cases;
}

/* ---- valid files ------------------------------------------------------------------------------------------------- */

static const char *const words[] = {"a", "", "▁the", "<|end|>"};

static void valid_model(gguf_writer *writer)
{
    gguf_write_key_string(writer, "general.architecture", "llama");
    gguf_write_key_u32(writer, "llama.block_count", 2);
    gguf_write_key_f32(writer, "llama.rope.freq_base", 10000);
    gguf_write_key_strings(writer, "tokenizer.ggml.tokens", words, 4);
    gguf_write_tensor(writer, "token_embd.weight", ST_TYPE_F32, 2, (uint64_t[]){4, 2});
    gguf_write_tensor(writer, "blk.0.ffn_up.weight", ST_TYPE_Q8_0, 2, (uint64_t[]){32, 3});
    gguf_write_tensor(writer, "output_norm.weight", ST_TYPE_F16, 1, (uint64_t[]){3});
}

static void valid_vocabulary(gguf_writer *writer)
{
    gguf_write_key_string(writer, "general.architecture", "gpt2");
    gguf_write_key_string(writer, "tokenizer.ggml.model", "gpt2");
    gguf_write_key_strings(writer, "tokenizer.ggml.tokens", words, 4);
    gguf_write_key_array(writer, "tokenizer.ggml.token_type", ST_GGUF_I32, 4);
    for (uint32_t i = 0; i < 4; i++) gguf_write_u32(writer, i ? 1 : 3);
    gguf_write_key_bool(writer, "tokenizer.ggml.add_bos_token", true);
}

static void valid_aligned(gguf_writer *writer)
{
    writer->alignment = 64;
    gguf_write_key_u32(writer, "general.alignment", 64);
    gguf_write_tensor(writer, "x", ST_TYPE_I8, 4, (uint64_t[]){5, 1, 2, 1});
    gguf_write_tensor(writer, "y", ST_TYPE_F64, 3, (uint64_t[]){1, 1, 1});
}

static void valid_every_type(gguf_writer *writer)
{
    char name[32];
    for (int type = 0; type < ST_GGUF_TYPE_COUNT; type++) {
        if (type == ST_GGUF_ARRAY) continue;
        snprintf(name, sizeof name, "one.%s", st_gguf_type_name((st_gguf_type)type));
        gguf_write_key_sample(writer, name, (st_gguf_type)type, false);
        snprintf(name, sizeof name, "many.%s", st_gguf_type_name((st_gguf_type)type));
        gguf_write_key_sample(writer, name, (st_gguf_type)type, true);
    }
    gguf_write_key_array(writer, "none", ST_GGUF_STRING, 0);
}

static void valid_merged(gguf_writer *writer)
{
    gguf_write_key_u16(writer, "split.no", 0);
    gguf_write_key_u16(writer, "split.count", 0);
    gguf_write_key_i32(writer, "split.tensors.count", 7);
    gguf_write_tensor(writer, "a", ST_TYPE_NVFP4, 1, (uint64_t[]){64});
}

void mutate_valid(size_t index, gguf_writer *writer, size_t *directory_end, size_t *file_end)
{
    static void (*const build[MUTATE_VALID_COUNT])(gguf_writer *) = {valid_model, valid_vocabulary, valid_aligned,
                                                                     valid_every_type, valid_merged};
    static const size_t last_bytes[MUTATE_VALID_COUNT] = {6, 0, 8, 0, 36};
    static const size_t last_space[MUTATE_VALID_COUNT] = {32, 0, 64, 0, 64};
    gguf_writer_begin(writer, index == 2 ? 2 : 3);
    build[index](writer);
    *directory_end = writer->out.length;
    gguf_writer_finish(writer);
    /* The last tensor's padding may be missing. */
    *file_end = writer->tensor_count ? writer->out.length - last_space[index] + last_bytes[index] : *directory_end;
}
