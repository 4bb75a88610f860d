/* A complete program on strata.h: it asks a model one question and prints the answer as it comes.
 *
 *     gcc docs/example.c $(pkg-config --cflags --libs strata) -o example        (after `make install`)
 *     ./example model.gguf 'Why is the sky blue?'
 */
#include <stdio.h>
#include <string.h>

#include "strata.h"

/* Receives whole code points as they come; returning false would stop the answer. */
static bool print_text(void *context, const char *text, size_t length)
{
    (void)context;
    return fwrite(text, 1, length, stdout) == length && fflush(stdout) == 0;
}

/* Appends the text to `out` as the inside of a JSON string. False: it is too long. */
static bool escape(const char *text, char *out, size_t size)
{
    size_t used = strlen(out);
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        const char *format = byte == '"' || byte == '\\' ? "\\%c" : byte < 0x20 ? "\\u%04x" : "%c";
        int length = snprintf(out + used, size - used, format, byte);
        if (length < 0 || (size_t)length >= size - used) return false;
        used += (size_t)length;
    }
    return true;
}

/* The question as tokens, through the model's own chat template. */
static strata_status tokenize_question(const strata_model *model, const char *question, strata_token **tokens,
                                       size_t *count, strata_error *error)
{
    static const char end[] = "\"}], \"add_generation_prompt\": true}";
    char args[16384] = "{\"messages\": [{\"role\": \"user\", \"content\": \"";
    strata_template *chat_template = NULL;
    if (!escape(question, args, sizeof args - sizeof end)) {
        snprintf(error->message, sizeof error->message, "the question is too long");
        return STRATA_INPUT;
    }
    memcpy(args + strlen(args), end, sizeof end);
    strata_status status = strata_template_of_model(model, &chat_template, error);
    if (status == STRATA_OK)
        status = strata_template_tokenize(chat_template, model, args, strlen(args), NULL, tokens, count, error);
    strata_template_free(chat_template);
    return status;
}

/* Runs the question and prints what follows it. */
static strata_status print_answer(strata_engine *engine, const strata_token *tokens, size_t count, strata_error *error)
{
    strata_session *session = NULL;
    strata_answer answer;
    strata_generation generation = {.sampling = STRATA_SAMPLING_DEFAULT, .max_tokens = 200, .on_text = print_text};
    generation.sampling.seed = 1; /* the same answer each time */
    strata_status status = strata_session_new(engine, &session, error);
    if (status == STRATA_OK) status = strata_session_prompt(session, tokens, count, NULL, NULL, error);
    if (status == STRATA_OK) status = strata_session_generate(session, &generation, &answer, error);
    if (status == STRATA_OK) printf("\n(%zu tokens in %.2f s)\n", answer.tokens, answer.seconds);
    strata_session_free(session);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.gguf 'a question'\n", argv[0]);
        return strata_status_exit_code(STRATA_USAGE);
    }
    strata_model *model = NULL;
    strata_engine *engine = NULL;
    strata_token *tokens = NULL;
    size_t count = 0;
    strata_error error = {STRATA_OK, "", ""};
    strata_status status = strata_model_open(argv[1], NULL, &model, &error);
    if (status == STRATA_OK) status = tokenize_question(model, argv[2], &tokens, &count, &error);
    if (status == STRATA_OK) status = strata_engine_new(model, NULL, &engine, &error);
    if (status == STRATA_OK) status = print_answer(engine, tokens, count, &error);
    if (status != STRATA_OK) fprintf(stderr, "error: %s\n%s\n", error.message, error.hint);
    strata_free(tokens);
    strata_engine_free(engine);
    strata_model_close(model);
    return strata_status_exit_code(status);
}
