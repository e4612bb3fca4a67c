#include "params/offload/offload_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "params/offload/offload_ahead.hpp"
#include "params/offload/offload_ring.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr int64_t page = OffloadLayout::alignment;

/// A unit of one segment.
std::vector<ShardBorders> one(int64_t begin, int64_t end) { return {{begin, end}}; }

/// Masters and moments of two units in pieces of 512 elements, weights of two bytes.
OffloadLayout small_layout() {
  OffloadLayout layout({1024, 1024, 1024, 512}, 512);
  layout.add(one(256, 256 + 3 * 512 + 256));
  layout.add(one(0, 0));
  layout.add(one(0, 5 * 512));
  return layout;
}

struct Aligned {
  explicit Aligned(int64_t bytes) : memory(static_cast<size_t>(bytes + page)) {
    const auto at = reinterpret_cast<uintptr_t>(memory.data());
    data = memory.data() + (page - static_cast<int64_t>(at % page)) % page;
  }
  std::vector<char> memory;
  char* data;
};

/// Path of the file that this process has open in the folder, which has no name any more.
int descriptor_in(const TemporaryFolder& folder) {
  int found = -1;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = fs::read_symlink(entry, ignored).string();
    if (!target.starts_with(folder.text() + "/")) continue;
    EXPECT_EQ(found, -1) << "one file";
    found = std::stoi(entry.path().filename().string());
  }
  return found;
}

/// Calls act(descriptor) with that file, opened again.
template <class Act>
void with_file_in(const TemporaryFolder& folder, const Act& act) {
  const int descriptor = open(("/proc/self/fd/" + std::to_string(descriptor_in(folder))).c_str(), O_RDWR);
  ASSERT_GE(descriptor, 0);
  act(descriptor);
  close(descriptor);
}

std::string message_of(const std::function<void()>& call, ExitCode code) {
  try {
    call();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(OffloadLayout, CutsUnitsIntoPiecesAndAlignsTheirKinds) {
  const OffloadLayout layout = small_layout();
  ASSERT_EQ(layout.pieces().size(), 9U);
  EXPECT_EQ(layout.pieces_before(1), 4U);
  EXPECT_EQ(layout.pieces_before(2), 4U);
  EXPECT_EQ(layout.pieces_before(3), 9U);
  EXPECT_EQ(layout.pieces()[3].elements(), 256);
  EXPECT_EQ(layout.pieces()[3].end, 256 + 3 * 512 + 256);
  EXPECT_EQ(layout.pieces()[4].unit, 2);
  int64_t end = 0;
  for (const OffloadPiece& piece : layout.pieces()) {
    EXPECT_EQ(piece.offset, end);
    EXPECT_EQ(layout.bytes_of(piece, 0, 4), 4 * page);
    end = piece.offset + layout.bytes_of(piece, 0, 4);
  }
  EXPECT_EQ(layout.bytes(), end);
  EXPECT_EQ(layout.max_piece(), 4 * page);
  EXPECT_EQ(layout.max_part(), page);
  OffloadLayout none({0, 0, 0, 0}, 512);
  none.add(one(0, 4096));
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.bytes(), 0);
}

TEST(OffloadFile, KeepsWhatIsWrittenAndHasNoName) {
  const TemporaryFolder folder;
  const OffloadLayout layout = small_layout();
  OffloadFile file(layout, folder.text(), {"a", "b", "c"});
  EXPECT_TRUE(fs::is_empty(folder.text()));
  Aligned memory(layout.max_piece());
  file.read(7, 0, 4, memory.data);
  for (int64_t i = 0; i < layout.max_piece(); ++i) ASSERT_EQ(memory.data[i], 0);
  std::memset(memory.data, 1, static_cast<size_t>(page));
  std::memset(memory.data + page, 2, static_cast<size_t>(page));
  file.write(7, 1, 3, memory.data);
  std::memset(memory.data, 9, static_cast<size_t>(layout.max_piece()));
  file.read(7, 0, 4, memory.data);
  for (int64_t i = 0; i < layout.max_piece(); ++i) ASSERT_EQ(memory.data[i], i / page % 3) << i;
}

TEST(OffloadFile, AFlippedBitIsFoundWhereItIs) {
  const TemporaryFolder folder;
  const OffloadLayout layout = small_layout();
  OffloadFile file(layout, folder.text(), {"embedding", "empty", "block 1"});
  Aligned memory(layout.max_piece());
  for (size_t piece = 0; piece < layout.pieces().size(); ++piece) {
    std::memset(memory.data, static_cast<int>(piece) + 1, static_cast<size_t>(layout.max_piece()));
    file.write(piece, 0, 4, memory.data);
  }
  const int64_t at = layout.pieces()[5].offset + 2 * page + 77;
  with_file_in(folder, [&](int descriptor) {
    const char flipped = 6 ^ 16;
    ASSERT_EQ(pwrite(descriptor, &flipped, 1, at), 1);
  });
  for (size_t piece = 0; piece < layout.pieces().size(); ++piece) {
    if (piece != 5) file.read(piece, 0, 4, memory.data);  // the others are intact
  }
  file.read(5, 0, 2, memory.data);
  const std::string message = message_of([&] { file.read(5, 0, 4, memory.data); }, ExitCode::io);
  EXPECT_NE(message.find(folder.text()), std::string::npos) << message;
  EXPECT_NE(message.find("block 1, elements 512 to 1024"), std::string::npos) << message;
  with_file_in(folder, [&](int descriptor) { ASSERT_EQ(ftruncate(descriptor, page), 0); });
  message_of([&] { file.read(5, 0, 1, memory.data); }, ExitCode::io);
}

TEST(OffloadFile, FoldersThatDoNotDoAreRefused) {
  const TemporaryFolder folder;
  const OffloadLayout layout = small_layout();
  const std::string nowhere = folder.text() + "/nowhere";
  message_of([&] { const OffloadFile file(layout, nowhere, {"a", "b", "c"}); }, ExitCode::cannot_create);
  message_of([&] { check_offload_folder(nowhere, 1, "deck.ini:3"); }, ExitCode::cannot_create);
  check_offload_folder(folder.text(), layout.bytes(), "deck.ini:3");
  const std::string message =
      message_of([&] { check_offload_folder(folder.text(), int64_t{1} << 60, "deck.ini:3"); }, ExitCode::io);
  EXPECT_NE(message.find("deck.ini:3"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(int64_t{1} << 60)), std::string::npos) << message;
}

class OffloadRingTest : public testing::Test {
 protected:
  OffloadRingTest() : layout_(small_layout()), file_(layout_, folder_.text(), {"a", "b", "c"}) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i] = memory_.data + static_cast<int64_t>(i) * layout_.max_piece();
    }
  }
  /// Adds to the first float of every kind.
  void add(OffloadRing& ring, float what) {
    for (ring.begin({0, 3, 0, 4}); ring.next();) {
      for (int64_t kind = 0; kind < 4; ++kind) *reinterpret_cast<float*>(ring.data() + kind * page) += what;
    }
  }
  const TemporaryFolder folder_;
  const OffloadLayout layout_;
  OffloadFile file_;
  Aligned memory_{4 * 4 * page};
  std::array<char*, OffloadRing::slots> buffers_{};
};

TEST_F(OffloadRingTest, PassesSeeWhatThoseBeforeHaveWritten) {
  OffloadRing ring(file_, buffers_);
  for (int pass = 1; pass <= 5; ++pass) add(ring, 1);
  size_t pieces = 0;
  for (ring.begin({0, 3, 0, 0}); ring.next(); ++pieces) {
    EXPECT_EQ(ring.piece(), pieces);
    for (int64_t kind = 0; kind < 3; ++kind) EXPECT_EQ(*reinterpret_cast<float*>(ring.data() + kind * page), 5);
    *reinterpret_cast<float*>(ring.data()) = 100;  // is not stored
  }
  EXPECT_EQ(pieces, layout_.pieces().size());
  ring.begin({0, 1, 0, 0});
  ASSERT_TRUE(ring.next());
  EXPECT_EQ(*reinterpret_cast<float*>(ring.data()), 5);
  ring.abandon();
  add(ring, 1);
  file_.read(8, 0, 1, memory_.data);
  EXPECT_EQ(*reinterpret_cast<float*>(memory_.data), 6);
}

TEST_F(OffloadRingTest, AnErrorOfAnyPieceReachesThePass) {
  OffloadRing ring(file_, buffers_);
  add(ring, 1);
  with_file_in(folder_, [&](int descriptor) {
    const char changed = 1;
    ASSERT_EQ(pwrite(descriptor, &changed, 1, layout_.pieces()[6].offset + 5), 1);
  });
  size_t seen = 0;
  message_of(
      [&] {
        for (ring.begin({0, 3, 0, 0}); ring.next();) ++seen;
      },
      ExitCode::io);
  EXPECT_EQ(seen, 6U);
  ring.abandon();
  for (ring.begin({1, 3, 0, 0}); ring.next();) ++seen;  // the moments are intact
  EXPECT_EQ(seen, 6U + layout_.pieces().size());
}

TEST_F(OffloadRingTest, AFullDiskEndsThePass) {
  OffloadRing ring(file_, buffers_);
  add(ring, 1);
  const int file = descriptor_in(folder_), kept = dup(file), full = open("/dev/full", O_RDWR | O_CLOEXEC);
  ASSERT_EQ(dup2(full, file), file);
  const std::string message = message_of([&] { add(ring, 1); }, ExitCode::io);
  EXPECT_NE(message.find("was corrupted on the disk"), std::string::npos) << "it is read as zeros: " << message;
  ring.abandon();
  const std::string no_space = message_of(
      [&] {
        for (ring.begin({0, 0, 0, 4}); ring.next();) {
        }
      },
      ExitCode::io);
  EXPECT_NE(no_space.find(folder_.text()), std::string::npos) << no_space;
  EXPECT_NE(no_space.find(" bytes failed: No space left on device"), std::string::npos) << no_space;
  ring.abandon();
  ASSERT_EQ(dup2(kept, file), file);
  close(kept);
  close(full);
  for (size_t i = 0; i < buffers_.size(); ++i) std::memset(buffers_[i], 0, static_cast<size_t>(layout_.max_piece()));
  for (ring.begin({0, 0, 0, 4}); ring.next();) {  // rewrites data whose checksum was lost
  }
  add(ring, 1);
}

TEST_F(OffloadRingTest, WhoEndsAPassHasTheMemoryBack) {
  for (const bool destroys : {false, true}) {
    for (int pass = 0; pass < 50; ++pass) {
      OffloadRing own(file_, buffers_);
      std::optional<OffloadRing> other;
      own.begin({0, 3, 0, 4});
      for (int i = 0; i <= pass % 6; ++i) ASSERT_TRUE(own.next());
      own.abandon();
      if (destroys) {
        other.emplace(file_, buffers_);
        other->begin({0, 3, 0, 4});
        ASSERT_TRUE(other->next());
        other.reset();
      }
      std::memset(memory_.data, 99, static_cast<size_t>(4 * layout_.max_piece()));
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      for (int64_t i = 0; i < 4 * layout_.max_piece(); ++i) ASSERT_EQ(memory_.data[i], 99) << i;
    }
  }
}

TEST(OffloadAhead, GivesUnitsInAnyOrderAndErrorsWithTheirUnit) {
  const TemporaryFolder folder;
  const OffloadLayout layout = small_layout();
  OffloadFile file(layout, folder.text(), {"a", "b", "c"});
  Aligned memory(OffloadAhead::bytes(layout, 0)), piece(page);
  EXPECT_EQ(OffloadAhead::bytes(layout, 0), 5 * page);
  OffloadAhead ahead(file, 0, memory.data);
  const auto write = [&](size_t index, int value) {
    std::memset(piece.data, value, static_cast<size_t>(page));
    file.write(index, 0, 1, piece.data);
  };
  for (size_t p = 0; p < layout.pieces().size(); ++p) write(p, static_cast<int>(p) + 1);
  for (const int unit : {0, 2, 1, 2, 2, 0, 0}) {
    const char* data = ahead.take(unit);
    const size_t first = layout.pieces_before(unit), end = layout.pieces_before(unit + 1);
    for (size_t p = first; p < end; ++p) EXPECT_EQ(data[static_cast<int64_t>(p - first) * page + 99], char(p + 1));
    ahead.begin(unit == 2 ? 3 : unit + 1);
  }
  ahead.take(2);
  ahead.forget();
  write(5, 77);
  EXPECT_EQ(ahead.take(2)[page], 77);
  with_file_in(folder, [&](int descriptor) {
    const char changed = 0;
    ASSERT_EQ(pwrite(descriptor, &changed, 1, layout.pieces()[6].offset), 1);
  });
  ahead.begin(2);
  EXPECT_EQ(ahead.take(0)[0], 1) << "the error belongs to another unit";
  message_of([&] { ahead.take(2); }, ExitCode::io);
  message_of([&] { ahead.take(2); }, ExitCode::io);
}

}  // namespace
}  // namespace llmtrain
