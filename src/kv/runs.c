#include "kv/runs.h"

#include "base/alloc.h"

/* `half`: the numbers under each child. */
static st_runs_node join(st_runs_node left, st_runs_node right, uint32_t half)
{
    st_runs_node node = {.head = left.head == half ? half + right.head : left.head,
                         .tail = right.tail == half ? half + left.tail : right.tail,
                         .longest = left.tail + right.head};
    if (node.longest < left.longest) node.longest = left.longest;
    if (node.longest < right.longest) node.longest = right.longest;
    return node;
}

bool st_runs_new(st_runs *runs, uint32_t count)
{
    uint32_t leaves = 1;
    while (leaves < count) leaves *= 2;
    st_runs_node *nodes = st_alloc_zero((size_t)leaves * 2, sizeof *nodes);
    if (!nodes) return false;
    for (uint32_t i = 0; i < count; i++) nodes[leaves + i] = (st_runs_node){1, 1, 1};
    for (uint32_t level = leaves / 2, half = 1; level > 0; level /= 2, half *= 2)
        for (uint32_t i = level; i < 2 * level; i++) nodes[i] = join(nodes[2 * i], nodes[2 * i + 1], half);
    *runs = (st_runs){.nodes = nodes, .leaves = leaves, .count = count};
    return true;
}

void st_runs_free(st_runs *runs)
{
    st_free(runs->nodes);
    *runs = (st_runs){0};
}

bool st_runs_is_free(const st_runs *runs, uint32_t number)
{
    return number < runs->count && runs->nodes[runs->leaves + number].longest == 1;
}

void st_runs_set(st_runs *runs, uint32_t number, bool free)
{
    st_runs_node *nodes = runs->nodes;
    uint32_t i = runs->leaves + number;
    nodes[i] = (st_runs_node){free, free, free};
    for (uint32_t half = 1; i > 1; half *= 2) {
        i /= 2;
        nodes[i] = join(nodes[2 * i], nodes[2 * i + 1], half);
    }
}

st_run st_runs_longest(const st_runs *runs)
{
    const st_runs_node *nodes = runs->nodes;
    uint32_t length = nodes[1].longest, node = 1, first = 0;
    if (length == 0) return (st_run){0};
    for (uint32_t half = runs->leaves / 2; nodes[node].head != length; half /= 2) {
        const st_runs_node *left = &nodes[2 * node], *right = left + 1;
        node *= 2;
        if (left->longest == length) continue;
        if (left->tail + right->head == length) return (st_run){first + half - left->tail, length};
        first += half;
        node++;
    }
    return (st_run){first, length};
}
