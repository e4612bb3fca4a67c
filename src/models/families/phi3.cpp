// Phi-3, Phi-3.5 and Phi-4-mini (Abdin et al. 2024): Llama whose files hold q, k, v and gate, up as one matrix each.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_phi3() {
  FamilyEntry family{.doc = "llama with fused q, k, v and gate, up in files"};
  family.shape = [](DecoderShape& s) {
    s.names = llama_names();
    s.names.qkv = {"model.layers.{}.self_attn.qkv_proj"};
    s.names.gate = "";
    s.names.up = "model.layers.{}.mlp.gate_up_proj";
  };
  family.hugging_face = {.architecture = "Phi3ForCausalLM",
                         .max_seq_len = 4096,
                         .norm_epsilon = 1e-5,
                         .windows = HuggingFaceFamily::Windows::all_layers,
                         .window = 0,
                         .pad_token_id = 32000,
                         .partial_rotary = 1};
  return family;
}

}  // namespace llmtrain
