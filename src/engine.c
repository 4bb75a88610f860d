/* Loading: file → description → binding → program → plan → devices → weights in memory. */
#include "engine.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/log.h"
#include "identity.h"

#define SAVE_LIMIT ((uint64_t)16 << 30)

static strata_status make_plan(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    uint32_t threads = options->threads ? options->threads : st_cores_here();
    strata_status status = st_placement_of(options, ST_PLACEMENT_RUN, threads, &engine->placement, error);
    if (status != STRATA_OK) return status;
    engine->source = (st_plan_source){.desc = engine->desc, .binding = engine->binding, .program = engine->program,
                                      .devices = engine->placement.devices,
                                      .device_count = engine->placement.device_count};
    engine->placement.options.hits = st_recording_hits(&engine->recording);
    return st_plan_build(&engine->source, &engine->placement.options, &engine->arena, &engine->plan, error);
}

/* Bytes of one routed expert of a layer, and of the layer's other weights. */
static void count_layer_bytes(const strata_engine *engine, uint32_t layer, uint64_t *expert, uint64_t *dense)
{
    for (uint32_t i = 0; i < engine->binding->count; i++) {
        const st_weight *w = &engine->binding->weights[i];
        if (w->layer != (int32_t)layer) continue;
        if (st_role_is_expert(w->role)) *expert += w->bytes / w->ne[2];
        else *dense += w->bytes;
    }
}

static strata_status open_trace(strata_engine *engine, const char *path, const uint32_t *experts, uint32_t layers,
                                strata_error *error)
{
    st_trace_shape shape = {.layers = layers};
    shape.expert_bytes = st_arena_alloc(&engine->arena, layers, sizeof *shape.expert_bytes);
    shape.dense_bytes = st_arena_alloc(&engine->arena, layers, sizeof *shape.dense_bytes);
    if (!shape.expert_bytes || !shape.dense_bytes)
        return st_error_memory(error, layers * sizeof(uint64_t), "the routing trace");
    snprintf(shape.model, sizeof shape.model, "%s", st_gguf_path(st_model_gguf(engine->model)));
    snprintf(shape.arch, sizeof shape.arch, "%s", engine->desc->arch->name);
    for (uint32_t i = 0; i < layers; i++) {
        count_layer_bytes(engine, i, &shape.expert_bytes[i], &shape.dense_bytes[i]);
        if (experts[i] > shape.experts) shape.experts = experts[i];
        if (engine->desc->layers[i].ffn.experts_used > shape.used)
            shape.used = engine->desc->layers[i].ffn.experts_used;
    }
    return st_trace_writer_open(path, &shape, &engine->watch.trace, error);
}

static strata_status open_watch(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    uint32_t layers = engine->desc->layer_count + engine->desc->nextn_count, most = 0;
    uint32_t *experts = st_arena_alloc(&engine->arena, layers, sizeof *experts);
    if (!experts) return st_error_memory(error, layers * sizeof *experts, "the expert statistics");
    for (uint32_t i = 0; i < layers; i++) {
        experts[i] = engine->desc->layers[i].ffn.experts;
        if (experts[i] > most) most = experts[i];
    }
    if (most == 0)
        return !options->record_routing
                   ? STRATA_OK
                   : st_error_set(error, STRATA_USAGE, NULL, "the model has no routed experts to record");
    engine->watch.experts_max = most;
    engine->watch.seen = st_arena_alloc(&engine->arena, most, sizeof *engine->watch.seen);
    engine->watch.distinct = st_arena_alloc(&engine->arena, most, sizeof *engine->watch.distinct);
    if (!engine->watch.seen || !engine->watch.distinct)
        return st_error_memory(error, most * 8, "the expert statistics");
    strata_status status = st_stats_new(layers, experts, &engine->watch.stats, error);
    if (status == STRATA_OK && options->record_routing)
        status = open_trace(engine, options->record_routing, experts, layers, error);
    return status;
}

static strata_status parse_prefetch(const char *text, unsigned *out, strata_error *error)
{
    static const struct { const char *name; unsigned flags; } rows[] = {
        {"off", 0}, {"same", ST_PREFETCH_SAME}, {"next", ST_PREFETCH_NEXT},
        {"both", ST_PREFETCH_SAME | ST_PREFETCH_NEXT}};
    for (size_t i = 0; text && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(text, rows[i].name) == 0) {
            *out = rows[i].flags;
            return STRATA_OK;
        }
    if (!text) return STRATA_OK;
    return st_error_set(error, STRATA_USAGE, NULL, "placement.prefetch: expected off, same, next or both, found %s",
                        text);
}

/* Another process may have allocated GPU memory since the plan was made: plans again with what is free now. */
static bool plan_again(strata_engine *engine)
{
    const st_load_device *gpu = &engine->backends.devices[ST_CARD];
    st_profile *profile = &engine->placement.devices[ST_CARD];
    st_device_info info;
    if (!engine->placement.backend->plugin || engine->plan->device_count < 2) return false;
    gpu->backend->info(gpu->device, &info);
    if (info.total_bytes - info.free_bytes <= profile->overhead_bytes) return false;
    profile->overhead_bytes = info.total_bytes - info.free_bytes;
    return st_plan_build(&engine->source, &engine->placement.options, &engine->arena, &engine->plan, NULL) == STRATA_OK;
}

static strata_status load_weights(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    const strata_placement *placement = options->placement;
    st_load_options loading = {.progress = options->progress, .trace = options->trace_memory,
                               .context = options->progress_context};
    strata_status status = STRATA_OK;
    if (placement) {
        loading.experts.policy = placement->expert_policy;
        loading.experts.deterministic = placement->deterministic;
        status = parse_prefetch(placement->prefetch, &loading.experts.prefetch, error);
        if (status == STRATA_OK && placement->expert_profile)
            status = st_trace_read(placement->expert_profile, &engine->warm, error);
        loading.experts.warm = engine->warm;
    }
    bool counted = engine->plan->watched || engine->plan->experts.mode == ST_MOE_CACHE;
    if (status == STRATA_OK && counted) status = open_watch(engine, options, error);
    if (status != STRATA_OK) return status;
    loading.stats = engine->watch.stats;
    if (engine->plan->watched && engine->watch.stats) loading.watch = &engine->watch;
    loading.recorded = engine->recording.rows;
    status = st_load_new(&engine->source, engine->plan, engine->backends.devices, &loading, &engine->load, error);
    if (status == STRATA_MEMORY && plan_again(engine))
        status = st_load_new(&engine->source, engine->plan, engine->backends.devices, &loading, &engine->load, error);
    if (status != STRATA_OK) return status;
    engine->run = st_load_run(engine->load);
    return STRATA_OK;
}

static strata_status open_store(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    st_kv *kv = st_run_kv(engine->run);
    if (!options->kv_save) return STRATA_OK;
    if (engine->plan->device_count > 1 && engine->plan->tier_pages == 0) {
        st_log(ST_LOG_NOTE, "options.kv_save: nothing is saved: state on a GPU is saved from copies in RAM, and the plan "
                            "has none (options.kv_ram_bytes)");
        return STRATA_OK;
    }
    st_digest identity = st_identity_of(st_model_gguf(engine->model), engine->plan);
    st_store_options store = {.path = options->kv_save, .identity = identity,
                              .page_tokens = engine->plan->memory[ST_HOST].kv->options.page_tokens,
                              .page_bytes = st_kv_saved_page_bytes(kv),
                              .limit_bytes = options->kv_save_bytes ? options->kv_save_bytes : SAVE_LIMIT};
    strata_status status = st_store_open(&store, &engine->store, error);
    return status == STRATA_OK ? st_kv_set_store(kv, engine->store, &identity, error) : status;
}

static strata_status load(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    st_device_options device = {.cpu = options->cpu, .threads = options->threads, .profile = options->profile};
    strata_status status = st_recording_open(&engine->recording, options, st_model_gguf(engine->model), &engine->arena,
                                             &engine->desc, &engine->binding, &engine->program, error);
    if (status == STRATA_OK && options->nextn && engine->desc->nextn_count == 0)
        return st_error_set(error, STRATA_USAGE, NULL, "%s: the model has no NextN block",
                            st_gguf_path(st_model_gguf(engine->model)));
    if (status == STRATA_OK) status = make_plan(engine, options, error);
    if (status == STRATA_OK) {
        st_load_device gpu = engine->placement.gpu;
        engine->placement.gpu = (st_load_device){0};
        status = st_backends_open(&engine->backends, engine->placement.backend, &engine->source, device, gpu,
                                  engine->plan->device_count, error);
    }
    if (status == STRATA_OK) status = load_weights(engine, options, error);
    return status == STRATA_OK ? open_store(engine, options, error) : status;
}

/* --- the scheduler ------------------------------------------------------------------------------------------------ */

enum { STEP_MS = 100, PROMPT_STEP_MS = 500 };

static void lock_engine(void *context)
{
    st_engine_lock(context);
}

static void unlock_engine(void *context)
{
    st_engine_unlock(context);
}

static double engine_now(void *context)
{
    return st_engine_now(context);
}

static strata_status open_scheduler(strata_engine *engine, const strata_engine_options *options, strata_error *error)
{
    const st_plan *plan = engine->plan;
    uint32_t step_ms = options->step_ms ? options->step_ms : STEP_MS;
    st_sched_source source = {
        .run = engine->run, .plan = plan, .vocab = engine->desc->vocab, .lock = lock_engine, .unlock = unlock_engine,
        .clock = engine_now, .context = engine,
        .policy = {.rows = plan->batch, .places = plan->conversations,
                   .page_tokens = plan->memory[ST_HOST].kv->options.page_tokens,
                   .answer_seconds = step_ms * 1e-3,
                   .prompt_seconds = (step_ms > PROMPT_STEP_MS ? step_ms : PROMPT_STEP_MS) * 1e-3,
                   .prompt_rows = st_plan_prompt_rows(&engine->source, plan),
                   .streamed = plan->experts.mode == ST_MOE_CACHE || plan->dense.rows > 0}};
    bool deterministic = options->placement && options->placement->deterministic;
    source.policy.multiple = deterministic ? plan->batch : 0; /* steps do not depend on what is stored */
    if (plan->speed.decode_tps > 0.0) source.step_seconds = 1.0 / plan->speed.decode_tps;
    if (plan->speed.prefill_tps > 0.0) source.row_seconds = 1.0 / plan->speed.prefill_tps;
    return st_sched_new(&source, &engine->sched, error);
}

strata_status strata_engine_new(const strata_model *model, const strata_engine_options *options, strata_engine **out,
                                strata_error *error)
{
    static const strata_engine_options defaults = {0};
    strata_engine *engine = st_alloc_zero(1, sizeof *engine);
    if (!engine) return st_error_memory(error, sizeof *engine, "the engine");
    engine->model = model;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->unlocked, NULL);
    if (!options) options = &defaults;
    strata_status status = load(engine, options, error);
    if (status == STRATA_OK) status = open_scheduler(engine, options, error);
    if (status != STRATA_OK) {
        strata_engine_free(engine);
        return status;
    }
    *out = engine;
    return STRATA_OK;
}

void strata_engine_free(strata_engine *engine)
{
    if (!engine) return;
    st_sched_free(engine->sched);
    st_load_free(engine->load); /* waits until the state of all conversations is saved */
    st_store_close(engine->store);
    strata_error unwritten;
    if (st_trace_writer_close(engine->watch.trace, &unwritten) != STRATA_OK)
        st_log(ST_LOG_WARN, "%s", unwritten.message);
    st_stats_free(engine->watch.stats);
    st_trace_free(engine->warm);
    st_recording_close(&engine->recording);
    st_backends_close(&engine->backends);
    st_placement_close(&engine->placement);
    pthread_cond_destroy(&engine->unlocked);
    pthread_mutex_destroy(&engine->lock);
    st_arena_free(&engine->arena);
    st_free(engine);
}

uint32_t strata_engine_context(const strata_engine *engine)
{
    return engine->plan->context;
}

/* Callers hold a const engine; the lock inside is still mutable. */
static strata_engine *mutable_engine(const strata_engine *engine)
{
    return (strata_engine *)(uintptr_t)engine;
}

void st_engine_lock(const strata_engine *engine)
{
    strata_engine *e = mutable_engine(engine);
    pthread_mutex_lock(&e->lock);
    uint64_t ticket = e->ticket++;
    while (ticket != e->serving) pthread_cond_wait(&e->unlocked, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void st_engine_unlock(const strata_engine *engine)
{
    strata_engine *e = mutable_engine(engine);
    pthread_mutex_lock(&e->lock);
    e->serving++;
    if (e->serving != e->ticket) pthread_cond_broadcast(&e->unlocked);
    pthread_mutex_unlock(&e->lock);
}

double st_engine_now(const strata_engine *engine)
{
    const st_backends *backends = &engine->backends;
    return backends->row->seconds ? backends->row->seconds(backends->world) : st_clock_seconds();
}

/* Takes the lock: a virtual clock advances while another session runs. */
double strata_engine_clock(const strata_engine *engine)
{
    if (!engine->backends.row->seconds) return st_clock_seconds();
    st_engine_lock(engine);
    double seconds = st_engine_now(engine);
    st_engine_unlock(engine);
    return seconds;
}
