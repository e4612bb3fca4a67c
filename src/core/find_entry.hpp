#pragma once
// Entries of lists by their names.

#include <algorithm>
#include <iterator>
#include <string_view>

namespace llmtrain {

/// Returns the first entry whose member `name` is this one; null if there is none.
template <class List, class Name>
auto* find_entry(List& list, std::string_view wanted, Name name) {
  const auto found = std::ranges::find(list, wanted, name);
  return found == std::end(list) ? nullptr : &*found;
}

}  // namespace llmtrain
