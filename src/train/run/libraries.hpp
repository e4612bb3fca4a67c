#pragma once
// Libraries of attention and of matrix products, on which the bits of results depend.

#include <span>
#include <string>

#include "core/dtype.hpp"
#include "models/model_config.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Attention backend of a task for whole sequences on a rank with this `library`; empty: the built-in attention only.
std::string attention_backend(const std::string& library, bool trains, const ModelConfig& model, DType compute);
/// Describes the attention backend of training if there is a `library` beside the built-in one, and why the library is
/// not used; empty if there is none.
std::string attention_text(const std::string& library, bool trains, const ModelConfig& model, DType compute);
/// Collective. Throws UserError(missing_input) on every rank if backends differ, since results would differ in bits.
void agree_on_attention(const std::string& library, Communicator& communicator);
/// Does so for libraries of matrix products, see product_library().
void agree_on_products(const std::string& library, Communicator& communicator);
/// Message that names the hosts of each library, and what to do, if libraries differ; else empty. One entry per rank.
std::string attention_difference(std::span<const std::string> libraries, std::span<const std::string> hosts);
std::string product_difference(std::span<const std::string> libraries, std::span<const std::string> hosts);

}  // namespace llmtrain
