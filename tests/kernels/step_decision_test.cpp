#include "kernels/step_decision.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/adamw.hpp"
#include "kernels/kernel_test.hpp"
#include "kernels/reduce.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Decision on a step with these sums over this many ranks.
StepDecision decide(const std::vector<ExactSum>& losses, const std::vector<ExactSum>& squares, double divisor,
                    double maximum) {
  const Array sums(DType::i64, {2, ExactSum::integer_count}), decision(DType::f64, {2});
  std::vector<int64_t> all(2 * ExactSum::integer_count);
  const auto add = [&](const ExactSum& sum, size_t at) {
    for (const int64_t integer : sum.limbs()) all[at++] += integer;
  };
  for (const ExactSum& sum : losses) add(sum, 0);
  for (const ExactSum& sum : squares) add(sum, ExactSum::integer_count);
  const auto bytes = static_cast<int64_t>(all.size() * sizeof(int64_t));
  copy_to_device(sums.tensor().data, all.data(), bytes, test::stream());
  decide_step(decision, sums, divisor, maximum, test::stream());
  StepDecision result{};
  copy_to_host(&result, decision.tensor().data, sizeof result, test::stream());
  test::stream().synchronize();
  return result;
}
ExactSum sum_of(const Values& values) {
  ExactSum sum;
  for (const double v : values) sum.add(v);
  return sum;
}

TEST(StepDecision, IsTheOneOfTheHost) {
  const double divisor = 4096;
  for (const Values& squares :
       {Values{1e8, 3, 1e-9}, {0}, {0x1p-1074}, {1e300, 1e300, 1e308}, {2.5e7}, {1e16, 1, 0x1p-60}}) {
    for (const double maximum : {0.0, 1.0, 0.3}) {
      const ExactSum sum = sum_of(squares);
      const double norm = std::sqrt(sum.value()) / divisor;
      const StepDecision decision = decide({sum_of({-1e5, 1e-7})}, {sum}, divisor, maximum);
      EXPECT_EQ(decision.applies, 1);
      EXPECT_EQ(decision.factor, (maximum > 0 ? std::min(1.0, maximum / (norm + 1e-6)) : 1.0) / divisor);
    }
  }
  EXPECT_NE(decide({sum_of({1})}, {sum_of({1e8, 1})}, 1, 1).factor, decide({sum_of({1})}, {sum_of({1e8})}, 1, 1).factor)
      << "control";
}

// Partial sums of several ranks that need a carry, and partial sums that cancel.
TEST(StepDecision, AddsRanksExactly) {
  const ExactSum a = sum_of({0x1p200, 0x1.fffffffffffffp31}), b = sum_of({-0x1p200, 0x1.fffffffffffffp31});
  const double norm = std::sqrt(0x1.fffffffffffffp32);
  EXPECT_EQ(decide({a, b}, {a, b, a, b}, 1, 1).factor, 1 / (std::sqrt(0x1.fffffffffffffp33) + 1e-6));
  EXPECT_EQ(decide({a, b}, {b, a}, 1, 1).factor, 1 / (norm + 1e-6));
}

TEST(StepDecision, LeavesOutWhatIsNotFinite) {
  const ExactSum good = sum_of({2});
  for (const double bad : {infinity, -infinity, nan}) {
    EXPECT_EQ(decide({sum_of({1, bad})}, {good}, 1, 1).applies, 0) << bad;
    EXPECT_EQ(decide({good}, {sum_of({1, bad})}, 1, 1).applies, 0) << bad;
  }
  EXPECT_EQ(decide({good}, {sum_of({infinity}), sum_of({-infinity})}, 1, 1).applies, 0);
  EXPECT_EQ(decide({good}, {good}, 1, 1).applies, 1) << "control";
}

TEST(StepDecision, SumsAreCarried) {
  const Array sums(DType::i64, {1, ExactSum::integer_count}), x(DType::f32, {4}, {-1, -2, -3, -4});
  for (int i = 0; i < 3; ++i) sum_of_products(sums.tensor(), x, {}, test::stream());
  carry_sums(sums, test::stream());
  const test::Bytes bytes = sums.bytes();
  ExactSum expected = sum_of({-30}), other = sum_of({-31});
  expected.carry();
  other.carry();
  EXPECT_EQ(std::memcmp(bytes.data(), expected.limbs().data(), bytes.size()), 0);
  EXPECT_NE(std::memcmp(bytes.data(), other.limbs().data(), bytes.size()), 0) << "control";
}

TEST(StepDecision, IsTheScaleOfAnUpdate) {
  const int64_t n = 1003;
  const Values p0 = test::random_values(n, 1), g0 = test::random_values(n, 3);
  const auto updated = [&](double applies, double factor, bool decided) {
    const Array p(DType::f32, {n}, p0), m(DType::f32, {n}), v(DType::f32, {n}), g(DType::f32, {n}, g0);
    const Array decision(DType::f64, {2});
    const StepDecision given{applies, factor};
    copy_to_device(decision.tensor().data, &given, sizeof given, test::stream());
    test::stream().synchronize();
    AdamwStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 1, decided ? 1 : factor, {}};
    if (decided) step.decision = decision;
    adamw_update(p, m, v, g, {}, step, test::stream());
    test::Bytes all = p.bytes();
    for (const Array* each : {&m, &v}) {
      const test::Bytes more = each->bytes();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  EXPECT_EQ(updated(1, 0.1, true), updated(1, 0.1, false));
  EXPECT_NE(updated(1, 0.1, true), updated(1, 0.11, false)) << "control";
  const test::Bytes left = updated(0, 0.1, true), start = Array(DType::f32, {n}, p0).bytes();
  EXPECT_TRUE(std::equal(start.begin(), start.end(), left.begin()));
  EXPECT_TRUE(std::all_of(left.begin() + static_cast<std::ptrdiff_t>(start.size()), left.end(),
                          [](unsigned char byte) { return byte == 0; }));
  AdamwStep step;
  const Array x(DType::f32, {n}), other(DType::f32, {2});
  step.decision = other;
  EXPECT_THROW(adamw_update(x, x, x, x, {}, step, test::stream()), Error) << "no decision";
}

}  // namespace
}  // namespace llmtrain
