/* Prints the JSON of strata_model_describe for people. Texts come from the file, so their control characters are
 * replaced. */
#include <string.h>

#include "cli.h"

enum { LABEL_WIDTH = 15, BAR_WIDTH = 20 };

static void print_label(const char *label)
{
    printf("  %-*s ", LABEL_WIDTH, label);
}

static void print_json_text(const json_t *text)
{
    cli_print_text(json_string_value(text), json_string_length(text));
}

static uint64_t number_of(const json_t *object, const char *field)
{
    json_int_t value = json_integer_value(json_object_get(object, field));
    return value > 0 ? (uint64_t)value : 0;
}

static void print_grouped(uint64_t number)
{
    char text[32];
    fputs(cli_group_digits(number, text, sizeof text), stdout);
}

/* A number, or the range of an array with one number per layer. */
static void print_numbers(const json_t *value)
{
    if (json_is_integer(value)) {
        json_int_t number = json_integer_value(value);
        if (number < 0) printf("%lld", (long long)number);
        else print_grouped((uint64_t)number);
        return;
    }
    json_int_t low = json_integer_value(json_array_get(value, 0)), high = low;
    for (size_t i = 1; i < json_array_size(value); i++) {
        json_int_t item = json_integer_value(json_array_get(value, i));
        if (item < low) low = item;
        if (item > high) high = item;
    }
    if (low == high) printf("%lld", (long long)low);
    else printf("%lld to %lld, depending on the layer", (long long)low, (long long)high);
}

static void print_numbers_line(const json_t *card, const char *label, const char *field, const char *unit)
{
    const json_t *value = json_object_get(card, field);
    if (!value) return;
    print_label(label);
    print_numbers(value);
    printf("%s\n", unit);
}

static void print_text_line(const json_t *card, const char *label, const char *field)
{
    const json_t *value = json_object_get(card, field);
    if (!json_is_string(value)) return;
    print_label(label);
    print_json_text(value);
    putchar('\n');
}

static void print_size_lines(const json_t *card)
{
    char text[32];
    uint64_t bytes = number_of(card, "file_bytes"), files = number_of(card, "files");
    uint64_t parameters = number_of(card, "parameters");
    print_label("file");
    printf("GGUF version %llu, %s (", (unsigned long long)number_of(card, "gguf_version"),
           cli_short_number(bytes, "B", text, sizeof text));
    print_grouped(bytes);
    printf(" bytes)");
    if (files > 1) printf(" in %llu files", (unsigned long long)files);
    putchar('\n');
    print_label("parameters");
    if (parameters == 0) {
        puts("none: no tensors");
        return;
    }
    printf("%s, %s, %.2f bits each\n", cli_short_number(parameters, "", text, sizeof text),
           json_string_value(json_object_get(card, "quantisation")),
           json_real_value(json_object_get(card, "bits_per_parameter")));
}

static void print_heads_line(const json_t *card)
{
    const json_t *heads = json_object_get(card, "head_count"), *kv = json_object_get(card, "head_count_kv");
    if (!heads) return;
    print_label("heads");
    print_numbers(heads);
    if (kv) {
        printf(" (keys and values: ");
        print_numbers(kv);
        putchar(')');
    }
    putchar('\n');
}

static void print_experts_line(const json_t *card)
{
    uint64_t experts = number_of(card, "expert_count");
    if (experts == 0) return;
    print_label("experts");
    printf("%llu, %llu of them per token\n", (unsigned long long)experts,
           (unsigned long long)number_of(card, "expert_used_count"));
}

static void print_token_line(const json_t *tokenizer, const char *label, const char *field)
{
    const json_t *token = json_object_get(tokenizer, field);
    if (!json_is_object(token)) return;
    print_label(label);
    printf("%llu ", (unsigned long long)number_of(token, "id"));
    print_json_text(json_object_get(token, "text"));
    putchar('\n');
}

static void print_tokenizer_lines(const json_t *card)
{
    const json_t *tokenizer = json_object_get(card, "tokenizer");
    print_label("tokenizer");
    if (!json_is_object(tokenizer)) {
        puts("none");
        return;
    }
    const json_t *pre = json_object_get(tokenizer, "pre");
    bool supported = json_is_true(json_object_get(tokenizer, "supported"));
    const json_t *kind = json_object_get(tokenizer, supported ? "kind" : "model");
    if (kind) print_json_text(kind);
    if (pre) {
        printf(" (");
        print_json_text(pre);
        putchar(')');
    }
    if (json_object_get(tokenizer, "vocabulary_size")) {
        printf(", ");
        print_grouped(number_of(tokenizer, "vocabulary_size"));
        printf(" tokens");
    }
    puts(supported ? "" : ", unsupported");
    if (!supported) {
        print_label("");
        print_json_text(json_object_get(tokenizer, "problem"));
        putchar('\n');
    }
    print_token_line(tokenizer, "BOS", "bos");
    print_token_line(tokenizer, "EOS", "eos");
}

static void print_template_line(const json_t *card)
{
    const json_t *chat_template = json_object_get(card, "chat_template");
    print_label("chat template");
    if (!json_is_object(chat_template)) {
        puts("none");
        return;
    }
    print_grouped(number_of(chat_template, "bytes"));
    puts(" bytes");
}

static void print_types(const json_t *card, const cli_style *style)
{
    const json_t *types = json_object_get(card, "tensor_types");
    double total = (double)number_of(card, "tensor_bytes");
    char bytes[32];
    if (json_array_size(types) == 0) return;
    printf("\n  ");
    cli_print_bold(style, "type      tensors            bytes    share");
    putchar('\n');
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *item = json_array_get(types, i);
        uint64_t size = number_of(item, "bytes");
        double share = total > 0.0 ? (double)size / total : 0.0;
        printf("  %-8s %8llu %16s %6.1f %%", json_string_value(json_object_get(item, "type")),
               (unsigned long long)number_of(item, "tensors"), cli_group_digits(size, bytes, sizeof bytes),
               share * 100.0);
        if (style->bars) printf("  ");
        cli_print_bar(style, share, BAR_WIDTH);
        putchar('\n');
    }
}

void cli_print_card(const json_t *card, const cli_style *style)
{
    const json_t *name = json_object_get(card, "name");
    if (!name) name = json_object_get(card, "path");
    cli_print_bold(style, json_string_value(name));
    putchar('\n');
    print_text_line(card, "architecture", "architecture");
    print_text_line(card, "licence", "licence");
    print_size_lines(card);
    print_numbers_line(card, "layers", "layers", "");
    print_numbers_line(card, "context", "context_length", " tokens");
    print_numbers_line(card, "window", "sliding_window", " tokens");
    print_numbers_line(card, "embedding", "embedding_length", "");
    print_numbers_line(card, "feed forward", "feed_forward_length", "");
    print_heads_line(card);
    print_experts_line(card);
    print_tokenizer_lines(card);
    print_template_line(card);
    print_types(card, style);
}

static size_t widest(const json_t *tensors, const char *field)
{
    size_t width = strlen(field);
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        size_t length = json_string_length(json_object_get(json_array_get(tensors, i), field));
        if (length > width) width = length;
    }
    return width < 64 ? width : 64;
}

static const char *shape_text(const json_t *shape, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < json_array_size(shape) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? " x " : "",
                                 (long long)json_integer_value(json_array_get(shape, i)));
    return out;
}

void cli_print_tensors(const json_t *card, const cli_style *style)
{
    const json_t *tensors = json_object_get(card, "tensors");
    bool split = number_of(card, "files") > 1;
    size_t name_width = widest(tensors, "name");
    char title[160], shape[96], bytes[32], offset[32];
    if (json_array_size(tensors) == 0) return;
    snprintf(title, sizeof title, "%-*s %-8s %-28s %16s %16s%s", (int)name_width, "tensor", "type", "shape", "bytes",
             "offset", split ? " file" : "");
    printf("\n  ");
    cli_print_bold(style, title);
    putchar('\n');
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *tensor = json_array_get(tensors, i), *name = json_object_get(tensor, "name");
        size_t length = json_string_length(name);
        printf("  ");
        print_json_text(name);
        printf("%*s %-8s %-28s %16s %16s", (int)(length < name_width ? name_width - length : 0), "",
               json_string_value(json_object_get(tensor, "type")),
               shape_text(json_object_get(tensor, "shape"), shape, sizeof shape),
               cli_group_digits(number_of(tensor, "bytes"), bytes, sizeof bytes),
               cli_group_digits(number_of(tensor, "offset"), offset, sizeof offset));
        if (split) printf(" %4llu", (unsigned long long)number_of(tensor, "file"));
        putchar('\n');
    }
}

void cli_print_program(const json_t *card, const cli_style *style)
{
    const json_t *program = json_object_get(card, "program");
    char title[64];
    snprintf(title, sizeof title, "%4s  %zu operations", "", json_array_size(program));
    printf("\n  ");
    cli_print_bold(style, title);
    putchar('\n');
    for (size_t i = 0; i < json_array_size(program); i++) {
        printf("  ");
        print_json_text(json_object_get(json_array_get(program, i), "text"));
        putchar('\n');
    }
}

strata_status cli_describe(const strata_model *model, unsigned flags, json_t **out, strata_error *error)
{
    char *text = NULL;
    strata_status status = strata_model_describe(model, flags, &text, error);
    if (status != STRATA_OK) return status;
    status = cli_parse_json("the model's card", text, strlen(text), out, error);
    strata_free(text);
    return status;
}
