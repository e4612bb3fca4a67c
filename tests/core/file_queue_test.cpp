#include "core/files/file_queue.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;
using Way = FileQueue::Way;

constexpr int64_t page = 4096;

/// Whole pages of its own.
class Pages {
 public:
  explicit Pages(int64_t bytes, int protection = PROT_READ | PROT_WRITE)
      : bytes_(static_cast<size_t>(bytes)),
        data_(static_cast<char*>(mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return data_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }
  void fill(unsigned seed) const {
    std::mt19937 random(seed);
    for (size_t i = 0; i < bytes_; ++i) data_[i] = static_cast<char>(random());
  }

 private:
  size_t bytes_;
  char* data_;
};

/// Parts of different sizes that cover memory from its begin on, and a file in another order.
std::vector<FilePart> scattered(const Pages& memory) {
  std::mt19937 random(5);
  std::vector<FilePart> parts;
  for (int64_t at = 0; at < memory.bytes();) {
    const int64_t bytes = std::min<int64_t>(page * (1 + random() % 300), memory.bytes() - at);
    parts.push_back({0, bytes, memory.data() + at});
    at += bytes;
  }
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::shuffle(order, random);
  int64_t offset = 0;
  for (const size_t i : order) {
    parts[i].offset = offset;
    offset += parts[i].bytes;
  }
  return parts;
}

void write_all(FileQueue& queue, const FileHandle& file, const std::vector<FilePart>& parts) {
  queue.write(
      file, parts.size(), [&](size_t i) { return parts[i]; }, [](size_t) {});
}
void read_all(FileQueue& queue, const FileHandle& file, const std::vector<FilePart>& parts) {
  queue.read(
      file, parts.size(), [&](size_t i) { return parts[i]; }, [](size_t) {});
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::io) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

class FileQueueWay : public testing::TestWithParam<Way> {
 protected:
  FileQueueWay() : queue_(memory_.data(), memory_.bytes(), GetParam()) {}
  void SetUp() override {
    if (queue_.way() != GetParam()) GTEST_SKIP() << "here it is " << queue_.text();
  }
  std::vector<FilePart> pages(int64_t count, int64_t bytes) const {
    std::vector<FilePart> parts;
    for (int64_t i = 0; i < count; ++i) parts.push_back({i * bytes, bytes, memory_.data() + i * bytes});
    return parts;
  }
  const Pages memory_{int64_t{12} << 20};
  FileQueue queue_;
};

std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  return info.param == Way::calls ? "calls" : info.param == Way::ring ? "ring" : "fixed";
}

INSTANTIATE_TEST_SUITE_P(, FileQueueWay, testing::Values(Way::calls, Way::ring, Way::fixed), name_of_way);

class FileQueueRing : public FileQueueWay {};
INSTANTIATE_TEST_SUITE_P(, FileQueueRing, testing::Values(Way::ring, Way::fixed), name_of_way);

TEST_P(FileQueueWay, EveryPartMovesOnce) {
  const TemporaryFolder folder;
  const Pages expected(memory_.bytes());
  const std::vector<FilePart> parts = scattered(memory_);
  ASSERT_GT(parts.size(), 2 * FileQueue::depth);
  for (const bool direct : {false, true}) {
    const FileHandle file = FileHandle::create_unnamed(folder.text());
    if (direct) file.bypass_cache();
    expected.fill(direct ? 1 : 2);
    std::memset(memory_.data(), 0, static_cast<size_t>(memory_.bytes()));
    const auto place = [&](size_t i) { return expected.data() + (parts[i].memory - memory_.data()); };
    const auto same = [&](size_t i) {
      return std::memcmp(parts[i].memory, place(i), static_cast<size_t>(parts[i].bytes)) == 0;
    };
    std::vector<int> seen(parts.size());
    queue_.write(
        file, parts.size(), [&](size_t i) { return parts[i]; },
        [&](size_t i) {  // the last moment in which it may change
          std::memcpy(parts[i].memory, place(i), static_cast<size_t>(parts[i].bytes));
          ++seen[i];
        });
    EXPECT_THAT(seen, testing::Each(1));
    EXPECT_EQ(file.size(), memory_.bytes());
    for (const bool changed : {false, true}) {
      if (changed) {  // as a control
        const Pages zeros(page);
        file.write(parts[7].offset, page, zeros.data());
      }
      std::memset(memory_.data(), 0, static_cast<size_t>(memory_.bytes()));
      std::ranges::fill(seen, 0);
      queue_.read(
          file, parts.size(), [&](size_t i) { return parts[i]; },
          [&](size_t i) { seen[i] += same(i) == !(changed && i == 7) ? 1 : 100; });
      EXPECT_THAT(seen, testing::Each(1)) << direct << changed;
    }
  }
}

/// Number of a file's pages in the page cache.
int64_t cached_pages(const std::string& path, int64_t bytes) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, descriptor, 0);
  std::vector<unsigned char> cached(static_cast<size_t>(bytes / page));
  EXPECT_EQ(mincore(mapped, static_cast<size_t>(bytes), cached.data()), 0);
  munmap(mapped, static_cast<size_t>(bytes));
  close(descriptor);
  return std::ranges::count_if(cached, [](unsigned char flags) { return (flags & 1) != 0; });
}

TEST_P(FileQueueWay, GoesPastTheCacheWhereItsFileDoes) {
  const TemporaryFolder folder;
  struct statfs facts {};
  ASSERT_EQ(statfs(folder.text().c_str(), &facts), 0);
  if (facts.f_type != EXT4_SUPER_MAGIC && facts.f_type != XFS_SUPER_MAGIC) GTEST_SKIP() << "another file system";
  for (const bool direct : {false, true}) {
    const std::string path = folder / (direct ? "direct" : "plain");
    const FileHandle file = FileHandle::create(path);
    if (direct) file.bypass_cache();
    write_all(queue_, file, pages(12, int64_t{1} << 20));
    read_all(queue_, file, pages(12, int64_t{1} << 20));
    EXPECT_EQ(cached_pages(path, memory_.bytes()) > 0, !direct);
  }
}

TEST_P(FileQueueWay, MemoryElsewhereAndEmptyPartsDo) {
  const TemporaryFolder folder;
  const FileHandle file = FileHandle::create_unnamed(folder.text());
  file.bypass_cache();
  const Pages other(2 * page);
  other.fill(3);
  memory_.fill(4);
  std::vector<FilePart> parts = {{0, page, memory_.data() + memory_.bytes() - page},
                                 {page, 0, memory_.data() + memory_.bytes()},
                                 {page, 2 * page, other.data()}};
  write_all(queue_, file, parts);
  const Pages back(3 * page);
  parts = {{0, page, back.data()}, {page, 0, back.data()}, {page, 2 * page, back.data() + page}};
  read_all(queue_, file, parts);
  EXPECT_EQ(std::memcmp(back.data(), memory_.data() + memory_.bytes() - page, page), 0);
  EXPECT_EQ(std::memcmp(back.data() + page, other.data(), 2 * page), 0);
  EXPECT_NE(std::memcmp(back.data(), other.data(), page), 0);
  read_all(queue_, file, {});
}

TEST_P(FileQueueWay, AShorterFileIsAnError) {
  const TemporaryFolder folder;
  const std::string path = (folder / "file").string();
  const FileHandle file = FileHandle::create(path);
  write_all(queue_, file, pages(12, int64_t{1} << 20));
  ASSERT_EQ(truncate(path.c_str(), (int64_t{7} << 20) + 3 * page), 0);
  for (const bool direct : {false, true}) {
    if (direct) file.bypass_cache();
    const std::string message = message_of([&] { read_all(queue_, file, pages(12, int64_t{1} << 20)); });
    EXPECT_EQ(message, path + ": the file has become shorter while it was read");
  }
  read_all(queue_, file, pages(7, int64_t{1} << 20));
}

// The process's own memory as a file: where nothing is mapped it fails with EIO, and a read up to there is short.
TEST_P(FileQueueWay, WhatFailsOnItsWayIsTheSameError) {
  const FileHandle file = FileHandle::open_to_read("/proc/self/mem");
  const Pages source(32 * page);
  source.fill(6);
  const auto part = [&](int64_t i) {
    return FilePart{static_cast<int64_t>(reinterpret_cast<uintptr_t>(source.data())) + 2 * i * page, 2 * page,
                    memory_.data() + 2 * i * page};
  };
  std::vector<FilePart> parts;
  for (int64_t i = 0; i < 16; ++i) parts.push_back(part(i));
  read_all(queue_, file, parts);
  ASSERT_EQ(std::memcmp(memory_.data(), source.data(), static_cast<size_t>(source.bytes())), 0);
  for (const int64_t hole : {4, 7}) {  // a whole part, and the second half of one
    munmap(source.data() + hole * page, page);
    const std::string message = message_of([&] { read_all(queue_, file, parts); });
    EXPECT_EQ(message, "/proc/self/mem: reading failed: Input/output error");
  }
  std::memset(memory_.data(), 0, static_cast<size_t>(source.bytes()));
  parts = {part(15), part(0)};
  read_all(queue_, file, parts);
  EXPECT_EQ(std::memcmp(memory_.data(), source.data(), 2 * page), 0);
  EXPECT_EQ(std::memcmp(memory_.data() + 30 * page, source.data() + 30 * page, 2 * page), 0);
}

TEST_P(FileQueueWay, AFullDiskIsTheSameError) {
  const FileHandle file = FileHandle::open_to_write("/dev/full");
  const std::string message = message_of([&] { write_all(queue_, file, pages(3, page)); });
  EXPECT_THAT(message, HasSubstr("/dev/full: writing "));
  EXPECT_THAT(message, HasSubstr(" bytes failed: No space left on device"));
}

/// The limit of the size of files cuts a write short, and then there is an error.
[[noreturn]] void write_up_to(rlim_t bytes, FileQueue& queue, const FileHandle& file,
                              const std::vector<FilePart>& parts) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &limit);
  try {
    write_all(queue, file, parts);
  } catch (const UserError& error) {
    const bool right = std::string(error.what()).find(" bytes failed: File too large") != std::string::npos;
    std::_Exit(right && file.size() == static_cast<int64_t>(bytes) ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  std::_Exit(2);
}

TEST_P(FileQueueWay, AShortWriteGoesOn) {
  const TemporaryFolder folder;
  const std::vector<FilePart> parts = pages(1, 8 * page);
  for (const int64_t limit : {5 * page, 8 * page}) {
    const FileHandle file = FileHandle::create_unnamed(folder.text());
    // A ring does not go along with a fork.
    const auto child = [&] {
      FileQueue queue(memory_.data(), memory_.bytes(), GetParam());
      write_up_to(static_cast<rlim_t>(limit), queue, file, parts);
    };
    EXPECT_EXIT(child(), testing::ExitedWithCode(limit < 8 * page ? EXIT_SUCCESS : 2), "");
  }
}

TEST_P(FileQueueWay, SignalsDoNotMatter) {
  const TemporaryFolder folder;
  const FileHandle file = FileHandle::create_unnamed(folder.text());
  file.bypass_cache();
  static std::atomic<int> signals;
  signals = 0;
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { ++signals; };  // without SA_RESTART
  sigaction(SIGALRM, &action, &before);
  const itimerval often{{0, 200}, {0, 200}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  const Pages expected(memory_.bytes());
  expected.fill(7);
  const std::vector<FilePart> parts = scattered(memory_);
  for (int round = 0; round < 5; ++round) {
    std::memcpy(memory_.data(), expected.data(), static_cast<size_t>(memory_.bytes()));
    write_all(queue_, file, parts);
    std::memset(memory_.data(), 0, static_cast<size_t>(memory_.bytes()));
    read_all(queue_, file, parts);
    ASSERT_EQ(std::memcmp(memory_.data(), expected.data(), static_cast<size_t>(memory_.bytes())), 0);
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_GT(signals.load(), 0);
}

// A pipe that is filled slowly: what a ring asked of it is under way for a while.
TEST_P(FileQueueRing, AnErrorWaitsForWhatIsUnderWay) {
  const TemporaryFolder folder;
  const std::string path = (folder / "pipe").string();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const FileHandle pipe = FileHandle::open_to_write(path);
  const std::vector<FilePart> parts = pages(3, page);
  std::memset(memory_.data(), 0, 3 * page);
  std::atomic<int> written{0};
  std::thread writer([&] {
    const Pages full(page);
    std::memset(full.data(), 9, page);
    const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_EQ(activity().lane(Lane::main).file_calls, 1) << "what the watchdog sees";
      ++written;
      EXPECT_EQ(::write(descriptor, full.data(), page), page);
    }
    close(descriptor);
  });
  int at_the_error = 0;
  EXPECT_THROW(queue_.read(
                   pipe, 3, [&](size_t i) { return parts[i]; },
                   [&](size_t) {
                     at_the_error = written;
                     throw std::bad_alloc();
                   }),
               std::bad_alloc);
  EXPECT_EQ(written, 3);
  EXPECT_LT(at_the_error, 3) << "control: the error came first";
  EXPECT_EQ(memory_.data()[3 * page - 1], 9) << "nobody writes there any more";
  writer.join();
}

TEST(FileQueue, SaysWhichWayItTakes) {
  const Pages memory(page);
  EXPECT_EQ(FileQueue().text(), "reads and writes in threads (io_uring: not wanted)");
  EXPECT_EQ(FileQueue(memory.data(), page, Way::calls).text(), FileQueue().text());
  const FileQueue best(memory.data(), page);
  if (best.way() == Way::calls) GTEST_SKIP() << best.text();
  EXPECT_EQ(FileQueue(memory.data(), page, Way::ring).text(), "io_uring (fixed buffers: not wanted)");
  if (best.way() == Way::fixed) {
    EXPECT_EQ(best.text(), "io_uring, fixed buffers");
  }
}

/// True if bytes written to a file can be read back.
bool works(FileQueue& queue, const FileHandle& file, const Pages& memory) {
  memory.fill(8);
  const std::vector<FilePart> parts = {{page, page, memory.data()}, {0, page, memory.data() + page}};
  write_all(queue, file, parts);
  const Pages back(2 * page);
  file.read(0, 2 * page, back.data());
  return std::memcmp(back.data(), memory.data() + page, page) == 0 &&
         std::memcmp(back.data() + page, memory.data(), page) == 0;
}

TEST(FileQueue, MemoryThatCannotBeFixedIsUsedAsItIs) {
  const TemporaryFolder folder;
  const FileHandle file = FileHandle::create_unnamed(folder.text());
  const Pages forbidden(2 * page, PROT_NONE), memory(2 * page);
  FileQueue queue(forbidden.data(), 2 * page);
  if (queue.way() == Way::calls) GTEST_SKIP() << queue.text();
  EXPECT_EQ(queue.way(), Way::ring);
  EXPECT_EQ(queue.text(), "io_uring (fixed buffers: Bad address)");
  EXPECT_TRUE(works(queue, file, memory));
}

/// In a process of its own, for whom a system call fails: the queue's text must begin so.
[[noreturn]] void expect_without(int64_t system_call, int error, const std::string& text, const FileHandle& file) {
  std::array filter = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(system_call), 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<uint16_t>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::_Exit(3);
  }
  const Pages memory(2 * page);
  FileQueue queue(memory.data(), 2 * page);
  const bool right = queue.text().starts_with(text) && works(queue, file, memory);
  if (!right) std::fprintf(stderr, "%s\n", queue.text().c_str());
  std::_Exit(right ? EXIT_SUCCESS : EXIT_FAILURE);
}

TEST(FileQueue, DoesWithoutWhatTheSystemForbids) {
  const TemporaryFolder folder;
  const FileHandle file = FileHandle::create_unnamed(folder.text());
  const Pages memory(page);
  const FileQueue here(memory.data(), page);
  if (here.way() != Way::fixed) GTEST_SKIP() << "here it is " << here.text();
  const auto expect = [&](int64_t system_call, int error, const std::string& text) {
    EXPECT_EXIT(expect_without(system_call, error, text, file), testing::ExitedWithCode(EXIT_SUCCESS), "") << text;
  };
  expect(SYS_io_uring_setup, EPERM, "reads and writes in threads (io_uring: Operation not permitted)");
  expect(SYS_io_uring_setup, EACCES, "reads and writes in threads (io_uring: Permission denied)");
  expect(SYS_io_uring_setup, ENOSYS, "reads and writes in threads (io_uring: Function not implemented)");
  expect(SYS_io_uring_enter, EPERM, "reads and writes in threads (io_uring: Operation not permitted)");
  expect(SYS_io_uring_register, EOPNOTSUPP, "io_uring (fixed buffers: Operation not supported)");
  expect(SYS_io_uring_register, ENOMEM, "io_uring (fixed buffers: too little memory may be locked, see ulimit -l)");
  expect(SYS_getppid, EPERM, "io_uring, fixed buffers");
  EXPECT_EXIT(expect_without(SYS_io_uring_setup, EPERM, "io_uring, fixed buffers", file),
              testing::ExitedWithCode(EXIT_FAILURE), "not permitted")
      << "control";
}

/// As a user who may lock no memory.
[[noreturn]] void expect_unlocked(const FileHandle& file) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_MEMLOCK, &none);
  if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0) std::_Exit(3);
  const Pages memory(2 * page);
  FileQueue queue(memory.data(), 2 * page);
  std::fprintf(stderr, "%s\n", queue.text().c_str());
  std::_Exit(queue.way() != Way::fixed && works(queue, file, memory) ? EXIT_SUCCESS : EXIT_FAILURE);
}

TEST(FileQueue, DoesWithoutLockedMemory) {
  const TemporaryFolder folder;
  const FileHandle file = FileHandle::create_unnamed(folder.text());
  EXPECT_EXIT(expect_unlocked(file), testing::ExitedWithCode(EXIT_SUCCESS), "io_uring.*: ");
}

}  // namespace
}  // namespace llmtrain
