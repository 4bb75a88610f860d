/* Replaces ids of a rendered prompt by the ids that an earlier prompt and its sampled answer had for the same text: a
 * model samples other ids than the tokenizer makes of the text, and only equal ids share KV pages. Knows no template. */
#ifndef ST_KNOWN_H
#define ST_KNOWN_H

#include "tokenizer/tokenizer.h"

/* `ids` are the ids of `text`, without a BOS that the text lacks; foreign[i] is nonzero where the byte came from the
 * arguments. Exchanges the longest beginning that one of the known sequences has ids for. The exchange ends beside a
 * special token, so the ids after it do not depend on it, and no special token covers a foreign byte. */
strata_status st_known_apply(const st_tokenizer *tokenizer, st_str text, const unsigned char *foreign,
                             const strata_known *known, size_t known_count, st_tokens *ids, strata_error *error);

#endif
