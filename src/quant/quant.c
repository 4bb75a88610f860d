#include "quant/quant.h"

#include "base/check.h"
#include "quant/dequant.h"

/* Indexed by type number; an unused number has no name. */
static const st_type_info types[] = {
#define X(name, function, block, bytes) [ST_TYPE_##name] = {#name, block, bytes, st_dequantise_##function},
    ST_TYPE_TABLE(X)
#undef X
};

static const st_type type_order[] = {
#define X(name, function, block, bytes) ST_TYPE_##name,
    ST_TYPE_TABLE(X)
#undef X
};

const st_type_info *st_type_find(uint32_t type)
{
    if (type >= sizeof types / sizeof *types || !types[type].name) return NULL;
    return &types[type];
}

size_t st_type_count(void)
{
    return sizeof type_order / sizeof *type_order;
}

st_type st_type_at(size_t index)
{
    return type_order[index];
}

bool st_type_row_bytes(const st_type_info *info, uint64_t elements, size_t *out)
{
    if (elements % info->block != 0 || elements / info->block > SIZE_MAX) return false;
    return st_mul_size((size_t)(elements / info->block), info->bytes, out);
}
