/* What the CUDA backend runs, without CUDA: the same statement in the plugin (st_backend) and for GPUs that are only described. */
#ifndef ST_CUDA_STATEMENT_H
#define ST_CUDA_STATEMENT_H

#include "backend/backend.h"

extern const uint64_t st_cuda_types[ST_OP_COUNT]; /* as st_backend.types */
bool st_cuda_runs(const st_op *op);               /* as st_backend.runs */

extern const uint64_t st_cuda_kv_types; /* bit t: keys and values of type t */
/* The types that weight `weight` of an operation may have. */
uint64_t st_cuda_types_of_weight(st_op_kind kind, int weight);

extern const st_backend_statement st_cuda_statement;

#endif
