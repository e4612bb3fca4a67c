#pragma once
#include <cstdint>
#include <string>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;

/// [checkpoint]; a value 0 of an every_... key means never.
struct CheckpointConfig {
  enum class Export : uint8_t { none, last, best };
  enum class ExportType : uint8_t { fp32, bf16, fp16 };
  /// One file a rank or a node; automatic: a rank below `large_job` ranks, else a node.
  enum class Files : uint8_t { automatic, rank, node };
  static constexpr int64_t large_job = 64;

  int64_t every_steps = 500;
  double every_epochs = 0;  ///< above 0: replaces every_steps once the data are known
  double every_minutes = 0;
  bool at_end = true;
  int64_t keep = 3;
  std::string resume = "auto";  ///< auto, never, required, or a checkpoint's path
  bool asynchronous = true;
  int64_t buffer = int64_t{256} << 20;  ///< bytes
  bool verify = true;
  bool signal_save = true;

  Files files = Files::automatic;
  std::string best_metric = "validation/loss";

  Export export_model = Export::none;  ///< <run>/export, a Hugging Face folder
  bool export_merged = false;          ///< with adapters: export/ has the model with the adapters in it
  ExportType export_dtype = ExportType::fp32;
  int64_t export_file_size = 5'000'000'000;  ///< bytes

  /// True if export/ is written at the end.
  bool writes_model(bool adapters) const { return adapters ? export_merged : export_model != Export::none; }
  /// True if the ranks of a node share a file of the state.
  bool shares_files(int64_t ranks) const {
    return files == Files::node || (files == Files::automatic && ranks >= large_job);
  }
  bool saves() const { return every_steps > 0 || every_minutes > 0 || at_end; }
  /// Path that resume names, or empty.
  std::string resume_path() const {
    return resume == "auto" || resume == "never" || resume == "required" ? std::string() : resume;
  }

  void visit(DeckKeys& keys);
};

template <>
inline constexpr auto enum_names<CheckpointConfig::Export> = name_list("none", "last", "best");
template <>
inline constexpr auto enum_names<CheckpointConfig::Files> = name_list("auto", "rank", "node");
template <>
inline constexpr auto enum_names<CheckpointConfig::ExportType> = name_list("fp32", "bf16", "fp16");

}  // namespace llmtrain
