// SPDX-License-Identifier: Apache-2.0
// A region as tables of tensors and of calls of Arm Compute Library's functions.
//
// Generated programs include this header alone, so that they compile without the library's headers;
// what carries the tables out is intarsia_acl.cpp, compiled once for a library.
#ifndef INTARSIA_ACL_HPP
#define INTARSIA_ACL_HPP

#include <cstdint>
#include <memory>

namespace intarsia_acl {

#define INTARSIA_ACL_TYPES(X) \
    X(F32) X(F16) X(S32) X(QASYMM8) X(QASYMM8_SIGNED) X(QSYMM8_PER_CHANNEL)

#define INTARSIA_ACL_FUNCTIONS(X) \
    X(activation) X(add) X(batch_normalization) X(concatenate) X(convolution) X(depthwise) \
    X(dequantize) X(divide) X(exponential) X(fully_connected) X(gemm) X(logarithm) X(lrn) \
    X(maximum) X(mean) X(minimum) X(multiply) X(negate) X(pad) X(permute) X(pooling) X(prelu) \
    X(quantize) X(reshape) X(rsqrt) X(sine) X(slice) X(softmax) X(subtract)

#define INTARSIA_ACL_NAME(name) name,
enum class Type : std::int32_t { INTARSIA_ACL_TYPES(INTARSIA_ACL_NAME) };
enum class Function : std::int32_t { INTARSIA_ACL_FUNCTIONS(INTARSIA_ACL_NAME) };
#undef INTARSIA_ACL_NAME
enum class Layout : std::int32_t { NCHW, NHWC };
enum class Room : std::int32_t { input, output, constant, inner };

constexpr int most_dimensions = 6;

// A tensor; its shape is the library's, the innermost dimension first.
struct TensorSpec {
    Type type;
    Layout layout;
    Room room;
    std::int32_t index; // of the inputs, outputs or constants
    std::int32_t rank;
    std::int32_t shape[most_dimensions];
    std::int32_t num_scales; // 0 where the numbers mean themselves
    const float *scales;
    std::int32_t zero;
};

// One function of the library: its tensors (-1 for one that is absent), what else it is told.
struct CallSpec {
    Function function;
    std::int32_t num_tensors;
    const std::int32_t *tensors;
    std::int32_t num_ints;
    const std::int32_t *ints;
    std::int32_t num_floats;
    const float *floats;
};

struct RegionSpec {
    std::int32_t num_tensors;
    const TensorSpec *tensors;
    std::int32_t num_calls;
    const CallSpec *calls;
    std::int32_t num_inputs; // the constants follow the inputs
    std::int32_t num_threads;
};

// A region whose functions are configured. Its constants are read until the first run is over.
class Region {
public:
    Region(const RegionSpec &spec, const void *const *inputs);
    ~Region();
    void run(const void *const *inputs, void *const *outputs);

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Configures a region at its first call, and runs it: 0, or 1 after a line on stderr.
std::int32_t call(std::unique_ptr<Region> &region, const RegionSpec &spec,
                  const void *const *inputs, void *const *outputs) noexcept;

} // namespace intarsia_acl
#endif
