#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/label_rules.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [classify]
struct ClassifyConfig {
  enum class Kind : uint8_t { sequence, token };

  Kind kind = Kind::sequence;
  std::vector<std::string> labels;  ///< empty: those of the rows, or of the model's folder
  LabelProblem problem = LabelProblem::single;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);
  LabelRules rules() const { return {problem, kind == Kind::token, labels}; }
};

template <>
inline constexpr auto enum_names<ClassifyConfig::Kind> = name_list("sequence", "token");

}  // namespace llmtrain
