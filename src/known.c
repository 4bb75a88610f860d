#include "known.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

typedef struct matcher {
    const st_tokenizer *tokenizer;
    st_str text;
    const unsigned char *foreign; /* [text.length] */
    const st_tokens *ids;         /* of the text */
    size_t *ends;                 /* [ids->count]: where each id's text ends; SIZE_MAX: within a code point */
    st_buf piece;
} matcher;

/* A place where the exchange may end: the first `known` ids stand for the text of the first `made` ids. */
typedef struct cut {
    size_t known, made;
} cut;

static bool is_special(const matcher *m, strata_token id)
{
    st_token_type type = st_tokenizer_type(m->tokenizer, id);
    return type == ST_TOKEN_CONTROL || type == ST_TOKEN_USER;
}

static strata_status find_ends(matcher *m, strata_error *error)
{
    st_decode_state state = {0};
    size_t end = 0;
    m->ends = st_alloc_array(m->ids->count, sizeof *m->ends);
    if (!m->ends) return st_error_memory(error, m->ids->count * sizeof *m->ends, "the prompt");
    for (size_t i = 0; i < m->ids->count; i++) {
        m->piece.length = 0;
        strata_status status = st_tokenizer_decode_push(m->tokenizer, &state, m->ids->ids[i], &m->piece, error);
        if (status != STRATA_OK) return status;
        end += m->piece.length;
        m->ends[i] = state.pending_length ? SIZE_MAX : end;
    }
    return STRATA_OK;
}

/* Whether the text goes on with this token at `*place`; moves it behind the token. */
static bool follows(matcher *m, st_decode_state *state, strata_token token, size_t *place)
{
    m->piece.length = 0;
    if (st_tokenizer_decode_push(m->tokenizer, state, token, &m->piece, NULL) != STRATA_OK) return false;
    size_t length = m->piece.length;
    if (length > m->text.length - *place) return false;
    if (length && memcmp(m->text.data + *place, m->piece.data, length) != 0) return false;
    for (size_t i = 0; i < length && is_special(m, token); i++)
        if (m->foreign[*place + i]) return false;
    *place += length;
    return true;
}

/* Whether an id's text ends at `place`; *made becomes the number of ids up to there, and does not decrease. */
static bool reaches(const matcher *m, size_t place, size_t *made)
{
    size_t i = *made;
    while (i < m->ids->count && (m->ends[i] == SIZE_MAX || m->ends[i] <= place)) i++;
    while (i > *made && m->ends[i - 1] == SIZE_MAX) i--; /* these begin the next code point */
    *made = i;
    return i == 0 ? place == 0 : m->ends[i - 1] == place;
}

static bool beside_special(const matcher *m, size_t made)
{
    const strata_token *ids = m->ids->ids;
    return (made > 0 && is_special(m, ids[made - 1])) || (made < m->ids->count && is_special(m, ids[made]));
}

/* Equal ids first, then equal text. */
static cut match(matcher *m, const strata_known *known, size_t skipped)
{
    const strata_token *tokens = known->tokens + skipped;
    size_t count = known->count - skipped, same = 0;
    while (same < count && same < m->ids->count && tokens[same] == m->ids->ids[same]) same++;
    while (same > 0 && m->ends[same - 1] == SIZE_MAX) same--;
    st_decode_state state = {.begun = same > 0};
    size_t place = same > 0 ? m->ends[same - 1] : 0, made = same;
    cut best = {0};
    for (size_t i = same;; i++) {
        bool whole = state.pending_length == 0 && reaches(m, place, &made);
        if (whole && beside_special(m, made)) best = (cut){.known = skipped + i, .made = made};
        if (i == count || !follows(m, &state, tokens[i], &place)) return best;
    }
}

/* A BOS in front of the known ids that the text does not have. */
static size_t extra_bos(const matcher *m, const strata_known *known)
{
    strata_token bos = st_tokenizer_bos(m->tokenizer);
    bool begins = bos >= 0 && known->count > 0 && known->tokens[0] == bos;
    return begins && m->ids->count > 0 && m->ids->ids[0] != bos ? 1 : 0;
}

static strata_status exchange(const strata_known *known, cut at, st_tokens *ids, strata_error *error)
{
    size_t rest = ids->count - at.made, count = at.known + rest;
    strata_token *made = st_alloc_array(count, sizeof *made);
    if (!made) return st_error_memory(error, count * sizeof *made, "the prompt");
    memcpy(made, known->tokens, at.known * sizeof *made);
    memcpy(made + at.known, ids->ids + at.made, rest * sizeof *made);
    st_free(ids->ids);
    *ids = (st_tokens){.ids = made, .count = count, .capacity = count};
    return STRATA_OK;
}

strata_status st_known_apply(const st_tokenizer *tokenizer, st_str text, const unsigned char *foreign,
                             const strata_known *known, size_t known_count, st_tokens *ids, strata_error *error)
{
    matcher m = {.tokenizer = tokenizer, .text = text, .foreign = foreign, .ids = ids};
    size_t chosen = 0;
    cut best = {0};
    if (known_count == 0 || ids->count == 0) return STRATA_OK;
    strata_status status = find_ends(&m, error);
    for (size_t i = 0; status == STRATA_OK && i < known_count; i++) {
        cut found = match(&m, &known[i], extra_bos(&m, &known[i]));
        if (found.made <= best.made) continue;
        best = found;
        chosen = i;
    }
    if (status == STRATA_OK && best.made > 0) status = exchange(&known[chosen], best, ids, error);
    st_buf_free(&m.piece);
    st_free(m.ends);
    return status;
}
