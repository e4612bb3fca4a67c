#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/deck_value.hpp"

namespace llmtrain {

/// Stretches rope's wavelengths for longer sequences. Names and meanings are those of Hugging Face's `rope_scaling`
/// (v4) and `rope_parameters` (v5); 0 or an empty list: not given.
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, dynamic, llama3, yarn, longrope };

  Kind kind = Kind::none;
  double factor = 0;  ///< without one, yarn and longrope use max_seq_len / original_max_position_embeddings
  int64_t original_max_position_embeddings = 0;  ///< tokens; llama3, yarn, longrope
  double low_freq_factor = 1;                    ///< llama3
  double high_freq_factor = 4;                   ///< llama3
  double beta_fast = 32;                         ///< yarn
  double beta_slow = 1;                          ///< yarn
  double attention_factor = 0;                   ///< yarn, longrope: factor on cos and sin; not given: by formula
  double mscale = 0;                             ///< yarn, with mscale_all_dim: for the formula of attention_factor
  double mscale_all_dim = 0;                     ///< yarn
  bool truncate = true;                          ///< yarn: rounds the ends of the ramp to whole dimensions
  std::vector<double> short_factor;              ///< longrope: one number per frequency, up to the original length
  std::vector<double> long_factor;               ///< longrope: beyond the original length

  bool operator==(const RopeScaling&) const = default;

  /// Returns the error of the parameters for `frequencies` frequencies, or "".
  std::string problem(int64_t frequencies) const;
};

template <>
inline constexpr auto enum_names<RopeScaling::Kind> = name_list("none", "linear", "dynamic", "llama3", "yarn",
                                                                "longrope");

/// Text of a deck: the kind, then its parameters, as in `llama3, factor 8, original_max_position_embeddings 8192`;
/// blanks separate the numbers of a list.
template <>
struct DeckValue<RopeScaling> {
  static RopeScaling parse(std::string_view text, const KeyInfo& info);
  static std::string print(const RopeScaling& value);
  static std::string type() { return "list: none / linear / dynamic / llama3 / yarn / longrope, parameters"; }
};

}  // namespace llmtrain
