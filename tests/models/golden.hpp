#pragma once
// The models that PyTorch computed: tests/reference/models/<case>.h5 (layout: tests/reference/README.md).

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace llmtrain {

template <class T>
struct GoldenArray {
  std::vector<int64_t> shape;  ///< empty for a scalar
  std::vector<T> values;       ///< row-major
};

class Golden {
 public:
  /// Flat elements [begin, end) of gradient `name` that are zero in exact arithmetic and must be excluded from
  /// comparisons.
  struct ZeroRange {
    std::string name;
    int64_t begin;
    int64_t end;
  };

  /// Names of all cases, sorted.
  static std::vector<std::string> cases();
  static std::filesystem::path folder();

  /// Opens a case; throws Error if it, or later a requested item, is missing.
  explicit Golden(const std::string& name);
  ~Golden();
  Golden(const Golden&) = delete;
  Golden& operator=(const Golden&) = delete;

  const std::string& name() const { return name_; }

  /// Attributes of the file: the keys of the deck's [model] section and what else the README lists.
  std::vector<std::string> attributes() const;
  bool has(const std::string& attribute) const;
  std::string text(const std::string& attribute) const;
  int64_t integer(const std::string& attribute) const;
  bool flag(const std::string& attribute) const { return integer(attribute) != 0; }
  double number(const std::string& attribute) const;
  /// Attribute of a group or dataset, e.g. ("grads/lm_head.weight", "bf16_error").
  double number(const std::string& object, const std::string& attribute) const;

  /// Names in a group such as "params" or "grads", sorted.
  std::vector<std::string> names(const std::string& group) const;
  GoldenArray<float> floats(const std::string& path) const;
  GoldenArray<double> doubles(const std::string& path) const;
  GoldenArray<int32_t> ints(const std::string& path) const;
  double scalar(const std::string& path) const;

  std::vector<ZeroRange> zero_gradients() const;
  /// Error of gradient `name` against the golden one, as L2 norms without the zero ranges: |value - golden| / |golden|.
  double gradient_error(const std::string& name, std::span<const float> value) const;
  /// The same without the division, to compare with the attribute bf16_error.
  double gradient_distance(const std::string& name, std::span<const float> value) const;

 private:
  std::string name_;
  int64_t file_;  ///< hid_t
};

}  // namespace llmtrain
