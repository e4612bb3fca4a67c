#pragma once
// Who ends the job: the first rank that creates a file with the exit code. The others, which the launcher or their own
// watchdog ends at the same time, then know that everything has been said. State of the process, like failure.hpp's;
// without allocation, since memory may be what is missing.

#include <optional>
#include <string>

namespace llmtrain {

/// From now on claims go to this file; an empty path: nowhere, and every claim is granted.
void set_claim_file(const std::string& path);
/// Whether nobody was before this rank.
bool claim_end(int code);
/// The exit code of the claim that is there.
std::optional<int> claimed_code();

}  // namespace llmtrain
