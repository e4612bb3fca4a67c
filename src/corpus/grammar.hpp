#pragma once
// A probabilistic grammar with variables: a word that was chosen once can return later in the text. The grammar is
// unambiguous by construction (every text has at most one derivation), so the probability of a text and the entropy of
// the source are exact.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Words of one kind, all equally likely. `forms` names the columns, separated by spaces ("one many"); every entry has
/// one text per column, separated by '/' ("apple/apples").
struct WordList {
  std::string name;
  std::string forms;
  std::vector<std::string> entries;
};

/// A value that the text chooses once and can repeat.
struct GrammarVariable {
  std::string name;
  std::string list;
  std::string except = {};  ///< other variables of the same list whose values differ from this one, separated by spaces
  std::string joined = {};  ///< variable whose first form equals the first form of this one's value
};

struct GrammarAlternative {
  uint32_t weight;   ///< probability = weight / sum of the rule's weights
  std::string text;  ///< literal text with items, see Grammar
};

struct GrammarRule {
  std::string name;
  std::vector<GrammarAlternative> alternatives;
};

struct GrammarSource {
  std::vector<WordList> lists;
  std::vector<GrammarVariable> variables;  ///< a variable comes after those that it names
  std::vector<GrammarRule> rules;          ///< the first rule produces the whole text; a rule uses only later rules
};

/// Items inside the text of an alternative:
///   <rule>     one alternative of the rule
///   [x] [x.f]  assigns variable x, uniformly among its allowed values, and writes its first form (or form f)
///   {x} {x.f}  writes the value of x again
///   [x:n.f] {x:n.f}  the form of x that is named by the form f of n's value: agreement in number
///   [=list]    writes a random word in its first form and does not store it
/// A text cannot contain < > [ ] { } otherwise.
///
/// The grammar is unambiguous because the text, read from left to right, determines each choice at once. No leading
/// literal of an alternative is a prefix of another alternative's, and no word that a variable can take at a position
/// is a prefix of another such word; so at most one choice continues the text. The constructor checks this. It also
/// checks that every path assigns a variable at most once and uses it only afterwards. The entropy of a text is
/// therefore the expected sum of the entropies of its choices:
///   H(rule) = - sum_i p_i ln p_i + sum_i p_i sum_items H(item)
///   H([x])  = ln(number of allowed words); for a joined variable its mean over the values of the variable it is joined
///   to
/// No probability depends on a value except through `joined`. Reaching a position is therefore independent of the
/// values of the variables, and each variable has there the distribution that it was drawn from: uniform for a plain
/// variable and, by symmetry, for one with exceptions.
class Grammar {
 public:
  explicit Grammar(const GrammarSource& source);

  /// Function that returns a uniform integer below its argument, which is at least 1.
  using Below = std::function<uint32_t(uint32_t)>;
  std::string write(const Below& below) const;

  double entropy() const;                  ///< entropy of one text in nats
  double first_character_entropy() const;  ///< in nats; the first character is a function of the text
  double expected_length() const;          ///< in bytes

 private:
  friend class GrammarReader;  // of tests: parses texts
  enum class ItemKind : uint8_t { literal, rule, draw, recall };
  struct Item {
    ItemKind kind = ItemKind::literal;
    std::string text;        // literal
    size_t target = 0;       // rule or variable
    int selector = -1;       // variable whose value selects the form, or none
    std::vector<int> forms;  // [entries of the selector's list], or the only form
  };
  struct Alternative {
    uint32_t weight;
    std::vector<Item> items;
  };
  struct Rule {
    std::string name;
    std::vector<Alternative> alternatives;
    uint32_t total_weight = 0;
  };
  struct List {
    std::string name;
    std::vector<std::string> forms;
    std::vector<std::vector<std::string>> entries;  // [entry][form]
  };
  struct Variable {
    std::string name;
    size_t list = 0;
    std::vector<size_t> except;
    int joined = -1;
    std::vector<std::vector<int>> domains;  // allowed entries by the entry of `joined` (otherwise one domain)
    std::vector<double> probability;        // [entry]
    bool remembered = true;
  };
  using Bindings = std::vector<int>;  // entry by variable, -1 = not assigned yet
  struct Flow;

  void add_list(const WordList& source);
  void add_variable(const GrammarVariable& source);
  void add_rule(const GrammarRule& source);
  void parse(std::string_view text, std::vector<Item>& items);
  Item parse_item(char bracket, std::string_view body);
  void parse_form(std::string_view body, Item& item);
  size_t anonymous_variable(std::string_view list);
  void check_heads(const Rule& rule) const;
  void check_draw(const Item& item) const;
  void check_flow(size_t rule, Flow& flow) const;
  size_t origin(size_t variable) const;

  size_t list_named(std::string_view name) const;
  size_t variable_named(std::string_view name) const;
  size_t rule_named(std::string_view name) const;
  int form_named(size_t list, std::string_view name) const;

  const std::string& text_of(const Item& item, int entry, const Bindings& bindings) const;
  std::vector<int> allowed(const Variable& variable, const Bindings& bindings) const;
  void write_rule(size_t rule, const Below& below, Bindings& bindings, std::string& text) const;

  double expect(size_t rule, const std::function<double(const Rule&)>& of_rule,
                const std::function<double(const Item&)>& of_item) const;
  double draw_entropy(const Variable& variable) const;
  double mean_length(const Item& item) const;
  void first_characters(size_t rule, double reached, std::vector<double>& probability) const;

  std::vector<List> lists_;
  std::vector<Variable> variables_;
  std::vector<Rule> rules_;
  std::vector<std::string> rule_names_;
};

}  // namespace llmtrain
