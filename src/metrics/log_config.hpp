#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/deck.hpp"
#include "core/deck/named_enum.hpp"

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [log]; a value 0 of an ..._steps key means never.
struct LogConfig {
  /// In the order in which they are written: html reads what jsonl has.
  enum class Sink : uint8_t { hdf5, jsonl, tensorboard, wandb, html };

  int64_t every_steps = 10;
  bool every_first = true;
  std::vector<Sink> sinks = {Sink::hdf5, Sink::jsonl};
  int64_t samples_every_steps = 0;
  std::vector<std::string> sample_prompts;  ///< empty: one sample that starts like a document of the data
  int64_t sample_length = 256;              ///< new tokens
  double sample_temperature = 1;            ///< 0 = greedy
  int64_t sample_top_k = 0;                 ///< 0 = off
  double sample_top_p = 1;                  ///< 1 = off
  int64_t parameter_hash_every_steps = 0;
  bool system = true;       ///< values of the nodes
  Duration slow_after{60};  ///< of a node that is named; 0: none is
  int64_t profile = 0;      ///< number of steps to profile

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

template <>
inline constexpr auto enum_names<LogConfig::Sink> = name_list("hdf5", "jsonl", "tensorboard", "wandb", "html");

}  // namespace llmtrain
