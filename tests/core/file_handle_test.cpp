#include "core/files/file_handle.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain {
namespace {

[[noreturn]] void print_to(const char* file) {
  if (std::freopen(file, "w", stdout) == nullptr) std::_Exit(EXIT_FAILURE);
  try {
    write_standard_output("some text\n");
  } catch (const UserError& error) {
    std::_Exit(static_cast<int>(error.code()));
  }
  std::_Exit(EXIT_SUCCESS);
}

TEST(StandardOutput, OnAFullDiskIsAnError) {
  EXPECT_EXIT(print_to("/dev/full"), testing::ExitedWithCode(static_cast<int>(ExitCode::io)), "");
  EXPECT_EXIT(print_to("/dev/null"), testing::ExitedWithCode(EXIT_SUCCESS), "");
}

TEST(FileHandle, AFullDiskIsNoWrongName) {
  const auto code = [](int error) {
    try {
      fail_to_create("a", "cannot create it", error);
    } catch (const UserError& failure) {
      EXPECT_THAT(failure.what(), testing::StartsWith("a: cannot create it: "));
      return failure.code();
    }
  };
  for (const int error : {ENOSPC, EDQUOT, EIO}) EXPECT_EQ(code(error), ExitCode::io) << error;
  for (const int error : {EACCES, ENOENT, EROFS, EISDIR}) EXPECT_EQ(code(error), ExitCode::cannot_create) << error;
}

constexpr int64_t page = 4096, pages = 64;

/// Whole pages, each filled with its number.
struct Pages {
  Pages() {
    for (int64_t i = 0; i < pages * page; ++i) data[i] = static_cast<char>(i / page);
  }
  bool numbered() const {
    for (int64_t i = 0; i < pages * page; ++i) {
      if (data[i] != static_cast<char>(i / page)) return false;
    }
    return true;
  }
  void clear() const { std::fill_n(data, pages * page, '\0'); }
  const std::unique_ptr<void, decltype(&std::free)> memory{std::aligned_alloc(page, pages* page), std::free};
  char* const data = static_cast<char*>(memory.get());
};

std::string io_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::io) << error.what();
    return error.what();
  }
  return "no error";
}

/// Pages of a file that the system keeps in memory.
int64_t cached_pages(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* mapped = mmap(nullptr, pages * page, PROT_READ, MAP_SHARED, descriptor, 0);
  std::vector<unsigned char> cached(pages);
  EXPECT_EQ(mincore(mapped, pages * page, cached.data()), 0);
  munmap(mapped, pages * page);
  close(descriptor);
  return std::ranges::count_if(cached, [](unsigned char flags) { return (flags & 1) != 0; });
}

TEST(FileHandle, BypassesTheCacheOnRequest) {
  const test::TemporaryFolder folder;
  struct statfs facts {};
  ASSERT_EQ(statfs(folder.text().c_str(), &facts), 0);
  if (facts.f_type != EXT4_SUPER_MAGIC && facts.f_type != XFS_SUPER_MAGIC) GTEST_SKIP() << "another file system";
  for (const bool bypasses : {false, true}) {
    const Pages memory;
    const std::string path = folder / (bypasses ? "direct" : "cached");
    const FileHandle file = FileHandle::create(path);
    if (bypasses) file.bypass_cache();
    file.write(0, pages * page, memory.data);
    memory.clear();
    file.read(0, pages * page, memory.data);
    EXPECT_TRUE(memory.numbered());
    EXPECT_EQ(cached_pages(path) > 0, !bypasses);
  }
}

TEST(FileHandle, ReadingPastTheEndIsAnError) {
  const test::TemporaryFolder folder;
  const std::string path = (folder / "file").string();
  const Pages memory;
  const FileHandle file = FileHandle::create(path);
  file.write(0, pages * page, memory.data);
  ASSERT_EQ(truncate(path.c_str(), 7 * page + 1), 0);
  for (const bool bypasses : {false, true}) {
    if (bypasses) file.bypass_cache();
    file.read(0, 7 * page, memory.data);
    EXPECT_EQ(io_error([&] { file.read(0, 8 * page, memory.data); }),
              path + ": the file has become shorter while it was read");
  }
}

// The process's own memory as a file: where nothing is mapped it fails with EIO, and a read up to there is short.
TEST(FileHandle, AnErrorBehindAShortReadIsReported) {
  const FileHandle file = FileHandle::open_to_read("/proc/self/mem");
  void* mapped = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(mapped));
  const Pages memory;
  file.read(offset, 2 * page, memory.data);
  munmap(static_cast<char*>(mapped) + page, page);
  file.read(offset, page, memory.data);
  EXPECT_EQ(io_error([&] { file.read(offset, 2 * page, memory.data); }),
            "/proc/self/mem: reading failed: Input/output error");
  munmap(mapped, page);
}

TEST(FileHandle, WritingToAFullDiskIsAnError) {
  const Pages memory;
  EXPECT_EQ(io_error([&] { FileHandle::open_to_write("/dev/full").write(0, page, memory.data); }),
            "/dev/full: writing 4096 bytes failed: No space left on device");
}

/// The limit of the size of files cuts the write short; what follows fails.
[[noreturn]] void write_up_to(int64_t bytes, const std::string& folder) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{static_cast<rlim_t>(bytes), RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &limit);
  const Pages memory;
  const FileHandle file = FileHandle::create_unnamed(folder);
  const std::string error = io_error([&] { file.write(0, 8 * page, memory.data); });
  std::fprintf(stderr, "%s; %ld bytes\n", error.c_str(), static_cast<long>(file.size()));
  std::_Exit(EXIT_SUCCESS);
}

TEST(FileHandle, AShortWriteContinues) {
  const test::TemporaryFolder folder;
  EXPECT_EXIT(write_up_to(5 * page, folder.text()), testing::ExitedWithCode(EXIT_SUCCESS),
              "writing 32768 bytes failed: File too large; 20480 bytes");
  EXPECT_EXIT(write_up_to(8 * page, folder.text()), testing::ExitedWithCode(EXIT_SUCCESS), "no error; 32768 bytes");
}

TEST(FileHandle, SignalsDoNotInterruptReadsAndWrites) {
  const test::TemporaryFolder folder;
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
  for (int round = 0; round < 100 || signals == 0; ++round) {
    const Pages memory;
    file.write(0, pages * page, memory.data);
    memory.clear();
    file.read(0, pages * page, memory.data);
    ASSERT_TRUE(memory.numbered());
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

}  // namespace
}  // namespace llmtrain
