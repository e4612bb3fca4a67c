#include "hf/weights/stored_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

/// Name components that wrappers add and no model family uses.
constexpr std::array<std::string_view, 6> wrappers = {"_orig_mod",                   // torch.compile
                                                      "module",                      // (distributed) data parallelism
                                                      "_fsdp_wrapped_module",        // FSDP
                                                      "_checkpoint_wrapped_module",  // activation checkpointing
                                                      "_forward_module",             // Lightning's strategies
                                                      "_fpw_module"};                // FSDP of older versions

bool is_wrapper(std::string_view component) { return std::ranges::find(wrappers, component) != wrappers.end(); }

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw UserError(ExitCode::bad_content, place + ": " + what);
}

struct Unwrapped {
  std::string name;
  std::string_view leading;  ///< wrappers at the beginning of the stored name
};

Unwrapped unwrap(std::string_view stored) {
  Unwrapped result;
  size_t begin = 0;
  bool at_start = true;
  while (begin < stored.size()) {
    const size_t dot = std::min(stored.find('.', begin), stored.size()), next = std::min(dot + 1, stored.size());
    const bool wrapper = dot < stored.size() && is_wrapper(stored.substr(begin, dot - begin));
    if (!wrapper) result.name += stored.substr(begin, next - begin);
    at_start = at_start && wrapper;
    if (at_start) result.leading = stored.substr(0, next);
    begin = next;
  }
  return result;
}

/// Returns the prefix before `name` if `name` is all of `full` or its end after a dot.
std::optional<std::string> prefix_of(const std::string& full, std::string_view name) {
  if (!full.ends_with(name)) return std::nullopt;
  const std::string prefix = full.substr(0, full.size() - name.size());
  return prefix.empty() || prefix.ends_with('.') ? std::optional(prefix) : std::nullopt;
}

/// Finds the prefix of all names by a tensor that every model has once.
void find_prefix(const std::vector<Unwrapped>& stored, const DecoderNames& model, StoredNames& names) {
  for (const std::string& anchor : {model.final_norm + ".weight", model.embedding + ".weight"}) {
    const std::string first = anchor.substr(0, anchor.find('.') + 1);
    for (const std::string_view lacking : {std::string_view(), std::string_view(first)}) {
      std::vector<std::string> found;
      for (const Unwrapped& tensor : stored) {
        const auto prefix = prefix_of(tensor.name, std::string_view(anchor).substr(lacking.size()));
        if (prefix) found.push_back(*prefix);
      }
      if (found.size() != 1) continue;
      names.added = found.front();
      names.missing = lacking;
      return;
    }
  }
}

}  // namespace

int64_t StoredNames::find(std::string_view name) const {
  const auto found = number_of.find(name);
  return found == number_of.end() ? -1 : static_cast<int64_t>(found->second);
}

StoredNames match_names(std::span<const std::string_view> stored, const DecoderNames& model, const std::string& place) {
  std::vector<Unwrapped> unwrapped;
  unwrapped.reserve(stored.size());
  for (const std::string_view name : stored) unwrapped.push_back(unwrap(name));
  StoredNames names;
  find_prefix(unwrapped, model, names);
  for (size_t t = 0; t < unwrapped.size(); ++t) {
    const Unwrapped& tensor = unwrapped[t];
    const std::string_view leading = unwrapped.front().leading;
    if (tensor.leading != leading || !tensor.name.starts_with(names.added)) {
      const bool first_has = leading.size() + names.added.size() > tensor.leading.size();
      refuse(place, fmt::format("{} and {} have different prefixes: one of them begins with {}. All tensors of a model "
                                "must have the same prefix, or none",
                                printable(stored.front()), printable(stored[t]),
                                printable(fmt::format("{}{}", first_has ? leading : tensor.leading, names.added))));
    }
    std::string name = tensor.name.substr(names.added.size());
    // Transformers 5 calls the head of GPT-NeoX so in memory, and may save it so.
    if (name == "lm_head.weight") name = model.head + ".weight";
    const bool of_head = name.starts_with(model.head + ".") || name.starts_with(model.score + ".");
    if (!names.missing.empty() && !of_head) name.insert(0, names.missing);
    const auto [at, added] = names.number_of.emplace(std::move(name), t);
    if (added) continue;
    refuse(place, fmt::format("{} and {} are both {}; remove one of them", printable(stored[at->second]),
                              printable(stored[t]), printable(at->first)));
  }
  if (!unwrapped.empty()) names.added = std::string(unwrapped.front().leading) + names.added;
  return names;
}

}  // namespace llmtrain
