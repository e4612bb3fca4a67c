#pragma once
#include <cstdint>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

/// Where a part of the state lies while no kernel works on it: with the device, in memory of its host, on a local disk.
enum class Offload : uint8_t { none, cpu, nvme };
template <>
inline constexpr auto enum_names<Offload> = name_list("none", "cpu", "nvme");

}  // namespace llmtrain
