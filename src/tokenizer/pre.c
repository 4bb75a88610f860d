#include "tokenizer/pre.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/alloc.h"
#include "base/error.h"

/* Parts that several rows share. White space is as in Unicode; pcre2's \s also matches U+180E. */
#define WS "\\t-\\r\\x{85}\\p{Z}"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BLANKS "[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+"

#define WORDS(digits) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS
/* Words by case, and not of Han characters. */
#define NOT_HAN(letters) "(?:(?!\\p{Han})" letters ")"
/* The letters with case of DeepSeek's first models. */
#define CASED \
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿ\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽ" \
    "Ა-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}" \
    "\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}" \
    "\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}" \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}ℂℇℊ-ℓℕℙ-ℝℤ\\x{2126}ℨ" \
    "\\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ\\x{10400}-\\x{1044F}" \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}" \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

static const st_pre_row rows[] = {
    {.names = {"gpt-2", "gpt2", "phi-2", "exaone4", "gigachat", "mellum", "a.x-4.0", "granite-docling"},
     .patterns = {GPT2}},
    {.names = {"default"}, .patterns = {GPT2}},
    {.names = {"llama-bpe", "llama3", "llama-v3", "lfm2", "pixtral", "falcon3", "falcon-h1", "midm-2.0"},
     .patterns = {WORDS("\\p{N}{1,3}")},
     .whole_piece = true,
     .adds_bos = true},
    {.names = {"dbrx", "smaug-bpe"}, .patterns = {WORDS("\\p{N}{1,3}")}},
    {.names = {"glm4", "chatglm-bpe"}, .patterns = {WORDS("\\p{N}{1,3}")}},
    {.names = {"qwen2", "deepseek-r1-qwen", "megrez"}, .patterns = {WORDS("\\p{N}")}, .nfc = true},
    {.names = {"hunyuan", "solar-open", "grok-2"}, .patterns = {WORDS("\\p{N}")}},
    {.names = {"seed-coder", "seed-oss"},
     .patterns = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+|" BLANKS}},
    {.names = {"bailingmoe2", "bailingmoe", "llada-moe"},
     .patterns = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]++[\\r\\n]*|[" WS
                  "]*[\\r\\n]|[" WS "]+(?![^" WS "])|[" WS "]+"}},
    {.names = {"kimi-k2"},
     .patterns = {"\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN(UPPER) "*" NOT_HAN(LOWER) "+" CONTRACTIONS
                  "?|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN(UPPER) "+" NOT_HAN(LOWER) "*" CONTRACTIONS
                  "?|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS}},
    {.names = {"qwen35"},
     .patterns = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                  " ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BLANKS},
     .nfc = true},
    {.names = {"tekken"},
     .patterns = {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
                  "*|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" BLANKS},
     .whole_piece = true,
     .adds_bos = true},
    {.names = {"gpt-4o", "llama4", "o200k", "minimax-m2", "kanana2"},
     .patterns = {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
                  "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" BLANKS}},
    {.names = {"deepseek-llm"},
     .patterns = {"[\\r\\n]", "[" WS "]?[" CASED "]+", "[" WS "]?[!-/:-~！-／：-～‘-‟　-。]+", "[" WS "]+$",
                  "[一-龥ࠀ-一가-퟿]+", "\\p{N}+"}},
    {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm"},
     .patterns = {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                  " ?[\\p{P}\\p{S}]+[\\r\\n]*|" BLANKS}},
    {.names = {"smollm", "refact", "starcoder", "codeshell", "exaone", "minerva-7b", "mellum2"},
     .patterns = {"\\p{N}", GPT2}},
    {.names = {"command-r"}, .patterns = {"\\p{N}", GPT2}, .nfc = true},
    {.names = {"olmo"}, .patterns = {GPT2}, .nfc = true},
};

enum { ROW_COUNT = sizeof rows / sizeof *rows };

struct st_pre {
    pcre2_general_context *general;
    pcre2_match_context *match;
    pcre2_code *codes[ST_PRE_PATTERNS_MAX];
    bool jit[ST_PRE_PATTERNS_MAX]; /* compiled to machine code; otherwise interpreted */
    size_t count;
};

struct st_pre_walk {
    pcre2_match_data *match;
};

const st_pre_row *st_pre_find(st_str name)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        for (size_t j = 0; j < ST_PRE_NAMES_MAX && rows[i].names[j]; j++)
            if (st_str_is(name, rows[i].names[j])) return &rows[i];
    return NULL;
}

void st_pre_list(char *out, size_t size)
{
    out[0] = '\0';
    for (size_t i = 0; i < ROW_COUNT; i++) st_error_list(out, size, rows[i].names[0]);
}

static void *pcre_alloc(size_t size, void *context)
{
    (void)context;
    return st_alloc(size);
}

static void pcre_free(void *pointer, void *context)
{
    (void)context;
    st_free(pointer);
}

static strata_status compile(st_pre *pre, const char *pattern, strata_error *error)
{
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(pre->general);
    if (!context) return st_error_memory(error, strlen(pattern), "a pre-tokeniser's pattern");
    pre->codes[pre->count] =
        pcre2_compile((PCRE2_SPTR)pattern, strlen(pattern), PCRE2_UTF | PCRE2_UCP, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!pre->codes[pre->count]) {
        if (code == PCRE2_ERROR_HEAP_FAILED)
            return st_error_memory(error, strlen(pattern), "a pre-tokeniser's pattern");
        return st_error_set(error, STRATA_RUNTIME, NULL, "pre-tokeniser: pattern %s: pcre2 error %d at byte %zu",
                            pattern, code, (size_t)offset);
    }
    pre->jit[pre->count] = pcre2_jit_compile(pre->codes[pre->count], PCRE2_JIT_COMPLETE) == 0;
    pre->count++;
    return STRATA_OK;
}

strata_status st_pre_new(const st_pre_row *row, st_pre **out, strata_error *error)
{
    strata_status status = STRATA_OK;
    st_pre *pre = st_alloc_zero(1, sizeof *pre);
    if (!pre) return st_error_memory(error, sizeof *pre, "a pre-tokeniser");
    pre->general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pre->match = pre->general ? pcre2_match_context_create(pre->general) : NULL;
    if (!pre->match) {
        status = st_error_memory(error, sizeof *pre, "a pre-tokeniser");
        goto out;
    }
    /* The patterns take linear time, so the match limit must not stop a long text. */
    pcre2_set_match_limit(pre->match, UINT32_MAX);
    pcre2_set_depth_limit(pre->match, UINT32_MAX);
    for (size_t i = 0; i < ST_PRE_PATTERNS_MAX && row->patterns[i] && status == STRATA_OK; i++)
        status = compile(pre, row->patterns[i], error);
out:
    if (status == STRATA_OK) *out = pre;
    else st_pre_free(pre);
    return status;
}

void st_pre_free(st_pre *pre)
{
    if (!pre) return;
    for (size_t i = 0; i < pre->count; i++) pcre2_code_free(pre->codes[i]);
    pcre2_match_context_free(pre->match);
    pcre2_general_context_free(pre->general);
    st_free(pre);
}

strata_status st_pre_walk_new(const st_pre *pre, st_pre_walk **out, strata_error *error)
{
    st_pre_walk *walk = st_alloc_zero(1, sizeof *walk);
    if (!walk) return st_error_memory(error, sizeof *walk, "a pre-tokeniser");
    walk->match = pcre2_match_data_create(1, pre->general);
    if (!walk->match) {
        st_pre_walk_free(walk);
        return st_error_memory(error, sizeof *walk, "a pre-tokeniser");
    }
    *out = walk;
    return STRATA_OK;
}

void st_pre_walk_free(st_pre_walk *walk)
{
    if (!walk) return;
    pcre2_match_data_free(walk->match);
    st_free(walk);
}

/* The next match of pattern `index` from `start` on; *begin is text.length if there is none. */
static strata_status find_match(const st_pre *pre, st_pre_walk *walk, size_t index, st_str text, size_t start,
                                size_t *begin, size_t *end, strata_error *error)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text.data;
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pre->jit[index])
        found = pcre2_jit_match(pre->codes[index], subject, text.length, start, 0, walk->match, pre->match);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(pre->codes[index], subject, text.length, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            walk->match, pre->match);
    if (found == PCRE2_ERROR_NOMEMORY || found == PCRE2_ERROR_HEAPLIMIT)
        return st_error_memory(error, text.length, "a pre-tokeniser");
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        return st_error_set(error, STRATA_RUNTIME, NULL, "pre-tokeniser: pcre2 error %d at byte %zu of %zu", found,
                            start, text.length);
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(walk->match);
    bool none = found < 0 || ends[1] <= ends[0]; /* an empty match would cut nothing */
    *begin = none ? text.length : ends[0];
    *end = none ? text.length : ends[1];
    return STRATA_OK;
}

/* Recurses once for each pattern of the row. */
static strata_status split_by(const st_pre *pre, st_pre_walk *walk, size_t index, st_str text, st_pre_piece piece,
                              void *context, strata_error *error)
{
    if (index == pre->count) return piece(context, text, error);
    size_t position = 0;
    while (position < text.length) {
        size_t begin = text.length, end = text.length;
        const char *from = text.data + position;
        strata_status status = find_match(pre, walk, index, text, position, &begin, &end, error);
        if (status == STRATA_OK && begin > position)
            status = split_by(pre, walk, index + 1, (st_str){from, begin - position}, piece, context, error);
        if (status == STRATA_OK && end > begin)
            status = split_by(pre, walk, index + 1, (st_str){text.data + begin, end - begin}, piece, context, error);
        if (status != STRATA_OK) return status;
        position = end;
    }
    return STRATA_OK;
}

strata_status st_pre_split(const st_pre *pre, st_pre_walk *walk, st_str text, st_pre_piece piece, void *context,
                           strata_error *error)
{
    return split_by(pre, walk, 0, text, piece, context, error);
}
