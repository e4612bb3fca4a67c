#include "kernels/attention_sinks.hpp"

#include "core/profile.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

using namespace host;

void add_attention_sinks(const Tensor& out, const Tensor& lse, const Tensor& sinks, Stream& /*stream*/) {
  const ProfileSpan span("add_attention_sinks", [&] { return traffic({&out, &out, &lse, &lse}); });
  check_sinks(out, lse, sinks);
  const int64_t rows = out.dim(0), heads = sinks.numel(), width = out.dim(1) / heads;
  LLMTRAIN_CHECK(lse.numel() == heads * rows, "lse and out have the same rows");
  float* logs = lse.as<float>();
  dispatch(sinks.dtype, [&](auto* sink_tag) {
    const auto* logits = static_cast<decltype(sink_tag)>(sinks.data);
    dispatch(out.dtype, [&](auto* tag) {
      auto* values = static_cast<decltype(tag)>(out.data);
      parallel_for(rows, [=](int64_t row) {
        for (int64_t h = 0; h < heads; ++h) {
          float& log = logs[h * rows + row];
          const sinks::Share share = sinks::share(log, load(logits + h));
          auto* head = values + (row * heads + h) * width;
          for (int64_t d = 0; d < width; ++d) store(head + d, share.factor * load(head + d));
          log = share.lse;
        }
      });
    });
  });
}

void attention_sinks_backward(const AttentionSinksBackward& a, Stream& /*stream*/) {
  const ProfileSpan span("attention_sinks_backward", [&] { return traffic({&a.dout, &a.out}); });
  check_sinks(a.out, a.lse, a.sinks);
  LLMTRAIN_CHECK(a.dout.dtype == a.out.dtype && a.dout.shape == a.out.shape, "dout is like out");
  const int64_t heads = a.sinks.numel(), width = a.out.dim(1) / heads, tokens = a.lse.numel() / heads;
  const int64_t first_row = a.first_row;
  const float* logs = a.lse.as<float>();
  dispatch(a.sinks.dtype, [&](auto* sink_tag) {
    const auto* logits = static_cast<decltype(sink_tag)>(a.sinks.data);
    dispatch(a.out.dtype, [&](auto* tag) {
      const auto *out = static_cast<decltype(tag)>(a.out.data), *dout = static_cast<decltype(tag)>(a.dout.data);
      const auto add_rows = [=](float* sums, int64_t begin, int64_t end, int64_t first, int64_t last) {
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t h = first; h < last; ++h) {
            const auto *value = out + (row * heads + h) * width, *slope = dout + (row * heads + h) * width;
            const double product = lane_sum(
                width, [&](int64_t d, int64_t n) { return load_up_to(value + d, n) * load_up_to(slope + d, n); });
            const float weight = std::exp(load(logits + h) - logs[h * tokens + first_row + row]);
            sums[h] -= weight * static_cast<float>(product);
          }
        }
      };
      column_sums({a.out.dim(0), heads, 1, false}, add_rows, {a.dsinks.as<float>()}, a.accumulate);
    });
  });
}

}  // namespace llmtrain
