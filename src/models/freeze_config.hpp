#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmtrain {

class DeckKeys;
class DeckLoader;
struct ModelConfig;

/// [freeze]: the part of the model that a run with run.finetuning = freeze trains, in LLaMA-Factory's terms.
struct FreezeConfig {
  int64_t trainable_layers = 2;                          ///< n > 0: the last n, n < 0: the first -n
  std::vector<std::string> trainable_modules = {"all"};  ///< modules of these layers; "all": whole layers
  std::vector<std::string> extra_modules = {"none"};     ///< modules outside the layers
  bool llama_pro = false;                                ///< every (L / n)-th layer

  void visit(DeckKeys& keys);
  /// Checks the keys against the model, whose number of layers and components are known.
  void resolve(DeckLoader& deck, const ModelConfig& model) const;
};

}  // namespace llmtrain
