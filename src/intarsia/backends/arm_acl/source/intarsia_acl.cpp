// SPDX-License-Identifier: Apache-2.0
// Carries out the tables of intarsia_acl.hpp with Arm Compute Library's functions for Neon.
#include "intarsia_acl_settle.hpp"

#include "arm_compute/core/Helpers.h"
#include "arm_compute/core/Window.h"
#include "arm_compute/runtime/NEON/NEScheduler.h"
#include "arm_compute/runtime/Tensor.h"

#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>

namespace intarsia_acl {

using namespace arm_compute;

struct Region::State {
    const RegionSpec &spec;
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<std::unique_ptr<IFunction>> functions;
    std::vector<bool> is_imported; // border tensors that lie where the caller has them

    // Makes the tensors and configures the functions, which may ask for padding of them.
    void configure();
};

void Region::State::configure()
{
    std::vector<ITensor *> made;
    std::vector<ITensorInfo *> infos;
    for(int i = 0; i < spec.num_tensors; ++i)
    {
        tensors.emplace_back(new Tensor);
        tensors[i]->allocator()->init(make_info(spec.tensors[i]));
        made.push_back(tensors[i].get());
        infos.push_back(tensors[i]->info());
    }
    for(int i = 0; i < spec.num_calls; ++i)
    {
        const Status status = settle(spec.calls[i], infos, made, &functions);
        if(status.error_code() != ErrorCode::OK)
        {
            throw std::runtime_error(status.error_description());
        }
    }
}

namespace {

// Calls `act` with the place of each row of a tensor, in the order of a row-major array.
template <typename Act>
void each_row(Tensor &tensor, Act &&act)
{
    Window window;
    window.use_tensor_dimensions(tensor.info()->tensor_shape(), Window::DimY);
    Iterator row(&tensor, window);
    execute_window_loop(window, [&](const Coordinates &) { act(row.ptr()); }, row);
}

std::size_t row_bytes(const Tensor &tensor)
{
    return tensor.info()->dimension(0) * tensor.info()->element_size();
}

void fill(Tensor &tensor, const void *source)
{
    auto bytes = static_cast<const std::uint8_t *>(source);
    const std::size_t size = row_bytes(tensor);
    each_row(tensor, [&](std::uint8_t *row) {
        std::memcpy(row, bytes, size);
        bytes += size;
    });
}

void fetch(Tensor &tensor, void *destination)
{
    auto bytes = static_cast<std::uint8_t *>(destination);
    const std::size_t size = row_bytes(tensor);
    each_row(tensor, [&](std::uint8_t *row) {
        std::memcpy(bytes, row, size);
        bytes += size;
    });
}

void import(Tensor &tensor, const void *memory)
{
    // The library's interface has no constant tensors; none of its functions writes to a source
    // that has no padding.
    const Status status = tensor.allocator()->import_memory(const_cast<void *>(memory));
    if(status.error_code() != ErrorCode::OK)
    {
        throw std::runtime_error(status.error_description());
    }
}

} // namespace

Region::Region(const RegionSpec &spec, const void *const *inputs)
    : state_(new State{spec, {}, {}, {}})
{
    NEScheduler::get().set_num_threads(spec.num_threads);
    state_->configure();
    state_->is_imported.resize(spec.num_tensors);
    for(int i = 0; i < spec.num_tensors; ++i)
    {
        Tensor &tensor = *state_->tensors[i];
        const Room room = spec.tensors[i].room;
        // Functions have by now asked for the padding that they need.
        state_->is_imported[i] = room != Room::inner && !tensor.info()->has_padding();
        if(!state_->is_imported[i])
        {
            tensor.allocator()->allocate();
        }
        if(room == Room::constant)
        {
            const void *data = inputs[spec.num_inputs + spec.tensors[i].index];
            if(state_->is_imported[i])
            {
                import(tensor, data);
            }
            else
            {
                fill(tensor, data);
            }
        }
    }
}

Region::~Region() = default;

void Region::run(const void *const *inputs, void *const *outputs)
{
    const RegionSpec &spec = state_->spec;
    for(int i = 0; i < spec.num_tensors; ++i)
    {
        const TensorSpec &tensor = spec.tensors[i];
        if(tensor.room == Room::input)
        {
            const auto put = state_->is_imported[i] ? import : fill;
            put(*state_->tensors[i], inputs[tensor.index]);
        }
        else if(tensor.room == Room::output && state_->is_imported[i])
        {
            import(*state_->tensors[i], outputs[tensor.index]);
        }
    }
    for(auto &function : state_->functions)
    {
        function->run();
    }
    for(int i = 0; i < spec.num_tensors; ++i)
    {
        if(spec.tensors[i].room == Room::output && !state_->is_imported[i])
        {
            fetch(*state_->tensors[i], outputs[spec.tensors[i].index]);
        }
    }
}

std::int32_t call(std::unique_ptr<Region> &region, const RegionSpec &spec,
                  const void *const *inputs, void *const *outputs) noexcept
{
    try
    {
        if(!region)
        {
            region.reset(new Region(spec, inputs));
        }
        region->run(inputs, outputs);
        return 0;
    }
    catch(const std::exception &error)
    {
        std::fprintf(stderr, "Arm Compute Library: %s\n", error.what());
        return 1;
    }
}

} // namespace intarsia_acl
