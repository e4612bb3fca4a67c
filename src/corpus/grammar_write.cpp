// Writes a text and parses it again.

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "corpus/grammar.hpp"

namespace llmtrain {

const std::string& Grammar::text_of(const Item& item, int entry, const Bindings& bindings) const {
  const size_t which = item.selector < 0 ? 0 : static_cast<size_t>(bindings[static_cast<size_t>(item.selector)]);
  const List& list = lists_[variables_[item.target].list];
  return list.entries[static_cast<size_t>(entry)][static_cast<size_t>(item.forms[which])];
}

std::vector<int> Grammar::allowed(const Variable& variable, const Bindings& bindings) const {
  const size_t domain = variable.joined < 0 ? 0 : static_cast<size_t>(bindings[static_cast<size_t>(variable.joined)]);
  std::vector<int> entries = variable.domains[domain];
  for (size_t other : variable.except) std::erase(entries, bindings[other]);
  return entries;
}

std::string Grammar::write(const Below& below) const {
  Bindings bindings(variables_.size(), -1);
  std::string text;
  write_rule(0, below, bindings, text);
  return text;
}

void Grammar::write_rule(size_t index, const Below& below, Bindings& bindings, std::string& text) const {
  const Rule& rule = rules_[index];
  size_t chosen = 0;
  if (rule.alternatives.size() > 1) {
    uint32_t ticket = below(rule.total_weight);
    while (ticket >= rule.alternatives[chosen].weight) ticket -= rule.alternatives[chosen++].weight;
  }
  for (const Item& item : rule.alternatives[chosen].items) {
    switch (item.kind) {
      case ItemKind::literal:
        text += item.text;
        break;
      case ItemKind::rule:
        write_rule(item.target, below, bindings, text);
        break;
      case ItemKind::draw: {
        const std::vector<int> entries = allowed(variables_[item.target], bindings);
        const uint32_t pick = entries.size() > 1 ? below(static_cast<uint32_t>(entries.size())) : 0;
        bindings[item.target] = entries[pick];
        [[fallthrough]];
      }
      case ItemKind::recall:
        text += text_of(item, bindings[item.target], bindings);
        break;
    }
  }
}

/// Follows the only derivation that a text can have.
struct Grammar::Reader {
  const Grammar& grammar;
  std::string_view rest;
  Bindings bindings;
  double log_probability = 0;

  bool accept(std::string_view text) {
    if (!rest.starts_with(text)) return false;
    rest.remove_prefix(text.size());
    return true;
  }

  bool read_draw(const Item& item) {
    const std::vector<int> entries = grammar.allowed(grammar.variables_[item.target], bindings);
    for (int entry : entries) {
      if (!accept(grammar.text_of(item, entry, bindings))) continue;
      bindings[item.target] = entry;
      log_probability -= std::log(static_cast<double>(entries.size()));
      return true;
    }
    return false;
  }

  bool read_item(const Item& item) {
    switch (item.kind) {
      case ItemKind::literal:
        return accept(item.text);
      case ItemKind::rule:
        return read_rule(grammar.rules_[item.target]);
      case ItemKind::draw:
        return read_draw(item);
      case ItemKind::recall:
        return accept(grammar.text_of(item, bindings[item.target], bindings));
    }
    return false;
  }

  bool read_rule(const Rule& rule) {
    const Alternative* chosen = rule.alternatives.data();
    if (rule.alternatives.size() > 1) {
      const auto continues = [&](const Alternative& a) { return rest.starts_with(a.items[0].text); };
      const auto found = std::ranges::find_if(rule.alternatives, continues);
      if (found == rule.alternatives.end()) return false;
      chosen = &*found;
      log_probability += std::log(static_cast<double>(chosen->weight) / static_cast<double>(rule.total_weight));
    }
    for (const Item& item : chosen->items) {
      if (!read_item(item)) return false;
    }
    return true;
  }
};

double Grammar::log_probability(std::string_view text) const {
  Reader reader{*this, text, Bindings(variables_.size(), -1)};
  if (!reader.read_rule(rules_[0]) || !reader.rest.empty()) return -std::numeric_limits<double>::infinity();
  return reader.log_probability;
}

}  // namespace llmtrain
