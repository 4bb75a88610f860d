/* Creates a tokenizer from the keys of a file. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/internal.h"

#define KEY_MODEL "tokenizer.ggml.model"
#define KEY_PRE "tokenizer.ggml.pre"

/* Texts of tokens that end an answer, whether or not the file names them as end tokens. Some files declare them as
 * user-defined tokens; `control` texts count only as control tokens, because other vocabularies have them as ordinary
 * text (</s> is HTML). In a vocabulary with the token `unless`, the text ends a message but not the answer. */
typedef struct end_text {
    const char *text;
    bool control;
    const char *unless;
} end_text;

static const end_text end_texts[] = {
    {"<|endoftext|>", false, NULL},
    {"<|end_of_text|>", false, NULL},
    {"<｜end▁of▁sentence｜>", false, NULL},
    {"</s>", true, NULL},
    {"[EOS]", true, NULL},
    {"<|im_end|>", false, NULL},
    {"<|eot_id|>", false, NULL},
    {"<|eom_id|>", false, NULL},
    {"<|eot|>", false, NULL},
    {"<|eom|>", false, NULL},
    {"<EOT>", true, NULL},
    {"[EOT]", true, NULL},
    {"<end_of_turn>", false, NULL},
    {"<|end_of_turn|>", false, NULL},
    {"<turn|>", false, NULL},
    {"<|END_OF_TURN_TOKEN|>", false, NULL},
    {"<end_of_utterance>", false, NULL},
    {"<|return|>", false, NULL},
    {"<|call|>", false, NULL},
    {"<|end|>", false, "<|return|>"},
};

static strata_status choose_kind(st_tokenizer *tokenizer, strata_error *error)
{
    const char *path = st_gguf_path(tokenizer->gguf);
    st_str model = {0};
    bool found = false;
    strata_status status = st_gguf_get_str(tokenizer->gguf, KEY_MODEL, &model, &found, error);
    if (status != STRATA_OK) return status;
    if (!found)
        return st_error_set(error, STRATA_FORMAT, "use a file that holds a vocabulary",
                            "%s: key %s: expected the kind of tokenizer, found none", path, KEY_MODEL);
    tokenizer->kind = st_kind_find(model);
    if (tokenizer->kind) return STRATA_OK;
    char known[128];
    st_kind_list(known, sizeof known);
    return st_error_set(error, STRATA_UNSUPPORTED, NULL, "%s: key %s: expected one of %s, found '%.*s'", path,
                        KEY_MODEL, known, ST_STR_ARG(st_str_head(model, 64)));
}

static strata_status choose_pre(st_tokenizer *tokenizer, const char *pre_tokenizer, strata_error *error)
{
    st_str name = ST_STR("default");
    const char *path = st_gguf_path(tokenizer->gguf);
    if (pre_tokenizer) {
        name = st_str_from(pre_tokenizer);
    } else if (tokenizer->kind->uses_pre) {
        strata_status status = st_gguf_get_str(tokenizer->gguf, KEY_PRE, &name, NULL, error);
        if (status != STRATA_OK) return status;
    }
    const st_pre_row *row = st_pre_find(name);
    if (!row) {
        char known[384];
        st_pre_list(known, sizeof known);
        if (name.length > 64) name.length = 64;
        return st_error_set(error, STRATA_UNSUPPORTED,
                            "set options.pre_tokenizer to one of these",
                            "%s: %s: expected one of %s, found '%.*s'", path,
                            pre_tokenizer ? "options.pre_tokenizer" : "key " KEY_PRE, known, ST_STR_ARG(name));
    }
    if (tokenizer->kind->uses_pre) tokenizer->pre_row = row;
    return STRATA_OK;
}

/* Finds the tokens of single bytes: GPT-2's byte alphabet, or the tokens <0xNN>. */
static strata_status find_bytes(st_tokenizer *tokenizer, strata_error *error)
{
    st_vocab *vocab = &tokenizer->vocab;
    memset(tokenizer->byte_ids, 0xFF, sizeof tokenizer->byte_ids); /* ST_VOCAB_NONE */
    if (!tokenizer->kind->byte_tokens) {
        for (unsigned byte = 0; byte < 256; byte++) {
            char letter[4];
            size_t length = st_utf8_encode(st_byte_letter((unsigned char)byte), letter);
            tokenizer->byte_ids[byte] = st_vocab_find_plain(vocab, (st_str){letter, length});
        }
        return STRATA_OK;
    }
    for (uint32_t id = 0; id < vocab->count; id++) {
        bool is_byte = vocab->types[id] == ST_TOKEN_BYTE;
        if (!is_byte && vocab->has_types) continue;
        st_str text = st_vocab_text(vocab, id);
        int byte = st_vocab_byte_of(text);
        if (byte < 0 && is_byte) {
            if (text.length > 32) text.length = 32;
            return st_error_set(error, STRATA_FORMAT, "the vocabulary is broken: convert or download the file again",
                                "%s: key tokenizer.ggml.tokens[%u]: expected a byte <0x00> to <0xFF>, found '%.*s'",
                                st_gguf_path(tokenizer->gguf), id, ST_STR_ARG(text));
        }
        if (byte < 0) continue;
        vocab->types[id] = ST_TOKEN_BYTE;
        if (tokenizer->byte_ids[byte] == ST_VOCAB_NONE) tokenizer->byte_ids[byte] = id;
    }
    return STRATA_OK;
}

/* A space mark begins a piece after a byte that no token has before a space mark. */
static void find_cuts(st_tokenizer *tokenizer)
{
    const st_vocab *vocab = &tokenizer->vocab;
    memset(tokenizer->cut_after, true, sizeof tokenizer->cut_after);
    for (uint32_t id = 0; id < vocab->count; id++) {
        if (!st_vocab_is_plain(vocab, id)) continue;
        st_str text = st_vocab_text(vocab, id);
        for (size_t i = 1; i + ST_SPACE_MARK_LENGTH <= text.length; i++)
            if (memcmp(text.data + i, ST_SPACE_MARK, ST_SPACE_MARK_LENGTH) == 0)
                tokenizer->cut_after[(unsigned char)text.data[i - 1]] = false;
    }
}

/* The id in a key; -1 if the key is absent. */
static strata_status get_id(const st_tokenizer *tokenizer, const char *key, strata_token *out, strata_error *error)
{
    uint64_t id = 0;
    bool found = false;
    strata_status status = st_gguf_get_u64(tokenizer->gguf, key, &id, &found, error);
    if (status != STRATA_OK) return status;
    if (found && id >= tokenizer->vocab.count)
        return st_error_set(error, STRATA_FORMAT, "the vocabulary is broken: convert or download the file again",
                            "%s: key %s: expected a token below %u, found %llu", st_gguf_path(tokenizer->gguf), key,
                            tokenizer->vocab.count, (unsigned long long)id);
    *out = found ? (strata_token)id : -1;
    return STRATA_OK;
}

static bool has_special(const st_vocab *vocab, const char *text)
{
    uint32_t id = st_vocab_find(vocab, st_str_from(text));
    return id != ST_VOCAB_NONE && (vocab->types[id] == ST_TOKEN_CONTROL || vocab->types[id] == ST_TOKEN_USER);
}

static void add_end(st_tokenizer *tokenizer, strata_token id)
{
    if (id < 0 || st_tokenizer_is_end(tokenizer, id) || tokenizer->end_count == ST_END_IDS_MAX) return;
    tokenizer->end_ids[tokenizer->end_count++] = id;
}

/* A vocabulary may have the same text twice, once as an ordinary token, so every token is compared. */
static void add_known_ends(st_tokenizer *tokenizer)
{
    const st_vocab *vocab = &tokenizer->vocab;
    for (uint32_t id = 0; id < vocab->count; id++) {
        bool control = vocab->types[id] == ST_TOKEN_CONTROL;
        if (!control && vocab->types[id] != ST_TOKEN_USER) continue;
        for (size_t i = 0; i < sizeof end_texts / sizeof *end_texts; i++) {
            const end_text *end = &end_texts[i];
            if ((end->control && !control) || !st_str_equal(st_vocab_text(vocab, id), st_str_from(end->text))) continue;
            if (!end->unless || !has_special(vocab, end->unless)) add_end(tokenizer, (strata_token)id);
        }
    }
}

static strata_status find_named(st_tokenizer *tokenizer, strata_error *error)
{
    strata_token unknown = -1, eot = -1, eom = -1;
    const struct {
        const char *key;
        strata_token *id;
    } named[] = {
        {"tokenizer.ggml.bos_token_id", &tokenizer->bos}, {"tokenizer.ggml.eos_token_id", &tokenizer->eos},
        {"tokenizer.ggml.eot_token_id", &eot},            {"tokenizer.ggml.eom_token_id", &eom},
        {"tokenizer.ggml.unknown_token_id", &unknown},
    };
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        strata_status status = get_id(tokenizer, named[i].key, named[i].id, error);
        if (status != STRATA_OK) return status;
    }
    /* Some files name a control token here. Text must not become one, and the model was not trained for it. */
    bool usable = unknown >= 0 && tokenizer->vocab.types[unknown] != ST_TOKEN_CONTROL;
    tokenizer->unknown_id = usable ? (uint32_t)unknown : ST_VOCAB_NONE;
    add_end(tokenizer, tokenizer->eos);
    add_end(tokenizer, eot);
    add_end(tokenizer, eom);
    add_known_ends(tokenizer);
    return STRATA_OK;
}

static strata_status find_habits(st_tokenizer *tokenizer, strata_error *error)
{
    tokenizer->adds_bos = tokenizer->kind->adds_bos || (tokenizer->pre_row && tokenizer->pre_row->adds_bos);
    tokenizer->adds_space = tokenizer->kind->adds_space;
    strata_status status =
        st_gguf_get_bool(tokenizer->gguf, "tokenizer.ggml.add_bos_token", &tokenizer->adds_bos, NULL, error);
    if (status == STRATA_OK)
        status =
            st_gguf_get_bool(tokenizer->gguf, "tokenizer.ggml.add_space_prefix", &tokenizer->adds_space, NULL, error);
    if (tokenizer->bos < 0) tokenizer->adds_bos = false;
    return status;
}

static strata_status load(st_tokenizer *tokenizer, const char *pre_tokenizer, strata_error *error)
{
    const st_gguf *gguf = tokenizer->gguf;
    strata_status status = choose_kind(tokenizer, error);
    if (status == STRATA_OK) status = choose_pre(tokenizer, pre_tokenizer, error);
    if (status == STRATA_OK) status = st_vocab_load(&tokenizer->vocab, gguf, error);
    if (status == STRATA_OK) status = find_bytes(tokenizer, error);
    if (status == STRATA_OK) status = find_named(tokenizer, error);
    if (status == STRATA_OK) status = find_habits(tokenizer, error);
    if (status == STRATA_OK && tokenizer->kind->uses_scores && !tokenizer->vocab.scores)
        status = st_error_set(error, STRATA_FORMAT, "the vocabulary is broken: convert or download the file again",
                              "%s: key tokenizer.ggml.scores: expected an array, found none", st_gguf_path(gguf));
    if (status == STRATA_OK && !tokenizer->kind->uses_scores)
        status = st_vocab_load_merges(&tokenizer->vocab, gguf, &tokenizer->merges, error);
    if (status == STRATA_OK)
        status = st_specials_build(&tokenizer->specials, &tokenizer->vocab, st_gguf_path(gguf), error);
    if (status == STRATA_OK && !tokenizer->kind->uses_pre) find_cuts(tokenizer);
    return status;
}

strata_status st_tokenizer_new(const st_gguf *gguf, const char *pre_tokenizer, st_tokenizer **out,
                               strata_error *error)
{
    st_tokenizer *tokenizer = st_alloc_zero(1, sizeof *tokenizer);
    if (!tokenizer) return st_error_memory(error, sizeof *tokenizer, "a tokenizer");
    tokenizer->gguf = gguf;
    tokenizer->bos = tokenizer->eos = -1;
    pthread_mutex_init(&tokenizer->pre_lock, NULL);
    strata_status status = load(tokenizer, pre_tokenizer, error);
    if (status == STRATA_OK) *out = tokenizer;
    else st_tokenizer_free(tokenizer);
    return status;
}

void st_tokenizer_free(st_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    st_vocab_free(&tokenizer->vocab);
    st_pairs_free(&tokenizer->merges);
    st_specials_free(&tokenizer->specials);
    st_pre_free(atomic_load(&tokenizer->pre));
    pthread_mutex_destroy(&tokenizer->pre_lock);
    st_free(tokenizer);
}
