// The pages of docs/settings.
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

/// A link to the page of another system.
std::string link(const System& system) { return fmt::format("[{}]({}.md)", system.title, system.name); }

}  // namespace

std::string settings_page(const System& system) {
  std::string out =
      fmt::format("# Settings of {0}\n\n`llmtool convert FILE --from {1} --output DECK` writes a deck from them.",
                  system.title, system.name);
  for (const Include& include : system.includes) {
    out += include.prefix.empty()
               ? fmt::format(" It reads all keys of {}, too.", link(*include.system))
               : fmt::format(" Keys below `{}` are those of {}.", include.prefix, link(*include.system));
  }
  out += " \"theirs=ours\" stands for values with another name here.\n";
  if (!system.defaults.empty()) {
    out += "\nWhere a key is not given, the deck gets the program's own default:\n\n";
    for (const Default& one : system.defaults) {
      out += fmt::format("- `{} = {}`{}\n", one.key, one.value, one.task.empty() ? "" : fmt::format(" ({})", one.task));
    }
  }
  out += fmt::format(
      "\n<!-- Generated from the table of llmtool convert: do not edit. -->\n\n| {} | llmtrain |\n|---|---|\n",
      system.name);
  for (const Entry& entry : system.entries) out += row(entry);
  return out;
}

}  // namespace llmtrain::convert
