#pragma once
#include <string>

namespace llmtrain {

/// Network name of this machine. It need not be unique.
std::string host_name();
/// Unique id of this machine since its boot; empty where the system has none.
std::string boot_id();

}  // namespace llmtrain
