/* What the state of a conversation belongs to: the model, and the type and layout of the KV cache. Saved state of
 * another identity is not used. */
#ifndef ST_IDENTITY_H
#define ST_IDENTITY_H

#include "base/digest.h"
#include "gguf/gguf.h"
#include "plan/plan.h"

/* Reads the file's directory (all keys, among them those of RoPE, and the name, type, shape and place of each tensor)
 * and its length, but no tensor: two models that differ in nothing else have the same identity. */
st_digest st_identity_of(const st_gguf *gguf, const st_plan *plan);

#endif
