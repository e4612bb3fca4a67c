#pragma once
// The folder data.cache. Tokenized data (tokens-<key>.h5) are made and reused by data/dataset.cpp.

#include <string>
#include <string_view>

namespace llmtrain {

/// Returns the default folder: $XDG_CACHE_HOME/llmtrain, ~/.cache/llmtrain, or $TMPDIR/llmtrain.
std::string default_cache_folder();
/// Makes the folder and returns its absolute path; removes temporary files that killed jobs left there over a day ago.
/// A read-only folder is accepted, since it can contain everything needed. Throws UserError(cannot_create).
std::string open_cache_folder(const std::string& folder);
/// Throws UserError(cannot_create) if the folder is not writable; called before something is made in it.
void require_writable_cache(const std::string& folder);

/// Returns the path of a file with this content, <folder>/<name>-<hash>.txt, which is written if it does not exist.
std::string store_text(const std::string& folder, const std::string& name, std::string_view content);

}  // namespace llmtrain
