// SPDX-License-Identifier: Apache-2.0
// What tensors and calls of the tables are in Arm Compute Library.
#ifndef INTARSIA_ACL_SETTLE_HPP
#define INTARSIA_ACL_SETTLE_HPP

#include "intarsia_acl.hpp"

#include "arm_compute/core/ITensor.h"
#include "arm_compute/core/TensorInfo.h"
#include "arm_compute/runtime/IFunction.h"

#include <memory>
#include <vector>

namespace intarsia_acl {

using Infos = std::vector<arm_compute::ITensorInfo *>;
using Tensors = std::vector<arm_compute::ITensor *>;
using Functions = std::vector<std::unique_ptr<arm_compute::IFunction>>;

arm_compute::TensorInfo make_info(const TensorSpec &spec);

// Asks a function whether it takes a call; configures it too where `made` is not null.
arm_compute::Status settle(const CallSpec &call, const Infos &infos, const Tensors &tensors,
                           Functions *made);

} // namespace intarsia_acl
#endif
