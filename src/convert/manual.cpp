// The tables of docs/coming-from.md.
#include <fmt/format.h>

#include "convert/convert.hpp"

namespace llmtrain::convert {
namespace {

/// Names between spaces as inline code.
std::string code_list(std::string_view names) {
  std::string out;
  each_word(names, [&out](std::string_view name) { out += fmt::format("{}`{}`", out.empty() ? "" : ", ", name); });
  return out;
}

std::string deck_keys(std::string_view target) {
  std::string names(target);
  for (size_t at = names.find(", "); at != std::string::npos; at = names.find(", ", at)) names.erase(at, 1);
  return code_list(names);
}

/// Text in a cell of a table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '>' || c == '*' || c == '_') out += '\\';
    out += c;
  }
  return out;
}

std::string row(const Entry& entry) {
  std::string here;
  switch (entry.effect) {
    case Effect::mapped:
      here = deck_keys(entry.target);
      if (!entry.values.empty()) here += ": " + code_list(entry.values);
      if (!entry.note.empty()) here += fmt::format(" ({})", cell(entry.note));
      break;
    case Effect::no_effect:
      here = "no effect: " + cell(entry.note);
      break;
    default:
      here = "not supported: " + cell(entry.note);
  }
  const std::string tasks = entry.task.empty() ? "" : fmt::format(" ({})", entry.task);
  return fmt::format("| {}{} | {} |\n", code_list(entry.keys), tasks, here);
}

std::string table(const System& system) {
  std::string out = fmt::format("\n### {}\n\n`--from {}`.", system.title, system.name);
  for (const Include& include : system.includes) {
    out += include.prefix.empty()
               ? fmt::format(" All keys of {}, too.", include.system->title)
               : fmt::format(" Keys below `{}` are those of {}.", include.prefix, include.system->title);
  }
  if (!system.defaults.empty()) {
    out += " Where a key is not given, the deck gets the program's own default:";
    for (const Default& one : system.defaults) {
      out += fmt::format("{} `{} = {}`{}", &one == &system.defaults.front() ? "" : ",", one.key, one.value,
                         one.task.empty() ? "" : fmt::format(" ({})", one.task));
    }
    out += ".";
  }
  out += fmt::format("\n\n| {} | llmtrain |\n|---|---|\n", system.name);
  for (const Entry& entry : system.entries) out += row(entry);
  return out;
}

}  // namespace

std::string tables_of_keys() {
  std::string out;
  for (const System* const system : systems()) out += table(*system);
  return out;
}

}  // namespace llmtrain::convert
