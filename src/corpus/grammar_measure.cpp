// Exact properties of the texts of a grammar; class Grammar derives them.

#include <cmath>

#include "core/error.hpp"
#include "corpus/grammar.hpp"

namespace llmtrain {

namespace {

/// - sum p ln p, nats
double entropy_of(const std::vector<double>& probability) {
  double sum = 0;
  for (double p : probability) {
    if (p > 0) sum -= p * std::log(p);
  }
  return sum;
}

}  // namespace

/// Returns the expectation, over derivations, of the sum of of_rule over the rules and of of_item over the items that
/// they expand.
double Grammar::expect(size_t index, const std::function<double(const Rule&)>& of_rule,
                       const std::function<double(const Item&)>& of_item) const {
  const Rule& rule = rules_[index];
  double sum = of_rule(rule);
  for (const Alternative& alternative : rule.alternatives) {
    double items = 0;
    for (const Item& item : alternative.items) {
      items += item.kind == ItemKind::rule ? expect(item.target, of_rule, of_item) : of_item(item);
    }
    sum += items * alternative.weight / rule.total_weight;
  }
  return sum;
}

double Grammar::draw_entropy(const Variable& variable) const {
  const auto entropy = [&](size_t domain) {
    return std::log(static_cast<double>(variable.domains[domain].size() - variable.except.size()));
  };
  if (variable.joined < 0) return entropy(0);
  const std::vector<double>& parent = variables_[static_cast<size_t>(variable.joined)].probability;
  double sum = 0;
  for (size_t v = 0; v < parent.size(); ++v) sum += parent[v] * entropy(v);
  return sum;
}

double Grammar::entropy() const {
  const auto of_rule = [](const Rule& rule) {
    std::vector<double> probability;
    for (const Alternative& a : rule.alternatives) {
      probability.push_back(static_cast<double>(a.weight) / rule.total_weight);
    }
    return entropy_of(probability);
  };
  const auto of_item = [this](const Item& item) {
    return item.kind == ItemKind::draw ? draw_entropy(variables_[item.target]) : 0.0;
  };
  return expect(0, of_rule, of_item);
}

double Grammar::mean_length(const Item& item) const {
  if (item.kind == ItemKind::literal) return static_cast<double>(item.text.size());
  const Variable& variable = variables_[item.target];
  const List& list = lists_[variable.list];
  double sum = 0;
  for (size_t k = 0; k < item.forms.size(); ++k) {
    const double of_form = item.selector < 0 ? 1.0 : variables_[static_cast<size_t>(item.selector)].probability[k];
    for (size_t e = 0; e < list.entries.size(); ++e) {
      sum += of_form * variable.probability[e] *
             static_cast<double>(list.entries[e][static_cast<size_t>(item.forms[k])].size());
    }
  }
  return sum;
}

double Grammar::expected_length() const {
  return expect(
      0, [](const Rule&) { return 0.0; }, [this](const Item& item) { return mean_length(item); });
}

double Grammar::first_character_entropy() const {
  std::vector<double> probability(256, 0.0);
  first_characters(0, 1.0, probability);
  return entropy_of(probability);
}

void Grammar::first_characters(size_t index, double reached, std::vector<double>& probability) const {
  const Rule& rule = rules_[index];
  for (const Alternative& alternative : rule.alternatives) {
    LLMTRAIN_CHECK(!alternative.items.empty(), "grammar: a text may not be empty");
    const Item& first = alternative.items[0];
    const double here = reached * alternative.weight / rule.total_weight;
    if (first.kind == ItemKind::rule) {
      first_characters(first.target, here, probability);
    } else if (first.kind == ItemKind::literal) {
      probability[static_cast<unsigned char>(first.text[0])] += here;
    } else {
      const Variable& variable = variables_[first.target];
      const auto& entries = lists_[variable.list].entries;
      for (size_t e = 0; e < entries.size(); ++e) {
        const std::string& text = entries[e][static_cast<size_t>(first.forms[0])];
        LLMTRAIN_CHECK(!text.empty(), "grammar: a text may not begin with an empty word");
        probability[static_cast<unsigned char>(text[0])] += here * variable.probability[e];
      }
    }
  }
}

}  // namespace llmtrain
