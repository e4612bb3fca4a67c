#pragma once
// Adapters of linear layers and tables: LoRA (Hu et al. 2021, arXiv:2106.09685), rank-stabilised by its scale
// (Kalajdzievski 2023, arXiv:2312.03732), and DoRA (Liu et al. 2024, arXiv:2402.09353).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "layers/context.hpp"

namespace llmtrain {

/// Properties of one module's adapter, W + scale B A with A [rank, in] and B [out, rank]. B starts at zero; of a table
/// A [rank, rows] does, and B is normal, as in PEFT.
struct AdapterShape {
  /// Start of A: uniform within 1 / sqrt(in) (torch's kaiming_uniform_(a = sqrt(5))), or normal with deviation 1 /
  /// rank. pissa, olora, loftq: A and B are of the matrix itself and replace these (hf/adapters/adapter_start.hpp).
  enum class Init : uint8_t { kaiming, gaussian, pissa, olora, loftq };

  /// True if the frozen matrix loses what A and B begin with (pissa, olora).
  static bool moves_base(Init init) { return init == Init::pissa || init == Init::olora; }

  int64_t rank = 8;
  double scale = 2;    ///< alpha / rank; rank-stabilised alpha / sqrt(rank)
  double dropout = 0;  ///< of A's input, in training
  bool dora = false;   ///< rows of W + scale B A get the norms of a trained vector, the magnitude
  Init init = Init::kaiming;
  double learning_rate_ratio = 1;  ///< of B and magnitude over A (LoRA+, Hayou et al. 2024, arXiv:2402.12354)
};

/// Says by a module's external name, such as model.layers.0.self_attn.q_proj, whether and how it is adapted; empty: no
/// module is.
using AdapterRule = std::function<std::optional<AdapterShape>(const std::string& module)>;

/// External names of an adapter's parameters: those of PEFT's files.
inline std::string lora_a_name(const std::string& module) { return "base_model.model." + module + ".lora_A.weight"; }
inline std::string lora_b_name(const std::string& module) { return "base_model.model." + module + ".lora_B.weight"; }
/// Those of the adapter of an embedding, of which PEFT makes no modules.
inline std::string lora_embedding_a_name(const std::string& module) {
  return "base_model.model." + module + ".lora_embedding_A";
}
inline std::string lora_embedding_b_name(const std::string& module) {
  return "base_model.model." + module + ".lora_embedding_B";
}
inline std::string lora_magnitude_name(const std::string& module) {
  return "base_model.model." + module + ".lora_magnitude_vector";
}

/// True for these names alone.
inline bool is_adapter_name(std::string_view name) { return name.starts_with("base_model.model."); }

/// Adapter of rows [first_row, first_row + rows) of a Linear. Its A is rows [first_rank, first_rank + rank) of the
/// Linear's, since all adapters share the input.
struct Adapter {
  ParamRef b;          ///< [rows, rank]
  ParamRef magnitude;  ///< [rows], DoRA only
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_rank = 0;
  int64_t rank = 0;
  float scale = 0;
  double dropout = 0;
  uint64_t dropout_name = 0;  ///< hash of the module's name: every module has masks of its own
};

}  // namespace llmtrain
