#include <cstdlib>

#include "harness/process.hpp"

namespace llmtrain::test {

Process::Process(int& /*argc*/, char**& /*argv*/) {}
Process::~Process() = default;
int Process::agree(int code) const { return code; }
void Process::abort() const { std::abort(); }

}  // namespace llmtrain::test
