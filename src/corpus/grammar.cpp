#include "corpus/grammar.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

template <class Range>
size_t index_of(const Range& range, std::string_view name, const char* kind) {
  const auto found = std::ranges::find_if(range, [&](const auto& x) { return x.name == name; });
  LLMTRAIN_CHECK(found != range.end(), std::string("grammar: no ") + kind + " is named '" + std::string(name) + "'");
  return static_cast<size_t>(found - range.begin());
}

void check_prefix_free(std::vector<std::string_view> texts, const std::string& where) {
  std::ranges::sort(texts);  // a prefix sorts directly before a text that starts with it
  for (size_t i = 0; i + 1 < texts.size(); ++i) {
    LLMTRAIN_CHECK(!texts[i + 1].starts_with(texts[i]), "grammar: " + where + ": '" + std::string(texts[i]) +
                                                            "' begins '" + std::string(texts[i + 1]) + "'");
  }
}

}  // namespace

/// Assignment state of the variables at one point of a rule: assigned on some path, assigned on every path.
struct Grammar::Flow {
  std::vector<bool> maybe, surely;
};

Grammar::Grammar(const GrammarSource& source) {
  for (const WordList& list : source.lists) add_list(list);
  for (const GrammarVariable& variable : source.variables) add_variable(variable);
  LLMTRAIN_CHECK(!source.rules.empty(), "grammar: no rules");
  for (const GrammarRule& rule : source.rules) rule_names_.push_back(rule.name);
  for (const GrammarRule& rule : source.rules) add_rule(rule);
  Flow flow{std::vector<bool>(variables_.size()), std::vector<bool>(variables_.size())};
  check_flow(0, flow);
}

size_t Grammar::list_named(std::string_view name) const { return index_of(lists_, name, "list"); }
size_t Grammar::variable_named(std::string_view name) const { return index_of(variables_, name, "variable"); }

size_t Grammar::rule_named(std::string_view name) const {
  const auto found = std::ranges::find(rule_names_, name);
  LLMTRAIN_CHECK(found != rule_names_.end(), "grammar: no rule is named '" + std::string(name) + "'");
  return static_cast<size_t>(found - rule_names_.begin());
}

int Grammar::form_named(size_t list, std::string_view name) const {
  const std::vector<std::string>& forms = lists_[list].forms;
  const auto found = std::ranges::find(forms, name);
  LLMTRAIN_CHECK(found != forms.end(),
                 "grammar: list '" + lists_[list].name + "' has no form '" + std::string(name) + "'");
  return static_cast<int>(found - forms.begin());
}

void Grammar::add_list(const WordList& source) {
  List list{source.name, split(source.forms, ' '), {}};
  for (const std::string& entry : source.entries) {
    list.entries.push_back(split(entry, '/'));
    LLMTRAIN_CHECK(list.entries.back().size() == list.forms.size(),
                   "grammar: list '" + source.name + "': '" + entry + "' does not have every form");
  }
  LLMTRAIN_CHECK(!list.entries.empty() && !list.forms.empty(), "grammar: list '" + source.name + "' is empty");
  lists_.push_back(std::move(list));
}

void Grammar::add_variable(const GrammarVariable& source) {
  Variable variable;
  variable.name = source.name;
  variable.list = list_named(source.list);
  const std::vector<std::vector<std::string>>& entries = lists_[variable.list].entries;
  for (const std::string& other : split(source.except, ' ')) {
    variable.except.push_back(variable_named(other));
    const Variable& excluded = variables_[variable.except.back()];
    LLMTRAIN_CHECK(excluded.list == variable.list && excluded.joined < 0 && source.joined.empty(),
                   "grammar: '" + source.name + "' may except only plain variables of its list");
    // The excluded values must be distinct, so that every path leaves the same number of words.
    for (size_t k = 0; k + 1 < variable.except.size(); ++k) {
      LLMTRAIN_CHECK(std::ranges::count(excluded.except, variable.except[k]) == 1,
                     "grammar: the variables that '" + source.name + "' excepts must except each other");
    }
  }
  LLMTRAIN_CHECK(variable.except.size() < entries.size(), "grammar: nothing is left for '" + source.name + "'");
  variable.probability.assign(entries.size(), 1.0 / static_cast<double>(entries.size()));
  if (source.joined.empty()) {
    variable.domains.resize(1);
    for (size_t e = 0; e < entries.size(); ++e) variable.domains[0].push_back(static_cast<int>(e));
  } else {
    const size_t parent = variable_named(source.joined);
    variable.joined = static_cast<int>(parent);
    const auto& keys = lists_[variables_[parent].list].entries;
    std::ranges::fill(variable.probability, 0.0);
    for (size_t k = 0; k < keys.size(); ++k) {
      std::vector<int> domain;
      for (size_t e = 0; e < entries.size(); ++e) {
        if (entries[e][0] == keys[k][0]) domain.push_back(static_cast<int>(e));
      }
      LLMTRAIN_CHECK(!domain.empty(), "grammar: '" + source.name + "' has no value joined to '" + keys[k][0] + "'");
      for (int e : domain) {
        variable.probability[static_cast<size_t>(e)] +=
            variables_[parent].probability[k] / static_cast<double>(domain.size());
      }
      variable.domains.push_back(std::move(domain));
    }
  }
  variables_.push_back(std::move(variable));
}

size_t Grammar::anonymous_variable(std::string_view list) {
  add_variable({"=" + std::string(list), std::string(list)});
  variables_.back().remembered = false;
  return variables_.size() - 1;
}

void Grammar::add_rule(const GrammarRule& source) {
  Rule rule;
  rule.name = source.name;
  for (const GrammarAlternative& alternative : source.alternatives) {
    LLMTRAIN_CHECK(alternative.weight > 0, "grammar: rule '" + source.name + "' has an alternative of weight 0");
    rule.total_weight += alternative.weight;
    rule.alternatives.push_back({alternative.weight, {}});
    parse(alternative.text, rule.alternatives.back().items);
  }
  LLMTRAIN_CHECK(!rule.alternatives.empty(), "grammar: rule '" + source.name + "' is empty");
  check_heads(rule);
  rules_.push_back(std::move(rule));
}

void Grammar::parse(std::string_view text, std::vector<Item>& items) {
  while (!text.empty()) {
    const size_t open = text.find_first_of("<[{");
    const std::string_view literal = text.substr(0, open);
    LLMTRAIN_CHECK(literal.find_first_of(">]}") == std::string_view::npos,
                   "grammar: unpaired bracket in '" + std::string(text) + "'");
    if (!literal.empty()) {
      Item item;
      item.text = literal;
      items.push_back(std::move(item));
    }
    if (open == std::string_view::npos) return;
    const size_t close = text.find_first_of(">]}", open);
    LLMTRAIN_CHECK(close != std::string_view::npos, "grammar: unpaired bracket in '" + std::string(text) + "'");
    items.push_back(parse_item(text[open], text.substr(open + 1, close - open - 1)));
    if (items.back().kind == ItemKind::draw) check_draw(items.back());
    text.remove_prefix(close + 1);
  }
}

Grammar::Item Grammar::parse_item(char bracket, std::string_view body) {
  Item item;
  if (bracket == '<') {
    item.kind = ItemKind::rule;
    item.target = rule_named(body);
    LLMTRAIN_CHECK(item.target > rules_.size(),
                   "grammar: a rule may use only later rules, not '" + std::string(body) + "'");
    return item;
  }
  item.kind = bracket == '[' ? ItemKind::draw : ItemKind::recall;
  if (bracket == '[' && body.starts_with('=')) {
    item.target = anonymous_variable(body.substr(1));
    item.forms = {0};
  } else {
    parse_form(body, item);
  }
  return item;
}

void Grammar::parse_form(std::string_view body, Item& item) {
  const size_t colon = body.find(':');
  const size_t dot = body.find('.');
  item.target = variable_named(body.substr(0, std::min(colon, dot)));
  const size_t list = variables_[item.target].list;
  if (colon == std::string_view::npos) {
    item.forms = {dot == std::string_view::npos ? 0 : form_named(list, body.substr(dot + 1))};
    return;
  }
  LLMTRAIN_CHECK(dot != std::string_view::npos && dot > colon, "grammar: '" + std::string(body) + "' is not x:n.form");
  const size_t selector = variable_named(body.substr(colon + 1, dot - colon - 1));
  const List& selector_list = lists_[variables_[selector].list];
  const int column = form_named(variables_[selector].list, body.substr(dot + 1));
  for (const auto& entry : selector_list.entries) {
    item.forms.push_back(form_named(list, entry[static_cast<size_t>(column)]));
  }
  item.selector = static_cast<int>(selector);
  // The expected length is a product of the two distributions, so they must be independent.
  LLMTRAIN_CHECK(origin(item.target) != origin(selector),
                 "grammar: '" + std::string(body) + "' needs two variables of independent lists");
}

/// Returns the list that a variable's value is drawn from. Variables of different lists are independent.
size_t Grammar::origin(size_t variable) const {
  while (variables_[variable].joined >= 0) variable = static_cast<size_t>(variables_[variable].joined);
  return variables_[variable].list;
}

void Grammar::check_heads(const Rule& rule) const {
  if (rule.alternatives.size() == 1) return;
  std::vector<std::string_view> heads;
  for (const Alternative& alternative : rule.alternatives) {
    LLMTRAIN_CHECK(!alternative.items.empty() && alternative.items[0].kind == ItemKind::literal,
                   "grammar: every alternative of rule '" + rule.name + "' must begin with literal text");
    heads.push_back(alternative.items[0].text);
  }
  check_prefix_free(std::move(heads), "rule '" + rule.name + "'");
}

void Grammar::check_draw(const Item& item) const {
  const Variable& variable = variables_[item.target];
  const List& list = lists_[variable.list];
  for (const std::vector<int>& domain : variable.domains) {
    for (int form : item.forms) {
      std::vector<std::string_view> texts;
      texts.reserve(domain.size());
      for (int e : domain) texts.push_back(list.entries[static_cast<size_t>(e)][static_cast<size_t>(form)]);
      check_prefix_free(std::move(texts), "variable '" + variable.name + "'");
    }
  }
}

void Grammar::check_flow(size_t rule, Flow& flow) const {
  Flow after{flow.maybe, std::vector<bool>(variables_.size(), true)};
  for (const Alternative& alternative : rules_[rule].alternatives) {
    Flow path = flow;
    const auto require = [&](size_t variable) {
      LLMTRAIN_CHECK(path.surely[variable], "grammar: rule '" + rules_[rule].name + "' uses '" +
                                                variables_[variable].name + "' where it may have no value");
    };
    for (const Item& item : alternative.items) {
      if (item.selector >= 0) require(static_cast<size_t>(item.selector));
      if (item.kind == ItemKind::rule) check_flow(item.target, path);
      if (item.kind == ItemKind::recall) require(item.target);
      if (item.kind != ItemKind::draw) continue;
      const Variable& variable = variables_[item.target];
      for (size_t other : variable.except) require(other);
      if (variable.joined >= 0) require(static_cast<size_t>(variable.joined));
      LLMTRAIN_CHECK(!variable.remembered || !path.maybe[item.target],
                     "grammar: rule '" + rules_[rule].name + "' chooses '" + variable.name + "' a second time");
      path.maybe[item.target] = path.surely[item.target] = true;
    }
    for (size_t v = 0; v < variables_.size(); ++v) {
      after.maybe[v] = after.maybe[v] || path.maybe[v];
      after.surely[v] = after.surely[v] && path.surely[v];
    }
  }
  flow = std::move(after);
}

}  // namespace llmtrain
