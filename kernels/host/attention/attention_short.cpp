#include "kernels/host/attention/attention_short.hpp"

#include "device/processor.hpp"
#include "kernels/host/product/product_path.hpp"

namespace llmtrain::host {

namespace {

template <class Work>
void run(const Work& a) {
#if defined(__x86_64__)
  static const bool wide = processor_has(Instructions::avx512);
  if (wide && forced_product_path() != ProductPath::plain) return short_attention_avx512(a);
#endif
  ShortAttention<Float8>::run(a);
}

}  // namespace

void short_attention(const ShortForward& a) { run(a); }
void short_attention(const ShortBackward& a) { run(a); }

}  // namespace llmtrain::host
