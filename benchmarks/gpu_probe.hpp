#pragma once
// What the items of gpu_probe share: the report, and comparisons of whole tensors on the device.

#include <functional>
#include <string>
#include <vector>

#include "gpu_buffers.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain::probe {

struct Options {
  bool small = false;    ///< sizes for the emulator
  bool timings = false;  ///< measures each item, too
  int repeats = 20;
};

/// Prints a JSON object for each item and counts the wrong ones.
class Report {
 public:
  /// `facts`: further members, as JSON without braces; `wrong`: what was found instead, empty if the item is right.
  void add(const std::string& item, const std::string& what, const std::string& wrong, const std::string& facts = {});
  /// An item that this machine or build cannot run.
  void pass_over(const std::string& item, const std::string& what, const std::string& why);
  int wrong() const { return wrong_; }

 private:
  int wrong_ = 0;
};

/// Returns the first elements that differ from `value`, as text; empty if none does. `expected` is a tensor of t's
/// type and size, which is overwritten.
std::string other_than(const Tensor& t, float value, const Tensor& expected, Stream& stream);

/// Calls run() `repeats` times, before each of which the outputs are overwritten with `poison`, and returns which
/// repeat gave other bytes than the first; empty if none did.
std::string other_bytes(const std::vector<Tensor>& outputs, float poison, int repeats, const std::function<void()>& run,
                        Stream& stream);

/// Values of a 16-bit or fp32 tensor on the host.
std::vector<float> values_of(const Tensor& t, Stream& stream);

/// "seconds" and, for a product, "tflops" of a call, as facts; empty without timings.
std::string timing(const Options& options, Stream& stream, double flops, const std::function<void()>& run);

// gpu_probe_model.cpp
/// Passes of a model of 12 layers: without a graph, recorded, and replayed three times, to the same gradients.
void graph_of_a_model(Report& report, const Options& options, Stream& stream);
/// Transfers of a job of one rank that NCCL carries out.
void nccl_of_one_rank(Report& report, Communicator& communicator, Stream& stream);

}  // namespace llmtrain::probe
