#pragma once
// Election of the rank that ends the job: the first that creates a file with the exit code. The others, which the
// launcher or their own watchdog ends at the same time, then know that the message has been printed. The state is
// process-wide, like failure.hpp's, and needs no allocation, since memory may be exhausted.

#include <optional>
#include <string>

namespace llmtrain {

/// Sets the file for claims. Empty path: no file, and every claim is granted.
void set_claim_file(const std::string& path);
/// Returns true if this rank is the first.
bool claim_end(int code);
/// Exit code of the existing claim.
std::optional<int> claimed_code();

}  // namespace llmtrain
