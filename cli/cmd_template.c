/* strata template: renders a chat template to text or token ids. */
#include <stdlib.h>

#include "cli.h"

static strata_status check_usage(const cli_arguments *arguments, strata_error *error)
{
    bool model = arguments->values[OPTION_MODEL].set, file = arguments->values[OPTION_TEMPLATE_FILE].set;
    if (!model && !file)
        return cli_fail(error, STRATA_USAGE, NULL, "template: expected --model or --template, found neither");
    if (!model && arguments->values[OPTION_IDS].set)
        return cli_fail(error, STRATA_USAGE, "ids need a vocabulary: give --model FILE", "template: --ids: expected "
                        "--model, found none");
    return cli_need(arguments, OPTION_ARGS, error);
}

/* The template of --template, or else the model's. */
static strata_status make_template(const cli_arguments *arguments, const strata_model *model, strata_template **out,
                                   strata_error *error)
{
    const cli_value *file = &arguments->values[OPTION_TEMPLATE_FILE];
    if (!file->set) return strata_template_of_model(model, out, error);
    char *source = NULL;
    size_t length = 0;
    strata_status status = cli_read(file->text, &source, &length, error);
    if (status == STRATA_OK) status = strata_template_new(source, length, out, error);
    free(source);
    return status;
}

static strata_status print_rendered(const cli_arguments *arguments, const strata_template *chat_template,
                                    const strata_model *model, const char *args, size_t length, strata_error *error)
{
    strata_render_options options = {.now = arguments->values[OPTION_NOW].number};
    char *text = NULL;
    strata_token *ids = NULL;
    size_t count = 0;
    strata_status status;
    if (arguments->values[OPTION_IDS].set) {
        status = strata_template_tokenize(chat_template, model, args, length, &options, &ids, &count, error);
        if (status == STRATA_OK) status = cli_print_ids(ids, count, false, error);
    } else {
        status = strata_template_render(chat_template, args, length, &options, &text, &count, error);
        if (status == STRATA_OK) fwrite(text, 1, count, stdout);
    }
    strata_free(ids);
    strata_free(text);
    return status;
}

strata_status cli_cmd_template(const cli_arguments *arguments, strata_error *error)
{
    strata_model *model = NULL;
    strata_template *chat_template = NULL;
    char *args = NULL;
    size_t length = 0;
    strata_status status = check_usage(arguments, error);
    if (status == STRATA_OK && arguments->values[OPTION_MODEL].set) status = cli_open_model(arguments, &model, error);
    if (status == STRATA_OK) status = make_template(arguments, model, &chat_template, error);
    if (status == STRATA_OK) status = cli_read(arguments->values[OPTION_ARGS].text, &args, &length, error);
    if (status == STRATA_OK) status = print_rendered(arguments, chat_template, model, args, length, error);
    free(args);
    strata_template_free(chat_template);
    strata_model_close(model);
    return status;
}
