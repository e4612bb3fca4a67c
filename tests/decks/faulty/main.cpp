// llmtrain with injected numerical faults. LLMTRAIN_TEST_FAULTS lists them, separated by semicolons: fault, selector,
// number, rank (-1: all), value.
//
//   gradient data 7 1 nan   one element of the gradient on rank 1 in the step with step 7 of the data (from 0)
//   loss step 3 0 inf       the loss on rank 0 in step 3 (from 0), whatever its data
//   rate data 7 -1 10       the learning rate times 10
//   signal step 3 0 10      signal 10 to the process itself
//   signal evaluation 3 0 10  the same before the fourth unit of work of all evaluations in training; sampling: of
//   samples
//   bit gradient 7 1 12345  one bit of a gradient on rank 1 in every pass from step 7 on (from 0); 12345 draws which.
//   bit weights: of a weight before a product; bit result: of the product; bitonce: once, in step 7 or later
//   save sampling 3 0 FILE  creates the file
//   wait sampling 3 0 500   waits this many milliseconds

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/philox.hpp"
#include "parallel/job/runtime.hpp"
#include "params/number_hook.hpp"
#include "tasks/command_line.hpp"
#include "tasks/program.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/step_hook.hpp"

using namespace llmtrain;

namespace {

struct Fault {
  std::string what, by, value;
  int64_t number = 0;
  int rank = 0;
};

std::vector<Fault>& faults() {
  static std::vector<Fault> all;
  return all;
}

void change_gradient(ParamStore& params, float value, Stream& stream) {
  for (int unit = 0; unit < params.units().size(); ++unit) {
    const ParamStore::Shard shard = params.shard(unit, 0);
    const UnitRange own = params.units().owned(unit, 0);
    if (own.begin == own.end) continue;
    copy_to_device(shard.gradient.as<float>() + (own.begin - shard.begin), &value, sizeof value, stream);
    return;
  }
}

void apply(const StepUnderWay& step) {
  for (const Fault& fault : faults()) {
    if (fault.by != "data" && fault.by != "step") continue;
    if (fault.number != (fault.by == "data" ? step.data_step : step.step)) continue;
    if (fault.rank >= 0 && fault.rank != step.rank) continue;
    const double value = std::strtod(fault.value.c_str(), nullptr);
    if (fault.what == "gradient") change_gradient(step.params, static_cast<float>(value), step.stream);
    if (fault.what == "loss") step.loss.add(value);
    if (fault.what == "rate") step.learning_rate *= value;
    if (fault.what == "signal") std::raise(static_cast<int>(value));
  }
}

/// A fault of `bit`, and the place that it hits.
struct Bit {
  const Fault* fault;
  int64_t calls = 0;             ///< in the first step
  int64_t unit = -1, numel = 0;  ///< the place
  bool done = false;
  const void* at = nullptr;
  uint8_t changed = 0;  ///< value after the fault, of a weight that stays
};

int own_rank() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank != nullptr ? std::atoi(rank) : 0;
}

/// Flips one of the high bits of a mantissa, in the second half of a tensor, where a row attends to several, at an
/// element that is not padding. Weights that stay in place keep the flipped one.
void flip(Bit& bit, NumberKind kind, const Tensor& values, uint64_t random, Stream& stream) {
  const auto bytes = static_cast<size_t>(size_of(values.dtype));
  std::vector<uint8_t> all(static_cast<size_t>(values.bytes()));
  copy_to_host(all.data(), values.data, values.bytes(), stream);
  stream.synchronize();
  const size_t count = all.size() / bytes;
  size_t element = count / 2 + random / 64 % (count - count / 2);
  const auto is_zero = [&](size_t at) {
    return std::all_of(&all[at * bytes], &all[at * bytes] + bytes, [](uint8_t byte) { return byte == 0; });
  };
  for (size_t i = 0; i < count && is_zero(element); ++i) element = (element + 1) % count;
  const size_t place = element * bytes + (bytes == 4 ? 2 : 0);
  auto* byte = static_cast<uint8_t*>(values.data) + place;
  if (kind == NumberKind::weights && bit.at == byte && bit.changed == all[place]) return;
  bit.at = byte;
  bit.changed = all[place] ^ static_cast<uint8_t>(8U << (random % 4));
  copy_to_device(byte, &bit.changed, 1, stream);
  stream.synchronize();
}

void apply_to_numbers(NumberKind kind, int64_t unit, const Tensor& values, Stream& stream) {
  static std::vector<Bit> bits = [] {
    std::vector<Bit> found;
    for (const Fault& fault : faults()) {
      const bool here = fault.rank < 0 || fault.rank == own_rank();
      if (fault.what.starts_with("bit") && here) found.push_back({&fault});
    }
    return found;
  }();
  const char* const names[] = {"gradient", "weights", "result"};
  for (Bit& bit : bits) {
    const int64_t step = activity().step - 1;
    const bool now = step >= bit.fault->number && !(bit.fault->what == "bitonce" && bit.done);
    if (bit.fault->by != names[static_cast<size_t>(kind)] || !now) continue;
    const uint64_t random = philox4x32(std::stoull(bit.fault->value), 0, 0).v[0];
    if (bit.unit < 0 && bit.calls++ == static_cast<int64_t>(random % 3)) {
      bit.unit = unit;
      bit.numel = values.numel();
    }
    if (bit.unit != unit || bit.numel != values.numel()) continue;
    flip(bit, kind, values, random, stream);
    bit.done = true;
  }
}

void apply_between(bool evaluation, int rank) {
  static int64_t pieces[2] = {0, 0};
  const int64_t number = pieces[evaluation ? 0 : 1]++;
  for (const Fault& fault : faults()) {
    if (fault.by != (evaluation ? "evaluation" : "sampling") || fault.number != number || fault.rank != rank) continue;
    if (fault.what == "signal") std::raise(std::atoi(fault.value.c_str()));
    if (fault.what == "save") std::ofstream(fault.value).put('\n');
    if (fault.what == "wait") std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(fault.value.c_str())));
  }
}

void read_faults(const char* text) {
  std::istringstream list(text != nullptr ? text : "");
  for (std::string item; std::getline(list, item, ';');) {
    std::istringstream words(item);
    Fault fault;
    words >> fault.what >> fault.by >> fault.number >> fault.rank >> fault.value;
    if (words.fail()) throw UserError(ExitCode::command_line, "LLMTRAIN_TEST_FAULTS: " + item);
    faults().push_back(fault);
  }
}

}  // namespace

int main(int argc, char** argv) {
  install_signal_handlers();
  try {
    read_faults(std::getenv("LLMTRAIN_TEST_FAULTS"));
    step_hook = apply;
    stop_poll_hook = apply_between;
    for (const Fault& fault : faults()) {
      if (fault.what.starts_with("bit")) number_hook = apply_to_numbers;
    }
    const CommandLine command = parse_command_line(argc, argv);
    Runtime runtime(argc, argv);
    return runtime.guard([&] { return run_program(command, runtime); });
  } catch (const UserError& error) {
    print_as_first_process(std::string("llmtrain: ") + error.what() + "\n");
    return static_cast<int>(error.code());
  }
}
