#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "hf/import_folder.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

constexpr int64_t first_header_bytes = 7 * 4, later_header_bytes = 256;
constexpr int32_t later_magic = 0x616b3432;  ///< "ak42"
constexpr int64_t begin_of_text = 1,
                  end_of_text = 2;  ///< ids in every SentencePiece vocabulary that llama2.c trains with

[[noreturn]] void refuse_file(const std::string& path, const std::string& what) {
  throw UserError(ExitCode::bad_content, path + ": " + what);
}

/// Version 0 has its fields and fp32 tensors; version 1 has the norms first, and no rope tables; version 2 is version 1
/// with int8 matrices, in which each group of values has a scale.
struct Header {
  ModelConfig model;
  bool tied = true;
  int version = 0;
  int64_t bytes = first_header_bytes;
  int64_t group = 0;  ///< values per scale; 0: the matrices are fp32
};

Header read_header(const FileHandle& file) {
  std::array<int32_t, 7> h{};
  if (file.size() < first_header_bytes) refuse_file(file.path(), "too short for a llama2.c checkpoint");
  file.read(0, first_header_bytes, h.data());
  Header header;
  if (h[0] == later_magic) {
    header.version = h[1];
    if (header.version != 1 && header.version != 2) {
      refuse_file(file.path(),
                  fmt::format("a llama2.c checkpoint of version {}; only 0, 1 and 2 are supported", header.version));
    }
    if (file.size() < later_header_bytes) refuse_file(file.path(), "too short for a llama2.c checkpoint");
    header.bytes = later_header_bytes;
    file.read(8, first_header_bytes, h.data());
    uint8_t tied = 0;
    file.read(8 + first_header_bytes, 1, &tied);
    header.tied = tied != 0;
    int32_t group = 0;
    if (header.version == 2) {
      file.read(8 + first_header_bytes + 1, 4, &group);
      if (group < 1) refuse_file(file.path(), fmt::format("not a llama2.c checkpoint: group_size is {}", group));
    }
    header.group = group;
  } else {
    header.tied = h[5] > 0;
    h[5] = h[5] == INT32_MIN ? 0 : std::abs(h[5]);
  }
  const auto field = [&](size_t i, const char* name, int64_t most) {
    if (h[i] < 1 || h[i] > most)
      refuse_file(file.path(), fmt::format("not a llama2.c checkpoint: {} is {}", name, h[i]));
    return int64_t{h[i]};
  };
  ModelConfig& c = header.model;
  c.family = ModelConfig::Family::llama;
  llama_defaults(c);
  c.d_model = field(0, "dim", 1 << 18);
  c.d_ff = field(1, "hidden_dim", 1 << 20);
  c.n_layers = field(2, "n_layers", 4096);
  c.n_heads = field(3, "n_heads", 4096);
  c.n_kv_heads = field(4, "n_kv_heads", c.n_heads);
  c.vocab_size = field(5, "vocab_size", 1 << 30);
  c.max_seq_len = field(6, "seq_len", 1 << 24);
  if (c.d_model % c.n_heads != 0 || c.d_model / c.n_heads % 2 != 0 || c.n_heads % c.n_kv_heads != 0) {
    refuse_file(file.path(),
                fmt::format("not a llama2.c checkpoint: dim {}, {} heads and {} key-value heads do not divide",
                            c.d_model, c.n_heads, c.n_kv_heads));
  }
  c.head_dim = c.d_model / c.n_heads;
  c.norm_epsilon = 1e-5;
  c.rope_theta = 10000;
  c.tie_embeddings = header.tied;
  return header;
}

/// Location of each tensor of a layer.
class TensorLocations {
 public:
  struct Location {
    int64_t begin;
    int64_t elements;  ///< per layer
    int64_t group;     ///< values per int8 scale; 0: fp32

    int64_t scales() const { return group == 0 ? 0 : elements / group; }
    int64_t bytes() const { return group == 0 ? 4 * elements : elements + 4 * scales(); }
  };

  /// Throws UserError if the file's size differs from the header's.
  TensorLocations(const FileHandle& file, const Header& header)
      : path_(file.path()), group_(header.group), end_(header.bytes) {
    const ModelConfig& c = header.model;
    const int64_t width = c.d_model, kv = c.n_kv_heads * c.head_dim;
    const bool norms_first = header.version > 0;
    if (norms_first) {
      add_norm("input_layernorm", c.n_layers, width);
      add_norm("post_attention_layernorm", c.n_layers, width);
      add_norm("model.norm", 1, width);
    }
    add_matrix("model.embed_tokens", 1, c.vocab_size * width);
    if (!norms_first) add_norm("input_layernorm", c.n_layers, width);
    add_matrix("self_attn.q_proj", c.n_layers, width * width);
    add_matrix("self_attn.k_proj", c.n_layers, kv * width);
    add_matrix("self_attn.v_proj", c.n_layers, kv * width);
    add_matrix("self_attn.o_proj", c.n_layers, width * width);
    if (!norms_first) add_norm("post_attention_layernorm", c.n_layers, width);
    add_matrix("mlp.gate_proj", c.n_layers, c.d_ff * width);
    add_matrix("mlp.down_proj", c.n_layers, c.d_ff * width);
    add_matrix("mlp.up_proj", c.n_layers, c.d_ff * width);
    if (!norms_first) {
      add_norm("model.norm", 1, width);
      end_ += 4 * 2 * c.max_seq_len * (c.head_dim / 2);  // cosines and sines of rope
    }
    if (!header.tied) add_matrix("lm_head", 1, c.vocab_size * width);
    if (end_ != file.size()) {
      refuse_file(
          path_,
          fmt::format("it has {} bytes, but its header (dim {}, {} layers, vocabulary {}) declares {} in version {}",
                      file.size(), c.d_model, c.n_layers, c.vocab_size, end_, header.version));
    }
  }

  /// Finds "model.layers.3.mlp.up_proj.weight" or "model.norm.weight".
  Location find(const std::string& name) const {
    constexpr std::string_view layers = "model.layers.";
    std::string short_name = name.substr(0, name.rfind('.'));
    int64_t layer = 0;
    if (short_name.starts_with(layers)) {
      const size_t dot = short_name.find('.', layers.size());
      layer = std::stoll(short_name.substr(layers.size(), dot - layers.size()));
      short_name = short_name.substr(dot + 1);
    }
    Location place = locations_.at(short_name);
    place.begin += layer * place.bytes();
    return place;
  }

 private:
  void add_norm(const char* name, int64_t layers, int64_t elements) { add(name, layers, {end_, elements, 0}); }
  void add_matrix(const char* name, int64_t layers, int64_t elements) {
    if (group_ > 0 && elements % group_ != 0) {
      refuse_file(path_, fmt::format("not a llama2.c checkpoint: groups of {} do not divide {}", group_, name));
    }
    add(name, layers, {end_, elements, group_});
  }
  void add(const char* name, int64_t layers, const Location& place) {
    locations_[name] = place;
    end_ += place.bytes() * layers;
  }

  std::string path_;
  int64_t group_;
  std::map<std::string, Location> locations_;
  int64_t end_;
};

std::vector<float> read_values(const FileHandle& file, const TensorLocations::Location& place) {
  std::vector<float> values(static_cast<size_t>(place.elements));
  if (place.group == 0) {
    file.read(place.begin, 4 * place.elements, values.data());
    return values;
  }
  std::vector<int8_t> quantized(values.size());
  std::vector<float> scales(static_cast<size_t>(place.scales()));
  file.read(place.begin, place.elements, quantized.data());
  file.read(place.begin + place.elements, 4 * place.scales(), scales.data());
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i]) && scales[i] >= 0) continue;
    refuse_file(file.path(),
                fmt::format("byte {}: {} is not a scale of a quantized tensor. In llama2.c's version 2, as runq.c "
                            "reads it, scales follow each tensor; the first programs that wrote it "
                            "put all scales at the end. Export the model again with version 1 or a newer program",
                            place.begin + place.elements + 4 * static_cast<int64_t>(i), scales[i]));
  }
  const auto group = static_cast<size_t>(place.group);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(quantized[i]) * scales[i / group];
  return values;
}

/// Reorders the rows of each head from pairs (0 1) (2 3) ... to halves: first elements of all pairs, then the second
/// ones.
std::vector<float> halves_of_pairs(const std::vector<float>& values, int64_t head_dim, int64_t columns) {
  std::vector<float> out(values.size());
  const int64_t rows = static_cast<int64_t>(values.size()) / columns;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = r / head_dim, i = r % head_dim;
    const int64_t from = head * head_dim + (i < head_dim / 2 ? 2 * i : 2 * (i - head_dim / 2) + 1);
    std::memcpy(out.data() + r * columns, values.data() + from * columns, static_cast<size_t>(columns) * sizeof(float));
  }
  return out;
}

}  // namespace

void import_llama2c(const std::string& path, const ImportOptions& options) {
  const FileHandle file = FileHandle::open_to_read(path);
  const Header header = read_header(file);
  const TensorLocations locations(file, header);
  const ModelConfig& model = header.model;
  TokenIds ids;
  ids.bos = begin_of_text;
  ids.eos = {end_of_text};
  write_imported(options, model, ids, [&](const ParamSpec& param, const ParamSlice& slice) {
    const std::vector<float> values = read_values(file, locations.find(slice.name));
    const bool turned = slice.name.ends_with("q_proj.weight") || slice.name.ends_with("k_proj.weight");
    return turned ? halves_of_pairs(values, model.head_dim, param.columns) : values;
  });
}

ModelFormat find_model_format(const std::string& path) {
  const FileHandle file = FileHandle::open_to_read(path);
  char first = 0;
  if (file.read_some(0, 1, &first) == 1 && first == '{') return ModelFormat::gpt_json;
  try {
    const TensorLocations locations(file, read_header(file));
    return ModelFormat::llama2c;
  } catch (const UserError&) {
    return ModelFormat::none;
  }
}

}  // namespace llmtrain
