/* The opened file behind strata.h: the directory, the tokenizer made on first use, the card, and chat templates. */
#include <jansson.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "card.h"
#include "chat/template.h"
#include "gguf/gguf.h"
#include "known.h"
#include "model.h"
#include "strata.h"
#include "tokenizer/tokenizer.h"

/* Made on first use: behind a pointer, because callers have a const model. */
typedef struct model_lazy {
    pthread_mutex_t mutex;
    st_tokenizer *tokenizer; /* NULL until the first use succeeds */
} model_lazy;

struct strata_model {
    st_gguf *gguf;
    model_lazy *lazy;
    char *pre_tokenizer; /* NULL: the file's */
};

struct strata_decoder {
    const st_tokenizer *tokenizer;
    st_decode_state state;
    st_buf text; /* what the last call gave */
};

struct strata_template {
    st_template *compiled;
    char *bos; /* filled in where the arguments have none; NULL: nothing to fill in */
    char *eos;
};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static model_lazy *lazy_new(void)
{
    model_lazy *lazy = st_alloc_zero(1, sizeof *lazy);
    if (lazy && pthread_mutex_init(&lazy->mutex, NULL) != 0) {
        st_free(lazy);
        return NULL;
    }
    return lazy;
}

static void lazy_free(model_lazy *lazy)
{
    if (!lazy) return;
    st_tokenizer_free(lazy->tokenizer);
    pthread_mutex_destroy(&lazy->mutex);
    st_free(lazy);
}

strata_status strata_model_open(const char *path, const strata_model_options *options, strata_model **out,
                                strata_error *error)
{
    const char *pre_tokenizer = options ? options->pre_tokenizer : NULL;
    strata_model *model = st_alloc_zero(1, sizeof *model);
    if (!model) return st_error_memory(error, sizeof *model, path);
    model->lazy = lazy_new();
    if (pre_tokenizer) model->pre_tokenizer = st_strndup(pre_tokenizer, strlen(pre_tokenizer));
    strata_status status = !model->lazy || (pre_tokenizer && !model->pre_tokenizer)
                               ? st_error_memory(error, sizeof *model->lazy, path)
                               : st_gguf_open(path, &model->gguf, error);
    if (status == STRATA_OK) *out = model;
    else strata_model_close(model);
    return status;
}

void strata_model_close(strata_model *model)
{
    if (!model) return;
    lazy_free(model->lazy);
    st_gguf_close(model->gguf);
    st_free(model->pre_tokenizer);
    st_free(model);
}

const st_gguf *st_model_gguf(const strata_model *model)
{
    return model->gguf;
}

strata_status st_model_tokenizer(const strata_model *model, const st_tokenizer **out, strata_error *error)
{
    model_lazy *lazy = model->lazy;
    strata_status status = STRATA_OK;
    pthread_mutex_lock(&lazy->mutex);
    if (!lazy->tokenizer) status = st_tokenizer_new(model->gguf, model->pre_tokenizer, &lazy->tokenizer, error);
    if (status == STRATA_OK) *out = lazy->tokenizer;
    pthread_mutex_unlock(&lazy->mutex);
    return status;
}

/* A flag that this version does not know would silently do nothing. */
static strata_status check_flags(unsigned flags, unsigned known, const char *call, strata_error *error)
{
    if ((flags & ~known) == 0) return STRATA_OK;
    return st_error_set(error, STRATA_USAGE, NULL, "%s: expected flags within 0x%x, found 0x%x", call, known, flags);
}

strata_status strata_model_describe(const strata_model *model, unsigned flags, char **json, strata_error *error)
{
    strata_status status =
        check_flags(flags, STRATA_DESCRIBE_TENSORS | STRATA_DESCRIBE_PROGRAM, "strata_model_describe", error);
    if (status != STRATA_OK) return status;
    strata_error problem;
    st_arena arena = {0};
    st_card_subject subject = {.gguf = model->gguf, .tensors = (flags & STRATA_DESCRIBE_TENSORS) != 0};
    if (st_gguf_key_find(model->gguf, "tokenizer.ggml.model")) {
        status = st_model_tokenizer(model, &subject.tokenizer, &problem);
        /* An unsupported vocabulary is a fact of the model card; a lack of memory is an error. */
        if (status == STRATA_MEMORY) {
            if (error) *error = problem;
            return status;
        }
        if (status != STRATA_OK) subject.tokenizer_problem = &problem;
        status = STRATA_OK;
    }
    const st_desc *desc;
    if (flags & STRATA_DESCRIBE_PROGRAM)
        status = st_program_of_file(model->gguf, &arena, &desc, &subject.binding, &subject.program, error);
    if (status == STRATA_OK) status = st_card_write(&subject, json, error);
    st_arena_free(&arena);
    return status;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Gives the ids to the caller; an empty list is not NULL. */
static strata_status give_tokens(st_tokens *from, strata_token **tokens, size_t *count, strata_error *error)
{
    if (!from->ids) from->ids = st_alloc(0);
    if (!from->ids) return st_error_memory(error, 1, "tokens");
    *tokens = from->ids;
    *count = from->count;
    *from = (st_tokens){0};
    return STRATA_OK;
}

static strata_status give_text(st_buf *from, char **text, size_t *length, strata_error *error)
{
    size_t bytes = from->length, given = 0;
    char *taken = st_buf_take(from, &given);
    if (!taken) return st_error_memory(error, bytes, "text");
    *text = taken;
    *length = given;
    return STRATA_OK;
}

static strata_status push_bos(const strata_model *model, const st_tokenizer *tokenizer, st_tokens *ids,
                              strata_error *error)
{
    strata_token bos = st_tokenizer_bos(tokenizer);
    if (bos < 0)
        return st_error_set(error, STRATA_INPUT, "leave the BOS token out",
                            "%s: expected a vocabulary with a BOS token, found none", st_gguf_path(model->gguf));
    if (!st_tokens_push(ids, bos)) return st_error_memory(error, sizeof bos, "tokens");
    return STRATA_OK;
}

/* The one rule for a prompt's BOS: there is exactly one where the vocabulary wants it. */
static strata_status begin_prompt(const st_tokenizer *tokenizer, st_tokens *ids, strata_error *error)
{
    strata_token bos = st_tokenizer_bos(tokenizer);
    if (bos < 0 || !st_tokenizer_adds_bos(tokenizer)) return STRATA_OK;
    if (ids->count > 0 && ids->ids[0] == bos) return STRATA_OK;
    if (!st_tokens_push(ids, bos)) return st_error_memory(error, sizeof bos, "tokens");
    memmove(ids->ids + 1, ids->ids, (ids->count - 1) * sizeof *ids->ids);
    ids->ids[0] = bos;
    return STRATA_OK;
}

strata_status strata_tokenize(const strata_model *model, const char *text, size_t length, unsigned flags,
                              strata_token **tokens, size_t *count, strata_error *error)
{
    const st_tokenizer *tokenizer = NULL;
    st_tokens ids = {0};
    st_encode_options options = {.plain = (flags & STRATA_TOKENIZE_PLAIN) != 0};
    st_str view = {length ? text : "", length};
    const unsigned known = STRATA_TOKENIZE_BOS | STRATA_TOKENIZE_PLAIN | STRATA_TOKENIZE_PROMPT;
    strata_status status = check_flags(flags, known, "strata_tokenize", error);
    if (status == STRATA_OK) status = st_model_tokenizer(model, &tokenizer, error);
    if (status == STRATA_OK && (flags & STRATA_TOKENIZE_BOS)) status = push_bos(model, tokenizer, &ids, error);
    if (status == STRATA_OK) status = st_tokenizer_encode(tokenizer, view, &options, &ids, error);
    if (status == STRATA_OK && (flags & STRATA_TOKENIZE_PROMPT)) status = begin_prompt(tokenizer, &ids, error);
    if (status == STRATA_OK) status = give_tokens(&ids, tokens, count, error);
    st_tokens_free(&ids);
    return status;
}

strata_status strata_detokenize(const strata_model *model, const strata_token *tokens, size_t count, char **text,
                                size_t *length, strata_error *error)
{
    const st_tokenizer *tokenizer = NULL;
    st_buf decoded = {0};
    strata_status status = st_model_tokenizer(model, &tokenizer, error);
    if (status == STRATA_OK) status = st_tokenizer_decode(tokenizer, tokens, count, &decoded, error);
    if (status == STRATA_OK) status = give_text(&decoded, text, length, error);
    st_buf_free(&decoded);
    return status;
}

strata_status strata_decoder_new(const strata_model *model, strata_decoder **out, strata_error *error)
{
    const st_tokenizer *tokenizer = NULL;
    strata_status status = st_model_tokenizer(model, &tokenizer, error);
    if (status != STRATA_OK) return status;
    strata_decoder *decoder = st_alloc_zero(1, sizeof *decoder);
    if (!decoder) return st_error_memory(error, sizeof *decoder, "a decoder");
    decoder->tokenizer = tokenizer;
    *out = decoder;
    return STRATA_OK;
}

void strata_decoder_free(strata_decoder *decoder)
{
    if (!decoder) return;
    st_buf_free(&decoder->text);
    st_free(decoder);
}

/* An append that found no memory must not fail the calls after it. */
static void decoder_clear(strata_decoder *decoder)
{
    decoder->text.length = 0;
    decoder->text.failed = false;
}

static void decoder_give(const strata_decoder *decoder, const char **text, size_t *length)
{
    *text = decoder->text.data ? decoder->text.data : "";
    *length = decoder->text.length;
}

strata_status strata_decoder_push(strata_decoder *decoder, strata_token token, const char **text, size_t *length,
                                  strata_error *error)
{
    st_decode_state state = decoder->state;
    decoder_clear(decoder);
    strata_status status = st_tokenizer_decode_push(decoder->tokenizer, &state, token, &decoder->text, error);
    if (status != STRATA_OK) return status;
    decoder->state = state;
    decoder_give(decoder, text, length);
    return STRATA_OK;
}

strata_status strata_decoder_finish(strata_decoder *decoder, const char **text, size_t *length, strata_error *error)
{
    st_decode_state state = decoder->state;
    decoder_clear(decoder);
    strata_status status = st_tokenizer_decode_finish(&state, &decoder->text, error);
    if (status != STRATA_OK) return status;
    decoder->state = (st_decode_state){0};
    decoder_give(decoder, text, length);
    return STRATA_OK;
}

/* ---- chat templates ---------------------------------------------------------------------------------------------- */

strata_status strata_template_new(const char *source, size_t length, strata_template **out, strata_error *error)
{
    strata_template *chat_template = st_alloc_zero(1, sizeof *chat_template);
    if (!chat_template) return st_error_memory(error, sizeof *chat_template, "a chat template");
    st_str view = {length ? source : "", length};
    strata_status status = st_template_new(view, NULL, &chat_template->compiled, error);
    if (status == STRATA_OK) *out = chat_template;
    else strata_template_free(chat_template);
    return status;
}

/* A token's text as a template may print it: what is not UTF-8 in the file is repaired. */
static strata_status copy_token(const st_tokenizer *tokenizer, strata_token token, char **out, strata_error *error)
{
    if (token < 0) return STRATA_OK;
    st_str text = st_tokenizer_text(tokenizer, token);
    st_buf copy = {0};
    st_utf8_repair(&copy, text.data, text.length);
    *out = st_buf_take(&copy, NULL);
    return *out ? STRATA_OK : st_error_memory(error, text.length, "a token's text");
}

strata_status strata_template_of_model(const strata_model *model, strata_template **out, strata_error *error)
{
    st_str source = {0};
    bool found = false;
    const st_tokenizer *tokenizer = NULL;
    strata_template *chat_template = NULL;
    strata_status status = st_gguf_get_str(model->gguf, "tokenizer.chat_template", &source, &found, error);
    if (status != STRATA_OK) return status;
    if (!found)
        return st_error_set(error, STRATA_TEMPLATE, "give a template of your own",
                            "%s: expected a chat template (key tokenizer.chat_template), found none",
                            st_gguf_path(model->gguf));
    status = strata_template_new(source.data, source.length, &chat_template, error);
    if (status != STRATA_OK) {
        st_error_prefix(error, st_gguf_path(model->gguf));
        return status;
    }
    /* A template can be rendered without a vocabulary that strata knows. */
    status = st_model_tokenizer(model, &tokenizer, error);
    if (status == STRATA_OK) status = copy_token(tokenizer, st_tokenizer_bos(tokenizer), &chat_template->bos, error);
    else if (status == STRATA_UNSUPPORTED) status = STRATA_OK;
    if (status == STRATA_OK && tokenizer)
        status = copy_token(tokenizer, st_tokenizer_eos(tokenizer), &chat_template->eos, error);
    if (status == STRATA_OK) *out = chat_template;
    else strata_template_free(chat_template);
    return status;
}

void strata_template_free(strata_template *chat_template)
{
    if (!chat_template) return;
    st_template_free(chat_template->compiled);
    st_free(chat_template->bos);
    st_free(chat_template->eos);
    st_free(chat_template);
}

static bool fill_in(json_t *args, const char *name, const char *text)
{
    if (!text || json_object_get(args, name)) return true;
    return json_object_set_new(args, name, json_string_nocheck(text)) == 0;
}

static strata_status render(const strata_template *chat_template, const char *args, size_t args_length,
                            const strata_render_options *options, st_rendering *out, strata_error *error)
{
    json_t *parsed = NULL;
    strata_status status = st_template_parse_args(args_length ? args : "", args_length, &parsed, error);
    if (status != STRATA_OK) return status;
    int64_t now = options && options->now ? options->now : (int64_t)time(NULL);
    if (!fill_in(parsed, "bos_token", chat_template->bos) || !fill_in(parsed, "eos_token", chat_template->eos))
        status = st_error_memory(error, 1, "the template's arguments");
    else
        status = st_template_render(chat_template->compiled, parsed, now, out, error);
    json_decref(parsed);
    return status;
}

strata_status strata_template_render(const strata_template *chat_template, const char *args, size_t args_length,
                                     const strata_render_options *options, char **text, size_t *length,
                                     strata_error *error)
{
    st_rendering rendering = {0};
    strata_status status = render(chat_template, args, args_length, options, &rendering, error);
    if (status == STRATA_OK) status = give_text(&rendering.text, text, length, error);
    st_rendering_free(&rendering);
    return status;
}

strata_status strata_template_tokenize(const strata_template *chat_template, const strata_model *model,
                                       const char *args, size_t args_length, const strata_render_options *options,
                                       strata_token **tokens, size_t *count, strata_error *error)
{
    const st_tokenizer *tokenizer = NULL;
    st_token_guard *guard = NULL;
    st_rendering rendering = {0};
    st_tokens ids = {0};
    strata_status status = st_model_tokenizer(model, &tokenizer, error);
    if (status != STRATA_OK) goto out;
    status = render(chat_template, args, args_length, options, &rendering, error);
    if (status != STRATA_OK) goto out;
    status = st_token_guard_new(tokenizer, st_template_source(chat_template->compiled), &guard, error);
    if (status != STRATA_OK) goto out;
    st_str text = {rendering.text.length ? rendering.text.data : "", rendering.text.length};
    st_encode_options encode = {.guard = guard, .foreign = (const unsigned char *)rendering.foreign.data};
    status = st_tokenizer_encode(tokenizer, text, &encode, &ids, error);
    if (status == STRATA_OK && options)
        status = st_known_apply(tokenizer, text, encode.foreign, options->known, options->known_count, &ids, error);
    if (status == STRATA_OK) status = begin_prompt(tokenizer, &ids, error);
    if (status == STRATA_OK) status = give_tokens(&ids, tokens, count, error);
out:
    st_tokens_free(&ids);
    st_token_guard_free(guard);
    st_rendering_free(&rendering);
    return status;
}
