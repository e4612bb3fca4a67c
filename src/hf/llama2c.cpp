#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "hf/import_folder.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

constexpr int64_t header_bytes = 7 * 4;
constexpr int32_t later_magic = 0x616b3432;  ///< "ak42", of versions 1 and later
constexpr int64_t begin_of_text = 1,
                  end_of_text = 2;  ///< ids in every SentencePiece vocabulary that llama2.c trains with

[[noreturn]] void refuse_file(const std::string& path, const std::string& what) {
  throw UserError(ExitCode::bad_content, path + ": " + what);
}

struct Header {
  ModelConfig model;
  bool tied = true;
};

Header read_header(const FileHandle& file) {
  std::array<int32_t, 7> h{};
  if (file.size() < header_bytes) refuse_file(file.path(), "too short for a llama2.c checkpoint");
  file.read(0, header_bytes, h.data());
  if (h[0] == later_magic) {
    refuse_file(file.path(), fmt::format("a llama2.c checkpoint of version {}; only version 0 is supported: import the "
                                         "model that it was exported from",
                                         h[1]));
  }
  Header header;
  header.tied = h[5] > 0;
  h[5] = h[5] == INT32_MIN ? 0 : std::abs(h[5]);
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
  };

  /// Throws UserError if the file's size differs from the header's.
  TensorLocations(const FileHandle& file, const Header& header) {
    const ModelConfig& c = header.model;
    const int64_t width = c.d_model, kv = c.n_kv_heads * c.head_dim;
    add("model.embed_tokens", 1, c.vocab_size * width);
    add("input_layernorm", c.n_layers, width);
    add("self_attn.q_proj", c.n_layers, width * width);
    add("self_attn.k_proj", c.n_layers, kv * width);
    add("self_attn.v_proj", c.n_layers, kv * width);
    add("self_attn.o_proj", c.n_layers, width * width);
    add("post_attention_layernorm", c.n_layers, width);
    add("mlp.gate_proj", c.n_layers, c.d_ff * width);
    add("mlp.down_proj", c.n_layers, c.d_ff * width);
    add("mlp.up_proj", c.n_layers, c.d_ff * width);
    add("model.norm", 1, width);
    end_ += 4 * 2 * c.max_seq_len * (c.head_dim / 2);  // cosines and sines of rope
    if (!header.tied) add("lm_head", 1, c.vocab_size * width);
    if (end_ != file.size()) {
      refuse_file(file.path(),
                  fmt::format("it has {} bytes, but its header (dim {}, {} layers, vocabulary {}) declares {}",
                              file.size(), c.d_model, c.n_layers, c.vocab_size, end_));
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
    place.begin += layer * 4 * place.elements;
    return place;
  }

 private:
  void add(const char* name, int64_t layers, int64_t elements) {
    locations_[name] = {end_, elements};
    end_ += 4 * elements * layers;
  }

  std::map<std::string, Location> locations_;
  int64_t end_ = header_bytes;
};

std::vector<float> read_values(const FileHandle& file, const TensorLocations::Location& place) {
  std::vector<float> values(static_cast<size_t>(place.elements));
  file.read(place.begin, 4 * place.elements, values.data());
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
  int32_t magic = 0;
  if (file.read_some(0, 4, &magic) == 4 && magic == later_magic) return ModelFormat::llama2c;  // refused by its version
  try {
    const TensorLocations locations(file, read_header(file));
    return ModelFormat::llama2c;
  } catch (const UserError&) {
    return ModelFormat::none;
  }
}

}  // namespace llmtrain
