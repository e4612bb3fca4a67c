#pragma once
// Files that are embedded at build time (cmake/Embed.cmake), and the lines of tables among them.

#include <functional>
#include <string>
#include <string_view>

namespace llmtrain {

struct Asset {
  std::string_view name, content;
};

/// Returns the content of a file among a layer's assets, which end with an empty name. Throws Error for another name.
std::string_view find_asset(const Asset* assets, std::string_view name);

/// Calls take(line, number) for each line of a table but comments, which begin with #, and blank lines. An indented
/// line continues the one above, after a space.
void each_table_line(std::string_view table, const std::function<void(const std::string& line, int number)>& take);

}  // namespace llmtrain
