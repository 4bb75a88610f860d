/* strata logits: the logits after each id of a sequence, as raw float32. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct writer {
    FILE *stream;
    cli_progress progress;
} writer;

static bool write_row(void *context, size_t row, const float *logits, size_t vocab)
{
    writer *w = context;
    bool written = fwrite(logits, sizeof *logits, vocab, w->stream) == vocab;
    return cli_progress_step(&w->progress, row + 1, w->progress.total) && written;
}

static strata_status write_logits(cli_engine *engine, const cli_ids *list, bool nextn, const char *path,
                                  strata_error *error)
{
    cli_output output;
    writer w = {0};
    strata_status status = cli_output_open(path, &output, error);
    if (status != STRATA_OK) return status;
    w.stream = output.stream;
    cli_progress_begin(&w.progress, engine->arguments, "logits", "rows", nextn ? list->count - 1 : list->count);
    cli_interrupt_hold(engine->session);
    status = strata_session_score(engine->session, list->ids, list->count, nextn, write_row, &w, error);
    bool interrupted = cli_interrupt_release();
    cli_progress_end(&w.progress);
    /* A failed write stops the run, too: cli_output_close reports why. */
    if (status == STRATA_INTERRUPTED && !interrupted) status = STRATA_OK;
    return cli_output_close(&output, status, error);
}

static strata_status read_list(const cli_arguments *arguments, cli_ids *list, strata_error *error)
{
    const cli_value *given = &arguments->values[OPTION_ID_LIST], *file = &arguments->values[OPTION_IDS_FILE];
    if (given->set == file->set)
        return cli_fail(error, STRATA_USAGE, NULL, "logits: expected one of --ids and --ids-file, found %s",
                        given->set ? "both" : "neither");
    strata_status status = given->set
                               ? cli_parse_ids("--ids", STRATA_USAGE, given->text, strlen(given->text), list, error)
                               : cli_read_ids(file->text, list, error);
    if (status == STRATA_OK && list->count == 0)
        status = cli_fail(error, given->set ? STRATA_USAGE : STRATA_INPUT, NULL, "%s: expected ids, found none",
                          given->set ? "--ids" : file->text);
    return status;
}

strata_status cli_cmd_logits(const cli_arguments *arguments, strata_error *error)
{
    bool nextn = arguments->values[OPTION_MTP].set;
    cli_engine engine = {0};
    cli_ids list = {0};
    strata_status status = cli_need(arguments, OPTION_MODEL, error);
    if (status == STRATA_OK) status = cli_need(arguments, OPTION_OUTPUT, error);
    if (status == STRATA_OK) status = read_list(arguments, &list, error);
    uint32_t context = list.count < UINT32_MAX ? (uint32_t)list.count : UINT32_MAX;
    if (status == STRATA_OK) status = cli_engine_open(&engine, arguments, context, nextn, error);
    if (status == STRATA_OK)
        status = write_logits(&engine, &list, nextn, arguments->values[OPTION_OUTPUT].text, error);
    cli_engine_close(&engine);
    free(list.ids);
    return status;
}
