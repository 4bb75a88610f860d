/* What the state of a conversation belongs to: the model, and the type and layout of the KV cache. Saved state of
 * another identity is not used. */
#ifndef ST_IDENTITY_H
#define ST_IDENTITY_H

#include "base/digest.h"
#include "gguf/gguf.h"
#include "plan/plan.h"

/* Reads the file's directory (all keys, among them those of RoPE, and the name, type, shape and place of each tensor),
 * its length, and a few bytes in the middle of each tensor: fine-tunes of a model differ in them. */
st_digest st_identity_of(const st_gguf *gguf, const st_plan *plan);

#endif
