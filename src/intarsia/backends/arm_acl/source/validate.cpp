// SPDX-License-Identifier: Apache-2.0
// Reads regions as text and answers for each in a line: nothing, or why the library refuses it.
#include "intarsia_acl_settle.hpp"

#include <algorithm>
#include <deque>
#include <exception>
#include <iostream>
#include <map>
#include <string>

using namespace intarsia_acl;

namespace {

#define INTARSIA_ACL_NAME(name) {#name, Type::name},
const std::map<std::string, Type> types = {INTARSIA_ACL_TYPES(INTARSIA_ACL_NAME)};
#undef INTARSIA_ACL_NAME
#define INTARSIA_ACL_NAME(name) {#name, Function::name},
const std::map<std::string, Function> functions = {INTARSIA_ACL_FUNCTIONS(INTARSIA_ACL_NAME)};
#undef INTARSIA_ACL_NAME

template <typename Number>
std::vector<Number> read_list()
{
    int count = 0;
    std::cin >> count;
    std::vector<Number> numbers(count);
    for(auto &number : numbers)
    {
        std::cin >> number;
    }
    return numbers;
}

std::string read_word()
{
    std::string word;
    std::cin >> word;
    return word;
}

std::string one_line(std::string text)
{
    for(char &character : text)
    {
        character = character == '\n' ? ' ' : character;
    }
    return text;
}

std::string validate(Infos &infos)
{
    const auto name = read_word();
    const auto tensors = read_list<std::int32_t>();
    const auto ints = read_list<std::int32_t>();
    const auto floats = read_list<float>();
    const CallSpec call = {functions.at(name),
                           static_cast<std::int32_t>(tensors.size()), tensors.data(),
                           static_cast<std::int32_t>(ints.size()),    ints.data(),
                           static_cast<std::int32_t>(floats.size()),  floats.data()};
    try
    {
        const arm_compute::Status status = settle(call, infos, {}, nullptr);
        if(status.error_code() == arm_compute::ErrorCode::OK)
        {
            return "";
        }
        const std::string text = one_line(status.error_description());
        return text.empty() ? name + " is refused without a reason" : text;
    }
    catch(const std::exception &error)
    {
        return one_line(error.what());
    }
}

} // namespace

int main()
{
    std::deque<arm_compute::TensorInfo> held;
    Infos infos;
    std::string problem;
    for(std::string word = read_word(); std::cin; word = read_word())
    {
        if(word == "tensor")
        {
            TensorSpec spec = {};
            spec.type = types.at(read_word());
            spec.layout = read_word() == "NHWC" ? Layout::NHWC : Layout::NCHW;
            const auto shape = read_list<std::int32_t>();
            spec.rank = static_cast<std::int32_t>(shape.size());
            std::copy(shape.begin(), shape.end(), spec.shape);
            const auto scales = read_list<float>();
            spec.num_scales = static_cast<std::int32_t>(scales.size());
            spec.scales = scales.data();
            std::cin >> spec.zero;
            held.push_back(make_info(spec));
            infos.push_back(&held.back());
        }
        else if(word == "call")
        {
            const std::string found = validate(infos);
            problem = problem.empty() ? found : problem;
        }
        else
        {
            std::cout << problem << std::endl;
            held.clear();
            infos.clear();
            problem.clear();
        }
    }
}
