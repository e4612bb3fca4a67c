#include "report/dashboard/event_hub.hpp"

#include <fmt/format.h>
#include <microhttpd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "report/dashboard/request_guard.hpp"

namespace llmtrain {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds keep_alive{15};  ///< after which a silent stream gets a comment, which finds dead peers

}  // namespace

struct EventHub::Watcher {
  MHD_Connection* connection;
  std::vector<size_t> followed;
  uint64_t since = 0;
  std::shared_ptr<const std::string> frame;  ///< null: all is sent
  size_t sent = 0;                           ///< bytes of the frame
  bool paused = false;
  bool fresh = true;  ///< it has not waited for events yet
  Clock::time_point last_frame = Clock::now();
};

EventHub::EventHub(const std::vector<std::string>& runs, std::chrono::milliseconds interval)
    : board_(runs), epoch_(random_token()), interval_(interval), thread_([this] { work(); }) {}

EventHub::~EventHub() { stop(); }

void EventHub::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    for (const auto& watcher : watchers_) {
      if (watcher->paused) MHD_resume_connection(watcher->connection);
      watcher->paused = false;
    }
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<EventHub::Watcher> EventHub::add(MHD_Connection* connection, std::vector<size_t> followed,
                                                 std::string_view last_event) {
  auto watcher = std::make_shared<Watcher>();
  watcher->connection = connection;
  watcher->followed = std::move(followed);
  if (last_event.starts_with(epoch_ + "-")) {
    last_event.remove_prefix(epoch_.size() + 1);
    std::from_chars(last_event.data(), last_event.data() + last_event.size(), watcher->since);
  }
  watcher->frame =
      std::make_shared<const std::string>(fmt::format("retry: 2000\n\nevent: hello\ndata: {}\n\n", epoch_));
  const std::scoped_lock lock(mutex_);
  watchers_.push_back(watcher);
  return watcher;
}

void EventHub::remove(const std::shared_ptr<Watcher>& watcher) {
  const std::scoped_lock lock(mutex_);
  watcher->paused = false;
  std::erase(watchers_, watcher);
}

ssize_t EventHub::read(Watcher& watcher, char* bytes, size_t size) {
  const std::scoped_lock lock(mutex_);
  if (stopping_) return -1;
  if (watcher.frame == nullptr) {
    watcher.paused = true;
    MHD_suspend_connection(watcher.connection);
    if (watcher.fresh) {
      watcher.fresh = false;
      fresh_ = true;
      wake_.notify_all();
    }
    return 0;
  }
  const size_t count = watcher.frame->copy(bytes, size, watcher.sent);
  watcher.sent += count;
  if (watcher.sent == watcher.frame->size()) watcher.frame = nullptr;
  return static_cast<ssize_t>(count);
}

void EventHub::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (watchers_.empty()) {
      wake_.wait(lock, [&] { return stopping_ || fresh_; });
    } else {
      wake_.wait_for(lock, interval_, [&] { return stopping_ || fresh_; });
    }
    if (stopping_) return;
    fresh_ = false;
    std::set<size_t> followed;
    for (const auto& watcher : watchers_) followed.insert(watcher->followed.begin(), watcher->followed.end());
    lock.unlock();
    board_.refresh(followed);
    lock.lock();
    send_events(lock);
  }
}

std::string EventHub::frame_for(const Watcher& watcher) const {
  std::string frame = board_.events(watcher.followed, std::min(watcher.since, board_.version()));
  frame += fmt::format("id: {}-{}\n\n", epoch_, board_.version());
  return frame;
}

/// Makes frames without the lock, once for all watchers that need the same.
void EventHub::send_events(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Watcher>> waiting;
  for (const auto& watcher : watchers_) {
    if (watcher->paused) waiting.push_back(watcher);
  }
  lock.unlock();
  const Clock::time_point now = Clock::now();
  const auto comment = std::make_shared<const std::string>(": alive\n\n");
  std::map<std::pair<std::vector<size_t>, uint64_t>, std::shared_ptr<const std::string>> frames;
  std::vector<std::shared_ptr<const std::string>> sent(waiting.size());
  for (size_t i = 0; i < waiting.size(); ++i) {
    const Watcher& watcher = *waiting[i];
    if (watcher.since == board_.version()) {
      if (now - watcher.last_frame >= keep_alive) sent[i] = comment;
      continue;
    }
    std::shared_ptr<const std::string>& frame = frames[{watcher.followed, watcher.since}];
    if (frame == nullptr) frame = std::make_shared<const std::string>(frame_for(watcher));
    sent[i] = frame;
  }
  lock.lock();
  for (size_t i = 0; i < waiting.size(); ++i) {
    Watcher& watcher = *waiting[i];
    if (sent[i] == nullptr || !watcher.paused) continue;
    watcher.frame = sent[i];
    watcher.sent = 0;
    watcher.since = board_.version();
    watcher.last_frame = now;
    watcher.paused = false;
    MHD_resume_connection(watcher.connection);
  }
}

}  // namespace llmtrain
