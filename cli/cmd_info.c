/* strata info: a summary of a model file. */
#include "cli.h"

strata_status cli_cmd_info(const cli_arguments *arguments, strata_error *error)
{
    bool tensors = arguments->values[OPTION_TENSORS].set, program = arguments->values[OPTION_PROGRAM].set;
    strata_model *model = NULL;
    json_t *card = NULL;
    char *text = NULL;
    unsigned flags = (tensors ? STRATA_DESCRIBE_TENSORS : 0u) | (program ? STRATA_DESCRIBE_PROGRAM : 0u);
    strata_status status = cli_open_model(arguments, &model, error);
    if (status != STRATA_OK) return status;
    if (arguments->values[OPTION_JSON].set) {
        status = strata_model_describe(model, flags, &text, error);
        if (status == STRATA_OK) puts(text);
    } else {
        status = cli_describe(model, flags, &card, error);
        cli_style style = cli_style_of(arguments, stdout);
        if (status == STRATA_OK) cli_print_card(card, &style);
        if (status == STRATA_OK && tensors) cli_print_tensors(card, &style);
        if (status == STRATA_OK && program) cli_print_program(card, &style);
    }
    strata_free(text);
    json_decref(card);
    strata_model_close(model);
    return status;
}
