#include "models/freeze_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void FreezeConfig::visit(DeckKeys& keys) {
  keys.section("freeze", "Train a part of the model and keep the rest (run.finetuning = freeze).", Change::breaks,
               training_tasks, true);
  keys.key("trainable_layers", trainable_layers,
           {.unit = "layers", .doc = "Number of trained layers: the last n if n > 0, the first -n if n < 0."});
  keys.key("trainable_modules", trainable_modules,
           {.doc = "Modules of these layers that are trained, by their names in the model's files, such as mlp, "
                   "self_attn or mlp.down_proj; all: whole layers."});
  keys.key("extra_modules", extra_modules,
           {.doc = "Trained modules outside the layers, such as embed_tokens, norm or lm_head. A head "
                   "that shares its matrix with the embedding is trained with it."});
  keys.key("llama_pro", llama_pro,
           {.doc = "Train the last layer of each of trainable_layers equal groups of layers, as in LLaMA Pro."});
}

}  // namespace llmtrain
