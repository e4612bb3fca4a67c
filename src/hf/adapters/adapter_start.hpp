#pragma once
// Adapters that start from the matrices beside them (AdapterShape::Init): PiSSA (Meng et al. 2024, arXiv:2404.02948),
// OLoRA (Buyukakyuz 2024, arXiv:2406.01775) and LoftQ (Li et al. 2023, arXiv:2310.08659), scaled as by PEFT. Their
// start lies in a file of the run, from which frozen matrices are formed again when it resumes.

#include <memory>
#include <string>

#include "hf/weights/load_weights.hpp"

namespace llmtrain {

/// In the run's folder: A and B under PEFT's names, fp32.
inline constexpr const char* adapter_start_name = "initial_adapter.safetensors";

/// Collective. Computes the start of all adapters of `shape` that have one, a matrix on one rank, from the weights in
/// `folder`, and writes the file. The values do not depend on the number of ranks and threads. LoftQ corrects matrices
/// that the shape quantises; adapters of others start as they would without it. Throws UserError: deck for a rank above
/// a matrix's smaller side; bad_content for values that are not finite.
void write_adapter_start(const std::string& file, const std::string& folder, const DecoderShape& shape,
                         Communicator& communicator);

struct AdapterStart {
  WeightIndex index;  ///< of the file alone
  std::shared_ptr<const FileHandle> file;
  SubtractedProducts minus;  ///< empty for LoftQ

  /// Collective; rank 0 reads the header. Throws UserError: missing_input, bad_content.
  static AdapterStart open(const std::string& file, const DecoderShape& shape, Communicator& communicator);
  /// The adapters' parameters among those of these units.
  WeightMatch match(const std::vector<UnitSpec>& units) const;
};

}  // namespace llmtrain
