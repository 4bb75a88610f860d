/* strata_model inside the library: the opened file. */
#ifndef ST_MODEL_H
#define ST_MODEL_H

#include "gguf/gguf.h"
#include "strata.h"
#include "tokenizer/tokenizer.h"

const st_gguf *st_model_gguf(const strata_model *model);

/* The model's tokenizer, made on first use by any thread. After a failure the next call tries again. */
strata_status st_model_tokenizer(const strata_model *model, const st_tokenizer **out, strata_error *error);

#endif
