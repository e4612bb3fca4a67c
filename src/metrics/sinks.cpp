#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "metrics/sink.hpp"

namespace llmtrain {

namespace {

struct SinkEntry {
  LogConfig::Sink name;
  std::unique_ptr<Sink> (*make)(const SinkOptions& options);
};

constexpr std::array sinks = {
    SinkEntry{LogConfig::Sink::hdf5, make_hdf5_sink},
    SinkEntry{LogConfig::Sink::jsonl, make_jsonl_sink},
    SinkEntry{LogConfig::Sink::tensorboard, make_tensorboard_sink},
    SinkEntry{LogConfig::Sink::wandb, make_wandb_sink},
    SinkEntry{LogConfig::Sink::html, make_html_sink},
};

}  // namespace

std::unique_ptr<Sink> make_sink(LogConfig::Sink name, const SinkOptions& options) {
  const auto found = std::ranges::find(sinks, name, &SinkEntry::name);
  LLMTRAIN_CHECK(found != sinks.end(), "every sink has an entry");
  return found->make(options);
}

}  // namespace llmtrain
