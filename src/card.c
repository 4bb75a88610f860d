#include "card.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "json.h"

/* Longer arrays are not one value per layer: the model card leaves them out. */
enum { CARD_ITEMS_MAX = 1024 };

typedef enum card_kind { CARD_TEXT, CARD_NUMBER } card_kind;

/* Fields that are a key of the file, in the card's order. A key that is absent or of another type leaves no field. */
typedef struct card_row {
    const char *field;
    const char *key;
    card_kind kind;
    bool prefixed; /* the key follows the architecture's name and a dot */
} card_row;

static const card_row card_rows[] = {
    {"name", "general.name", CARD_TEXT, false},
    {"architecture", "general.architecture", CARD_TEXT, false},
    {"type", "general.type", CARD_TEXT, false},
    {"size_label", "general.size_label", CARD_TEXT, false},
    {"licence", "general.license", CARD_TEXT, false},
    {"file_type", "general.file_type", CARD_NUMBER, false},
    {"layers", "block_count", CARD_NUMBER, true},
    {"context_length", "context_length", CARD_NUMBER, true},
    {"embedding_length", "embedding_length", CARD_NUMBER, true},
    {"feed_forward_length", "feed_forward_length", CARD_NUMBER, true},
    {"head_count", "attention.head_count", CARD_NUMBER, true},
    {"head_count_kv", "attention.head_count_kv", CARD_NUMBER, true},
    {"sliding_window", "attention.sliding_window", CARD_NUMBER, true},
    {"expert_count", "expert_count", CARD_NUMBER, true},
    {"expert_used_count", "expert_used_count", CARD_NUMBER, true},
    {"expert_feed_forward_length", "expert_feed_forward_length", CARD_NUMBER, true},
    {"nextn_predict_layers", "nextn_predict_layers", CARD_NUMBER, true},
};

/* Common names of the file types. */
static const char *const file_type_names[] = {
    [0] = "F32",      [1] = "F16",      [2] = "Q4_0",     [3] = "Q4_1",   [7] = "Q8_0",    [8] = "Q5_0",
    [9] = "Q5_1",     [10] = "Q2_K",    [11] = "Q3_K_S",  [12] = "Q3_K_M", [13] = "Q3_K_L", [14] = "Q4_K_S",
    [15] = "Q4_K_M",  [16] = "Q5_K_S",  [17] = "Q5_K_M",  [18] = "Q6_K",  [19] = "IQ2_XXS", [20] = "IQ2_XS",
    [21] = "Q2_K_S",  [22] = "IQ3_XS",  [23] = "IQ3_XXS", [24] = "IQ1_S", [25] = "IQ4_NL", [26] = "IQ3_S",
    [27] = "IQ3_M",   [28] = "IQ2_S",   [29] = "IQ2_M",   [30] = "IQ4_XS", [31] = "IQ1_M",  [32] = "BF16",
    [36] = "TQ1_0",   [37] = "TQ2_0",   [38] = "MXFP4",   [39] = "NVFP4",
};

/* What the tensors of one type add up to. */
typedef struct type_sum {
    const st_type_info *info;
    uint64_t count;
    uint64_t elements;
    uint64_t bytes;
} type_sum;

/* Writes a model card. A failed allocation sets `failed`, so that the writer checks once. */
typedef struct card {
    const st_card_subject *subject;
    json_t *object;
    type_sum *types; /* [type_count], the largest first */
    size_t type_count;
    bool failed;
} card;

/* Takes ownership of `value`; NULL is a failed allocation. */
static void set_field(card *made, json_t *object, const char *field, json_t *value)
{
    if (json_object_set_new(object, field, value) != 0) made->failed = true;
}

static void append_item(card *made, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) made->failed = true;
}

static void set_size(card *made, json_t *object, const char *field, uint64_t value)
{
    if (value <= INT64_MAX) set_field(made, object, field, json_integer((json_int_t)value));
}

static void set_numbers(card *made, const char *field, const st_gguf_key *array)
{
    if (array->count > CARD_ITEMS_MAX) return;
    json_t *items = json_array();
    for (uint64_t i = 0; i < array->count; i++) append_item(made, items, json_integer(st_gguf_item_i64(array, i)));
    set_field(made, made->object, field, items);
}

static void set_row(card *made, const card_row *row, const char *key)
{
    const st_gguf *gguf = made->subject->gguf;
    bool found = false;
    st_str text;
    uint64_t number;
    const st_gguf_key *array = NULL;
    if (row->kind == CARD_TEXT) {
        if (st_gguf_get_str(gguf, key, &text, &found, NULL) == STRATA_OK && found)
            set_field(made, made->object, row->field, st_json_text(text));
    } else if (st_gguf_get_u64(gguf, key, &number, &found, NULL) == STRATA_OK) {
        if (found) set_size(made, made->object, row->field, number);
    } else if (st_gguf_get_array(gguf, key, ST_GGUF_I64, &array, NULL) == STRATA_OK && array) {
        set_numbers(made, row->field, array);
    }
}

static void set_rows(card *made)
{
    st_str architecture = ST_STR("");
    st_gguf_get_str(made->subject->gguf, "general.architecture", &architecture, NULL, NULL);
    st_buf key = {0};
    for (size_t i = 0; i < sizeof card_rows / sizeof *card_rows; i++) {
        const card_row *row = &card_rows[i];
        key.length = 0;
        if (row->prefixed) {
            st_buf_append_str(&key, architecture);
            st_buf_append_char(&key, '.');
        }
        st_buf_append(&key, row->key, strlen(row->key) + 1);
        if (key.failed) break;
        set_row(made, row, key.data);
    }
    if (key.failed) made->failed = true;
    st_buf_free(&key);
}

static int compare_sums(const void *left, const void *right)
{
    const type_sum *a = left, *b = right;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    return strcmp(a->info->name, b->info->name);
}

static bool sum_types(card *made)
{
    const st_gguf *gguf = made->subject->gguf;
    made->types = st_alloc_zero(st_type_count(), sizeof *made->types);
    if (!made->types) return false;
    for (size_t i = 0; i < st_gguf_tensor_count(gguf); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(gguf, i);
        size_t place = 0;
        while (place < made->type_count && made->types[place].info != tensor->info) place++;
        if (place == made->type_count) made->types[made->type_count++].info = tensor->info;
        made->types[place].count++;
        made->types[place].elements += tensor->ne[0] * tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
        made->types[place].bytes += tensor->bytes;
    }
    qsort(made->types, made->type_count, sizeof *made->types, compare_sums);
    return true;
}

static void set_types(card *made)
{
    const st_gguf *gguf = made->subject->gguf;
    json_t *types = json_array();
    uint64_t elements = 0;
    for (size_t i = 0; i < made->type_count; i++) {
        const type_sum *sum = &made->types[i];
        json_t *item = json_object();
        set_field(made, item, "type", json_string(sum->info->name));
        set_size(made, item, "tensors", sum->count);
        set_size(made, item, "parameters", sum->elements);
        set_size(made, item, "bytes", sum->bytes);
        append_item(made, types, item);
        elements += sum->elements;
    }
    set_size(made, made->object, "parameters", elements);
    if (made->type_count > 0) {
        uint64_t number = UINT64_MAX;
        st_gguf_get_u64(gguf, "general.file_type", &number, NULL, NULL);
        const char *name =
            number < sizeof file_type_names / sizeof *file_type_names ? file_type_names[number] : NULL;
        set_field(made, made->object, "quantisation", json_string(name ? name : made->types[0].info->name));
    }
    if (elements > 0)
        set_field(made, made->object, "bits_per_parameter",
                  json_real((double)st_gguf_tensor_bytes(gguf) * 8.0 / (double)elements));
    set_field(made, made->object, "tensor_types", types);
}

static void set_token(card *made, json_t *object, const char *field, strata_token token)
{
    if (token < 0) {
        set_field(made, object, field, json_null());
        return;
    }
    json_t *item = json_object();
    set_field(made, item, "id", json_integer(token));
    set_field(made, item, "text", st_json_text(st_tokenizer_text(made->subject->tokenizer, token)));
    set_field(made, object, field, item);
}

static void set_tokenizer(card *made)
{
    const st_gguf *gguf = made->subject->gguf;
    const st_tokenizer *tokenizer = made->subject->tokenizer;
    const strata_error *problem = made->subject->tokenizer_problem;
    if (!tokenizer && !problem) {
        set_field(made, made->object, "tokenizer", json_null());
        return;
    }
    json_t *object = json_object();
    set_field(made, object, "supported", json_boolean(tokenizer != NULL));
    st_str text;
    bool found = false;
    if (st_gguf_get_str(gguf, "tokenizer.ggml.model", &text, &found, NULL) == STRATA_OK && found)
        set_field(made, object, "model", st_json_text(text));
    if (tokenizer) {
        set_field(made, object, "kind", json_string(st_tokenizer_kind(tokenizer)));
        set_field(made, object, "pre", json_string(st_tokenizer_pre(tokenizer)));
        set_size(made, object, "vocabulary_size", st_tokenizer_vocab_size(tokenizer));
        set_token(made, object, "bos", st_tokenizer_bos(tokenizer));
        set_token(made, object, "eos", st_tokenizer_eos(tokenizer));
        set_field(made, object, "adds_bos", json_boolean(st_tokenizer_adds_bos(tokenizer)));
    } else {
        if (st_gguf_get_str(gguf, "tokenizer.ggml.pre", &text, &found, NULL) == STRATA_OK && found)
            set_field(made, object, "pre", st_json_text(text));
        const st_gguf_key *tokens = NULL;
        if (st_gguf_get_array(gguf, "tokenizer.ggml.tokens", ST_GGUF_STRING, &tokens, NULL) == STRATA_OK && tokens)
            set_size(made, object, "vocabulary_size", tokens->count);
        set_field(made, object, "problem", json_string(problem->message));
    }
    set_field(made, made->object, "tokenizer", object);
}

static void set_template(card *made)
{
    st_str source;
    bool found = false;
    json_t *object = NULL;
    if (st_gguf_get_str(made->subject->gguf, "tokenizer.chat_template", &source, &found, NULL) == STRATA_OK && found) {
        object = json_object();
        set_size(made, object, "bytes", source.length);
    } else {
        object = json_null();
    }
    set_field(made, made->object, "chat_template", object);
}

static void set_tensors(card *made)
{
    const st_gguf *gguf = made->subject->gguf;
    json_t *tensors = json_array();
    for (size_t i = 0; i < st_gguf_tensor_count(gguf); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(gguf, i);
        json_t *item = json_object(), *shape = json_array();
        for (uint32_t d = 0; d < tensor->dim_count; d++)
            append_item(made, shape, json_integer((json_int_t)tensor->ne[d]));
        set_field(made, item, "name", st_json_text(tensor->name));
        set_field(made, item, "type", json_string(tensor->info->name));
        set_field(made, item, "shape", shape);
        set_size(made, item, "bytes", tensor->bytes);
        set_size(made, item, "file", tensor->file);
        set_size(made, item, "offset", tensor->file_offset);
        append_item(made, tensors, item);
    }
    set_field(made, made->object, "tensors", tensors);
}

static void set_program(card *made)
{
    const st_program *program = made->subject->program;
    json_t *operations = json_array();
    st_buf line = {0};
    for (uint32_t i = 0; i < program->op_count; i++) {
        const st_op *op = &program->ops[i];
        line.length = 0;
        if (!st_op_print(program, made->subject->binding, op, &line)) break;
        json_t *item = json_object();
        st_str text = {line.data, line.length - 1}; /* without its newline */
        set_field(made, item, "operation", json_string(st_op_name(op->kind)));
        set_field(made, item, "layer", op->layer < 0 ? json_null() : json_integer(op->layer));
        set_field(made, item, "text", st_json_text(text));
        append_item(made, operations, item);
    }
    if (line.failed) made->failed = true;
    st_buf_free(&line);
    set_field(made, made->object, "program", operations);
}

strata_status st_card_write(const st_card_subject *subject, char **json, strata_error *error)
{
    const st_gguf *gguf = subject->gguf;
    card made = {.subject = subject, .object = json_object()};
    made.failed = !made.object || !sum_types(&made);
    if (!made.failed) {
        set_field(&made, made.object, "path", st_json_text(st_str_from(st_gguf_path(gguf))));
        set_rows(&made);
        set_size(&made, made.object, "gguf_version", st_gguf_version(gguf));
        set_size(&made, made.object, "files", st_gguf_file_count(gguf));
        set_size(&made, made.object, "file_bytes", st_gguf_file_bytes(gguf));
        set_size(&made, made.object, "keys", st_gguf_key_count(gguf));
        set_size(&made, made.object, "tensor_count", st_gguf_tensor_count(gguf));
        set_size(&made, made.object, "tensor_bytes", st_gguf_tensor_bytes(gguf));
        set_types(&made);
        set_tokenizer(&made);
        set_template(&made);
        if (subject->tensors) set_tensors(&made);
        if (subject->program) set_program(&made);
    }
    st_free(made.types);
    if (made.failed) {
        json_decref(made.object);
        made.object = NULL;
    }
    return st_json_give(made.object, JSON_REAL_PRECISION(4), "the model card", json, error);
}
