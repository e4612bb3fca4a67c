#pragma once
// Fill-in-the-middle (Bavarian et al. 2022, arXiv 2207.14255): a text is cut before two of its characters into prefix,
// middle and suffix, each is encoded by itself, and the middle is moved to the end, behind what it is to be filled
// from:
//   PSM: <prefix> prefix <suffix> suffix <middle> middle
//   SPM: <prefix> <suffix> suffix <middle> prefix middle
// as Megatron-LM and BigCode's trainers write them. Whether, where and in which order follow from the text and its
// number in its file alone.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

struct DataConfig;
class Tokenizer;

/// Rates and the ids of the sentinels.
struct Infilling {
  double rate = 0;      ///< of texts that are cut; 0: none
  double spm_rate = 0;  ///< of these in the order SPM
  int32_t prefix = -1, middle = -1, suffix = -1;

  /// Appends the ids of a text, which can be as they are without it. `number` is that of the text in its file. Throws
  /// EncodeError.
  void encode(const Tokenizer& tokenizer, std::string_view text, int64_t number, std::vector<int32_t>& ids) const;
  /// Everything that determines the ids; empty if the rate is 0.
  std::string settings() const;
};

/// Takes the keys data.fim_*. Throws UserError(deck) if the tokenizer does not have the sentinels.
Infilling make_infilling(const DataConfig& config, const Tokenizer& tokenizer);

/// The value of data.fim_tokens that looks for the sentinels of known models.
inline constexpr const char* automatic_infilling_tokens = "auto";

}  // namespace llmtrain
