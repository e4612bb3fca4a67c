// AMX for processors without it: a library to preload (LD_PRELOAD) beside a copy of oneDNN whose cpuid and xgetbv trap
// (make_trapping_onednn.sh). It tells that copy of a processor with AMX, and does the instructions on tiles where the
// processor refuses them (SIGILL): configuration, loads, stores and products of bf16, with the checks that a real one
// makes. An instruction that it does not know, or a use that faults on a real processor, ends the process.
//
// Encodings and effects: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, and volume 1,
// chapter "Programming with Intel AMX". One instruction takes about a microsecond, for the trap.

#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int tile_count = 8, max_rows = 16, max_row_bytes = 64;

struct Tile {
  int rows = 0, row_bytes = 0;
  alignas(64) uint8_t data[max_rows][max_row_bytes]{};
};

/// What a thread's tiles hold; configured by LDTILECFG.
struct Tiles {
  bool configured = false;
  std::array<Tile, tile_count> tile;
};

// In the memory that the thread has from its beginning: a signal handler may not allocate.
thread_local Tiles tiles __attribute__((tls_model("initial-exec")));

/// Of the whole process, told at its end where LLMTRAIN_AMX_COUNTS names a file to add them to.
struct Counts {
  std::atomic<uint64_t> configurations, loads, stores, zeros, products, multiplications;
};
Counts counts;

[[noreturn]] void refuse(const char* what, const uint8_t* at) {
  char text[200];
  const int length = std::snprintf(text, sizeof text, "AMX emulator: %s (%02x %02x %02x %02x %02x %02x %02x %02x)\n",
                                   what, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]);
  if (write(2, text, static_cast<size_t>(length)) < 0) _exit(70);
  abort();
}

uint8_t* memory_at(uint64_t address) { return reinterpret_cast<uint8_t*>(address); }  // NOLINT: of a register

// ---- cpuid
// -----------------------------------------------------------------------------------------------------------

constexpr uint32_t tile_leaf = 0x1D, product_leaf = 0x1E;
constexpr uint64_t tile_state = uint64_t{3} << 17;  ///< of XCR0: TILECFG and TILEDATA

void tell_processor(greg_t* r) {
  const auto leaf = static_cast<uint32_t>(r[REG_RAX]), part = static_cast<uint32_t>(r[REG_RCX]);
  uint32_t a = 0, b = 0, c = 0, d = 0;
  __cpuid_count(leaf, part, a, b, c, d);
  if (leaf == 0 && a < product_leaf) a = product_leaf;
  if (leaf == 7 && part == 0) {
    if (a < 1) a = 1;
    d |= 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;  // AMX-BF16, AVX512-FP16, AMX-TILE, AMX-INT8
  }
  if (leaf == 7 && part == 1) a |= 1u << 4 | 1u << 5;  // AVX-VNNI, AVX512-BF16
  if (leaf == tile_leaf) {
    a = part == 0 ? 1 : tile_count * 1024u | 1024u << 16;
    b = part == 1 ? 64u | tile_count << 16 : 0;
    c = part == 1 ? max_rows : 0;
    d = 0;
  }
  if (leaf == product_leaf) {
    a = c = d = 0;
    b = 16u | 64u << 8;
  }
  r[REG_RAX] = a;
  r[REG_RBX] = b;
  r[REG_RCX] = c;
  r[REG_RDX] = d;
}

void tell_states(greg_t* r) {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(static_cast<uint32_t>(r[REG_RCX])));
  r[REG_RAX] = low | static_cast<uint32_t>(tile_state);
  r[REG_RDX] = high;
}

// ---- decoding
// --------------------------------------------------------------------------------------------------------

/// A VEX instruction of map 0F38 without a VEX.L, as all of AMX's are.
struct Instruction {
  uint8_t prefix;  ///< 0 none, 1 66, 2 F3, 3 F2
  uint8_t opcode;
  uint8_t mod, reg, rm;
  uint8_t v;             ///< the third operand
  uint64_t address = 0;  ///< of a memory operand, without the stride's part
  int64_t stride = 0;    ///< index register times scale
  bool with_sib = false;
  int length = 0;
};

int64_t general(const greg_t* r, int number) {
  static constexpr std::array<int, 16> places{REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return r[places[static_cast<size_t>(number)]];
}

bool decode(const uint8_t* at, const greg_t* r, Instruction& i) {
  if (at[0] != 0xC4 || (at[1] & 0x1F) != 2) return false;
  const bool r_bit = (at[1] & 0x80) == 0, x_bit = (at[1] & 0x40) == 0, b_bit = (at[1] & 0x20) == 0;
  if ((at[2] & 0x84) != 0) return false;  // W, L
  i.v = static_cast<uint8_t>(~at[2] >> 3 & 15);
  i.prefix = at[2] & 3;
  i.opcode = at[3];
  const uint8_t modrm = at[4];
  i.mod = modrm >> 6;
  i.reg = static_cast<uint8_t>((modrm >> 3 & 7) | (r_bit ? 8 : 0));
  i.rm = static_cast<uint8_t>((modrm & 7) | (b_bit ? 8 : 0));
  i.length = 5;
  if (i.mod == 3) return true;
  int base = i.rm;
  bool no_base = false;
  if ((modrm & 7) == 4) {
    const uint8_t sib = at[5];
    i.length = 6;
    i.with_sib = true;
    base = (sib & 7) | (b_bit ? 8 : 0);
    const int index = (sib >> 3 & 7) | (x_bit ? 8 : 0);
    if (index != 4) i.stride = general(r, index) << (sib >> 6);
    no_base = (sib & 7) == 5 && i.mod == 0;
  } else if ((modrm & 7) == 5 && i.mod == 0) {
    return false;  // relative to the instruction: nobody's tiles lie in code
  }
  if (!no_base) i.address = static_cast<uint64_t>(general(r, base));
  if (i.mod == 1) {
    i.address += static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(at[i.length])));
    i.length += 1;
  } else if (i.mod == 2 || no_base) {
    int32_t offset = 0;
    std::memcpy(&offset, at + i.length, 4);
    i.address += static_cast<uint64_t>(static_cast<int64_t>(offset));
    i.length += 4;
  }
  return true;
}

// ---- effects
// ---------------------------------------------------------------------------------------------------------

void configure(const uint8_t* from, const uint8_t* at) {
  counts.configurations.fetch_add(1, std::memory_order_relaxed);
  tiles = {};
  if (from[0] == 0) return;
  if (from[0] != 1) refuse("a palette that there is not", at);
  if (from[1] != 0) refuse("tiles that are configured in the middle of an instruction", at);
  for (size_t t = 0; t < tile_count; ++t) {
    Tile& tile = tiles.tile[t];
    uint16_t row_bytes = 0;
    std::memcpy(&row_bytes, from + 16 + 2 * t, 2);
    tile.row_bytes = row_bytes;
    tile.rows = from[48 + t];
    if (tile.rows > max_rows || tile.row_bytes > max_row_bytes) refuse("tiles larger than there are", at);
    if ((tile.rows == 0) != (tile.row_bytes == 0)) refuse("a tile with rows or columns alone", at);
  }
  tiles.configured = true;
}

void tell_configuration(uint8_t* to) {
  std::memset(to, 0, 64);
  if (!tiles.configured) return;
  to[0] = 1;
  for (size_t t = 0; t < tile_count; ++t) {
    const auto row_bytes = static_cast<uint16_t>(tiles.tile[t].row_bytes);
    std::memcpy(to + 16 + 2 * t, &row_bytes, 2);
    to[48 + t] = static_cast<uint8_t>(tiles.tile[t].rows);
  }
}

Tile& usable(int number, const uint8_t* at) {
  if (!tiles.configured) refuse("a tile is used before LDTILECFG", at);
  if (number >= tile_count) refuse("there are eight tiles", at);
  Tile& tile = tiles.tile[static_cast<size_t>(number)];
  if (tile.rows == 0) refuse("a tile is used that is not configured", at);
  return tile;
}

void load(const Instruction& i, const uint8_t* at) {
  counts.loads.fetch_add(1, std::memory_order_relaxed);
  Tile& tile = usable(i.reg, at);
  std::memset(tile.data, 0, sizeof tile.data);
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.data[row], memory_at(i.address + static_cast<uint64_t>(row * i.stride)),
                static_cast<size_t>(tile.row_bytes));
  }
}

void store(const Instruction& i, const uint8_t* at) {
  counts.stores.fetch_add(1, std::memory_order_relaxed);
  const Tile& tile = usable(i.reg, at);
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(memory_at(i.address + static_cast<uint64_t>(row * i.stride)), tile.data[row],
                static_cast<size_t>(tile.row_bytes));
  }
}

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

float half(const uint8_t* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return flushed(std::bit_cast<float>(uint32_t{bits} << 16));
}

/// sum += first * second, pairs of bf16: even and odd products have sums of their own, which are added at the end.
void multiply_bf16(const Instruction& i, const uint8_t* at) {
  Tile& sum = usable(i.reg, at);
  const Tile& first = usable(i.rm, at);
  const Tile& second = usable(i.v, at);
  if (&sum == &first || &sum == &second || &first == &second) refuse("operands of a product must differ", at);
  if (first.rows != sum.rows || second.row_bytes != sum.row_bytes || first.row_bytes != second.rows * 4 ||
      first.row_bytes % 4 != 0 || sum.row_bytes % 4 != 0)
    refuse("shapes of a product do not fit", at);
  const int columns = sum.row_bytes / 4;
  counts.products.fetch_add(1, std::memory_order_relaxed);
  counts.multiplications.fetch_add(uint64_t{2} * static_cast<uint64_t>(sum.rows) * static_cast<uint64_t>(columns) *
                                       static_cast<uint64_t>(second.rows),
                                   std::memory_order_relaxed);
  for (int m = 0; m < sum.rows; ++m) {
    float even[16]{}, odd[16]{};
    for (int k = 0; k < second.rows; ++k) {
      const float a0 = half(first.data[m] + 4 * k), a1 = half(first.data[m] + 4 * k + 2);
      for (int n = 0; n < columns; ++n) {
        even[n] = __builtin_fmaf(a0, half(second.data[k] + 4 * n), even[n]);
        odd[n] = __builtin_fmaf(a1, half(second.data[k] + 4 * n + 2), odd[n]);
      }
    }
    for (int n = 0; n < columns; ++n) {
      float value = 0;
      std::memcpy(&value, sum.data[m] + 4 * n, 4);
      value = flushed(flushed(value) + flushed(flushed(even[n]) + flushed(odd[n])));
      std::memcpy(sum.data[m] + 4 * n, &value, 4);
    }
  }
}

/// Does the instruction; false if it is none of AMX's.
bool execute(const uint8_t* at, const greg_t* r, int& length) {
  Instruction i{};
  if (!decode(at, r, i)) return false;
  length = i.length;
  constexpr uint8_t none = 0, p66 = 1, f3 = 2, f2 = 3;
  if (i.opcode == 0x49) {
    if (i.mod == 3 && i.prefix == none && i.rm == 0) {
      tiles = {};
    } else if (i.mod == 3 && i.prefix == f2 && i.rm == 0) {
      counts.zeros.fetch_add(1, std::memory_order_relaxed);
      std::memset(usable(i.reg, at).data, 0, sizeof(Tile::data));
    } else if (i.mod != 3 && i.prefix == none) {
      configure(memory_at(i.address + static_cast<uint64_t>(i.stride)), at);
    } else if (i.mod != 3 && i.prefix == p66) {
      tell_configuration(memory_at(i.address + static_cast<uint64_t>(i.stride)));
    } else {
      refuse("an instruction of AMX that is not emulated", at);
    }
    return true;
  }
  if (i.opcode == 0x4B) {
    if (i.mod == 3 || !i.with_sib) refuse("a tile in memory wants a stride", at);
    if (i.prefix == f2 || i.prefix == p66) {
      load(i, at);
    } else if (i.prefix == f3) {
      store(i, at);
    } else {
      refuse("an instruction of AMX that is not emulated", at);
    }
    return true;
  }
  if (i.opcode == 0x5C && i.mod == 3 && i.prefix == f3) {
    multiply_bf16(i, at);
    return true;
  }
  return false;
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
  auto* r = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const uint8_t* at = memory_at(static_cast<uint64_t>(r[REG_RIP]));
  if (at[0] == 0x0F && at[1] == 0x0B) {  // was cpuid
    tell_processor(r);
    r[REG_RIP] += 2;
    return;
  }
  if (at[0] == 0x0F && at[1] == 0xB9) {  // was xgetbv
    tell_states(r);
    r[REG_RIP] += 3;
    return;
  }
  int length = 0;
  if (!execute(at, r, length)) refuse("an instruction that this processor does not have", at);
  r[REG_RIP] += length;
  for (at += length; execute(at, r, length); at += length) r[REG_RIP] += length;  // those that follow: no trap for them
}

__attribute__((constructor)) void begin() {
  struct sigaction action {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

__attribute__((destructor)) void tell_counts() {
  const char* file = std::getenv("LLMTRAIN_AMX_COUNTS");
  if (file == nullptr || counts.products == 0) return;
  FILE* out = std::fopen(file, "a");
  if (out == nullptr) return;
  std::fprintf(
      out, "%d: %lu configurations, %lu loads, %lu stores, %lu zeros, %lu products, %.3f of their multiplications\n",
      getpid(), counts.configurations.load(), counts.loads.load(), counts.stores.load(), counts.zeros.load(),
      counts.products.load(),
      static_cast<double>(counts.multiplications) / (static_cast<double>(counts.products) * 8192));
  std::fclose(out);
}

}  // namespace

/// The kernel's permission to use tiles is granted; other calls go where they go.
extern "C" long syscall(long number, ...) {
  constexpr long get_permission = 0x1022, request_permission = 0x1023;
  std::array<long, 6> a{};
  va_list list;
  va_start(list, number);
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_arch_prctl && a[0] == request_permission) return 0;
  if (number == SYS_arch_prctl && a[0] == get_permission) {
    const uint64_t states = 7 | tile_state;
    std::memcpy(memory_at(static_cast<uint64_t>(a[1])), &states, sizeof states);
    return 0;
  }
  using Function = long (*)(long, ...);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "syscall"));
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/// The program may not take SIGILL back.
extern "C" sighandler_t signal(int number, sighandler_t handler) {
  if (number == SIGILL) return SIG_DFL;
  static const auto real = reinterpret_cast<sighandler_t (*)(int, sighandler_t)>(dlsym(RTLD_NEXT, "signal"));
  return real(number, handler);
}
