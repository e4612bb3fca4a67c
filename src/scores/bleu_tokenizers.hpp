#pragma once
#include <string>
#include <string_view>

#include "scores/text_metric.hpp"

namespace llmtrain {

/// Puts white space between the tokens of sacreBLEU's tokenizers.
std::string separate_bleu_tokens(std::string_view text, TextMetricOptions::Tokenizer tokenizer);

}  // namespace llmtrain
