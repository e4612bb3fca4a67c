#pragma once
// The list of model families: add a name here, and src/models/families/<name>.cpp with its FamilyEntry.

#define LLMTRAIN_FAMILIES(X) \
  X(gpt2)                    \
  X(llama)                   \
  X(mistral)                 \
  X(qwen2)                   \
  X(qwen3)                   \
  X(gemma2)                  \
  X(phi3)                    \
  X(mixtral)                 \
  X(qwen2_moe)               \
  X(qwen3_moe)               \
  X(olmoe)                   \
  X(deepseek_v2)             \
  X(deepseek_v3)             \
  X(gpt_oss)                 \
  X(starcoder2)              \
  X(granite)                 \
  X(smollm3)                 \
  X(olmo2)                   \
  X(gpt_neox)                \
  X(falcon)                  \
  X(gemma3)
