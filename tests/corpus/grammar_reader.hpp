#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "corpus/grammar.hpp"

namespace llmtrain {

/// Follows the only derivation that a text of a grammar can have, and sums the logarithms of its choices.
class GrammarReader {
 public:
  /// Returns ln of the probability of `text`, -infinity if the grammar does not produce it.
  static double log_probability(const Grammar& grammar, std::string_view text) {
    GrammarReader reader(grammar, text);
    return reader.read_rule(grammar.rules_[0]) && reader.rest_.empty() ? reader.sum_ : -INFINITY;
  }
  /// Returns a bound of the texts' lengths in bytes: that of the longest derivation.
  static int64_t longest(const Grammar& grammar) { return longest_of(grammar, 0); }

 private:
  GrammarReader(const Grammar& grammar, std::string_view text)
      : grammar_(grammar), rest_(text), bindings_(grammar.variables_.size(), -1) {}

  bool accept(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  bool read_draw(const Grammar::Item& item) {
    const std::vector<int> entries = grammar_.allowed(grammar_.variables_[item.target], bindings_);
    for (int entry : entries) {
      if (!accept(grammar_.text_of(item, entry, bindings_))) continue;
      bindings_[item.target] = entry;
      sum_ -= std::log(static_cast<double>(entries.size()));
      return true;
    }
    return false;
  }

  bool read_item(const Grammar::Item& item) {
    switch (item.kind) {
      case Grammar::ItemKind::literal:
        return accept(item.text);
      case Grammar::ItemKind::rule:
        return read_rule(grammar_.rules_[item.target]);
      case Grammar::ItemKind::draw:
        return read_draw(item);
      case Grammar::ItemKind::recall:
        return accept(grammar_.text_of(item, bindings_[item.target], bindings_));
    }
    return false;
  }

  bool read_rule(const Grammar::Rule& rule) {
    const Grammar::Alternative* chosen = rule.alternatives.data();
    if (rule.alternatives.size() > 1) {
      const auto continues = [&](const Grammar::Alternative& a) { return rest_.starts_with(a.items[0].text); };
      const auto found = std::ranges::find_if(rule.alternatives, continues);
      if (found == rule.alternatives.end()) return false;
      chosen = &*found;
      sum_ += std::log(static_cast<double>(chosen->weight) / static_cast<double>(rule.total_weight));
    }
    for (const Grammar::Item& item : chosen->items) {
      if (!read_item(item)) return false;
    }
    return true;
  }

  static int64_t longest_of(const Grammar& grammar, size_t index) {
    int64_t result = 0;
    for (const Grammar::Alternative& alternative : grammar.rules_[index].alternatives) {
      int64_t sum = 0;
      for (const Grammar::Item& item : alternative.items) {
        if (item.kind == Grammar::ItemKind::rule) {
          sum += longest_of(grammar, item.target);
          continue;
        }
        size_t length = item.text.size();
        for (const int form : item.forms) {
          for (const auto& entry : grammar.lists_[grammar.variables_[item.target].list].entries) {
            length = std::max(length, entry[static_cast<size_t>(form)].size());
          }
        }
        sum += static_cast<int64_t>(length);
      }
      result = std::max(result, sum);
    }
    return result;
  }

  const Grammar& grammar_;
  std::string_view rest_;
  Grammar::Bindings bindings_;
  double sum_ = 0;
};

}  // namespace llmtrain
