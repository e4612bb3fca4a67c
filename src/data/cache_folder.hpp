#pragma once
#include <string>
#include <string_view>

namespace llmtrain {

/// Makes the folder and gives its absolute path; removes temporary files that killed jobs left there over a day ago.
/// UserError(cannot_create) when nothing can be written there.
std::string open_cache_folder(const std::string& folder);

/// The path of a file with this content, <folder>/<name>-<hash>.txt, which is written when it is not there already.
std::string store_text(const std::string& folder, const std::string& name, std::string_view content);

}  // namespace llmtrain
