#include "models/lora_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "core/deck/layers_codec.hpp"

namespace llmtrain {

namespace {

/// Codec of `q_proj:16, .*\.mlp\..*:4`.
struct ModuleNumbersCodec {
  static ModuleNumbers parse(std::string_view text, const KeyInfo& info) {
    ModuleNumbers numbers;
    for (const std::string_view item : split_list(text)) {
      const size_t colon = item.rfind(':');
      if (colon == std::string_view::npos || colon == 0) {
        throw UserError(ExitCode::deck, fmt::format("'{}' must be a module and a number, such as q_proj:16", item));
      }
      numbers.emplace_back(item.substr(0, colon), parse_number(item.substr(colon + 1), info.range));
    }
    return numbers;
  }
  static std::string print(const ModuleNumbers& numbers) {
    std::string text;
    for (const auto& [module, number] : numbers) {
      text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", module, print_number(number));
    }
    return text;
  }
  static std::string type() { return "list of module:number"; }
};

constexpr ValueRange ranks = between(1, 1 << 16);
constexpr ValueRange alphas = {.min = 0, .max = 1e6, .open_min = true};

}  // namespace

void LoraConfig::visit(DeckKeys& keys) {
  keys.section("lora", "Train low-rank adapters beside the frozen model (run.finetuning = lora).", Change::breaks,
               training_tasks, true);
  keys.key("path", path,
           {.doc = "PEFT folder (adapter_config.json, adapter_model.safetensors) to continue from; with run.task = "
                   "evaluate or generate, the adapter to use. Every other key of this section except dropout, init and "
                   "learning_rate_ratio is then read from it, and may only be given the same value.",
            .automatic = "new adapters",
            .tasks = model_tasks});
  keys.key("r", rank, {.range = ranks, .doc = "Rank of the adapters: W x + scale B A x with A of r rows."});
  keys.key<Fp32Number>("alpha", alpha,
                       {.range = alphas, .doc = "Numerator of the scale, which is alpha / r.", .automatic = "2 r"});
  keys.key<Fp32Number>("dropout", dropout,
                       {.range = from_below(0, 1), .doc = "Share of the inputs of A that are zeroed in training."});
  keys.key("target_modules", target_modules,
           {.doc = "Adapted linear layers and embeddings: names in the model's files, or ends of names after a dot, "
                   "such as q_proj, mlp.down_proj, lm_head or embed_tokens; or one regular expression (of Python's re "
                   "module) for whole names; all-linear: every linear layer but the head."});
  keys.key("exclude_modules", exclude_modules, {.doc = "Modules that are not adapted, given in the same way."});
  keys.key("bias", bias,
           {.doc = "Trained biases of the model. none; all: every one; lora_only: those of the adapted layers."});
  keys.key(
      "modules_to_save", modules_to_save,
      {.doc = "Modules that are trained whole and stored with the adapter, by the ends of their names: embed_tokens, "
              "lm_head, norm."});
  keys.key("ensure_weight_tying", ensure_weight_tying,
           {.doc = "Whether an embedding and a head that are one matrix in the model are trained as one where "
                   "modules_to_save names either. false: as two, as PEFT does, and the merged model has both.",
            .automatic = "false where modules_to_save names both, else true"});
  keys.key("saved_embeddings", saved_embeddings,
           {.doc = "Embedding and head that are stored with the adapter in path, as PEFT saves them after the "
                   "vocabulary has grown. They replace the model's and stay frozen. They are detected.",
            .tasks = model_tasks});
  keys.key<LayersCodec>("layers_to_transform", layers_to_transform,
                        {.doc = "Layers that are adapted, counted from 0. Empty: all. A target module that is named "
                                "in full is adapted in any case."});
  keys.key("layers_pattern", layers_pattern,
           {.doc = "Name of the list of layers in names of modules, such as layers or h, if layers_to_transform is "
                   "given. Empty: the first number in a name is that of the layer."});
  keys.key<ModuleNumbersCodec>(
      "rank_pattern", rank_pattern,
      {.range = ranks,
       .doc = "Ranks that differ from r, as module:rank, ... with a name, the end of a name after a "
              "dot, or a regular expression. The first match applies."});
  keys.key<ModuleNumbersCodec>("alpha_pattern", alpha_pattern,
                               {.range = alphas, .doc = "Numerators that differ from alpha, given like rank_pattern."});
  keys.key(
      "init", init,
      {.doc = "Initial A. kaiming: uniform within 1 / sqrt(inputs); gaussian: normal with deviation 1 / r. B is "
              "zero, so that the first step starts from the model itself. Of an embedding A is zero and B normal "
              "with deviation 1. pissa: A and B are the r largest singular values of the matrix with their vectors; "
              "olora: r rows and columns of its QR decomposition; the frozen matrix is the rest. loftq: the same "
              "singular values of the error of quantization.bits = 4."});
  keys.key("rslora", rslora, {.doc = "Divide alpha by the square root of r instead of r (rank-stabilised LoRA)."});
  keys.key("dora", dora,
           {.doc = "Train the norm of every row of the adapted matrices separately from its direction (DoRA)."});
  keys.key<Fp32Number>("learning_rate_ratio", learning_rate_ratio,
                       {.range = {.min = 0, .max = 1e4, .open_min = true},
                        .doc = "Learning rate of B and of DoRA's magnitudes divided by that of all other parameters "
                               "(LoRA+; 16 is usual). Adapters of embeddings have the latter, A and B.",
                        .change = Change::applies});
}

}  // namespace llmtrain
