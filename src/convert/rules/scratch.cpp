// Rules of programs that train new models: nanoGPT, LLM Trainer and the Training System.
#include <fmt/format.h>

#include "convert/rules/rules.hpp"

namespace llmtrain::convert {
namespace {

/// The weights of nanoGPT's init_from.
std::string set_start(Draft& draft, const SettingValue& value) {
  if (value.text.starts_with("gpt2")) {
    draft.set_fact("model", "openai-community/" + value.text);
    return "";
  }
  if (value.text != "scratch" && value.text != "resume") return value.print() + ": must be scratch, resume or gpt2";
  draft.set_fact("new_weights", "true");
  return "";
}

/// A data set of nanoGPT: data/NAME has train.bin and val.bin.
std::string set_dataset(Draft& draft, const SettingValue& value) {
  if (draft.is_default() && draft.needs().contains("data.train")) return "";
  const auto import = [&](std::string_view key, std::string_view bin, std::string_view output) {
    draft.need(key, fmt::format("{0}, after llmtool import data/{1}/{2} --format nanogpt --output {0}", output,
                                value.text, bin));
  };
  import("data.train", "train.bin", "train.h5");
  import("data.validation", "val.bin", "val.h5");
  return draft.set_text("data.cross_document_attention", "true");
}

/// The size of LLM Trainer's vocabulary, for which it trains a tokenizer.
std::string set_tokenizer_size(Draft& draft, const SettingValue& value) {
  const std::string wrong = draft.set_text("data.tokenizer", "bpe");
  return wrong.empty() ? draft.set("data.vocab_size", value) : wrong;
}

/// A share of the rows, or the name of a split of a data set.
std::string set_validation_split(Draft& draft, const SettingValue& value) {
  if (value.number()) return draft.set("data.validation_fraction", value);
  draft.need("data.validation", "files with the rows of the split " + value.text);
  return "";
}

/// A kind of training of the Training System.
std::string set_training_type(Draft& draft, const SettingValue& value) {
  if (value.text == "from_scratch") draft.set_fact("new_weights", "true");
  if (value.text == "lora") draft.set_fact("finetuning", "lora");
  if (value.text != "from_scratch" && value.text != "lora") draft.set_fact("finetuning", "full");
  return "";
}

constexpr NamedRule rules[] = {
    {"set_start", set_start},
    {"set_dataset", set_dataset},
    {"set_tokenizer_size", set_tokenizer_size},
    {"set_validation_split", set_validation_split},
    {"set_training_type", set_training_type},
};

}  // namespace

std::span<const NamedRule> scratch_rules() { return rules; }

}  // namespace llmtrain::convert
