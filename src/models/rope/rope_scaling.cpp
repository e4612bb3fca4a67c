#include "models/rope/rope_scaling.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/suggestion.hpp"

namespace llmtrain {

namespace {

using Kind = RopeScaling::Kind;

/// Calls f(name, field, kinds that use it) for every parameter, in the order of printing.
template <class Scaling, class F>
void for_each_parameter(Scaling& s, F&& f) {
  const auto in = [kind = s.kind](std::initializer_list<Kind> kinds) {
    return std::ranges::find(kinds, kind) != kinds.end();
  };
  f("factor", s.factor, s.kind != Kind::none);
  f("original_max_position_embeddings", s.original_max_position_embeddings,
    in({Kind::llama3, Kind::yarn, Kind::longrope}));
  f("low_freq_factor", s.low_freq_factor, in({Kind::llama3}));
  f("high_freq_factor", s.high_freq_factor, in({Kind::llama3}));
  f("beta_fast", s.beta_fast, in({Kind::yarn}));
  f("beta_slow", s.beta_slow, in({Kind::yarn}));
  f("attention_factor", s.attention_factor, in({Kind::yarn, Kind::longrope}));
  f("mscale", s.mscale, in({Kind::yarn}));
  f("mscale_all_dim", s.mscale_all_dim, in({Kind::yarn}));
  f("truncate", s.truncate, in({Kind::yarn}));
  f("short_factor", s.short_factor, in({Kind::longrope}));
  f("long_factor", s.long_factor, in({Kind::longrope}));
}

void parse_into(double& field, std::string_view text) { field = parse_number(text, above(0)); }
void parse_into(int64_t& field, std::string_view text) { field = parse_count(text, between(2, 1 << 30)); }
void parse_into(bool& field, std::string_view text) { field = parse_bool(text); }
void parse_into(std::vector<double>& field, std::string_view text) {
  constexpr std::string_view blanks = " \t\n";
  field.clear();
  for (size_t i = text.find_first_not_of(blanks); i != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(blanks, i), text.size());
    field.push_back(parse_number(text.substr(i, end - i), above(0)));
    i = text.find_first_not_of(blanks, end);
  }
}

std::string print_field(double field) { return print_number(field); }
std::string print_field(int64_t field) { return std::to_string(field); }
std::string print_field(bool field) { return field ? "true" : "false"; }
std::string print_field(const std::vector<double>& field) {
  std::string text;
  for (double x : field) text += (text.empty() ? "" : " ") + print_number(x);
  return text;
}

/// Parses "name value" or "name = value" into the parameter of that name.
void parse_parameter(RopeScaling& scaling, std::string_view item) {
  const size_t name_end = std::min(item.find_first_of(" \t\n="), item.size());
  const size_t value_begin = item.find_first_not_of(" \t\n=", name_end);
  const std::string_view name = item.substr(0, name_end);
  const std::string_view value = value_begin == std::string_view::npos ? "" : item.substr(value_begin);
  bool found = false;
  std::vector<std::string_view> known;
  for_each_parameter(scaling, [&](std::string_view candidate, auto& field, bool applies) {
    if (!applies) return;
    known.push_back(candidate);
    if (candidate != name) return;
    found = true;
    if (value.empty()) throw UserError(ExitCode::deck, fmt::format("'{}' has no value", name));
    parse_into(field, value);
  });
  if (found) return;
  if (known.empty()) throw UserError(ExitCode::deck, fmt::format("'{}': the kind none has no parameters", item));
  throw UserError(ExitCode::deck, fmt::format("'{}' is not a parameter of {}, which has {}{}", name,
                                              name_of(scaling.kind), joined(known), did_you_mean(name, known)));
}

}  // namespace

RopeScaling DeckValue<RopeScaling>::parse(std::string_view text, const KeyInfo& info) {
  RopeScaling scaling;
  const std::vector<std::string_view> items = split_list(text);
  if (items.empty()) return scaling;
  scaling.kind = DeckValue<Kind>::parse(items.front(), info);
  for (size_t i = 1; i < items.size(); ++i) parse_parameter(scaling, items[i]);
  return scaling;
}

std::string DeckValue<RopeScaling>::print(const RopeScaling& value) {
  std::string text(name_of(value.kind));
  RopeScaling given_nothing;
  given_nothing.kind = value.kind;
  std::vector<std::string> defaults;
  for_each_parameter(given_nothing,
                     [&](std::string_view, const auto& field, bool) { defaults.push_back(print_field(field)); });
  size_t i = 0;
  for_each_parameter(value, [&](std::string_view name, const auto& field, bool applies) {
    const std::string printed = print_field(field);
    if (applies && printed != defaults[i]) text += fmt::format(", {} {}", name, printed);
    ++i;
  });
  return text;
}

std::string RopeScaling::problem(int64_t frequencies) const {
  if (kind == Kind::none) return "";
  const bool has_original = original_max_position_embeddings > 0;
  const bool wants_original = kind == Kind::llama3 || kind == Kind::yarn || kind == Kind::longrope;
  if (wants_original && !has_original) return fmt::format("{} needs original_max_position_embeddings", name_of(kind));
  if (kind != Kind::longrope && kind != Kind::yarn && factor == 0)
    return fmt::format("{} needs a factor", name_of(kind));
  if (kind == Kind::llama3 && high_freq_factor <= low_freq_factor) {
    return fmt::format("high_freq_factor {} must be above low_freq_factor {}", high_freq_factor, low_freq_factor);
  }
  if (kind == Kind::yarn && beta_fast < beta_slow) {
    return fmt::format("beta_fast {} must not be below beta_slow {}", beta_fast, beta_slow);
  }
  if (kind == Kind::dynamic && frequencies < 2) return "dynamic needs at least two frequencies";
  if (kind == Kind::longrope) {
    for (const auto& [name, list] :
         {std::pair("short_factor", &short_factor), std::pair("long_factor", &long_factor)}) {
      if (static_cast<int64_t>(list->size()) != frequencies) {
        return fmt::format("{} has {} numbers, and the rotated part of a head has {} frequencies", name, list->size(),
                           frequencies);
      }
    }
  }
  return "";
}

}  // namespace llmtrain
