#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

/// Location of a part of the state while no kernel works on it: device memory, host memory, a local disk.
enum class Offload : uint8_t { none, cpu, nvme };
template <>
inline constexpr auto enum_names<Offload> = name_list("none", "cpu", "nvme");

}  // namespace llmtrain
