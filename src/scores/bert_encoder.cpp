// Encoders of BERT's family (Devlin et al. 2019; RoBERTa, Liu et al. 2019) on the host.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <thread>

#include "core/error.hpp"
#include "core/files/folder_handle.hpp"
#include "core/files/json_node.hpp"
#include "core/parallel_for.hpp"
#include "hf/model_folder.hpp"
#include "hf/weights/stored_slice.hpp"
#include "scores/text_encoder.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {

namespace {

using Floats = std::vector<float>;

/// Sum of products in 16 lanes, which vector units hold.
float dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t lanes = 16;
  float sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) sums[lane] = std::fma(a[i + lane], b[i + lane], sums[lane]);
  }
  double sum = 0;
  for (const float lane : sums) sum += static_cast<double>(lane);
  for (; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return static_cast<float>(sum);
}

/// y = x w^T + b of rows.
struct Dense {
  int64_t inputs = 0, outputs = 0;
  Floats weight;  ///< [outputs, inputs]
  Floats bias;    ///< [outputs]

  Floats operator()(const Floats& x) const {
    const int64_t rows = std::ssize(x) / inputs;
    Floats y(static_cast<size_t>(rows * outputs));
    for (int64_t o = 0; o < outputs; ++o) {  // a row of the weight stays in the cache
      const float* w = weight.data() + o * inputs;
      for (int64_t r = 0; r < rows; ++r) {
        y[static_cast<size_t>(r * outputs + o)] = dot(x.data() + r * inputs, w, inputs) + bias[static_cast<size_t>(o)];
      }
    }
    return y;
  }
};

struct LayerNorm {
  Floats weight, bias;
  double epsilon = 1e-12;

  void operator()(Floats& x) const {
    const size_t width = weight.size();
    for (size_t begin = 0; begin < x.size(); begin += width) {
      double mean = 0, variance = 0;
      for (size_t i = 0; i < width; ++i) mean += static_cast<double>(x[begin + i]);
      mean /= static_cast<double>(width);
      for (size_t i = 0; i < width; ++i) {
        const double d = static_cast<double>(x[begin + i]) - mean;
        variance += d * d;
      }
      const double scale = 1 / std::sqrt(variance / static_cast<double>(width) + epsilon);
      for (size_t i = 0; i < width; ++i) {
        const double normal = (static_cast<double>(x[begin + i]) - mean) * scale;
        x[begin + i] = static_cast<float>(normal * static_cast<double>(weight[i]) + static_cast<double>(bias[i]));
      }
    }
  }
};

void add(Floats& x, const Floats& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

struct Layer {
  Dense query, key, value, attention_output, intermediate, output;
  LayerNorm attention_norm, output_norm;
  int64_t heads = 1;

  Floats attend(const Floats& x) const {
    const Floats q = query(x), k = key(x), v = value(x);
    const int64_t width = query.outputs, size = width / heads, rows = std::ssize(x) / width;
    const float scale = 1 / std::sqrt(static_cast<float>(size));
    Floats out(x.size(), 0.0F);
    std::vector<double> weights(static_cast<size_t>(rows));
    for (int64_t h = 0; h < heads; ++h) {
      const auto row = [&](const Floats& of, int64_t r) { return of.data() + r * width + h * size; };
      for (int64_t i = 0; i < rows; ++i) {
        double largest = -1e30, sum = 0;
        for (int64_t j = 0; j < rows; ++j) {
          weights[static_cast<size_t>(j)] = static_cast<double>(dot(row(q, i), row(k, j), size) * scale);
          largest = std::max(largest, weights[static_cast<size_t>(j)]);
        }
        for (double& weight : weights) {
          weight = std::exp(weight - largest);
          sum += weight;
        }
        float* to = out.data() + i * width + h * size;
        for (int64_t j = 0; j < rows; ++j) {
          const auto weight = static_cast<float>(weights[static_cast<size_t>(j)] / sum);
          for (int64_t c = 0; c < size; ++c) to[c] = std::fma(weight, row(v, j)[c], to[c]);
        }
      }
    }
    return out;
  }

  void run(Floats& x) const {
    add(x, attention_output(attend(x)));
    attention_norm(x);
    Floats inner = intermediate(x);
    for (float& y : inner) {
      const auto exact = static_cast<double>(y);
      y = static_cast<float>(0.5 * exact * (1 + std::erf(exact / std::numbers::sqrt2)));
    }
    add(x, output(inner));
    output_norm(x);
  }
};

/// Tensors of the folder by the names that the encoder alone has.
class Weights {
 public:
  explicit Weights(const FolderHandle& folder) : folder_(folder), index_(read_weight_index(folder)) {
    for (const char* prefix : {"", "bert.", "roberta."}) {
      if (index_.find(prefix + std::string("embeddings.word_embeddings.weight")) != nullptr) prefix_ = prefix;
    }
  }

  Floats read(const std::string& name, const std::vector<int64_t>& shape) const {
    const WeightIndex::Tensor* tensor = index_.find(prefix_ + name);
    if (tensor == nullptr && name.ends_with("LayerNorm.weight")) tensor = find_old(name, "weight", "gamma");
    if (tensor == nullptr && name.ends_with("LayerNorm.bias")) tensor = find_old(name, "bias", "beta");
    if (tensor == nullptr) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: there is no tensor {}{}", folder_.path(), prefix_, name));
    }
    if (tensor->shape != shape) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: {} is {}, not {}", folder_.path(), tensor->name,
                                                         shape_text(tensor->shape), shape_text(shape)));
    }
    const FileHandle file = folder_.open_to_read(index_.files[tensor->file].name);
    Floats values(static_cast<size_t>(tensor->numel()));
    read_slice(whole_tensor(*tensor, [&](size_t) -> const FileHandle& { return file; }), 0, std::ssize(values),
               values.data());
    return values;
  }
  Dense dense(const std::string& name, int64_t outputs, int64_t inputs) const {
    return {inputs, outputs, read(name + ".weight", {outputs, inputs}), read(name + ".bias", {outputs})};
  }
  LayerNorm norm(const std::string& name, int64_t width, double epsilon) const {
    return {read(name + ".weight", {width}), read(name + ".bias", {width}), epsilon};
  }

 private:
  const WeightIndex::Tensor* find_old(std::string name, std::string_view now, std::string_view before) const {
    return index_.find(prefix_ + name.replace(name.size() - now.size(), now.size(), before));
  }

  const FolderHandle& folder_;
  WeightIndex index_;
  std::string prefix_;
};

/// Layer that bert-score's table names for the published models of this shape.
int64_t usual_layer(bool roberta, int64_t layers) {
  if (layers == 24) return roberta ? 17 : 18;
  if (layers == 12) return roberta ? 10 : 9;
  return layers;
}

class BertEncoder final : public TextEncoder {
 public:
  BertEncoder(const std::string& path, int64_t wanted);

  std::string kind() const override { return roberta_ ? "encoder roberta" : "encoder bert"; }
  int64_t layers() const override { return std::ssize(layers_); }
  int64_t width() const override { return width_; }
  std::vector<int32_t> encode(std::string_view text) const override;
  size_t around() const override { return 2; }
  bool surrounds(int32_t id) const override { return id == around_.front() || id == around_.back(); }
  std::vector<TokenEmbeddings> embed(std::span<const std::string> texts) override;

 private:
  void read_layers(const Weights& weights, const JsonNode& config, int64_t count, double epsilon);
  void read_tokenizer(const FolderHandle& folder, int64_t vocabulary);
  TokenEmbeddings embed(std::string_view text) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  bool roberta_ = false;
  int64_t width_ = 0, longest_ = 0, first_position_ = 0;
  std::vector<int32_t> around_;  ///< the tokens around a text, which has none between them
  Floats words_, positions_, types_;
  LayerNorm norm_;
  std::vector<Layer> layers_;
};

void BertEncoder::read_layers(const Weights& weights, const JsonNode& config, int64_t count, double epsilon) {
  const int64_t inner = config.at("intermediate_size").count(1 << 20);
  const int64_t heads = config.at("num_attention_heads").integer_between(1, width_);
  for (int64_t l = 0; l < count; ++l) {
    const std::string name = fmt::format("encoder.layer.{}.", l);
    Layer& layer = layers_.emplace_back();
    layer.heads = heads;
    layer.query = weights.dense(name + "attention.self.query", width_, width_);
    layer.key = weights.dense(name + "attention.self.key", width_, width_);
    layer.value = weights.dense(name + "attention.self.value", width_, width_);
    layer.attention_output = weights.dense(name + "attention.output.dense", width_, width_);
    layer.attention_norm = weights.norm(name + "attention.output.LayerNorm", width_, epsilon);
    layer.intermediate = weights.dense(name + "intermediate.dense", inner, width_);
    layer.output = weights.dense(name + "output.dense", width_, inner);
    layer.output_norm = weights.norm(name + "output.LayerNorm", width_, epsilon);
  }
}

void BertEncoder::read_tokenizer(const FolderHandle& folder, int64_t vocabulary) {
  if (!has_tokenizer(folder) && !folder.has("vocab.txt")) {
    throw UserError(ExitCode::missing_input,
                    folder.path() +
                        ": the encoder has no tokenizer (tokenizer.json, or vocab.json with merges.txt): "
                        "put the files of its tokenizer into the folder");
  }
  tokenizer_ = load_tokenizer(folder.path());
  tokenizer_->add_special_tokens(around_, nullptr);
  if (around_.size() == 2 && tokenizer_->vocabulary_size() <= vocabulary) return;
  throw UserError(
      ExitCode::bad_content,
      fmt::format("{}: the tokenizer is not that of an encoder: it puts {} tokens around a text, and has {} "
                  "tokens for an embedding of {} rows",
                  folder.path(), around_.size(), tokenizer_->vocabulary_size(), vocabulary));
}

BertEncoder::BertEncoder(const std::string& path, int64_t wanted) {
  const FolderHandle folder = FolderHandle::open(path);
  const nlohmann::json document = read_json(folder.open_to_read("config.json"));
  const JsonNode config(document, folder.path_of("config.json"));
  const std::string type = config.at("model_type").text();
  roberta_ = type == "roberta" || type == "xlm-roberta";
  if (!roberta_ && type != "bert") config.at("model_type").refuse_value("bert, roberta or xlm-roberta");
  if (config.text_or("hidden_act", "gelu") != "gelu") config.at("hidden_act").refuse_value("gelu");
  if (config.text_or("position_embedding_type", "absolute") != "absolute")
    config.at("position_embedding_type").refuse_value("absolute");
  width_ = config.at("hidden_size").integer_between(1, 1 << 20);
  const int64_t vocabulary = config.at("vocab_size").integer_between(1, 1 << 28);
  const int64_t rows = config.at("max_position_embeddings").integer_between(3, 1 << 20);
  const int64_t all = config.at("num_hidden_layers").count(1000),
                kinds = config.at("type_vocab_size").integer_between(1, 1000);
  const double epsilon = config.at("layer_norm_eps").number();
  if (wanted < 0 || wanted > all)
    throw UserError(ExitCode::command_line, fmt::format("{}: it has {} layers, not {}", path, all, wanted));
  first_position_ = roberta_ ? config.at("pad_token_id").count(vocabulary) + 1 : 0;
  longest_ = rows - first_position_;
  if (longest_ < 3) config.at("max_position_embeddings").refuse("leaves no position for a token");
  read_tokenizer(folder, vocabulary);
  const Weights weights(folder);
  words_ = weights.read("embeddings.word_embeddings.weight", {vocabulary, width_});
  positions_ = weights.read("embeddings.position_embeddings.weight", {rows, width_});
  types_ = weights.read("embeddings.token_type_embeddings.weight", {kinds, width_});
  norm_ = weights.norm("embeddings.LayerNorm", width_, epsilon);
  if (width_ % config.at("num_attention_heads").integer_between(1, width_) != 0)
    config.at("num_attention_heads").refuse("does not divide hidden_size");
  read_layers(weights, config, wanted == 0 ? usual_layer(roberta_, all) : wanted, epsilon);
}

std::vector<int32_t> BertEncoder::encode(std::string_view text) const {
  const std::string_view sentence = stripped(text);
  std::vector<int32_t> ids;
  // as bert-score does for byte-level vocabularies, whose words begin with a space
  if (!sentence.empty()) tokenizer_->encode((roberta_ ? " " : "") + std::string(sentence), ids);
  const size_t room = static_cast<size_t>(longest_) - 2;
  if (ids.size() > room) ids.resize(room);
  ids.insert(ids.begin(), around_.front());
  ids.push_back(around_.back());
  return ids;
}

TokenEmbeddings BertEncoder::embed(std::string_view text) const {
  TokenEmbeddings out;
  out.ids = encode(text);
  out.values.resize(out.ids.size() * static_cast<size_t>(width_));
  for (size_t t = 0; t < out.ids.size(); ++t) {
    const float* word = words_.data() + static_cast<int64_t>(out.ids[t]) * width_;
    const float* position = positions_.data() + (first_position_ + static_cast<int64_t>(t)) * width_;
    float* to = out.values.data() + static_cast<int64_t>(t) * width_;
    for (int64_t c = 0; c < width_; ++c) to[c] = word[c] + types_[static_cast<size_t>(c)] + position[c];
  }
  norm_(out.values);
  for (const Layer& layer : layers_) layer.run(out.values);
  return out;
}

std::vector<TokenEmbeddings> BertEncoder::embed(std::span<const std::string> texts) {
  std::vector<TokenEmbeddings> all(texts.size());
  const int threads = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
  parallel_for(all.size(), threads, [&](size_t i) { all[i] = embed(std::string_view(texts[i])); });
  return all;
}

}  // namespace

std::unique_ptr<TextEncoder> open_bert_encoder(const std::string& folder, int64_t layers) {
  return std::make_unique<BertEncoder>(folder, layers);
}

}  // namespace llmtrain
