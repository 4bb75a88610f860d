#include "chat/template.h"

#include "base/alloc.h"
#include "base/error.h"
#include "chat/args.h"
#include "chat/eval.h"
#include "chat/format.h"

const st_template_limits st_template_default_limits = {
    .source_bytes_max = (size_t)1 << 20,
    .steps_max = 10000000,
    .depth_max = 200,
    .output_bytes_max = (size_t)16 << 20,
    .memory_bytes_max = (size_t)256 << 20,
};

struct st_template {
    st_arena arena; /* of the tree */
    jinja_program program;
    st_template_limits limits;
};

strata_status st_template_new(st_str source, const st_template_limits *limits, st_template **out, strata_error *error)
{
    st_template *made = st_alloc_zero(1, sizeof *made);
    if (!made) return st_error_memory(error, sizeof *made, "chat template");
    made->limits = limits ? *limits : st_template_default_limits;
    jinja_machine machine = {.limits = made->limits, .error = error, .line = 1};
    bool ok = source.length <= made->limits.source_bytes_max
                  ? st_jinja_parse(&machine, source, &made->program)
                  : st_jinja_fail_limit(&machine, "bytes of source", made->limits.source_bytes_max);
    made->arena = machine.arena;
    if (!ok) {
        st_template_free(made);
        return machine.status;
    }
    *out = made;
    return STRATA_OK;
}

void st_template_free(st_template *chat_template)
{
    if (!chat_template) return;
    st_map_free(&chat_template->program.symbol_ids);
    st_arena_free(&chat_template->arena);
    st_free(chat_template);
}

st_str st_template_source(const st_template *chat_template)
{
    return chat_template->program.literals;
}

void st_rendering_free(st_rendering *rendering)
{
    st_buf_free(&rendering->text);
    st_buf_free(&rendering->foreign);
}

/* Copies the output to buffers that outlive the arena. */
static bool hand_out(jinja_machine *machine, const jinja_builder *output, st_rendering *out)
{
    st_rendering made = {0};
    st_buf_append(&made.text, output->bytes, output->length);
    if (output->marks) {
        st_buf_append(&made.foreign, output->marks, output->length);
    } else if (st_buf_reserve(&made.foreign, output->length)) {
        if (output->length) memset(made.foreign.data, output->foreign, output->length);
        made.foreign.length = output->length;
    }
    if (made.text.failed || made.foreign.failed) {
        machine->status = st_error_memory(machine->error, output->length, "chat template");
        st_rendering_free(&made);
        return false;
    }
    st_rendering_free(out);
    *out = made;
    return true;
}

strata_status st_template_render(const st_template *chat_template, const json_t *args, int64_t now_seconds,
                                 st_rendering *out, strata_error *error)
{
    jinja_machine machine = {.limits = chat_template->limits, .error = error, .program = &chat_template->program,
                             .now_seconds = now_seconds, .line = 1};
    jinja_builder output = {.machine = &machine, .length_max = machine.limits.output_bytes_max};
    machine.output = &output;
    machine.root = st_jinja_alloc(&machine, chat_template->program.symbol_count, sizeof *machine.root);
    bool ok = machine.root && st_jinja_set_args(&machine, args) &&
              st_jinja_exec(&machine, &chat_template->program.body) != JINJA_FLOW_FAIL &&
              hand_out(&machine, &output, out);
    st_arena_free(&machine.arena);
    return ok ? STRATA_OK : machine.status;
}
