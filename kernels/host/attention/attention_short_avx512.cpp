#include "kernels/host/attention/attention_short.hpp"

namespace llmtrain::host {

void short_attention_avx512(const ShortForward& a) { ShortAttention<Float16>::run(a); }
void short_attention_avx512(const ShortBackward& a) { ShortAttention<Float16>::run(a); }

}  // namespace llmtrain::host
