#include "tasks/estimate/estimate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/number_text.hpp"
#include "device/device.hpp"
#include "tasks/estimate/memory_limit.hpp"

namespace llmtrain {

namespace {

std::string time_text(const Prediction& t) {
  std::string text = fmt::format("time, measured from {} steps on this machine\n", t.measured);
  text += fmt::format("  {:<14} {:>16.4g} s      {:>10}\n", "per step", t.step,
                      with_unit(t.tokens_per_step / t.step, "tok/s"));
  if (t.evaluations > 0) {
    text += fmt::format("  {:<14} {:>16.4g} s      {:>10}  ({} evaluations)\n", "per evaluation", t.evaluation,
                        duration(t.evaluation), t.evaluations);
  }
  return text +
         fmt::format("  {:<14} {:>16.4g} s      {:>10}  ({} steps; start-up, checkpoints and samples excluded)\n",
                     "whole run", t.run(), duration(t.run()), t.steps);
}

std::string traffic_text(const TrafficEstimate& t) {
  const auto line = [](std::string_view name, int64_t bytes) {
    return fmt::format("  {:<14} {:>16} bytes  {:>10}", name, bytes, bytes_text(static_cast<double>(bytes)));
  };
  std::string text = fmt::format("traffic of a step on {} nodes\n", t.nodes);
  text += line("node's port", t.step.port_bytes) + "  (of the busiest node, the larger of both directions)\n";
  text += line("inside a node", t.step.node_bytes) + "\n";
  text +=
      fmt::format("  {:<14} {:>16}                    (of a rank, {} to other nodes; at most {} requests at once)\n",
                  "messages", t.step.messages, t.step.network_messages, t.step.requests);
  for (size_t a = 0; a < traffic_axes.size(); ++a) {
    const StepTraffic& axis = t.axes[a];
    if (axis.messages == 0 && axis.node_bytes == 0) continue;
    text += line(traffic_axes[a], axis.port_bytes) +
            fmt::format("  (of these through the port; {} inside a node, {} messages)\n",
                        bytes_text(static_cast<double>(axis.node_bytes)), axis.messages);
  }
  text += fmt::format("  {:<14} {:>16.4g} a second           (checkpoints: {} files of the state)\n", "opened files",
                      t.opens_per_second, t.checkpoint_files);
  if (t.network) text += fmt::format("  {:<14} {:>16.4g} s\n", "network", t.network_seconds());
  if (t.node_seconds() > 0) text += fmt::format("  {:<14} {:>16.4g} s\n", "node's memory", t.node_seconds());
  if (!t.has_time()) return text;
  text += fmt::format("  {:<14} {:>16.4g} s\n", "computing", t.computing);
  return text + fmt::format("  {:<14} {:>16.4g} s                  ({:.4g} s if nothing overlaps)\n", "step",
                            t.overlapped_seconds(), t.serial_seconds());
}

nlohmann::ordered_json traffic_json(const TrafficEstimate& t) {
  nlohmann::ordered_json j = {{"port_bytes", t.step.port_bytes},
                              {"node_bytes", t.step.node_bytes},
                              {"messages", t.step.messages},
                              {"requests", t.step.requests},
                              {"own_bytes", t.step.own_bytes},
                              {"network_messages", t.step.network_messages},
                              {"files_opened_per_second", t.opens_per_second}};
  for (size_t a = 0; a < traffic_axes.size(); ++a) {
    const StepTraffic& axis = t.axes[a];
    if (axis.messages == 0 && axis.node_bytes == 0) continue;
    j[traffic_axes[a]] = {
        {"port_bytes", axis.port_bytes}, {"node_bytes", axis.node_bytes}, {"messages", axis.messages}};
  }
  if (t.has_time()) j["files_opened"] = t.opens_per_second * t.overlapped_seconds();
  return j;
}

std::string mesh_text(const PlannedMesh& mesh) {
  const std::string expert = mesh.expert > 1 ? fmt::format(", experts on {}", mesh.expert) : "";
  return fmt::format("  {:<14} {:>16} data x {} context x {} tensor{}\n", "mesh", mesh.data(), mesh.context,
                     mesh.tensor, expert);
}

std::string proposal_text(const MeshChoice& choice) {
  const std::string bytes = bytes_text(static_cast<double>(choice.cost.rank_bytes));
  const std::string time =
      choice.cost.step_seconds > 0 ? fmt::format(", {:.4g} s a step", choice.cost.step_seconds) : "";
  if (choice.cost.fits)
    return fmt::format("fastest mesh that fits: {} ({} a rank{})\n", choice.settings(), bytes, time);
  return fmt::format("no mesh fits memory.limit: {} needs least ({} a rank)\n", choice.settings(), bytes);
}

nlohmann::ordered_json mesh_json(const PlannedMesh& mesh) {
  nlohmann::ordered_json axes = {{"data", mesh.data()}, {"context", mesh.context}, {"tensor", mesh.tensor}};
  if (mesh.expert > 1) axes["expert"] = mesh.expert;
  return axes;
}

nlohmann::ordered_json proposal_json(const MeshChoice& choice) {
  nlohmann::ordered_json j = mesh_json(choice.mesh);
  j["zero"] = choice.zero;
  j["recompute"] = name_of(choice.recompute);
  j["reduction"] = name_of(choice.reduction);
  j["fits"] = choice.cost.fits;
  j["bytes_per_rank"] = choice.cost.rank_bytes;
  if (choice.cost.step_seconds > 0) j["step_seconds"] = choice.cost.step_seconds;
  j["settings"] = choice.settings();
  return j;
}

/// Bytes of `ranks` ranks together.
int64_t times(int64_t bytes, int64_t ranks) {
  int64_t all = 0;
  if (__builtin_mul_overflow(bytes, ranks, &all)) {
    throw UserError(ExitCode::deck, fmt::format("--estimate: {} ranks of {} on a node need more than 2^63 bytes: use a "
                                                "smaller model or micro-batch, or fewer --ranks-per-node",
                                                ranks, bytes_text(static_cast<double>(bytes))));
  }
  return all;
}

int64_t bytes_of(const Estimate& e) { return e.plan->bytes() + e.library_bytes; }

/// Bytes by which the largest rank exceeds memory.limit, so that the run would be refused; 0 = it fits.
int64_t beyond_limit(const Estimate& e) {
  if (e.limit == 0) return 0;
  const int64_t largest = std::max(bytes_of(e), e.last_node ? e.last_node->rank_bytes : 0) - e.spared_bytes;
  return largest > e.limit + between_starts ? largest - e.limit : 0;
}

/// Calls see(name, bytes) for each part of a rank's memory, and for the total. Only generation has a KV cache.
template <class See>
void each_part(const Estimate& e, const See& see) {
  for (int c = 0; c < memory_category_count; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    const int64_t bytes = e.plan->bytes(category);
    if (category != MemoryCategory::kv_cache || bytes > 0) see(name_of(category), bytes);
  }
  see("libraries", e.library_bytes);
  see("total", bytes_of(e));
}

}  // namespace

std::string MeshChoice::settings() const {
  return fmt::format(
      "parallel.context={} parallel.tensor={} parallel.zero={} parallel.reduction={} memory.recompute={}", mesh.context,
      mesh.tensor, zero, name_of(reduction), name_of(recompute));
}

int64_t bytes_of_node(const Estimate& e) { return times(bytes_of(e), e.ranks_per_node); }

std::string estimate_text(const Estimate& e) {
  const bool part = e.trained_parameters > 0 && e.trained_parameters < e.parameters;
  std::string text =
      fmt::format("memory of one rank of {} ({} on a node), {} parameters{}\n", e.ranks, e.ranks_per_node, e.parameters,
                  part ? fmt::format(", {} of them trained", e.trained_parameters) : "");
  if (e.mesh.ranks_per_micro_batch() * e.mesh.expert > 1) text += mesh_text(e.mesh);
  each_part(e, [&](std::string_view name, int64_t bytes) {
    text += fmt::format("  {:<14} {:>16} bytes  {:>10}\n", name, bytes, bytes_text(static_cast<double>(bytes)));
  });
  if (const int64_t beyond = beyond_limit(e); beyond > 0) {
    text +=
        fmt::format("  {:<14} {:>16} bytes  {:>10}  (memory.limit is {}: the run would be refused)\n", "beyond limit",
                    beyond, bytes_text(static_cast<double>(beyond)), bytes_text(static_cast<double>(e.limit)));
  }
  const int64_t node = bytes_of_node(e), disk = e.state_bytes;
  text += fmt::format("  {:<14} {:>16} bytes  {:>10}\n", "per node", node, bytes_text(static_cast<double>(node)));
  if (e.last_node) {
    const int64_t last = times(e.last_node->rank_bytes, e.last_node->ranks);
    text += fmt::format("  {:<14} {:>16} bytes  {:>10}  (the remaining {} ranks)\n", "last node", last,
                        bytes_text(static_cast<double>(last)), e.last_node->ranks);
  }
  if (e.pinned_bytes != 0) {
    text += fmt::format("  {:<14} {:>16} bytes  {:>10}  (offloaded to the host; {} per node)\n", "host memory",
                        e.pinned_bytes, bytes_text(static_cast<double>(e.pinned_bytes)),
                        bytes_text(static_cast<double>(times(e.pinned_bytes, e.ranks_per_node))));
  }
  const int64_t offloaded = e.offloaded_bytes;
  if (offloaded != 0) {
    text += fmt::format("  {:<14} {:>16} bytes  {:>10}  (in parallel.offload_path; {} per node)\n", "offloaded",
                        offloaded, bytes_text(static_cast<double>(offloaded)),
                        bytes_text(static_cast<double>(times(offloaded, e.ranks_per_node))));
  }
  if (disk != 0)
    text += fmt::format("  {:<14} {:>16} bytes  {:>10}  (master weights and moments, all ranks)\n", "state on disk",
                        disk, bytes_text(static_cast<double>(disk)));
  if (e.cache_bytes != 0) {
    text += fmt::format("  {:<14} {:>16} bytes  {:>10}  (the teacher's log-probabilities, at most)\n", "data.cache",
                        e.cache_bytes, bytes_text(static_cast<double>(e.cache_bytes)));
  }
  if (e.time) text += time_text(*e.time);
  if (e.traffic && e.ranks > 1) text += traffic_text(*e.traffic);
  if (e.proposal) text += proposal_text(*e.proposal);
  return text;
}

std::string estimate_json(const Estimate& e) {
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  j["ranks"] = e.ranks;
  j["ranks_per_node"] = e.ranks_per_node;
  j["mesh"] = mesh_json(e.mesh);
  j["parameters"] = e.parameters;
  j["trained_parameters"] = e.trained_parameters;
  each_part(e, [&](std::string_view name, int64_t bytes) { j["bytes_per_rank"][std::string(name)] = bytes; });
  if (e.limit > 0) {
    j["memory_limit"] = e.limit;
    j["bytes_beyond_limit"] = beyond_limit(e);
  }
  j["bytes_per_node"] = bytes_of_node(e);
  if (e.last_node) {
    j["ranks_of_last_node"] = e.last_node->ranks;
    j["bytes_of_last_node"] = times(e.last_node->rank_bytes, e.last_node->ranks);
  }
  j["host_bytes_per_rank"] = e.pinned_bytes;
  j["offloaded_bytes_per_rank"] = e.offloaded_bytes;
  j["offloaded_bytes_per_node"] = times(e.offloaded_bytes, e.ranks_per_node);
  j["checkpoint_bytes"] = e.state_bytes;
  if (e.cache_bytes != 0) j["cache_bytes"] = e.cache_bytes;
  if (e.time) {
    j["seconds_per_step"] = e.time->step;
    j["seconds_per_evaluation"] = e.time->evaluation;
    j["seconds_of_run"] = e.time->run();
    j["tokens_per_second"] = e.time->tokens_per_step / e.time->step;
    j["measured_steps"] = e.time->measured;
    j["steps"] = e.time->steps;
    j["evaluations"] = e.time->evaluations;
  }
  if (e.traffic) {
    const TrafficEstimate& t = *e.traffic;
    j["nodes"] = t.nodes;
    j["traffic"] = traffic_json(t);
    j["checkpoint_files"] = t.checkpoint_files;
    if (t.network) j["network_seconds"] = t.network_seconds();
    if (t.node_seconds() > 0) j["node_seconds"] = t.node_seconds();
    if (t.has_time()) {
      j["computing_seconds"] = t.computing;
      j["step_seconds"] = t.overlapped_seconds();
      j["step_seconds_without_overlap"] = t.serial_seconds();
    }
  }
  if (e.proposal) j["proposal"] = proposal_json(*e.proposal);
  return j.dump(2) + "\n";
}

}  // namespace llmtrain
