#include "layers/sharing/expert_exchange.hpp"

#include "parallel/traffic.hpp"

namespace llmtrain {

void ExpertExchange::gather(const Tensor& rows, Stream& stream) {
  for (int64_t other = 0; other < ranks(); ++other) {
    if (other == rank()) continue;
    send(rows.rows(rank(), 1), other);
    receive(rows.rows(other, 1), other);
  }
  exchange(stream);
}

void ExpertExchange::exchange(Stream& stream) {
  Transfer transfer = [&] {
    const TrafficScope scope(TrafficAxis::expert);
    return ranks_.send_and_receive(sends_, receives_, stream);
  }();
  transfer.finish(stream, meanwhile_);
  sends_.clear();
  receives_.clear();
}

}  // namespace llmtrain
