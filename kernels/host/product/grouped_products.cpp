#include "kernels/grouped_products.hpp"

// A product fills the processor's cores alone: it divides its rows and outputs among them.

namespace llmtrain::products {

bool forward(const Tensor& /*y*/, const Tensor& /*x*/, std::span<const MatrixRows> /*matrices*/, Stream& /*stream*/) {
  return false;
}

bool backward_input(const Tensor& /*dx*/, const Tensor& /*dy*/, std::span<const MatrixRows> /*matrices*/,
                    Stream& /*stream*/) {
  return false;
}

bool backward_weight(std::span<const MatrixGradient> /*gradients*/, const Tensor& /*dy*/, const Tensor& /*x*/,
                     bool /*accumulate*/, Stream& /*stream*/) {
  return false;
}

}  // namespace llmtrain::products
