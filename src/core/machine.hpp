#pragma once
#include <string>

namespace llmtrain {

/// As the network calls this machine. Others may be called alike.
std::string host_name();
/// Of this machine since it was started, and of no other; empty where the system does not tell.
std::string boot_id();

}  // namespace llmtrain
