/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for tests, not Arm's CMSIS-NN: what its documentation says, in plain loops. */
#include "arm_nnfunctions.h"

static int32_t high_product(int32_t a, int32_t b)
{
    return (int32_t)(((int64_t)a * b + ((int64_t)1 << 30)) >> 31);
}

/* Halves away from zero. */
static int32_t divide(int64_t number, int32_t exponent)
{
    const int64_t mask = ((int64_t)1 << exponent) - 1;
    return (int32_t)((number >> exponent) + ((number & mask) > (mask >> 1) + (number < 0)));
}

static int32_t requantize(int32_t value, int32_t multiplier, int32_t shift)
{
#ifdef CMSIS_NN_USE_SINGLE_ROUNDING
    const int32_t total = 31 - shift;
    return (int32_t)(((int64_t)value * multiplier + ((int64_t)1 << (total - 1))) >> total);
#else
    const int32_t left = shift > 0 ? shift : 0;
    return divide(high_product((int32_t)((uint32_t)value << left), multiplier), left - shift);
#endif
}

static int8_t limited(int32_t value, int32_t least, int32_t most)
{
    return (int8_t)(value < least ? least : value > most ? most : value);
}

arm_cmsis_nn_status arm_convolve_wrapper_s8(const cmsis_nn_context *ctx, const cmsis_nn_conv_params *params,
    const cmsis_nn_per_channel_quant_params *quant, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output)
{
    int16_t *patch = ctx->buf;
    const int32_t groups = input_dims->c / filter_dims->c;
    (void)bias_dims;
    if (!patch || ctx->size < arm_convolve_wrapper_s8_get_buffer_size(params, input_dims, filter_dims, output_dims) ||
        input_dims->c % filter_dims->c || output_dims->c % groups)
        return ARM_CMSIS_NN_ARG_ERROR;
    const int32_t count = filter_dims->h * filter_dims->w * filter_dims->c;
    for (int32_t n = 0; n < input_dims->n; n++)
        for (int32_t y = 0; y < output_dims->h; y++)
            for (int32_t x = 0; x < output_dims->w; x++)
                for (int32_t g = 0; g < groups; g++) {
                    int16_t *next = patch;
                    for (int32_t i = 0; i < filter_dims->h; i++)
                        for (int32_t j = 0; j < filter_dims->w; j++) {
                            const int32_t r = y * params->stride.h - params->padding.h + i * params->dilation.h;
                            const int32_t s = x * params->stride.w - params->padding.w + j * params->dilation.w;
                            const int in = r >= 0 && r < input_dims->h && s >= 0 && s < input_dims->w;
                            const int8_t *from = input + ((n * input_dims->h + r) * input_dims->w + s) * input_dims->c + g * filter_dims->c;
                            for (int32_t c = 0; c < filter_dims->c; c++)
                                *next++ = in ? (int16_t)(from[c] + params->input_offset) : 0;
                        }
                    const int32_t outputs = output_dims->c / groups;
                    for (int32_t o = g * outputs; o < (g + 1) * outputs; o++) {
                        int32_t sum = bias ? bias[o] : 0;
                        for (int32_t k = 0; k < count; k++)
                            sum += patch[k] * filter[o * count + k];
                        sum = requantize(sum, quant->multiplier[o], quant->shift[o]) + params->output_offset;
                        output[((n * output_dims->h + y) * output_dims->w + x) * output_dims->c + o] =
                            limited(sum, params->activation.min, params->activation.max);
                    }
                }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_depthwise_conv_wrapper_s8(const cmsis_nn_context *ctx, const cmsis_nn_dw_conv_params *params,
    const cmsis_nn_per_channel_quant_params *quant, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output)
{
    (void)ctx;
    (void)bias_dims;
    if (params->ch_mult * input_dims->c != output_dims->c || input_dims->n != 1)
        return ARM_CMSIS_NN_ARG_ERROR;
    for (int32_t y = 0; y < output_dims->h; y++)
        for (int32_t x = 0; x < output_dims->w; x++)
            for (int32_t o = 0; o < output_dims->c; o++) {
                int32_t sum = bias ? bias[o] : 0;
                for (int32_t i = 0; i < filter_dims->h; i++)
                    for (int32_t j = 0; j < filter_dims->w; j++) {
                        const int32_t r = y * params->stride.h - params->padding.h + i * params->dilation.h;
                        const int32_t s = x * params->stride.w - params->padding.w + j * params->dilation.w;
                        if (r < 0 || r >= input_dims->h || s < 0 || s >= input_dims->w)
                            continue;
                        sum += (input[(r * input_dims->w + s) * input_dims->c + o / params->ch_mult] + params->input_offset) *
                               filter[(i * filter_dims->w + j) * output_dims->c + o];
                    }
                sum = requantize(sum, quant->multiplier[o], quant->shift[o]) + params->output_offset;
                output[(y * output_dims->w + x) * output_dims->c + o] =
                    limited(sum, params->activation.min, params->activation.max);
            }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_fully_connected_s8(const cmsis_nn_context *ctx, const cmsis_nn_fc_params *params,
    const cmsis_nn_per_tensor_quant_params *quant, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output)
{
    const int32_t columns = filter_dims->n;
    const int32_t needed = arm_fully_connected_s8_get_buffer_size(filter_dims);
    (void)bias_dims;
    if (needed && (!ctx->buf || ctx->size < needed))
        return ARM_CMSIS_NN_ARG_ERROR;
    for (int32_t n = 0; n < input_dims->n; n++)
        for (int32_t o = 0; o < output_dims->c; o++) {
            /* Sums of weights times the offset, and the bias, are in the buffer where there is one. */
            int32_t sum = needed ? ((const int32_t *)ctx->buf)[o] : bias ? bias[o] : 0;
            const int32_t offset = needed ? 0 : params->input_offset;
            for (int32_t k = 0; k < columns; k++)
                sum += (input[n * columns + k] + offset) * (filter[o * columns + k] + params->filter_offset);
            sum = requantize(sum, quant->multiplier, quant->shift) + params->output_offset;
            output[n * output_dims->c + o] = limited(sum, params->activation.min, params->activation.max);
        }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_fully_connected_per_channel_s8(const cmsis_nn_context *ctx, const cmsis_nn_fc_params *params,
    const cmsis_nn_per_channel_quant_params *quant, const cmsis_nn_dims *input_dims,
    const int8_t *input, const cmsis_nn_dims *filter_dims, const int8_t *filter,
    const cmsis_nn_dims *bias_dims, const int32_t *bias, const cmsis_nn_dims *output_dims,
    int8_t *output)
{
    const int32_t columns = filter_dims->n;
    const int32_t needed = arm_fully_connected_s8_get_buffer_size(filter_dims);
    (void)bias_dims;
    if (needed && (!ctx->buf || ctx->size < needed))
        return ARM_CMSIS_NN_ARG_ERROR;
    for (int32_t n = 0; n < input_dims->n; n++)
        for (int32_t o = 0; o < output_dims->c; o++) {
            /* Sums of weights times the offset, and the bias, are in the buffer where there is one. */
            int32_t sum = needed ? ((const int32_t *)ctx->buf)[o] : bias ? bias[o] : 0;
            const int32_t offset = needed ? 0 : params->input_offset;
            for (int32_t k = 0; k < columns; k++)
                sum += (input[n * columns + k] + offset) * (filter[o * columns + k] + params->filter_offset);
            sum = requantize(sum, quant->multiplier[o], quant->shift[o]) + params->output_offset;
            output[n * output_dims->c + o] = limited(sum, params->activation.min, params->activation.max);
        }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_avgpool_s8(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *params,
    const cmsis_nn_dims *input_dims, const int8_t *input, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int8_t *output)
{
    int32_t *sums = ctx->buf;
    if (!sums || ctx->size < arm_avgpool_s8_get_buffer_size(output_dims->w, input_dims->c))
        return ARM_CMSIS_NN_ARG_ERROR;
    const int32_t channels = input_dims->c;
    for (int32_t n = 0; n < input_dims->n; n++)
        for (int32_t y = 0; y < output_dims->h; y++)
            for (int32_t x = 0; x < output_dims->w; x++) {
                int32_t count = 0;
                for (int32_t c = 0; c < channels; c++) sums[c] = 0;
                for (int32_t i = 0; i < filter_dims->h; i++)
                    for (int32_t j = 0; j < filter_dims->w; j++) {
                        const int32_t r = y * params->stride.h - params->padding.h + i;
                        const int32_t s = x * params->stride.w - params->padding.w + j;
                        if (r < 0 || r >= input_dims->h || s < 0 || s >= input_dims->w)
                            continue;
                        const int8_t *from = input + ((n * input_dims->h + r) * input_dims->w + s) * channels;
                        count++;
                        for (int32_t c = 0; c < channels; c++)
                            sums[c] += from[c];
                    }
                if (!count)
                    return ARM_CMSIS_NN_ARG_ERROR;
                for (int32_t c = 0; c < channels; c++) {
                    const int32_t half = sums[c] > 0 ? count / 2 : -(count / 2);
                    output[((n * output_dims->h + y) * output_dims->w + x) * channels + c] =
                        limited((sums[c] + half) / count, params->activation.min, params->activation.max);
                }
            }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_max_pool_s8(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *params,
    const cmsis_nn_dims *input_dims, const int8_t *input, const cmsis_nn_dims *filter_dims,
    const cmsis_nn_dims *output_dims, int8_t *output)
{
    (void)ctx;
    const int32_t channels = input_dims->c;
    for (int32_t n = 0; n < input_dims->n; n++)
        for (int32_t y = 0; y < output_dims->h; y++)
            for (int32_t x = 0; x < output_dims->w; x++) {
                int32_t count = 0;
                int8_t *most = output + ((n * output_dims->h + y) * output_dims->w + x) * channels;
                for (int32_t c = 0; c < channels; c++) most[c] = -128;
                for (int32_t i = 0; i < filter_dims->h; i++)
                    for (int32_t j = 0; j < filter_dims->w; j++) {
                        const int32_t r = y * params->stride.h - params->padding.h + i;
                        const int32_t s = x * params->stride.w - params->padding.w + j;
                        if (r < 0 || r >= input_dims->h || s < 0 || s >= input_dims->w)
                            continue;
                        const int8_t *from = input + ((n * input_dims->h + r) * input_dims->w + s) * channels;
                        count++;
                        for (int32_t c = 0; c < channels; c++)
                            if (from[c] > most[c]) most[c] = from[c];
                    }
                if (!count)
                    return ARM_CMSIS_NN_ARG_ERROR;
                for (int32_t c = 0; c < channels; c++)
                    most[c] = limited(most[c], params->activation.min, params->activation.max);
            }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_elementwise_add_s8(const int8_t *input_1, const int8_t *input_2, const int32_t input_1_offset,
    const int32_t input_1_mult, const int32_t input_1_shift, const int32_t input_2_offset,
    const int32_t input_2_mult, const int32_t input_2_shift, const int32_t left_shift,
    int8_t *output, const int32_t out_offset, const int32_t out_mult, const int32_t out_shift,
    const int32_t out_activation_min, const int32_t out_activation_max, const int32_t block_size)
{
    for (int32_t i = 0; i < block_size; i++) {
        const int32_t a = (input_1[i] + input_1_offset) * ((int32_t)1 << left_shift);
        const int32_t b = (input_2[i] + input_2_offset) * ((int32_t)1 << left_shift);
        const int32_t sum = requantize(a, input_1_mult, input_1_shift) + requantize(b, input_2_mult, input_2_shift);
        output[i] = limited(requantize(sum, out_mult, out_shift) + out_offset, out_activation_min, out_activation_max);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

arm_cmsis_nn_status arm_elementwise_mul_s8(const int8_t *input_1, const int8_t *input_2, const int32_t input_1_offset,
    const int32_t input_2_offset, int8_t *output, const int32_t out_offset, const int32_t out_mult,
    const int32_t out_shift, const int32_t out_activation_min, const int32_t out_activation_max,
    const int32_t block_size)
{
    for (int32_t i = 0; i < block_size; i++) {
        const int32_t product = (input_1[i] + input_1_offset) * (input_2[i] + input_2_offset);
        output[i] = limited(requantize(product, out_mult, out_shift) + out_offset, out_activation_min, out_activation_max);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* exp(x) of x <= 0 with 5 bits before the point; 31 bits after it in the result. */
static int32_t exponential(int32_t x)
{
    static const int32_t factors[] = {1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242};
    const int32_t quarter = 1 << 24;
    const int32_t rest = (x & (quarter - 1)) - quarter;
    const int32_t t = rest * 32 + (1 << 28);
    const int32_t square = high_product(t, t);
    const int32_t terms = high_product(divide(high_product(square, square), 2) + high_product(square, t), 715827883);
    int32_t result = 1895147668 + high_product(1895147668, t + divide(terms + square, 1));
    for (int i = 0; i < 7; i++)
        if ((rest - x) & (quarter << i))
            result = high_product(result, factors[i]);
    return x == 0 ? INT32_MAX : result;
}

static int32_t saturated(int64_t x)
{
    return (int32_t)(x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x);
}

/* 1 / (1 + x) of x in [0, 1), both with 31 bits after the point: Newton's steps from 48/17 - 32/17 x. */
static int32_t inverse(int64_t x)
{
    const int32_t half = (int32_t)((x + INT32_MAX + 1) >> 1);
    int32_t guess = 1515870810 + high_product(half, -1010580540);
    for (int i = 0; i < 3; i++) {
        const int32_t error = (1 << 29) - high_product(half, guess);
        guess += saturated((int64_t)high_product(guess, error) * 4);
    }
    return saturated((int64_t)guess * 2);
}

void arm_softmax_s8(const int8_t *input, const int32_t num_rows, const int32_t row_size, const int32_t mult,
    const int32_t shift, const int32_t diff_min, int8_t *output)
{
    for (int32_t row = 0; row < num_rows; row++, input += row_size, output += row_size) {
        int32_t most = -128, sum = 0, zeros = 0;
        for (int32_t i = 0; i < row_size; i++)
            most = input[i] > most ? input[i] : most;
        for (int32_t i = 0; i < row_size; i++)
            if (input[i] - most >= diff_min)
                sum += divide(exponential(high_product((input[i] - most) * (1 << shift), mult)), 12);
        while (!((uint32_t)sum << zeros >> 31))
            zeros++;
        const int32_t scale = inverse(((int64_t)sum << zeros) - ((int64_t)1 << 31));
        for (int32_t i = 0; i < row_size; i++) {
            int32_t code = -128;
            if (input[i] - most >= diff_min) {
                const int32_t e = exponential(high_product((input[i] - most) * (1 << shift), mult));
                code += divide(high_product(scale, e), 12 - zeros + 31 - 8);
            }
            output[i] = limited(code, -128, 127);
        }
    }
}

arm_cmsis_nn_status arm_vector_sum_s8(int32_t *vector_sum_buf, const int32_t vector_cols, const int32_t vector_rows,
    const int8_t *vector_data, const int32_t lhs_offset, const int32_t rhs_offset,
    const int32_t *bias_data)
{
    for (int32_t row = 0; row < vector_rows; row++) {
        int32_t sum = 0;
        for (int32_t i = 0; i < vector_cols; i++)
            sum += vector_data[row * vector_cols + i] + rhs_offset;
        vector_sum_buf[row] = sum * lhs_offset + (bias_data ? bias_data[row] : 0);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

int32_t arm_convolve_wrapper_s8_get_buffer_size_mve(const cmsis_nn_conv_params *params, const cmsis_nn_dims *input_dims,
    const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    return arm_convolve_wrapper_s8_get_buffer_size(params, input_dims, filter_dims, output_dims);
}

int32_t arm_convolve_wrapper_s8_get_buffer_size_dsp(const cmsis_nn_conv_params *params, const cmsis_nn_dims *input_dims,
    const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    return arm_convolve_wrapper_s8_get_buffer_size(params, input_dims, filter_dims, output_dims);
}

int32_t arm_convolve_wrapper_s8_get_buffer_size(const cmsis_nn_conv_params *params, const cmsis_nn_dims *input_dims,
    const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    (void)params;
    (void)input_dims;
    (void)output_dims;
    return 2 * filter_dims->h * filter_dims->w * filter_dims->c;
}

int32_t arm_depthwise_conv_wrapper_s8_get_buffer_size_mve(const cmsis_nn_dw_conv_params *params, const cmsis_nn_dims *input_dims,
    const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    return arm_depthwise_conv_wrapper_s8_get_buffer_size(params, input_dims, filter_dims, output_dims);
}

int32_t arm_depthwise_conv_wrapper_s8_get_buffer_size_dsp(const cmsis_nn_dw_conv_params *params, const cmsis_nn_dims *input_dims,
    const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    return arm_depthwise_conv_wrapper_s8_get_buffer_size(params, input_dims, filter_dims, output_dims);
}

int32_t arm_depthwise_conv_wrapper_s8_get_buffer_size(const cmsis_nn_dw_conv_params *params, const cmsis_nn_dims *input_dims,
    const cmsis_nn_dims *filter_dims, const cmsis_nn_dims *output_dims)
{
    (void)params;
    (void)input_dims;
    (void)filter_dims;
    (void)output_dims;
    return 0;
}

int32_t arm_fully_connected_s8_get_buffer_size_mve(const cmsis_nn_dims *filter_dims)
{
    return 4 * filter_dims->c;
}

int32_t arm_fully_connected_s8_get_buffer_size_dsp(const cmsis_nn_dims *filter_dims)
{
    (void)filter_dims;
    return 0;
}

int32_t arm_fully_connected_s8_get_buffer_size(const cmsis_nn_dims *filter_dims)
{
#if defined(__ARM_FEATURE_MVE)
    return arm_fully_connected_s8_get_buffer_size_mve(filter_dims);
#else
    return arm_fully_connected_s8_get_buffer_size_dsp(filter_dims);
#endif
}

int32_t arm_avgpool_s8_get_buffer_size_mve(const int dim_dst_width, const int ch_src)
{
    return arm_avgpool_s8_get_buffer_size(dim_dst_width, ch_src);
}

int32_t arm_avgpool_s8_get_buffer_size_dsp(const int dim_dst_width, const int ch_src)
{
    return arm_avgpool_s8_get_buffer_size(dim_dst_width, ch_src);
}

int32_t arm_avgpool_s8_get_buffer_size(const int dim_dst_width, const int ch_src)
{
    (void)dim_dst_width;
    return 4 * ch_src;
}
