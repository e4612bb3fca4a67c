#pragma once
#include <string>
#include <string_view>

namespace llmtrain {

/// Makes the folder and gives its absolute path; removes temporary files that killed jobs left there over a day ago.
/// A folder that can only be read will do where it holds everything. UserError(cannot_create).
std::string open_cache_folder(const std::string& folder);
/// Before something is made in it: UserError(cannot_create) when nothing can be written there.
void require_writable_cache(const std::string& folder);

/// The path of a file with this content, <folder>/<name>-<hash>.txt, which is written when it is not there already.
std::string store_text(const std::string& folder, const std::string& name, std::string_view content);

}  // namespace llmtrain
