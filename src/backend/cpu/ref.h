/* Helpers of the reference operations: reading weights, activations, and rows in parallel. */
#ifndef ST_BACKEND_CPU_REF_H
#define ST_BACKEND_CPU_REF_H

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/poison.h"

enum { ST_REF_LANES = 16 };

static inline void st_ref_load_row(const st_bound_weight *w, const void *data, size_t row, float *out)
{
    w->info->dequantise((const unsigned char *)data + row * w->row_bytes, out, w->ne[0] / w->info->block);
}

/* Sixteen independent partial sums, in a fixed order. */
ST_CHECKS_RANGES static inline float st_ref_dot(const float *a, const float *b, size_t count)
{
    st_check_range(a, count * sizeof *a);
    st_check_range(b, count * sizeof *b);
    float lanes[ST_REF_LANES] = {0};
    size_t i = 0;
    for (; i + ST_REF_LANES <= count; i += ST_REF_LANES)
        for (size_t k = 0; k < ST_REF_LANES; k++) lanes[k] += a[i + k] * b[i + k];
    for (size_t k = 0; i + k < count; k++) lanes[k] += a[i + k] * b[i + k];
    for (size_t step = ST_REF_LANES / 2; step > 0; step /= 2)
        for (size_t k = 0; k < step; k++) lanes[k] += lanes[k + step];
    return lanes[0];
}

/* out = out × rescale + weight × in */
ST_CHECKS_RANGES static inline void st_ref_scale_add(float *out, float rescale, float weight, const float *in, size_t count)
{
    st_check_range(out, count * sizeof *out);
    st_check_range(in, count * sizeof *in);
    for (size_t i = 0; i < count; i++) out[i] = out[i] * rescale + weight * in[i];
}

static inline float st_ref_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static inline float st_ref_silu(float x)
{
    return x * st_ref_sigmoid(x);
}

static inline float st_ref_gelu(float x)
{
    const float root = 0.797884560802865f; /* √(2/π) */
    return 0.5f * x * (1.0f + tanhf(root * (x + 0.044715f * x * x * x)));
}

static inline float st_ref_swiglu_clamped(float gate, float up)
{
    float g = fminf(gate, 7), u = fminf(fmaxf(up, -7), 7);
    return (u + 1) * g * st_ref_sigmoid(1.702f * g);
}

/* activation(gate) × up */
static inline float st_ref_gated(st_activation activation, float gate, float up)
{
    float positive = fmaxf(gate, 0);
    switch (activation) {
    case ST_ACT_SILU: return st_ref_silu(gate) * up;
    case ST_ACT_GELU: return st_ref_gelu(gate) * up;
    case ST_ACT_SWIGLU_CLAMPED: return st_ref_swiglu_clamped(gate, up);
    default: return positive * positive * up; /* ST_ACT_RELU_SQUARED */
    }
}

static inline void st_ref_softmax(float *scores, size_t count)
{
    float largest = -INFINITY;
    for (size_t i = 0; i < count; i++) largest = fmaxf(largest, scores[i]);
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        scores[i] = expf(scores[i] - largest);
        sum += scores[i];
    }
    for (size_t i = 0; i < count; i++) scores[i] = (float)(scores[i] / sum);
}

static inline float st_ref_softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* Most operations work on one row at a time: runs `row` for every row, in parallel. */
typedef void (*st_ref_row)(const st_cpu_call *call, uint32_t worker, size_t row);
void st_ref_each_row(const st_cpu_call *call, st_ref_row row);

/* ref_candidates.c, ref_experts.c and ref_recurrent.c */
void st_ref_candidates(const st_cpu_call *call);
void st_ref_route(const st_cpu_call *call);
void st_ref_experts(const st_cpu_call *call);
void st_ref_conv(const st_cpu_call *call);
void st_ref_deltanet(const st_cpu_call *call);
void st_ref_ssm(const st_cpu_call *call);

#endif
