#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

/// A transfer with nothing to move.
class LocalCommunicator final : public Communicator {
 public:
  std::unique_ptr<Communicator> make_group(int) override { return make_local_communicator(); }
  std::string sharing_refusal(int64_t) override { return {}; }
  std::shared_ptr<void> allocate_shared(int64_t) override { return nullptr; }
  Transfer all_gather(const Tensor&, std::span<const int64_t>, Stream&) override { return {}; }
  Transfer exchange_shards(const Tensor&, std::span<const int64_t>, std::span<const Tensor>, std::span<const uint8_t>,
                           Stream&) override {
    return {};
  }
  void broadcast(void*, int64_t, int) override {}
  void broadcast(std::string&, int) override {}
  void sum(std::span<int64_t>) override {}
  void sum(std::span<uint64_t>) override {}
  void maximum(std::span<int64_t>) override {}
  void sum(ExactSum&) override {}
  std::vector<std::string> gather_all(const std::string& mine) override { return {mine}; }
  std::vector<std::string> gather(const std::string& mine) override { return {mine}; }
  void copy_between(void*, int64_t, int, int) override {}
  std::shared_ptr<const void> share_in_nodes(const void* data, int64_t bytes) override {
    const auto* first = static_cast<const char*>(data);
    const auto copy = std::make_shared<const std::vector<char>>(first, first + bytes);
    return {copy, copy->data()};
  }
  void barrier() override {}
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator() { return std::make_unique<LocalCommunicator>(); }

Communicator& this_process() {
  static LocalCommunicator communicator;
  return communicator;
}

}  // namespace llmtrain
