/* The memory of conversations without a model: a hand-made description of tiny layers, the KV cache on one or two
 * shares of the CPU, and a step that writes what a model would. The row of a position depends on all tokens up to it, so
 * a row that belongs to other tokens is found. Any failure outside kv/ fails the test. */
#ifndef TEST_SUPPORT_KV_RIG_H
#define TEST_SUPPORT_KV_RIG_H

#include "kv/conversation.h"
#include "support/kit.h"

enum { KV_RIG_LAYERS = 8 };

/* Layer 0 has full attention. A layer with a window follows for each entry of `windows`, then a recurrent one, then the
 * NextN block. */
typedef struct kv_shape {
    uint32_t page, context, pool, conversations, batch;
    uint32_t windows[ST_KV_POOLS_MAX];
    bool state, nextn;
    bool far;             /* every second layer is on another share, page-major */
    uint32_t points;      /* the budget of restore points, in points of the largest size */
    uint32_t tier;        /* pages of the RAM tier, with `far`: layer 0 then is on the other share */
} kv_shape;

enum { KV_RIG_WRITES = 1 << 16 };

/* Device calls that fail, on every share, and what was written since the last confirmation: a device that fails may not
 * have written it. */
typedef struct kv_faults {
    uint64_t calls, fail_at; /* copies, clears and events so far; the call that fails; 0: none */
    bool lags;               /* events are done only after the host has waited for them */
    struct {
        void *memory;
        size_t bytes;
    } writes[KV_RIG_WRITES];
    uint32_t write_count;
} kv_faults;

typedef struct kv_rig {
    kv_shape shape;
    st_layer_desc layers[KV_RIG_LAYERS];
    uint8_t layer_share[KV_RIG_LAYERS];
    st_desc desc;
    st_arena arena;
    st_backend backend; /* the CPU's, with calls that may fail */
    st_device *device;
    st_queue *queue;
    st_kv_source source;
    st_kv *kv;
    uint32_t *tables;   /* room for the page tables of a step */
    char label[64];     /* of what runs, for messages */
} kv_rig;

extern kv_faults kv_rig_faults;

void kv_rig_open(kv_rig *rig, const kv_shape *shape);
/* Everything but the KV cache itself, which kv_rig_new makes. */
void kv_rig_prepare(kv_rig *rig, const kv_shape *shape);
strata_status kv_rig_new(kv_rig *rig, strata_error *error);
/* Checks that no conversation, held page or slot is left. */
void kv_rig_close(kv_rig *rig);

st_conversation *kv_rig_conversation(kv_rig *rig);

/* All steps so far have ended. */
void kv_rig_confirm(kv_rig *rig);
/* The device fails: all that was written since the last confirmation becomes NaN. */
void kv_rig_fail(kv_rig *rig);

/* Runs the next `count` tokens, which are written behind the conversation's position: checks every row that they attend
 * to, writes theirs, and commits. The caller confirms. */
strata_status kv_rig_step(kv_rig *rig, st_conversation *c, uint32_t count, strata_error *error);
/* The part of it that follows st_conversation_prepare. */
void kv_rig_run(kv_rig *rig, st_conversation *c, uint32_t count);

/* Checks what the token at the conversation's position would attend to, if the conversation can continue there. */
void kv_rig_check(kv_rig *rig, st_conversation *c);

/* Tokens: `kv_rig_tokens` writes count tokens that depend on `seed` and on their position. */
void kv_rig_tokens(strata_token *tokens, uint32_t count, uint32_t seed);

/* Seeks, and runs what is not stored in steps of at most a batch; returns how many tokens were reused. Restore points
 * are kept at the page boundaries that end a step, as marks. */
uint32_t kv_rig_prompt(kv_rig *rig, st_conversation *c, const strata_token *tokens, uint32_t count);

#endif
