/* strata: language models larger than the graphics card.
 *
 * The one public header. It owns the names a program outside src/ may use; cli/ and server/ see nothing else.
 *
 * Conventions:
 *   - A call that can fail returns a strata_status and takes a strata_error as its last argument (NULL if the
 *     words are not wanted). On failure every output is left as it was and nothing is owed.
 *   - free(NULL) is fine for every _free and _close.
 *   - Text is bytes with a length; it need not be valid UTF-8. What strata hands out is valid UTF-8, and NUL
 *     terminated where it is a char *.
 *   - A strata_model is immutable once open and may be used from many threads at a time.
 */
#ifndef STRATA_H
#define STRATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STRATA_VERSION "0.1.0"

/* ---- status and errors ------------------------------------------------------------------------------------ */

/* The one table of outcomes: name, process exit code, text. */
#define STRATA_STATUS_TABLE(X)                                                       \
    X(OK, 0, "ok")                                                                   \
    X(RUNTIME, 1, "something went wrong while running")                              \
    X(LIMIT, 1, "a limit was reached")                                               \
    X(TEMPLATE, 1, "the chat template failed")                                       \
    X(INPUT, 1, "the input is invalid")                                              \
    X(USAGE, 2, "wrong usage")                                                       \
    X(FILE, 3, "the file could not be read")                                         \
    X(FORMAT, 3, "the model file is invalid")                                        \
    X(UNSUPPORTED, 3, "the model file asks for something strata does not know")      \
    X(MEMORY, 4, "not enough memory")                                                \
    X(DEVICE, 5, "the device failed")                                                \
    X(DEVICE_LOST, 5, "the device was lost")                                         \
    X(NETWORK, 6, "the network failed")                                              \
    X(INTERRUPTED, 130, "interrupted")

typedef enum strata_status {
#define X(name, exit_code, text) STRATA_##name,
    STRATA_STATUS_TABLE(X)
#undef X
        STRATA_STATUS_COUNT
} strata_status;

const char *strata_status_name(strata_status status);
const char *strata_status_text(strata_status status);
int strata_status_exit_code(strata_status status);

/* What went wrong, in words. `message` names the file, key or tensor, what was expected and what was found;
 * `hint` says what to do about it and may be empty. */
typedef struct strata_error {
    strata_status status;
    char message[768];
    char hint[256];
} strata_error;

/* Frees any char * or array that a strata_ call handed out. */
void strata_free(void *pointer);

/* ---- model: an opened file, no weights in memory ----------------------------------------------------------- */

typedef struct strata_model strata_model;

typedef struct strata_model_options {
    const char *pre_tokenizer; /* use this pre-tokeniser row instead of the file's; NULL: the file's */
} strata_model_options;

/* Opens a GGUF file (or the first of a split) and checks its whole directory. The tokenizer is built on first use.
 * `options` may be NULL. */
strata_status strata_model_open(const char *path, const strata_model_options *options, strata_model **out,
                                strata_error *error);
void strata_model_close(strata_model *model);

/* What strata_model_describe puts into the card. */
enum {
    STRATA_DESCRIBE_TENSORS = 1u << 0, /* the list of tensors too */
};

/* The model's card as a JSON object (strata_free). docs/json.md lists its fields. */
strata_status strata_model_describe(const strata_model *model, unsigned flags, char **json, strata_error *error);

/* ---- tokens ------------------------------------------------------------------------------------------------- */

typedef int32_t strata_token;

enum {
    STRATA_TOKENIZE_BOS = 1u << 0,   /* put the BOS token first (an error if the vocabulary has none) */
    STRATA_TOKENIZE_PLAIN = 1u << 1, /* special tokens in the text are plain text */
};

/* Text to ids (strata_free). Special tokens in the text are recognised unless told otherwise. */
strata_status strata_tokenize(const strata_model *model, const char *text, size_t length, unsigned flags,
                              strata_token **tokens, size_t *count, strata_error *error);

/* Ids to text (strata_free): NUL terminated, `length` without the NUL. Control tokens are written out. */
strata_status strata_detokenize(const strata_model *model, const strata_token *tokens, size_t count, char **text,
                                size_t *length, strata_error *error);

/* Ids to text one at a time, for streaming: a code point is never split. */
typedef struct strata_decoder strata_decoder;

strata_status strata_decoder_new(const strata_model *model, strata_decoder **out, strata_error *error);
void strata_decoder_free(strata_decoder *decoder);

/* The bytes that became whole with this token; valid until the next call. `*length` may be 0. */
strata_status strata_decoder_push(strata_decoder *decoder, strata_token token, const char **text, size_t *length,
                                  strata_error *error);
/* What is left at the end of the text: an unfinished code point becomes U+FFFD. The decoder is then as new. */
strata_status strata_decoder_finish(strata_decoder *decoder, const char **text, size_t *length, strata_error *error);

/* ---- chat templates ------------------------------------------------------------------------------------------ */

typedef struct strata_template strata_template;

/* Compiles a Jinja chat template from its source. */
strata_status strata_template_new(const char *source, size_t length, strata_template **out, strata_error *error);
/* The model's own template (STRATA_TEMPLATE if the file has none). Bos and eos tokens are filled in from the model. */
strata_status strata_template_of_model(const strata_model *model, strata_template **out, strata_error *error);
void strata_template_free(strata_template *chat_template);

typedef struct strata_render_options {
    int64_t now; /* seconds since the epoch for strftime_now; 0: the clock */
} strata_render_options;

/* Renders `args`, a JSON object ("messages", "tools", "add_generation_prompt", …), to text (strata_free).
 * `options` may be NULL. */
strata_status strata_template_render(const strata_template *chat_template, const char *args, size_t args_length,
                                     const strata_render_options *options, char **text, size_t *length,
                                     strata_error *error);

/* Renders and tokenises in one step. Bytes that came from the messages never become a control token, nor any token
 * that the template's own text contains. */
strata_status strata_template_tokenize(const strata_template *chat_template, const strata_model *model,
                                       const char *args, size_t args_length, const strata_render_options *options,
                                       strata_token **tokens, size_t *count, strata_error *error);

#ifdef __cplusplus
}
#endif
#endif
