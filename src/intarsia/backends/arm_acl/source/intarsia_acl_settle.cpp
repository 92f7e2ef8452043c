// SPDX-License-Identifier: Apache-2.0
// What a call of a table is in Arm Compute Library: which function, with which arguments.
//
// The same lines ask a function whether it takes the call (its static `validate`) and configure it,
// so that what was asked is what runs.
#include "intarsia_acl_settle.hpp"

#include "arm_compute/core/Types.h"
#include "arm_compute/runtime/NEON/NEFunctions.h"

#include <utility>

namespace intarsia_acl {

using arm_compute::Status;

arm_compute::TensorInfo make_info(const TensorSpec &spec)
{
    using namespace arm_compute;
    TensorShape shape;
    for(int i = 0; i < spec.rank; ++i)
    {
        shape.set(i, spec.shape[i]);
    }
#define INTARSIA_ACL_NAME(name) DataType::name,
    static const DataType types[] = {INTARSIA_ACL_TYPES(INTARSIA_ACL_NAME)};
#undef INTARSIA_ACL_NAME
    TensorInfo info(shape, 1, types[static_cast<int>(spec.type)]);
    info.set_data_layout(spec.layout == Layout::NHWC ? DataLayout::NHWC : DataLayout::NCHW);
    if(spec.num_scales == 1)
    {
        info.set_quantization_info(QuantizationInfo(spec.scales[0], spec.zero));
    }
    else if(spec.num_scales > 1)
    {
        std::vector<float> scales(spec.scales, spec.scales + spec.num_scales);
        info.set_quantization_info(QuantizationInfo(scales));
    }
    return info;
}

namespace {

// A call with the tensors that it is about; `tensors` is null where it is only validated.
struct Settling {
    const CallSpec &call;
    const Infos &infos;
    const Tensors &tensors;
    Functions *made;

    arm_compute::ITensorInfo *info(int i) const
    {
        return call.tensors[i] < 0 ? nullptr : infos[call.tensors[i]];
    }

    arm_compute::ITensor *tensor(int i) const
    {
        return call.tensors[i] < 0 ? nullptr : tensors[call.tensors[i]];
    }

    int number(int i) const { return call.ints[i]; }

    template <typename Made, std::size_t... i, typename... Rest>
    Status apply(std::index_sequence<i...>, Rest... rest) const
    {
        const Status status = Made::validate(info(i)..., rest...);
        if(made == nullptr || status.error_code() != arm_compute::ErrorCode::OK)
        {
            return status;
        }
        std::unique_ptr<Made> function(new Made);
        function->configure(tensor(i)..., rest...);
        made->push_back(std::move(function));
        return status;
    }

    // Validates a function of so many tensors, and configures it if it is to run.
    template <typename Made, std::size_t count, typename... Rest>
    Status on(Rest... rest) const
    {
        return apply<Made>(std::make_index_sequence<count>(), rest...);
    }

    arm_compute::ActivationLayerInfo act(int i) const
    {
        using arm_compute::ActivationLayerInfo;
        if(number(i) < 0)
        {
            return ActivationLayerInfo();
        }
        const auto function = static_cast<ActivationLayerInfo::ActivationFunction>(number(i));
        return ActivationLayerInfo(function, call.floats[0], call.floats[1]);
    }

    // Strides, then the pads on the left, the right, at the top and the bottom.
    arm_compute::PadStrideInfo pads(int i, bool is_ceil = false) const
    {
        using arm_compute::DimensionRoundingType;
        return arm_compute::PadStrideInfo(
            number(i), number(i + 1), number(i + 2), number(i + 3), number(i + 4), number(i + 5),
            is_ceil ? DimensionRoundingType::CEIL : DimensionRoundingType::FLOOR);
    }
};

Status concatenate(const Settling &s)
{
    using namespace arm_compute;
    const int last = s.call.num_tensors - 1;
    std::vector<const ITensorInfo *> infos;
    std::vector<const ITensor *> tensors;
    for(int i = 0; i < last; ++i)
    {
        infos.push_back(s.info(i));
        if(s.made != nullptr)
        {
            tensors.push_back(s.tensor(i));
        }
    }
    const Status status = NEConcatenateLayer::validate(infos, s.info(last), s.number(0));
    if(s.made == nullptr || status.error_code() != ErrorCode::OK)
    {
        return status;
    }
    std::unique_ptr<NEConcatenateLayer> function(new NEConcatenateLayer);
    function->configure(tensors, s.tensor(last), s.number(0));
    s.made->push_back(std::move(function));
    return status;
}

Status mean(const Settling &s)
{
    using namespace arm_compute;
    Coordinates axes;
    for(int i = 1; i < s.call.num_ints; ++i)
    {
        axes.set(i - 1, s.number(i));
    }
    const bool is_kept = s.number(0) != 0;
    const Status status = NEReduceMean::validate(s.info(0), axes, is_kept, s.info(1));
    if(s.made == nullptr || status.error_code() != ErrorCode::OK)
    {
        return status;
    }
    std::unique_ptr<NEReduceMean> function(new NEReduceMean);
    function->configure(s.tensor(0), axes, is_kept, s.tensor(1));
    s.made->push_back(std::move(function));
    return status;
}

Status settle_call(const Settling &s)
{
    using namespace arm_compute;
    const CallSpec &call = s.call;
    switch(call.function)
    {
        case Function::activation:
            return s.on<NEActivationLayer, 2>(s.act(0));
        case Function::add:
            return s.on<NEArithmeticAddition, 3>(ConvertPolicy::SATURATE);
        case Function::batch_normalization:
            return s.on<NEBatchNormalizationLayer, 6>(call.floats[0]);
        case Function::concatenate:
            return concatenate(s);
        case Function::convolution:
            return s.on<NEConvolutionLayer, 4>(s.pads(0), WeightsInfo(),
                                               Size2D(s.number(6), s.number(7)), s.act(8),
                                               s.number(9) != 0);
        case Function::depthwise:
            return s.on<NEDepthwiseConvolutionLayer, 4>(s.pads(0),
                                                        static_cast<unsigned>(s.number(9)),
                                                        s.act(8),
                                                        Size2D(s.number(6), s.number(7)));
        case Function::dequantize:
            return s.on<NEDequantizationLayer, 2>();
        case Function::divide:
            return s.on<NEElementwiseDivision, 3>();
        case Function::exponential:
            return s.on<NEExpLayer, 2>();
        case Function::fully_connected:
        {
            FullyConnectedLayerInfo info;
            info.transpose_weights = s.number(1) != 0;
            info.activation_info = s.act(0);
            return s.on<NEFullyConnectedLayer, 4>(info);
        }
        case Function::gemm:
            return s.on<NEGEMM, 4>(call.floats[0], call.floats[1],
                                   GEMMInfo(false, false, s.number(0) != 0));
        case Function::logarithm:
            return s.on<NELogLayer, 2>();
        case Function::lrn:
            return s.on<NENormalizationLayer, 2>(
                NormalizationLayerInfo(NormType::CROSS_MAP, s.number(0), call.floats[0],
                                       call.floats[1], call.floats[2]));
        case Function::maximum:
            return s.on<NEElementwiseMax, 3>();
        case Function::mean:
            return mean(s);
        case Function::minimum:
            return s.on<NEElementwiseMin, 3>();
        case Function::multiply:
            return s.on<NEPixelWiseMultiplication, 3>(1.0f, ConvertPolicy::SATURATE,
                                                      RoundingPolicy::TO_ZERO);
        case Function::negate:
            return s.on<NENegLayer, 2>();
        case Function::pad:
        {
            PaddingList pads;
            for(int i = 0; i + 1 < call.num_ints; i += 2)
            {
                pads.emplace_back(s.number(i), s.number(i + 1));
            }
            return s.on<NEPadLayer, 2>(pads, PixelValue(call.floats[0]));
        }
        case Function::permute:
        {
            PermutationVector order;
            for(int i = 0; i < call.num_ints; ++i)
            {
                order.set(i, s.number(i));
            }
            return s.on<NEPermute, 2>(order);
        }
        case Function::pooling:
        {
            const PoolingType type = s.number(0) != 0 ? PoolingType::AVG : PoolingType::MAX;
            return s.on<NEPoolingLayer, 2>(PoolingLayerInfo(
                type, Size2D(s.number(1), s.number(2)), s.info(0)->data_layout(),
                s.pads(3, s.number(10) != 0), s.number(9) != 0));
        }
        case Function::prelu:
            return s.on<NEPReluLayer, 3>();
        case Function::quantize:
            return s.on<NEQuantizationLayer, 2>();
        case Function::reshape:
            return s.on<NEReshapeLayer, 2>();
        case Function::rsqrt:
            return s.on<NERsqrtLayer, 2>();
        case Function::sine:
            return s.on<NESinLayer, 2>();
        case Function::slice:
        {
            Coordinates starts, ends;
            for(int i = 0; 2 * i + 1 < call.num_ints; ++i)
            {
                starts.set(i, s.number(2 * i));
                ends.set(i, s.number(2 * i + 1));
            }
            return s.on<NESlice, 2>(starts, ends);
        }
        case Function::softmax:
            if(s.number(1) != 0)
            {
                return s.on<NELogSoftmaxLayer, 2>(1.0f, 0);
            }
            return s.on<NESoftmaxLayer, 2>(1.0f, 0);
        case Function::subtract:
            return s.on<NEArithmeticSubtraction, 3>(ConvertPolicy::SATURATE);
    }
    return Status(ErrorCode::RUNTIME_ERROR, "no such function");
}

} // namespace

Status settle(const CallSpec &call, const Infos &infos, const Tensors &tensors,
                     Functions *made)
{
    return settle_call(Settling{call, infos, tensors, made});
}

} // namespace intarsia_acl
