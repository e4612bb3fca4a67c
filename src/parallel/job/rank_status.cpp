#include "parallel/job/rank_status.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/machine.hpp"

namespace llmtrain {
namespace {

struct ProcessFacts {
  char state = '?';
  int64_t started = 0;
};

/// Parses /proc/<pid>/stat: "pid (name) state ..." with the start time as field 22; the name may contain anything.
std::optional<ProcessFacts> process_facts(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessFacts facts;
  fields >> facts.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> facts.started;
  if (!fields) return std::nullopt;
  return facts;
}

double seconds_since(int64_t nanoseconds) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::max(0.0, std::chrono::duration<double>(now - std::chrono::nanoseconds(nanoseconds)).count());
}

std::string bytes_of(int64_t bytes) {
  if (bytes >= 10'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{} bytes", bytes);
}

}  // namespace

ProcessIdentity own_identity() { return identity_of(getpid()); }

ProcessIdentity identity_of(int64_t pid) {
  ProcessIdentity own;
  own.host = host_name();
  own.pid = pid;
  if (const auto facts = process_facts(own.pid)) own.started = facts->started;
  std::array<char, 256> text{};
  const ssize_t length = readlink(fmt::format("/proc/{}/ns/pid", pid).c_str(), text.data(), text.size() - 1);
  if (length > 0) own.pid_namespace = std::string(text.data(), static_cast<size_t>(length)) + " of " + boot_id();
  return own;
}

ProcessState look_up(const ProcessIdentity& process, const ProcessIdentity& observer) {
  const bool comparable = process.host == observer.host && process.pid_namespace == observer.pid_namespace &&
                          process.started != 0 && observer.started != 0;
  if (!comparable) return ProcessState::unknown;
  const auto facts = process_facts(process.pid);
  if (!facts || facts->started != process.started) return ProcessState::gone;
  switch (facts->state) {
    case 'Z':
    case 'X':
      return ProcessState::gone;
    case 'T':
    case 't':
      return ProcessState::stopped;
    default:
      return ProcessState::running;
  }
}

RankStatus status_of(const Activity& activity) {
  const LaneActivity& main = activity.lane(Lane::main);
  const LaneActivity& writer = activity.lane(Lane::writer);
  const CollectiveActivity& collective = activity.collective;
  RankStatus status;
  status.step = activity.step.load();
  status.section = name_of(main.section.load());
  status.waits_for_writer = activity.waits_for_writer.load();
  status.waits_for_device = main.waits_for_device.load();
  status.in_file_call = main.file_calls.load() > 0;
  status.collective = collective.operation.load();
  status.sequence = static_cast<int64_t>(collective.sequence.load());
  status.bytes = collective.bytes.load();
  status.in_collective = collective.inside.load();
  status.since = status.sequence == 0 ? 0 : seconds_since(collective.since.load());
  status.writer_active = writer.active.load();
  return status;
}

std::string to_text(const RankStatus& s) {
  const auto rounded = [](double seconds) { return std::round(seconds * 10) / 10; };
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  j["rank"] = s.rank;
  j["host"] = s.process.host;
  j["pid"] = s.process.pid;
  j["step"] = s.step;
  j["section"] = s.section;
  j["idle"] = rounded(s.idle);
  j["in_file_call"] = s.in_file_call;
  j["collective"] = s.collective;
  j["sequence"] = s.sequence;
  j["bytes"] = s.bytes;
  j["in_collective"] = s.in_collective;
  j["since"] = rounded(s.since);
  j["waits_for_writer"] = s.waits_for_writer;
  j["waits_for_device"] = s.waits_for_device;
  j["writer_active"] = s.writer_active;
  j["writer_idle"] = rounded(s.writer_idle);
  j["beat"] = s.beat;
  j["written"] = s.written;
  j["job"] = s.job;
  j["started"] = s.process.started;
  j["pid_namespace"] = s.process.pid_namespace;
  std::string text = j.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  text.resize(std::max(text.size(), status_bytes - 1), ' ');
  return text + "\n";
}

std::optional<RankStatus> parse_status(const std::string& text) {
  const auto j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object()) return std::nullopt;
  try {
    RankStatus s;
    j.at("rank").get_to(s.rank);
    j.at("host").get_to(s.process.host);
    j.at("pid").get_to(s.process.pid);
    j.at("step").get_to(s.step);
    j.at("section").get_to(s.section);
    j.at("idle").get_to(s.idle);
    j.at("in_file_call").get_to(s.in_file_call);
    j.at("collective").get_to(s.collective);
    j.at("sequence").get_to(s.sequence);
    j.at("bytes").get_to(s.bytes);
    j.at("in_collective").get_to(s.in_collective);
    j.at("since").get_to(s.since);
    j.at("waits_for_writer").get_to(s.waits_for_writer);
    j.at("waits_for_device").get_to(s.waits_for_device);
    j.at("writer_active").get_to(s.writer_active);
    j.at("writer_idle").get_to(s.writer_idle);
    j.at("beat").get_to(s.beat);
    j.at("written").get_to(s.written);
    j.at("job").get_to(s.job);
    j.at("started").get_to(s.process.started);
    j.at("pid_namespace").get_to(s.process.pid_namespace);
    return s;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::vector<RankStatus> parse_statuses(const std::string& text) {
  std::vector<RankStatus> statuses;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (std::optional<RankStatus> status = parse_status(line)) statuses.push_back(std::move(*status));
  }
  return statuses;
}

std::string describe(const RankStatus& s) {
  std::string text = s.section;
  if (s.step > 0) text += s.section == "step" ? fmt::format(" {}", s.step) : fmt::format(" after step {}", s.step);
  const std::string collective = fmt::format("{} #{} ({})", s.collective, s.sequence, bytes_of(s.bytes));
  if (s.in_collective) {
    text += fmt::format(", waits in {} for {:.0f} s", collective, s.since);
  } else if (s.waits_for_writer) {
    text += fmt::format(", waits for its checkpoint to be written; last collective {}", collective);
  } else {
    text += fmt::format(", {} for {:.0f} s; last collective {}",
                        s.in_file_call       ? "in a call of the file system"
                        : s.waits_for_device ? "waiting for the device"
                                             : "computing",
                        s.idle, collective);
  }
  if (s.writer_active)
    text += fmt::format("; a checkpoint is being written, last progress {:.0f} s ago", s.writer_idle);
  return text;
}

}  // namespace llmtrain
