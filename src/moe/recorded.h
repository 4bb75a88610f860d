/* A recorded routing that replaces the routers' choices: for every token of a trace, a row of choices as the step block
 * (backend.h) has it. Owns the rows. Knows traces and a program's routers; knows no device and no cache. */
#ifndef ST_MOE_RECORDED_H
#define ST_MOE_RECORDED_H

#include "model/program.h"
#include "moe/trace.h"

typedef struct st_recorded st_recorded;

/* `program` was lowered with st_program_options.recorded and the trace's number of experts. A trace of another shape,
 * an expert that a layer does not have, a decoded token without a layer's choice, and a gap between tokens are
 * STRATA_INPUT with `where`, the trace's name. A prompt's token may lack layers: their routers choose. */
strata_status st_recorded_new(const st_trace *trace, const char *where, const st_desc *desc, const st_program *program,
                              st_recorded **out, strata_error *error);
void st_recorded_free(st_recorded *recorded);

uint32_t st_recorded_turns(const st_recorded *recorded);
/* Tokens of a turn, and how many of them are the prompt's. */
uint32_t st_recorded_tokens(const st_recorded *recorded, uint32_t turn);
uint32_t st_recorded_prompt(const st_recorded *recorded, uint32_t turn);

/* [program->choice_words]: the choices at a position. Conversation n follows turn n, and begins again with the first
 * behind the last. A position behind the turn's end is STRATA_LIMIT. */
strata_status st_recorded_row(const st_recorded *recorded, uint32_t conversation, uint32_t position,
                              const uint32_t **out, strata_error *error);

#endif
