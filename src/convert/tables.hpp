#pragma once
// The systems as their tables describe them.

#include <span>
#include <string_view>
#include <vector>

#include "convert/system.hpp"

namespace llmtrain::convert {

/// Names of all systems, in the order in which --from auto prefers them.
std::span<const std::string_view> system_names();
/// The systems in that order. Throws Error "file:line: reason" for a fault in a table.
const std::vector<System>& systems();

/// Fills a system, which has its name, from the text of its table; src/convert/tables/shared.txt describes the format.
/// `shared`: has the lists that it may use beside its own; `all`: the systems that it can include. Throws Error
/// "src/convert/tables/NAME.txt:line: reason".
void read_table(std::string_view text, const System& shared, const std::vector<System>& all, System& system);

}  // namespace llmtrain::convert
