#pragma once
#include <cstdint>
#include <span>

#include "layers/context.hpp"

namespace llmtrain {

/// Balances the load of experts without a loss (Wang et al. 2024, arXiv:2408.15664, algorithm 1): adds `rate` to the
/// selection bias of every expert with fewer pairs than the mean of its layer, and subtracts it from that of one with
/// more. biases: [E] of each layer with experts; frozen ones stay. pairs [layers, E]: choices of the step, the same on
/// all ranks. Changes masters alone; the optimizer's update, which follows, rounds and publishes them.
void move_router_biases(ParamStore& params, std::span<const ParamRef> biases, std::span<const int64_t> pairs,
                        double rate, Stream& stream);

}  // namespace llmtrain
