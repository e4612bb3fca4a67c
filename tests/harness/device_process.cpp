#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "core/error.hpp"
#include "harness/harness.hpp"
#include "harness/process.hpp"

namespace llmtrain::test {
namespace {
std::unique_ptr<DeviceRuntime> device_runtime;
std::unique_ptr<Stream> process_stream;

int threads_from_environment() {
  const char* given = std::getenv("OMP_NUM_THREADS");
  const int threads = given != nullptr ? std::atoi(given) : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(threads, 1);
}
}  // namespace

Process::Process(int& /*argc*/, char**& /*argv*/) {
  try {
    device_runtime = std::make_unique<DeviceRuntime>(0, threads_from_environment());
    process_stream = std::make_unique<Stream>();
  } catch (const UserError& error) {
    if (error.code() != ExitCode::no_device) throw;
    std::cerr << "skipped: " << error.what() << '\n';
    std::exit(skipped);
  }
}
Process::~Process() {
  process_stream.reset();
  device_runtime.reset();
}
int Process::agree(int code) const { return code; }
void Process::abort() const { std::abort(); }

Stream& stream() { return *process_stream; }

}  // namespace llmtrain::test
