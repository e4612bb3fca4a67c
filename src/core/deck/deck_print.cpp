// Printed forms of a deck's keys: the resolved deck, --help and the manual.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/deck/deck.hpp"
#include "core/deck/deck_parser.hpp"
#include "core/deck/suggestion.hpp"

namespace llmtrain {
namespace {

/// Length of the printed character or escape that begins at `i`.
size_t token_length(std::string_view text, size_t i) {
  if (text[i] == '\\') return i + 1 < text.size() && text[i + 1] == 'x' ? 4 : 2;
  size_t length = 1;
  while (i + length < text.size() && (static_cast<uint8_t>(text[i + length]) & 0xC0u) == 0x80) ++length;
  return length;
}

std::string key_type(const DeckKeys::Key& key) {
  return key.info.unit.empty() ? key.type : fmt::format("{} ({})", key.type, key.info.unit);
}

std::string default_text(const DeckKeys::Key& key) {
  if (key.info.required) return "required";
  if (!key.info.automatic.empty()) return std::string(key.info.automatic);
  const std::string value = key.print();
  return value.empty() ? "none" : value;
}

/// Escapes text for a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|' || c == '<' || c == '>' || c == '*' || c == '_') out += '\\';
    out += c;
  }
  return out;
}

void add_key(std::string& out, const DeckKeys::Key& key) {
  const std::string range = key.info.range.text();
  out += fmt::format("  {:<28}{}{}  [{}]\n      {}\n", key.name, key_type(key), range.empty() ? "" : ", " + range,
                     default_text(key), key.info.doc);
}

void add_section(std::string& out, const DeckKeys& keys, const DeckKeys::Section& section, TaskSet tasks) {
  std::string lines;
  for (const DeckKeys::Key& key : keys.keys()) {
    if (key.section == section.name && key.tasks.meets(tasks)) add_key(lines, key);
  }
  if (!lines.empty()) out += fmt::format("[{}]  {}\n{}", section.name, section.doc, lines);
}

/// The task of this name, unless a section has it.
std::optional<Task> find_task(const DeckKeys& keys, std::string_view topic) {
  const auto found = std::ranges::find(enum_names<Task>, topic);
  const std::vector<std::string_view> sections = keys.section_names();
  if (found == enum_names<Task>.end() || std::ranges::find(sections, topic) != sections.end()) return {};
  return static_cast<Task>(found - enum_names<Task>.begin());
}

[[noreturn]] void unknown_topic(const DeckKeys& keys, std::string_view topic) {
  const size_t dot = topic.find('.');
  const std::vector<std::string_view> sections = keys.section_names();
  const std::vector<std::string_view> names =
      dot == std::string_view::npos ? std::vector<std::string_view>() : keys.names_in(topic.substr(0, dot));
  const std::string hint =
      names.empty() ? did_you_mean(topic.substr(0, dot), sections) : did_you_mean(topic.substr(dot + 1), names);
  throw UserError(ExitCode::command_line,
                  fmt::format("--help {}: no such section, key or task{}; the sections are {}, the tasks {}", topic,
                              hint, joined(sections), joined(enum_names<Task>)));
}

/// Sections of the manual by what a reader wants to do; a section that no group names is one of fine-tuning.
struct Group {
  std::string_view title, sections;  ///< sections: names between blanks
};
constexpr std::array groups = {
    Group{"Always", "run model batch optimizer schedule precision evaluation checkpoint log"},
    Group{"Data sets", "data tokenizer chat curriculum"},
    Group{"Fine-tuning", ""},
    Group{"Reinforcement", "ppo grpo rewards rollout"},
    Group{"Cluster", "parallel memory watchdog divergence"},
    Group{"Generation and results", "generate wandb dashboard"},
};

const Group& group_of(std::string_view section) {
  const auto found = std::ranges::find_if(groups, [section](const Group& group) {
    return fmt::format(" {} ", group.sections).find(fmt::format(" {} ", section)) != std::string::npos;
  });
  return found == groups.end() ? groups[2] : *found;
}

std::string section_table(const DeckKeys& keys, const DeckKeys::Section& section) {
  std::string out =
      fmt::format("\n### [{}]\n\n{}\n\n| key | type (unit) | range | default | meaning |\n|---|---|---|---|---|\n",
                  section.name, section.doc);
  for (const DeckKeys::Key& key : keys.keys()) {
    if (key.section != section.name) continue;
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", key.name, cell(key_type(key)), cell(key.info.range.text()),
                       cell(default_text(key)), cell(key.info.doc));
  }
  return out;
}

}  // namespace

std::string deck_line(std::string_view name, std::string_view value) {
  constexpr size_t width = 110;
  std::string out = fmt::format("{} = ", name);
  size_t column = out.size();
  for (size_t i = 0; i < value.size();) {
    const std::string_view token = value.substr(i, token_length(value, i));
    const bool item_ended = out.ends_with(", ") && !out.ends_with("\\, ") && i > 0;
    if (item_ended && column > width / 2) {
      out.pop_back();  // removes the blank after the comma
      out += "\n    ";
      column = 4;
    } else if (column > width && token != " ") {
      out += "\\\n    ";
      column = 4;
    }
    out += token;
    column += token.size();
    i += token.size();
  }
  return out;
}

std::string write_deck(const DeckKeys& keys, const Provenance& provenance, std::string_view title) {
  std::string out = fmt::format("# {}\n", title);
  for (const DeckKeys::Section& section : keys.sections()) {
    out += fmt::format("\n[{}]\n", section.name);
    for (const DeckKeys::Key& key : keys.keys()) {
      if (key.section != section.name) continue;
      const Provenance::Entry& entry = provenance.at(key.full_name());
      if (entry.origin == Origin::unused) {
        out += fmt::format("# {}: {}\n", key.name, entry.note);
        continue;
      }
      if (!key.list && key.print().empty()) {  // no text parses to this value, so that an empty text means "not given"
        out += fmt::format("# {}: none\n", key.name);
        continue;
      }
      const std::string comment =
          fmt::format("{}{}{}", name_of(entry.origin), entry.note.empty() ? "" : ": ", entry.note);
      const std::string line = fmt::format("{} = {}", key.name, key.print());
      if (line.size() + comment.size() < 100) {
        out += fmt::format("{:<44} ; {}\n", line, comment);
      } else {
        out += fmt::format("# {}\n{}\n", comment, deck_line(key.name, key.print()));
      }
    }
  }
  return out;
}

std::string deck_help(const DeckKeys& defaults, std::string_view topic) {
  std::string out;
  const std::optional<Task> task = find_task(defaults, topic);
  const bool several = topic.empty() || task.has_value();
  for (const DeckKeys::Section& section : defaults.sections()) {
    if (!several && topic != section.name) continue;
    add_section(out, defaults, section, task ? TaskSet{*task} : all_tasks);
    if (several && !out.ends_with("\n\n")) out += '\n';
  }
  if (const DeckKeys::Key* key = defaults.find(topic)) {
    out += fmt::format("[{}]\n", key->section);
    add_key(out, *key);
  }
  if (out.empty()) unknown_topic(defaults, topic);
  return out;
}

std::string deck_manual(const DeckKeys& defaults) {
  std::string out =
      R"(# The deck

`llmtrain --help` prints all keys, `llmtrain --help section.key` one of them, and `llmtrain DECK --check` the values of a
deck. This page is generated from the source (`visit` of each section): do not edit it.

- **Lines.** Write one `key = value` per line under a `[section]`. A comment begins with `#` or `;` at the start of a
  line, or with `;` after white space.
- **Lists** are separated by commas and may continue on indented lines. A backslash at the end of a line joins the
  indented next line to it without a break.
- **Counts** accept `_` between digits, the suffixes K, M and G (powers of 1000), and KiB, MiB and GiB. Durations look
  like `90s`, `15m` and `4h`.
- **Text** is written without quotation marks. `\n`, `\t`, `\s` (a space at either end), `\,`, `\\` and `\xHH` stand for
  characters that could not be written there.
- **Environment.** `${NAME}` is replaced by an environment variable. Relative paths start at the working directory of
  the job.
- **Command line.** An argument `section.key=value` wins over the deck, and a later argument over an
  earlier one of the same key.
- **Numbers** that are used in fp32 must be finite there, and may be 0 there only if they are written as 0.

| for | sections |
|---|---|
)";
  std::string tables;
  for (const Group& group : groups) {
    std::string links;
    for (const DeckKeys::Section& section : defaults.sections()) {
      if (&group_of(section.name) != &group) continue;
      if (links.empty()) tables += fmt::format("\n## {}\n", group.title);
      links += fmt::format("{}[{}](#{})", links.empty() ? "" : ", ", section.name, section.name);
      tables += section_table(defaults, section);
    }
    if (!links.empty()) out += fmt::format("| {} | {} |\n", group.title, links);
  }
  return out + tables;
}

}  // namespace llmtrain
