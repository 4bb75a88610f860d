/* The model's card: what a file's directory says, as JSON (docs/json.md). Reads keys by the suffix behind whatever
 * architecture the file names, so it knows no family. Touches no tensor data. */
#ifndef ST_CARD_H
#define ST_CARD_H

#include "base/buf.h"
#include "gguf/gguf.h"
#include "model/program.h"
#include "strata.h"
#include "tokenizer/tokenizer.h"

typedef struct st_card_subject {
    const st_gguf *gguf;
    const st_tokenizer *tokenizer;         /* NULL if it could not be made */
    const strata_error *tokenizer_problem; /* why not; NULL if the file has none */
    bool tensors;                          /* list the tensors too */
    const st_program *program;             /* list its operations too; NULL: not asked for */
    const st_binding *binding;             /* of the program */
} st_card_subject;

/* The card as text (strata_free). */
strata_status st_card_write(const st_card_subject *subject, char **json, strata_error *error);

#endif
