/* Fuzzes device profiles: any text is refused with a typed error that names the file, or gives profiles the planner can
 * use. */
#include <math.h>
#include <string.h>

#include "backend/profiles.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_rate(double rate)
{
    return isfinite(rate) && rate >= 0;
}

/* The planner's preconditions on a device. */
static bool holds_together(const st_profile *p, st_device_kind kind)
{
    for (int i = 0; i < ST_PROFILE_TYPES; i++)
        if (!(p->type_share[i] >= 0 && p->type_share[i] <= 1)) return false;
    for (int i = 0; i < ST_CLASS_COUNT; i++) {
        const st_class_rates *c = &p->classes[i];
        if (!is_rate(c->seconds) || !is_rate(c->deep_seconds) || !is_rate(c->op_share) || !is_rate(c->fill)) return false;
        if (!(c->memory_share >= 0 && c->memory_share <= 1)) return false;
    }
    return p->kind == kind && memchr(p->name, '\0', sizeof p->name) && is_rate(p->memory_rate) && is_rate(p->op_rate) &&
           is_rate(p->link_up) && is_rate(p->link_down) && is_rate(p->disk_rate) && is_rate(p->handover_seconds) &&
           is_rate(p->launch_seconds) && is_rate(p->round_trip_seconds) && p->alignment > 0 && p->granularity > 0 &&
           (p->total_bytes == 0 || p->free_bytes <= p->total_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_profile_set set = {0};
    strata_error error = {0};
    strata_status status = st_profile_file_parse("fuzz.json", (const char *)data, size, &set, &error);
    if (status == STRATA_OK) {
        if (!set.has_card && !set.has_host) __builtin_trap();
        if (set.has_card && !holds_together(&set.card, ST_DEVICE_CARD)) __builtin_trap();
        if (set.has_host && !holds_together(&set.host, ST_DEVICE_HOST)) __builtin_trap();
    } else if (set.has_card || set.has_host || error.status != status || status != STRATA_INPUT ||
               strncmp(error.message, "fuzz.json: ", 11) != 0) {
        __builtin_trap();
    }
    return 0;
}
