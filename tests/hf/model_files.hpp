#pragma once
// Small models of several families with values that are a function of their names, and stores to load them into.

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "core/philox.hpp"
#include "device/device.hpp"
#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"
#include "hf/config/config_json.hpp"
#include "hf/model_folder.hpp"
#include "hf/weights/match_weights.hpp"
#include "models/models.hpp"
#include "parallel/communicator.hpp"
#include "params/param_store.hpp"

namespace llmtrain::test {

/// Sizes without common factors, so that no shard border falls on a row.
inline ModelConfig small_model(const std::string& type) {
  const std::string sizes =
      type == "gpt2" ? R"("n_embd":36,"n_layer":2,"n_head":3,"n_positions":29)"
      : type.starts_with("deepseek")
          ? R"("hidden_size":36,"intermediate_size":52,"num_hidden_layers":2,"num_attention_heads":3,)"
            R"("num_key_value_heads":3,"max_position_embeddings":29,"q_lora_rank":14,"kv_lora_rank":10,)"
            R"("qk_nope_head_dim":7,"qk_rope_head_dim":4,"v_head_dim":9,"n_routed_experts":4,"n_group":2,)"
            R"("topk_group":1,"num_experts_per_tok":2,"moe_intermediate_size":11,"first_k_dense_replace":1)"
          : R"("hidden_size":36,"intermediate_size":52,"num_hidden_layers":2,"num_attention_heads":6,)"
            R"("num_key_value_heads":2,"head_dim":10,"max_position_embeddings":29)";
  const std::string experts = R"(,"num_local_experts":3,"num_experts_per_tok":2)";
  const std::string widths = R"(,"moe_intermediate_size":14)";
  const std::string more = type == "mixtral" || type == "olmoe" || type == "gpt_oss" ? experts
                           : type == "qwen2_moe" ? experts + widths + R"(,"shared_expert_intermediate_size":11)"
                           : type == "qwen3_moe" ? experts + widths
                           : type == "gpt_neox"  ? R"(,"rotary_pct":0.7)"
                                                 : "";
  return parse_hf_config(R"({"model_type":")" + type + R"(","vocab_size":67,)" + sizes + more + "}", "config.json")
      .model;
}

/// Returns element i of a stored tensor, row-major as in the model: exact in BF16 and F16.
inline float element_of(const std::string& name, int64_t i) {
  uint64_t key = 1469598103934665603u;
  for (const char c : name) key = (key ^ static_cast<uint8_t>(c)) * 1099511628211u;
  const Philox4 random = philox4x32(key, static_cast<uint64_t>(i), 0);
  return static_cast<float>(static_cast<int>(random.v[0] % 255) - 127) / 64.0f;
}

inline std::vector<float> values_of(const ParamSpec& param) {
  std::vector<float> values;
  for (const ParamSlice& slice : param.slices) {
    for (int64_t i = 0; i < slice.rows * param.columns; ++i) values.push_back(element_of(slice.name, i));
  }
  return values;
}

/// Layout of a model in files.
struct Stored {
  StoredType type = StoredType::F32;
  int64_t file_bytes = int64_t{1} << 40;
  std::string before = {};              ///< prefix of all names
  bool head_alone = false;              ///< True if only the head of a tied pair is stored
  bool prefix = true;                   ///< True if names have the first component, "model." or "transformer."
  bool extras = false;                  ///< True if there are tensors that other programs add
  std::string left_out = {};            ///< name of a missing tensor
  std::string transposed_wrongly = {};  ///< name of a square tensor to transpose
  std::string not_finite = {};          ///< name of a slice of the model whose last element becomes `last`
  float last = std::numeric_limits<float>::quiet_NaN();
};

inline std::vector<float> as_stored(const ParamSpec& param, const ParamSlice& slice, bool transposed) {
  std::vector<float> values(static_cast<size_t>(slice.rows * param.columns));
  for (int64_t r = 0; r < slice.rows; ++r) {
    for (int64_t c = 0; c < param.columns; ++c) {
      values[static_cast<size_t>(transposed ? c * slice.rows + r : r * param.columns + c)] =
          element_of(slice.name, r * param.columns + c);
    }
  }
  return values;
}

/// Two tensors of a layer that predicts further tokens.
inline std::array<std::string, 2> further_tokens(int64_t layer) {
  const std::string name = "model.layers." + std::to_string(layer);
  return {name + ".eh_proj.weight", name + ".mlp.gate.weight"};
}

inline void write_model(const std::string& path, const ModelConfig& model, const Stored& stored) {
  const DecoderShape shape = decoder_shape(model, model.vocab_size);
  const std::vector<UnitSpec> units = Decoder(shape).units();
  const auto name_of_slice = [&](const std::string& name) {
    const bool as_head = stored.head_alone && name == shape.names.embedding + ".weight";
    const std::string full = as_head ? shape.names.head + ".weight" : name;
    return stored.before + (stored.prefix || as_head ? full : full.substr(full.find('.') + 1));
  };
  ModelFolderPlan plan;
  plan.path = path;
  plan.overwrite = true;
  plan.file_bytes = stored.file_bytes;
  plan.texts["config.json"] = write_hf_config(model, {}, "float32");
  plan.experts = expert_places(shape);
  const auto for_each = [&](const auto& f) {
    for (const UnitSpec& unit : units) {
      for (const ParamSpec& param : unit.params) {
        for (const ParamSlice& slice : param.slices) {
          if (slice.name != stored.left_out) f(param, slice, name_of_slice(slice.name));
        }
      }
    }
  };
  for_each([&](const ParamSpec& param, const ParamSlice& slice, const std::string& name) {
    plan.tensors.push_back({name, stored.type, stored_shape(param, slice), 0, 0});
  });
  const std::string head = stored.before + shape.names.head + ".weight";
  const bool stored_head = stored.extras && model.tie_embeddings;
  if (stored.extras) {
    plan.tensors.push_back(
        {stored.before + "model.layers.0.self_attn.rotary_emb.inv_freq", StoredType::F32, {5}, 0, 0});
    if (model.family == ModelConfig::Family::gpt2) {
      plan.tensors.push_back({name_of_slice("transformer.h.0.attn.bias"), StoredType::F32, {1, 1, 3, 3}, 0, 0});
    }
    if (model.family == ModelConfig::Family::deepseek_v3) {
      for (const std::string& name : further_tokens(model.n_layers)) {
        plan.tensors.push_back({name_of_slice(name), StoredType::F32, {5}, 0, 0});
      }
    }
    if (stored_head) plan.tensors.push_back({head, stored.type, {model.vocab_size, model.d_model}, 0, 0});
  }
  ModelFolderWriter writer(std::move(plan));
  for_each([&](const ParamSpec& param, const ParamSlice& slice, const std::string& name) {
    const bool transposed = slice.transposed != (slice.name == stored.transposed_wrongly);
    std::vector<float> values = as_stored(param, slice, transposed);
    if (slice.name == stored.not_finite) values.back() = stored.last;
    writer.write(name, 0, values.data(), static_cast<int64_t>(values.size()));
    if (stored_head && slice.name == shape.names.embedding + ".weight") {
      writer.write(head, 0, values.data(), static_cast<int64_t>(values.size()));
    }
  });
  writer.publish();
}

/// A started store with memory.
struct Started {
  Started(const ModelConfig& model, DType compute, int stage)
      : shape(decoder_shape(model, model.vocab_size)), store(Decoder(shape).units(), options(compute, stage)) {
    store.plan(arena);
    memory = DeviceBuffer(arena.bytes());
    arena.commit(memory.data());
    store.start(communicator(), stream());
  }
  static ParamStoreOptions options(DType compute, int stage) {
    ParamStoreOptions o;
    o.compute = compute;
    o.zero_stage = stage;
    o.rank = communicator().rank();
    o.size = communicator().size();
    return o;
  }

  /// Sets the known values.
  void set() {
    for (int unit = 0; unit < store.units().size(); ++unit) {
      for (size_t p = 0; p < store.units()[unit].spec.params.size(); ++p) {
        test::set_parameter(store, unit, static_cast<int>(p), values_of(store.units()[unit].spec.params[p]).data());
      }
    }
    store.publish_weights();
  }

  /// Returns all bytes of weights on this rank: its masters, padding included, and the published weights.
  std::string bytes() {
    std::string all;
    const auto append = [&](const Tensor& t) {
      std::string part(static_cast<size_t>(t.bytes()), '\0');
      copy_to_host(part.data(), t.data, t.bytes(), stream());
      stream().synchronize();
      all += part;
    };
    for (int unit = 0; unit < store.units().size(); ++unit) {
      append(store.shard(unit, 0).master());
      store.acquire(unit);
      for (size_t p = 0; p < store.units()[unit].spec.params.size(); ++p)
        append(store.weight(unit, static_cast<int>(p)));
      store.release(unit);
    }
    return all;
  }

  DecoderShape shape;
  ParamStore store;
  Arena arena;
  DeviceBuffer memory;
};

/// Returns a path that all ranks agree on.
inline std::string shared_path(const std::string& name) {
  int64_t process = getpid();
  communicator().broadcast(&process, sizeof(process));
  return name + "-" + std::to_string(process);
}

}  // namespace llmtrain::test
