#include "core/deck/deck.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/suggestion.hpp"

namespace llmtrain {

const DeckKeys::Key* DeckKeys::find(std::string_view full_name) const {
  for (const Key& key : keys_) {
    const size_t dot = key.section.size();
    if (full_name.size() == dot + 1 + key.name.size() && full_name.starts_with(key.section) && full_name[dot] == '.' &&
        full_name.ends_with(key.name)) {
      return &key;
    }
  }
  return nullptr;
}

std::vector<std::string_view> DeckKeys::section_names() const {
  std::vector<std::string_view> names;
  for (const Section& section : sections_) names.push_back(section.name);
  return names;
}

std::vector<std::string_view> DeckKeys::names_in(std::string_view section) const {
  std::vector<std::string_view> names;
  for (const Key& key : keys_) {
    if (key.section == section) names.push_back(key.name);
  }
  return names;
}

const Provenance::Entry& Provenance::at(std::string_view key) const {
  static const Entry none;
  const auto found = entries_.find(key);
  return found == entries_.end() ? none : found->second;
}

void Provenance::set(std::string_view key, Origin origin, std::string note) {
  Entry& entry = entries_[std::string(key)];
  entry.origin = origin;
  entry.note = std::move(note);
}

bool Provenance::given(std::string_view key) const {
  const Origin origin = at(key).origin;
  return origin == Origin::deck || origin == Origin::command_line;
}

std::string Provenance::where(std::string_view key) const {
  return fmt::format("{}: {}", DeckErrors(deck_name_).place(at(key).line), key);
}

DeckLoader::DeckLoader(const DeckKeys& keys, std::string deck_name)
    : keys_(keys), errors_(deck_name), provenance_(std::move(deck_name)) {}

void DeckLoader::load(std::string_view text, std::span<const std::string> overrides,
                      std::span<const ExclusiveKeys> exclusive,
                      const std::function<bool(const DeckKeys::Key&)>& needed) {
  const RawDeck deck = read_deck_text(text, errors_);
  check_sections(deck);
  for (const RawKey& raw : deck.keys) choose(raw);
  // An argument replaces the same key, and one that excludes it; an earlier argument that is replaced is worth a note.
  const auto replace = [&](std::string_view key, std::string_view successor) {
    const auto found = chosen_.find(key);
    if (found == chosen_.end()) return;
    const RawKey& before = found->second;
    if (before.line == DeckErrors::command_line) {
      notes_.push_back(fmt::format("{}: {} = {}: the later {} replaces it", errors_.place(before.line), key,
                                   before.text, successor));
    }
    broken_.erase(found->first);
    chosen_.erase(found);
  };
  for (const RawKey& raw : read_overrides(overrides, errors_)) {
    const std::string name = raw.section + "." + raw.name;
    replace(name, fmt::format("{} = {}", name, raw.text));
    for (const auto& [first, second] : exclusive) {
      if (name == first) replace(second, name);
      if (name == second) replace(first, name);
    }
    choose(raw);
  }
  for (const ExclusiveKeys& pair : exclusive) apply_exclusive(pair);
  for (const DeckKeys::Key& key : keys_.keys()) {
    const std::string name = key.full_name();
    const auto found = chosen_.find(name);
    if (found != chosen_.end()) {
      parse(key, found->second);
    } else if (key.info.required && !broken_.contains(name) && (!needed || needed(key))) {
      fail(name, fmt::format("is required: {}", key.info.doc));
    }
  }
}

void DeckLoader::check_sections(const RawDeck& deck) {
  std::map<std::string_view, int> first;
  const std::vector<std::string_view> names = keys_.section_names();
  for (const RawSection& section : deck.sections) {
    const auto [at, fresh] = first.emplace(section.name, section.line);
    if (!fresh) {
      errors_.add(section.line, section.name,
                  fmt::format("the section is already in line {}: merge the two", at->second));
    } else if (std::ranges::find(names, section.name) == names.end() && !errors_.full()) {
      errors_.add(section.line, section.name, "no such section" + did_you_mean(section.name, names));
    }
  }
}

void DeckLoader::choose(const RawKey& raw) {
  const bool reported = raw.line < 0;
  const int line = std::abs(raw.line);
  const std::string name = raw.section + "." + raw.name;
  const std::vector<std::string_view> known = keys_.names_in(raw.section);
  if (known.empty()) {  // the deck's error is the section itself
    if (line == DeckErrors::command_line) {
      errors_.add(line, name, "no such section" + did_you_mean(raw.section, keys_.section_names()));
    }
    return;
  }
  if (keys_.find(name) == nullptr) {
    if (errors_.full()) return errors_.add(line, name, "");
    for (const DeckKeys::Section& section : keys_.sections()) {
      const std::string elsewhere = fmt::format("{}.{}", section.name, raw.name);
      if (keys_.find(elsewhere) != nullptr) {
        return errors_.add(line, name, fmt::format("no such key (did you mean {}?)", elsewhere));
      }
    }
    return errors_.add(line, name, "no such key" + did_you_mean(raw.name, known));
  }
  const auto found = chosen_.find(name);
  if (found != chosen_.end()) {
    errors_.add(line, name, fmt::format("is already given in line {}", found->second.line));
    broken_[name] = true;
    return;
  }
  chosen_.insert_or_assign(name, RawKey{raw.section, raw.name, raw.text, line});
  broken_.erase(name);
  if (reported) broken_[name] = true;
}

void DeckLoader::apply_exclusive(const ExclusiveKeys& pair) {
  const auto first = chosen_.find(pair.first), second = chosen_.find(pair.second);
  if (first == chosen_.end() || second == chosen_.end()) return;
  const auto& [kept, extra] =
      first->second.line > second->second.line ? std::pair(second, first) : std::pair(first, second);
  fail(extra->first, fmt::format("cannot be combined with {}: give one of them", kept->first));
}

void DeckLoader::parse(const DeckKeys::Key& key, const RawKey& raw) {
  const std::string name = key.full_name();
  const bool from_command_line = raw.line == DeckErrors::command_line;
  Provenance::Entry& entry = provenance_[name];
  entry.origin = from_command_line ? Origin::command_line : Origin::deck;
  entry.line = raw.line;
  if (broken_.contains(name)) return;
  try {
    const size_t line_end = key.list ? std::string::npos : raw.text.find('\n');
    if (line_end != std::string::npos) {
      throw UserError(
          ExitCode::deck,
          fmt::format("'{}' continues in an indented line, which only a list may do: begin keys in the first column (a "
                      "text continues after a backslash at the end of the line)",
                      raw.text.substr(0, line_end)));
    }
    const std::string text = expand_environment(raw.text);
    if (text.empty() && !(key.list && !key.info.required)) throw UserError(ExitCode::deck, "has no value");
    key.parse(text);
  } catch (const UserError& error) {
    errors_.add(raw.line, name, error.what());
    broken_[name] = true;
  }
}

bool DeckLoader::sound(std::initializer_list<std::string_view> keys) const {
  return std::ranges::none_of(keys, [&](std::string_view key) { return broken_.contains(key); });
}

void DeckLoader::check(bool condition, std::initializer_list<std::string_view> keys, const std::string& what) {
  if (!condition && sound(keys)) fail(*keys.begin(), what);
}

void DeckLoader::check_together(bool condition, std::initializer_list<std::string_view> keys, const std::string& what) {
  const auto* const by_user = std::ranges::find_if(keys, [&](std::string_view key) { return given(key); });
  if (!condition && sound(keys)) fail(by_user == keys.end() ? *keys.begin() : *by_user, what);
}

void DeckLoader::fail(std::string_view key, const std::string& what, ExitCode code) {
  const auto found = chosen_.find(key);
  errors_.add(found == chosen_.end() ? DeckErrors::no_line : found->second.line, key, what, code);
  broken_[std::string(key)] = true;
}

void DeckLoader::note(std::string_view key, const std::string& what) {
  notes_.push_back(fmt::format("{}: {}", provenance_.where(key), what));
}

void DeckLoader::unused(std::string_view key, const std::string& why) {
  if (given(key)) note(key, why);
  set(key, Origin::unused, why);
}

}  // namespace llmtrain
