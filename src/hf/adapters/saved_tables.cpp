#include "hf/adapters/saved_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/adapters/adapter_config.hpp"
#include "hf/convert.hpp"
#include "hf/weights/slice_writer.hpp"
#include "hf/weights/stored_names.hpp"
#include "hf/weights/stored_slice.hpp"

namespace llmtrain {
namespace {

constexpr int64_t elements_at_once = int64_t{1} << 20;

/// A tensor and the open files of its folder.
struct Place {
  const WeightIndex* index;
  size_t number;
  const std::vector<FileHandle>* files;

  const WeightIndex::Tensor& tensor() const { return index->tensors[number]; }
  StoredSlice whole() const {
    return whole_tensor(tensor(), [&](size_t file) -> const FileHandle& { return (*files)[file]; });
  }
};

std::vector<FileHandle> open_files(const FolderHandle& folder, const WeightIndex& index) {
  std::vector<FileHandle> files;
  for (const WeightIndex::File& file : index.files) files.push_back(folder.open_to_read(file.name));
  return files;
}

bool equal(const Place& a, const Place& b) {
  const int64_t elements = a.tensor().numel();
  if (a.tensor().shape != b.tensor().shape || !is_weight_type(a.tensor().type) || !is_weight_type(b.tensor().type)) {
    return false;
  }
  const StoredSlice left = a.whole(), right = b.whole();
  std::vector<float> x, y;
  for (int64_t begin = 0; begin < elements; begin += elements_at_once) {
    const int64_t end = std::min(begin + elements_at_once, elements);
    x.resize(static_cast<size_t>(end - begin));
    y.resize(x.size());
    read_slice(left, begin, end, x.data());
    read_slice(right, begin, end, y.data());
    if (x != y) return false;
  }
  return true;
}

class TableFinder {
 public:
  TableFinder(const std::string& adapter, const LoraPart& part, const DecoderShape& shape)
      : folder_(FolderHandle::open(adapter)),
        part_(part),
        shape_(shape),
        embedding_(shape.names.embedding + ".weight"),
        head_(shape.names.head + ".weight") {}

  FoundTables find(const std::string& model) {
    FoundTables found;
    found.rows = shape_.config.vocab_size;
    if (!folder_.has(adapter_weights_name)) return found;
    index_ = read_weight_file(folder_, adapter_weights_name);
    files_ = open_files(folder_, index_);
    collect();
    if (tables_.empty()) return found;
    found.rows = check_shapes();
    const bool resized = found.rows != shape_.config.vocab_size;
    merge_tied();
    std::erase_if(tables_, [&](const auto& table) { return !resized && is_trained(table.first); });
    if (!resized && !model.empty()) drop_equal(model);
    for (const auto& [name, number] : tables_) found.modules.push_back(name.substr(0, name.rfind('.')));
    return found;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}", folder_.path_of(adapter_weights_name), what));
  }
  Place place(size_t number) const { return {&index_, number, &files_}; }
  std::string stored_name(size_t number) const { return printable(index_.tensors[number].name); }
  bool is_trained(const std::string& name) const {
    return part_.trained.contains(name) || (part_.trains_tied_head && name == head_);
  }

  void collect() {
    for (size_t i = 0; i < index_.tensors.size(); ++i) {
      const std::string name = adapter_name_in_model(index_.tensors[i].name);
      if (name == embedding_ || (name == head_ && !shape_.config.scores())) tables_.emplace(name, i);
    }
  }

  /// Returns the number of rows, which tables have in common.
  int64_t check_shapes() const {
    std::optional<int64_t> rows;
    for (const auto& [name, number] : tables_) {
      const WeightIndex::Tensor& tensor = index_.tensors[number];
      const bool fits = tensor.shape.size() == 2 && tensor.shape[1] == shape_.config.d_model && tensor.shape[0] > 0;
      if (!fits) {
        refuse(fmt::format("{} is {} instead of a row of {} values for each token", stored_name(number),
                           shape_text(tensor.shape), shape_.config.d_model));
      }
      if (!is_weight_type(tensor.type)) {
        refuse(fmt::format("{} must be F32, BF16 or F16, not {}", stored_name(number), name_of(tensor.type)));
      }
      if (rows && *rows != tensor.shape[0]) {
        refuse(fmt::format("{} has {} rows, and the other table {}", stored_name(number), tensor.shape[0], *rows));
      }
      rows = tensor.shape[0];
    }
    const bool needs_both = !shape_.config.scores() && (!shape_.config.ties_head() || part_.unties_head);
    if (*rows != shape_.config.vocab_size && needs_both && tables_.size() == 1) {
      refuse(fmt::format("{} has {} rows, and the model has {}, also in the other table, which is not here",
                         stored_name(tables_.begin()->second), *rows, shape_.config.vocab_size));
    }
    return *rows;
  }

  /// A tied matrix may be stored as either one, or as both.
  void merge_tied() {
    if (!shape_.config.ties_head() || part_.unties_head) return;
    const auto head = tables_.find(head_), embedding = tables_.find(embedding_);
    if (head == tables_.end()) return;
    const bool both = embedding != tables_.end();
    if (both && !is_trained(embedding_) && !equal(place(head->second), place(embedding->second))) {
      refuse(fmt::format("{} differs from {}, although the model uses one matrix for both and {} does not train them",
                         stored_name(head->second), stored_name(embedding->second), adapter_config_name));
    }
    if (!both) tables_.emplace(embedding_, head->second);
    tables_.erase(head_);
  }

  /// PEFT stores the matrix of an embedding or head with an adapter in any case.
  void drop_equal(const std::string& model) {
    const FolderHandle folder = FolderHandle::open(model);
    const WeightIndex index = read_weight_index(folder);
    const std::vector<FileHandle> files = open_files(folder, index);
    std::vector<std::string_view> names;
    for (const WeightIndex::Tensor& tensor : index.tensors) names.push_back(tensor.name);
    const StoredNames stored = match_names(names, shape_.names, model);
    std::erase_if(tables_, [&](const auto& table) {
      int64_t own = stored.find(table.first);
      if (shape_.config.ties_head() && own < 0) own = stored.find(table.first == head_ ? embedding_ : head_);
      return own >= 0 && equal(place(table.second), {&index, static_cast<size_t>(own), &files});
    });
  }

  FolderHandle folder_;
  const LoraPart& part_;
  const DecoderShape& shape_;
  const std::string embedding_, head_;
  WeightIndex index_;
  std::vector<FileHandle> files_;
  std::map<std::string, size_t> tables_;  ///< by names in the model
};

}  // namespace

FoundTables find_saved_tables(const std::string& adapter, const LoraPart& part, const DecoderShape& shape,
                              const std::string& model) {
  return TableFinder(adapter, part, shape).find(model);
}

WeightIndex read_saved_tables(const std::string& adapter) {
  const FolderHandle folder = FolderHandle::open(adapter);
  if (folder.has(adapter_weights_name)) return read_weight_file(folder, adapter_weights_name);
  throw UserError(ExitCode::missing_input,
                  fmt::format("{}: no {} here, which has the model's embedding or head (lora.saved_embeddings)",
                              adapter, adapter_weights_name));
}

WeightMatch match_saved_tables(const DecoderShape& shape, const std::vector<UnitSpec>& units,
                               const WeightIndex& index) {
  std::map<std::string, size_t> stored;
  for (size_t i = 0; i < index.tensors.size(); ++i) stored.emplace(adapter_name_in_model(index.tensors[i].name), i);
  const std::string head = shape.names.head + ".weight";
  WeightMatch match;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t p = 0; p < units[u].params.size(); ++p) {
      const ParamSpec& param = units[u].params[p];
      if (!shape.saved_tables.contains(param.name)) continue;
      auto found = stored.find(param.name);
      if (found == stored.end() && shape.config.ties_head()) found = stored.find(head);
      const std::vector<int64_t> expected = stored_shape(param, exported_slice(shape, param.slices.front()));
      if (found == stored.end() || index.tensors[found->second].shape != expected) {
        throw UserError(ExitCode::bad_content,
                        fmt::format("{}/{}: it has no {} of shape {}, which lora.saved_embeddings names", index.folder,
                                    adapter_weights_name, printable(param.name), shape_text(expected)));
      }
      match.slices.push_back({static_cast<int>(u), static_cast<int>(p), 0, param.columns, found->second});
    }
  }
  return match;
}

}  // namespace llmtrain
