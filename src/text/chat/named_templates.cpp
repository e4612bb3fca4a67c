#include "text/chat/named_templates.hpp"

#include <fmt/format.h>

#include <array>
#include <sstream>

#include "core/assets.hpp"
#include "core/deck/suggestion.hpp"
#include "core/find_entry.hpp"

namespace llmtrain {

extern const Asset text_assets[];  ///< generated

namespace {

constexpr std::array<std::string_view, 11> names = {"llama2", "llama3", "chatml", "qwen", "qwen3", "mistral",
                                                    "alpaca", "zephyr", "gemma",  "phi3", "vicuna"};

/// The text of a file of src/text/chat/templates without comments, indentation and line ends, which "-" at the tags
/// would remove, too. A line `{% include "x.jinja" %}` stands for that file.
std::string read_template(std::string_view file) {
  constexpr std::string_view include = "{% include \"";
  std::string source;
  std::istringstream text{std::string(find_asset(text_assets, file))};
  for (std::string line; std::getline(text, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.starts_with(include)) {
      line.erase(0, include.size());
      source += read_template(line.substr(0, line.find('"')));
    } else if (!line.starts_with("{#")) {
      source += line;
    }
  }
  return source;
}

std::vector<NamedTemplate> read_templates() {
  std::vector<NamedTemplate> all;
  all.reserve(names.size());
  for (const std::string_view name : names) all.push_back({name, read_template(std::string(name) + ".jinja")});
  return all;
}

}  // namespace

const std::vector<NamedTemplate>& named_templates() {
  static const std::vector<NamedTemplate> all = read_templates();
  return all;
}

const NamedTemplate* find_named_template(std::string_view name) {
  return find_entry(named_templates(), name, &NamedTemplate::name);
}

std::string unknown_template(std::string_view name) {
  std::vector<std::string_view> known = {"auto", "none"};
  known.insert(known.end(), names.begin(), names.end());
  return fmt::format("{} is not a template{}; give a Jinja file or one of {}", name, did_you_mean(name, known),
                     joined(known));
}

}  // namespace llmtrain
