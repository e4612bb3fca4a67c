#pragma once
// Tensors of a Hugging Face folder and the location of their bytes: model.safetensors alone, or the files that
// model.safetensors.index.json names.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/folder_handle.hpp"
#include "core/quantization.hpp"
#include "hf/weights/safetensors.hpp"
#include "kernels/quantize.hpp"

namespace llmtrain {

inline constexpr const char* single_weights_name = "model.safetensors";
inline constexpr const char* weights_index_name = "model.safetensors.index.json";

/// The tensors beside the codes of a quantised matrix: where their bytes begin.
struct QuantizedPlanes {
  struct Plane {
    size_t file = 0;
    int64_t begin = 0;
  };
  Quantization quantization;
  Plane scales;                ///< fp32; with double quantisation bytes
  Plane nested;                ///< fp32: scales of the scales
  int64_t nested_block = 256;  ///< scales in a block of scales
  float offset = 0;            ///< added to every scale

  /// True if a matrix that is stored as `wanted` has these codes and scales.
  bool are(Quantization wanted) const {
    wanted.outlier_threshold = quantization.outlier_threshold;  // belongs to products, not to the storage
    return nested_block == NestedScales::block && quantization == wanted;
  }
};

/// The tensors beside the codes of a matrix in GPTQ's or AutoAWQ's layout. A weight is scale x (code - zero point) of
/// its output and group of inputs, rounded to the type of the scales.
struct PackedPlanes {
  bool awq = false;           ///< codes of 8 outputs of an input in a word, interleaved; GPTQ: of 8 inputs of an output
  bool zeros_less_1 = false;  ///< the first version of GPTQ's files stores zero points minus 1
  bool zero_bias = false;     ///< the files have a bias of the module, of zeros
  QuantizedPlanes::Plane scales, zeros;                 ///< [groups, outputs]; zero points of 8 outputs in a word
  std::optional<QuantizedPlanes::Plane> group_of = {};  ///< int32 [inputs]; none: groups are runs of group_size inputs
  int64_t groups = 0;
  int64_t group_size = 0;
};

struct WeightIndex {
  struct File {
    std::string name;
    int64_t bytes;
  };
  /// Distances, in elements, of the rows and columns of a matrix that is a part of a tensor of all experts.
  struct Strides {
    int64_t row, column;
  };
  /// Scales of a matrix in MXFP4, a byte each. A block is 32 elements of a row.
  struct BlockScales {
    size_t file;
    int64_t begin;
    int64_t row_stride;  ///< blocks from a row to the next, of scales and codes
  };
  /// A quantised matrix is one tensor: its shape, the type of its values, the bytes of its codes (of MXFP4 16 for a
  /// block), and the planes beside them. Other quantised matrices than those in MXFP4 are stored as the model has them,
  /// never transposed.
  struct Tensor : StoredTensor {
    size_t file = 0;
    std::optional<QuantizedPlanes> quantized = {};
    std::optional<BlockScales> mxfp4 = {};
    std::optional<PackedPlanes> packed = {};
    std::optional<Strides> strides = {};  ///< shape is [rows, columns]; `end` is that of the last element

    /// True for a matrix that the files have in codes as the model has it, [outputs, inputs].
    bool has_codes() const { return quantized || packed; }
    /// "nf4", "fp4", "int8", "gptq" or "awq" of such a matrix.
    std::string_view storage() const;
  };

  std::string folder;
  std::vector<File> files;
  std::vector<Tensor> tensors;                  ///< sorted by name
  std::map<std::string, std::string> metadata;  ///< metadata of the first file

  const Tensor* find(std::string_view name) const;

  /// Serializes the index for ranks that do not read the headers.
  std::string packed() const;
  static WeightIndex unpacked(const std::string& bytes);
};

/// Reads and checks every header. Throws UserError: missing_input if there are no weights (with advice on other
/// formats), bad_content for damaged or hostile files.
WeightIndex read_weight_index(const FolderHandle& folder);

/// Reads and checks the header of one file alone.
WeightIndex read_weight_file(const FolderHandle& folder, const std::string& name);

/// Makes one tensor of the several of each quantised matrix; the index is sorted by name. Throws
/// UserError(bad_content) that names file, tensor and problem: a plane that is missing, short or left over, a
/// quant_type, shape or map that is not known.
void join_quantized_tensors(WeightIndex& index, const FolderHandle& folder);

/// The same for matrices of 4 bits in the layouts of GPTQ (AutoGPTQ, GPTQModel) and AutoAWQ (gemm), of which
/// config.json says which one it is. Throws UserError(bad_content) that names file and tensor: a plane that is missing,
/// left over, or of another shape or type, an input's group that is not there, another number of bits.
void join_packed_tensors(WeightIndex& index, const FolderHandle& folder);

/// Properties of matrices in these layouts, as quantization_config of config.json names them.
struct PackedFormat {
  bool awq = false;
  bool zeros_less_1 = false;
  int64_t group_size = 128;    ///< inputs; -1: all
  bool by_activation = false;  ///< desc_act: groups are of inputs in any order, which g_idx says
};
/// Returns nothing for other methods. `place` is the object's, for messages. Throws UserError(bad_content) for what is
/// not supported.
std::optional<PackedFormat> packed_format(const nlohmann::json& quantization_config, const std::string& place);

/// Names of the tensors beside `weight`.
inline constexpr std::string_view quant_state_prefix = ".quant_state.bitsandbytes__";

/// Returns the command that converts a model in old PyTorch files to safetensors.
std::string pickle_way_out(const std::string& folder);

}  // namespace llmtrain
