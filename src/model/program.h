/* The program: a flat array of operations, the only forward pass, for one token and for a batch, on every device.
 * An operation names values (rows of floats, one row per token), weights (bind.h) and parameters; it
 * knows no address, no device and no family. ops.def lists the kinds. */
#ifndef ST_MODEL_PROGRAM_H
#define ST_MODEL_PROGRAM_H

#include "base/buf.h"
#include "model/bind.h"
#include "model/desc.h"

typedef enum st_op_kind {
#define OP(id, text, cost) ST_OP_##id,
#include "model/ops.def"
#undef OP
    ST_OP_COUNT
} st_op_kind;

enum { ST_OP_INPUTS = 5, ST_OP_WEIGHTS = 7, ST_NO_VALUE = -1, ST_NO_WEIGHT = -1 };
enum { ST_EXPERT_MATRICES = 3 }; /* the first weights of an EXPERTS operation: gate or gate and up, up, down */

/* Which rows of a batch a value has. */
typedef enum st_rows {
    ST_ROWS_ALL, /* one per token of the batch */
    ST_ROWS_OUT, /* one per output row: a row whose logits are requested */
} st_rows;

/* The part of a layer, or of the model, that the planner places as a unit. */
typedef enum st_block {
    ST_BLOCK_INPUT,     /* embeddings and their operations before the first layer */
    ST_BLOCK_ATTENTION, /* attention or DeltaNet with its norms; in the NextN block also the operations before it */
    ST_BLOCK_FFN,       /* the feed-forward part without routed experts: dense, shared expert, router, norms */
    ST_BLOCK_EXPERTS,   /* routed experts alone */
    ST_BLOCK_OUTPUT,    /* the head */
} st_block;

typedef struct st_value {
    const char *name;    /* for printing: "q", "ffn_up" */
    uint32_t width;      /* elements per row: float32, or int32 for expert ids */
    st_rows rows;
    size_t offset_bytes; /* per row, in the block of its row kind: address = base + offset × rows of the block */
} st_value;

typedef struct st_op {
    st_op_kind kind;
    int32_t layer;                     /* −1: none */
    st_block block;
    int32_t in[ST_OP_INPUTS];          /* values, ST_NO_VALUE beyond the kind's */
    int32_t out;                       /* a value, may be an input (in place); ST_NO_VALUE: only state is written */
    int32_t out2;                      /* the router's second output */
    int32_t weight[ST_OP_WEIGHTS];     /* indices into the binding; ST_NO_WEIGHT where optional and absent */
    union {                            /* by kind; ops.def says what each means */
        struct { float scale; } embed;
        struct { uint32_t group; float epsilon; } norm;
        struct { st_rope rope; } angles;
        struct { uint32_t heads, head_size, offset, dims; st_rope_style style; } rope;
        struct { uint32_t chunk; float factor; bool from_zero; } temperature;
        struct { uint32_t kv_layer; } kv;
        struct {
            uint32_t heads, kv_heads, key_length, value_length, window, chunk, kv_layer;
            uint32_t first; /* positions before it have no keys and values */
            float scale;
            bool value_in_key; /* a position's value is the first part of its key */
        } attention;
        struct { uint32_t heads; } head_matmul;
        struct { uint32_t groups, stride, offset; } slice; /* out width = groups × size */
        struct { st_activation activation; } gate;
        struct { float factor; } scale;
        struct {
            uint32_t experts, used;
            uint32_t groups, groups_used; /* experts are selected from the best groups; up to 1: no groups */
            uint32_t group_top;           /* the experts whose scores are a group's score */
            float scale;                  /* of the weights; 0: 1 */
            st_router router;
            bool renormalise;
            bool recorded;                /* the step block has choices that replace the router's … */
            uint32_t choices_at;          /* … from this word of a row's on: ids[used], weights[used] */
        } route;
        struct {
            uint32_t experts, used, width;
            st_activation activation;
            bool fused, ungated, weight_on_input;
        } experts;
        struct { uint32_t width; bool linear; } conv;
        struct { uint32_t key_heads, value_heads, size; bool grouped, channels; } deltanet;
        struct { uint32_t heads, head_size, state_size, groups; } ssm;
        struct { float cap; } softcap;
    } p;
} st_op;

/* A run of operations over one row kind, in order. */
typedef struct st_op_range {
    uint32_t first, count;
} st_op_range;

/* A part of the model: `body` runs once per batch over all rows, `head` over the output rows, in one or more pieces. */
typedef struct st_part {
    st_op_range body, head;
    int32_t input;  /* the value the executor fills before the body; ST_NO_VALUE: the body starts from the ids */
    int32_t hidden; /* the residual stream after the body */
    int32_t logits; /* [vocab], after the head */
} st_part;

typedef struct st_program {
    const st_op *ops;
    uint32_t op_count;
    const st_value *values;
    uint32_t value_count;
    size_t row_bytes[2];   /* scratch per row, by st_rows */
    uint32_t choice_words; /* of a row's recorded choices in the step block; 0: routers choose */
    st_part main;
    st_part nextn;         /* body.count = 0: the model has none */
} st_program;

/* Whether operations of this kind use a layer's recurrent state, and whether they use its keys and values. */
static inline bool st_op_has_state(st_op_kind kind)
{
    return kind == ST_OP_CONV || kind == ST_OP_DELTANET || kind == ST_OP_SSM;
}

static inline bool st_op_has_kv(st_op_kind kind)
{
    return kind == ST_OP_KV_STORE || kind == ST_OP_ATTENTION;
}

static inline bool st_op_is_nextn(const st_program *program, uint32_t op)
{
    const st_part *part = &program->nextn;
    return op - part->body.first < part->body.count || op - part->head.first < part->head.count;
}

/* From an opened file to its program in one step: description, binding, program, all in `arena`. */
strata_status st_program_of_file(const st_gguf *gguf, st_arena *arena, const st_desc **desc, const st_binding **binding,
                                 const st_program **program, strata_error *error);

/* What the caller changes in the model. */
typedef struct st_program_options {
    uint32_t experts_used; /* of a token and layer; 0: as the file says. More than that is STRATA_USAGE */
    bool recorded;         /* the routers of the main part take their choices from the step block */
} st_program_options;

strata_status st_program_of_file_with(const st_gguf *gguf, const st_program_options *options, st_arena *arena,
                                      const st_desc **desc, const st_binding **binding, const st_program **program,
                                      strata_error *error);

const char *st_op_name(st_op_kind kind);

/* Prints an operation as one line, like EXPLAIN. */
bool st_op_print(const st_program *program, const st_binding *binding, const st_op *op, st_buf *out);

/* What an operation computes and moves, for `rows` rows that see `depth` earlier positions each. Reading weights counts
 * once per batch. */
typedef struct st_op_cost {
    double flops;
    double weight_bytes;
    double state_bytes;   /* KV and recurrent state, read and written, as float32 elements × 4 */
    double value_bytes;
} st_op_cost;

/* Experts that some of the rows choose, on average, if each chooses independently. */
double st_experts_touched(const st_op *experts, double rows);

st_op_cost st_op_estimate(const st_program *program, const st_binding *binding, const st_op *op, uint32_t rows,
                          uint32_t depth);

#endif
