// Where the program is built without liburing.

#include "core/error.hpp"
#include "core/files/io_ring.hpp"

namespace llmtrain {

struct IoRing::Kernel {};

IoRing::IoRing() = default;
IoRing::~IoRing() = default;

std::string IoRing::library() { return ""; }
std::string IoRing::open(unsigned /*depth*/) { return "built without liburing"; }
std::string IoRing::fix(char* /*memory*/, int64_t /*bytes*/) { return "built without liburing"; }
void IoRing::submit(const Request& /*request*/) { LLMTRAIN_CHECK(false, "there is no ring"); }
IoRing::Result IoRing::wait() {
  LLMTRAIN_CHECK(false, "there is no ring");
  return {};
}

}  // namespace llmtrain
