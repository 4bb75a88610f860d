/* The opened file as the rest of the library sees it: behind strata_model. */
#ifndef ST_MODEL_H
#define ST_MODEL_H

#include "gguf/gguf.h"
#include "strata.h"
#include "tokenizer/tokenizer.h"

const st_gguf *st_model_gguf(const strata_model *model);

/* The model's tokenizer, made by whoever comes first. A failure is this call's alone: the next one tries again. */
strata_status st_model_tokenizer(const strata_model *model, const st_tokenizer **out, strata_error *error);

#endif
