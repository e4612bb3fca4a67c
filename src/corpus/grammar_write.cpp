// Writes a text.

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

}  // namespace llmtrain
