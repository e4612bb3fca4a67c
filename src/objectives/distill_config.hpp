#pragma once
#include <cstdint>
#include <string>

#include "core/deck/named_enum.hpp"
#include "kernels/distillation.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

template <>
inline constexpr auto enum_names<Divergence> = name_list("forward_kl", "reverse_kl", "jsd");

/// [distill]
struct DistillConfig {
  std::string teacher;
  Divergence loss = Divergence::forward_kl;
  double beta = 0.5;
  double temperature = 1;
  int64_t top_k = 0;  ///< 0: all tokens
  bool tail = false;
  bool cache = true;
  double cross_entropy = 0;
  double on_policy = 0;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);
  /// True if the teacher runs beside the student.
  bool runs_teacher() const { return !cache || on_policy > 0; }
  DistillationTerms terms() const;
};

}  // namespace llmtrain
