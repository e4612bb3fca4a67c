#include "core/exact_sum.hpp"

namespace llmtrain {

void ExactSum::add(double value) {
  const ExactTerm term(value);
  int64_t* first = limbs_.data() + term.first;
  for (int i = 0; i < term.count; ++i) first[i] += term.parts[i];
}

void ExactSum::add(const ExactSum& other) {
  carry();
  ExactSum small = other;
  small.carry();
  for (size_t i = 0; i < limbs_.size(); ++i) limbs_[i] += small.limbs_[i];
}

void ExactSum::carry() { carry_exact(limbs_.data()); }

double ExactSum::value() const {
  auto integers = limbs_;
  return exact_value(integers.data());
}

}  // namespace llmtrain
