/* Products with dequantised weights in float32: out = matrix · in (+ bias), for one matrix or a matrix per head. */
#ifndef ST_CUDA_PRODUCTS_H
#define ST_CUDA_PRODUCTS_H

#include "backend/cuda/common.cuh"

struct st_cuda_product_args {
    st_cuda_rows rows;
    const unsigned char *weights;
    size_t row_bytes;
    uint32_t width, columns; /* of the matrix: elements of a row, rows */
    const float *in;
    float *out;
    st_cuda_vector bias;
    uint32_t in_width, out_width; /* from a row to the next */
    uint32_t heads;               /* matrices, one behind the other; each has its part of a row: */
    uint32_t in_part, out_part;

    __device__ const unsigned char *weights_of(uint32_t column) const
    {
        return weights + ((size_t)blockIdx.z * columns + column) * row_bytes;
    }
    __device__ const float *in_of(uint32_t row) const
    {
        return in + (size_t)row * in_width + blockIdx.z * in_part;
    }
    __device__ float *out_of(uint32_t row) const
    {
        return out + (size_t)row * out_width + blockIdx.z * out_part;
    }
};

/* matmul.cu. Returns a cudaError_t. */
int st_cuda_products_start(const st_cuda_call *call, uint32_t type, const st_cuda_product_args &args);

#endif
