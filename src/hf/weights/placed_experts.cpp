#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "hf/weights/fused_experts.hpp"
#include "hf/weights/match_weights.hpp"
#include "hf/weights/replaced_tensors.hpp"
#include "models/expert_places.hpp"

namespace llmtrain {
namespace {

constexpr int64_t mxfp4_block = 32;  ///< elements with one scale

class Placer {
 public:
  Placer(WeightIndex& index, const DecoderShape& shape) : folder_(index.folder), tensors_(index, shape.names) {}

  void place(const ExpertPlaces& places) {
    for (const auto& [name, place] : places) {
      if (has_codes(place)) {
        add_codes(name, place);
      } else {
        add(name, place);
      }
    }
    const std::string problems = missing_.text() + wrong_shape_.text() + wrong_type_.text();
    if (!problems.empty()) {
      throw UserError(ExitCode::bad_content,
                      folder_ + ": the weights do not fit the model that config.json describes" + problems);
    }
    tensors_.finish();
  }

 private:
  static std::string blocks_of(const ExpertPlace& place) { return place.tensor + "_blocks"; }
  static std::string scales_of(const ExpertPlace& place) { return place.tensor + "_scales"; }
  /// True if the files have codes or scales of a matrix.
  bool has_codes(const ExpertPlace& place) const {
    return place.shape.size() == 3 && (tensors_.find(blocks_of(place)) >= 0 || tensors_.find(scales_of(place)) >= 0);
  }

  /// Returns the number of a tensor, or -1 for one with a problem, which is reported once.
  int64_t find(const std::string& name, const std::vector<int64_t>& shape, std::optional<StoredType> type = {}) {
    const auto [known, first] = numbers_.try_emplace(name, -1);
    if (!first) return known->second;
    const int64_t number = tensors_.find(name);
    if (number < 0) {
      missing_.add(name);
      return -1;
    }
    const WeightIndex::Tensor& tensor = tensors_.tensor(number);
    if (tensor.shape != shape || tensor.quantized) {
      wrong_shape_.add(printable(tensor.name) + " is " + shape_text(tensor.shape) + " instead of " + shape_text(shape));
      return -1;
    }
    if (type && tensor.type != *type) {
      wrong_type_.add(printable(tensor.name) + " is " + std::string(name_of(tensor.type)));
      return -1;
    }
    tensors_.remove(number);
    return known->second = number;
  }

  /// A matrix of the model is a matrix of codes: some of its rows, which alternate with those of other parts.
  void add_codes(const std::string& name, const ExpertPlace& place) {
    const int64_t rows = place.shape[2], of_row = place.shape[1] / mxfp4_block;
    if (place.shape[1] % mxfp4_block != 0 && place.first == 0) {  // once for a tensor
      wrong_shape_.add(blocks_of(place) + " has rows of a part of a block");
    }
    const int64_t blocks = find(blocks_of(place), {place.shape[0], rows, of_row, mxfp4_block / 2}, StoredType::U8);
    const int64_t exponents = find(scales_of(place), {place.shape[0], rows, of_row}, StoredType::U8);
    if (blocks < 0 || exponents < 0) return;
    const WeightIndex::Tensor &codes = tensors_.tensor(blocks), &scales = tensors_.tensor(exponents);
    const int64_t first = (place.begin / place.columns + (place.first - place.begin)) * of_row;
    WeightIndex::Tensor part;
    part.type = StoredType::BF16;
    part.shape = {place.rows, place.columns};
    part.file = codes.file;
    part.begin = codes.begin + first * (mxfp4_block / 2);
    part.end = codes.end;
    part.mxfp4 = WeightIndex::BlockScales{scales.file, scales.begin + first, place.row_stride * of_row};
    tensors_.add(std::move(part), name);
  }

  void add(const std::string& name, const ExpertPlace& place) {
    const int64_t number = find(place.tensor, place.shape);
    if (number < 0) return;
    const WeightIndex::Tensor& whole = tensors_.tensor(number);
    const int64_t bytes = bits_of(whole.type) / 8;
    const int64_t last = (place.rows - 1) * place.row_stride + (place.columns - 1) * place.column_stride;
    WeightIndex::Tensor part = whole;
    part.shape = {place.rows};
    if (place.columns > 1) part.shape.push_back(place.columns);
    part.begin = whole.begin + place.first * bytes;
    part.end = part.begin + (last + 1) * bytes;
    part.strides = WeightIndex::Strides{place.row_stride, place.column_stride};
    tensors_.add(std::move(part), name);
  }

  std::string folder_;
  ReplacedTensors tensors_;
  std::map<std::string, int64_t, std::less<>> numbers_;  ///< results of find()
  Problems missing_{"missing"}, wrong_shape_{"with another shape"}, wrong_type_{"with a type other than U8"};
};

}  // namespace

void place_experts(WeightIndex& index, const DecoderShape& shape) { Placer(index, shape).place(expert_places(shape)); }

}  // namespace llmtrain
