#include "chat/format.h"

/* A bottom-up merge sort: stable, no recursion, and a comparison may fail. */
typedef struct sorter {
    jinja_machine *machine;
    jinja_value *items, *keys;             /* [count] */
    jinja_value *item_spare, *key_spare; /* [count] */
    bool reverse;
} sorter;

/* Whether the right item comes first. Equal items keep their order, also with `reverse`. */
static bool right_first(const sorter *s, size_t left, size_t right, bool *out)
{
    int order;
    const jinja_value *a = &s->keys[s->reverse ? left : right], *b = &s->keys[s->reverse ? right : left];
    if (!st_jinja_compare(s->machine, *a, *b, "<", &order)) return false;
    *out = order == -1;
    return st_jinja_charge(s->machine, 1);
}

static bool merge(sorter *s, size_t from, size_t middle, size_t to)
{
    size_t left = from, right = middle;
    for (size_t out = from; out < to; out++) {
        bool take_right = left == middle;
        if (!take_right && right < to && !right_first(s, left, right, &take_right)) return false;
        size_t taken = take_right ? right++ : left++;
        s->item_spare[out] = s->items[taken];
        s->key_spare[out] = s->keys[taken];
    }
    memcpy(s->items + from, s->item_spare + from, (to - from) * sizeof *s->items);
    if (s->keys != s->items) memcpy(s->keys + from, s->key_spare + from, (to - from) * sizeof *s->keys);
    return true;
}

bool st_jinja_sort(jinja_machine *machine, jinja_value *items, jinja_value *keys, size_t count, bool reverse)
{
    if (count < 2) return true;
    sorter s = {.machine = machine, .items = items, .keys = keys ? keys : items, .reverse = reverse};
    s.item_spare = st_jinja_alloc(machine, count, sizeof *items);
    s.key_spare = keys ? st_jinja_alloc(machine, count, sizeof *keys) : s.item_spare;
    if (!s.item_spare || !s.key_spare) return false;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t from = 0; from + width < count; from += 2 * width) {
            size_t to = from + 2 * width < count ? from + 2 * width : count;
            if (!merge(&s, from, from + width, to)) return false;
        }
    }
    return true;
}
