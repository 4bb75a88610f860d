/* The addresses of values, per row. */
#include "base/check.h"
#include "model/emit.h"

enum { ROW_ALIGN = 64 };

typedef struct lifetime {
    uint32_t first, last; /* operations */
} lifetime;

static void extend(lifetime *life, int32_t value, uint32_t op)
{
    if (value == ST_NO_VALUE) return;
    if (life[value].first > op) life[value].first = op;
    if (life[value].last < op) life[value].last = op;
}

static void find_lifetimes(const st_builder *b, const st_program *program, lifetime *life)
{
    for (uint32_t i = 0; i < b->value_count; i++) life[i] = (lifetime){.first = UINT32_MAX};
    for (uint32_t i = 0; i < b->op_count; i++) {
        const st_op *op = &b->ops[i];
        for (int k = 0; k < ST_OP_INPUTS; k++) extend(life, op->in[k], i);
        extend(life, op->out, i);
        extend(life, op->out2, i);
    }
    /* The executor reads and writes these between parts and may run a head several times. */
    const st_part *parts[] = {&program->main, &program->nextn};
    for (int i = 0; i < 2; i++) {
        if (parts[i]->body.count == 0) continue;
        int32_t kept[] = {parts[i]->input, parts[i]->hidden, parts[i]->logits};
        for (int k = 0; k < 3; k++)
            if (kept[k] != ST_NO_VALUE) life[kept[k]] = (lifetime){.first = 0, .last = b->op_count};
    }
}

static bool lives_throughout(const st_builder *b, const lifetime *life)
{
    return life->first == 0 && life->last == b->op_count;
}

static size_t place_bytes(const st_value *value)
{
    return st_align_up((size_t)value->width * sizeof(float), ROW_ALIGN);
}

/* Placed values that are still alive, sorted by offset. */
typedef struct placing {
    const lifetime *life;
    int32_t *placed;
    uint32_t count;
} placing;

/* Removes values whose last use is before operation `first`. */
static void forget_before(placing *p, uint32_t first)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->life[p->placed[i]].last >= first) p->placed[kept++] = p->placed[i];
    p->count = kept;
}

/* Puts `value` at the lowest offset that no live value overlaps. */
static void place_value(const st_builder *b, placing *p, uint32_t value, st_program *program)
{
    st_value *v = &b->values[value];
    const lifetime *life = &p->life[value];
    size_t offset = 0, bytes = place_bytes(v);
    for (uint32_t i = 0; i < p->count; i++) {
        const st_value *other = &b->values[p->placed[i]];
        const lifetime *span = &p->life[p->placed[i]];
        if (other->rows != v->rows || span->last < life->first || span->first > life->last) continue;
        size_t other_end = other->offset_bytes + place_bytes(other);
        if (offset + bytes > other->offset_bytes && offset < other_end) offset = other_end;
    }
    v->offset_bytes = offset;
    if (program->row_bytes[v->rows] < offset + bytes) program->row_bytes[v->rows] = offset + bytes;
    uint32_t at = p->count++;
    for (; at > 0 && b->values[p->placed[at - 1]].offset_bytes > offset; at--) p->placed[at] = p->placed[at - 1];
    p->placed[at] = (int32_t)value;
}

/* Values that live throughout come first. The others follow by first use, so only a few are alive at a time. */
bool st_values_place(st_builder *b, st_arena *arena, st_program *program)
{
    lifetime *life = st_arena_alloc(arena, b->value_count, sizeof *life);
    uint32_t *earliest = st_arena_alloc(arena, b->value_count, sizeof *earliest); /* smallest first use from here on */
    placing p = {.life = life, .placed = st_arena_alloc(arena, b->value_count, sizeof *p.placed)};
    if (!life || !earliest || !p.placed) return false;
    find_lifetimes(b, program, life);
    uint32_t first = UINT32_MAX;
    for (uint32_t i = b->value_count; i-- > 0;) {
        if (!lives_throughout(b, &life[i]) && first > life[i].first) first = life[i].first;
        earliest[i] = first;
    }
    for (uint32_t i = 0; i < b->value_count; i++)
        if (lives_throughout(b, &life[i])) place_value(b, &p, i, program);
    for (uint32_t i = 0; i < b->value_count; i++) {
        if (lives_throughout(b, &life[i])) continue;
        forget_before(&p, earliest[i]);
        place_value(b, &p, i, program);
    }
    return true;
}
