#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/deck_value.hpp"
#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// A reward function of the deck, KIND:ARGUMENT.
struct RewardSpec {
  enum class Kind : uint8_t { model, exact, number, regex, length, command };

  Kind kind;
  std::string argument;

  /// Column of the rows that the function compares with; empty if it needs none.
  std::string column() const { return kind == Kind::exact || kind == Kind::number ? argument : std::string(); }
  /// Maximum of Kind::length, tokens.
  int64_t length() const;
};

template <>
inline constexpr auto enum_names<RewardSpec::Kind> = name_list("model", "exact", "number", "regex", "length",
                                                               "command");

/// Throws UserError(deck) if the text is not a reward function; a regular expression is compiled.
RewardSpec parse_reward(std::string_view text);

/// [rewards]
struct RewardFunctionsConfig {
  std::vector<std::string> functions;
  std::vector<double> weights;  ///< empty: 1 each
  Duration time_limit{60};      ///< of a batch, for each `command:`

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);

  /// The functions; the deck is resolved.
  std::vector<RewardSpec> specs() const;
  /// Folder of the reward model, the first function model:DIR, if there is one.
  std::optional<std::string> model_folder() const;
  /// Weight of function i.
  double weight(size_t i) const { return weights.empty() ? 1 : weights[i]; }
};

}  // namespace llmtrain
