#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/arena.hpp"
#include "core/batch.hpp"
#include "core/params.hpp"
#include "device/device.hpp"
#include "kernels/matmul.hpp"
#include "layers/kv_cache.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// Context of a pass for every layer. Dropout is active when training.
struct Context {
  ParamStore& params;
  Arena& arena;
  Stream& stream;
  uint64_t seed = 0;
  int64_t step = 0;
  bool training = false;
  const KvCache* cache = nullptr;  ///< null except in generation
  /// Role of all matrix products. Outside training, the bits of a row do not depend on the other rows.
  ProductRole role = ProductRole::training;
};

/// A parameter of a layer; may be absent.
struct ParamRef {
  int unit = -1;
  int param = -1;

  bool exists() const { return unit >= 0; }
  Tensor weight(const Context& ctx) const { return exists() ? ctx.params.weight(unit, param) : Tensor(); }
  Tensor gradient(Context& ctx) const { return exists() ? ctx.params.gradient(unit, param) : Tensor(); }
};

/// Collects the parameters of the layers that make up one unit.
class UnitBuilder {
 public:
  UnitBuilder(UnitSpec& spec, int unit) : spec_(spec), unit_(unit) {}

  ParamRef matrix(std::string name, int64_t rows, int64_t columns, Initializer init, std::vector<ParamSlice> slices) {
    return add({std::move(name), rows, columns, true, init, std::move(slices)});
  }
  ParamRef vector(std::string name, int64_t rows, Initializer init, std::vector<ParamSlice> slices) {
    return add({std::move(name), rows, 1, false, init, std::move(slices)});
  }

 private:
  ParamRef add(ParamSpec spec) {
    if (spec.slices.empty()) spec.slices.push_back({spec.name, 0, spec.rows});
    spec_.params.push_back(std::move(spec));
    return {unit_, static_cast<int>(spec_.params.size()) - 1};
  }

  UnitSpec& spec_;
  int unit_;
};

/// The first n rows of a buffer planned for more rows.
inline Tensor first_rows(const Tensor& t, int64_t n) { return t.empty() ? t : t.rows(0, n); }

}  // namespace llmtrain
