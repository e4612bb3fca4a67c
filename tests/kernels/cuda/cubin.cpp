#include "kernels/cuda/cubin.hpp"

#include <cxxabi.h>
#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>

#include "core/error.hpp"

// Machine code of a GPU is an ELF file inside the object ("CUDA Binary Utilities"): a section .text.K for kernel K,
// .nv.shared.K, and .nv.info with records of (format, attribute, bytes). readelf and cuobjdump --dump-elf show them.

namespace llmtrain::test {

namespace {

constexpr uint16_t machine_cuda = 190;
constexpr uint8_t format_with_size = 4;
enum : uint8_t { info_max_threads = 0x05, info_frame_size = 0x11, info_register_count = 0x2F };

template <class T>
T read(std::string_view bytes, uint64_t at) {
  LLMTRAIN_CHECK(at + sizeof(T) <= bytes.size(), "device code ends early");
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

class Cubin {
 public:
  explicit Cubin(std::string_view bytes) : bytes_(bytes), header_(read<Elf64_Ehdr>(bytes, 0)) {
    for (uint64_t i = 0; i < header_.e_shnum; ++i) {
      sections_.push_back(read<Elf64_Shdr>(bytes_, header_.e_shoff + i * sizeof(Elf64_Shdr)));
    }
  }

  std::vector<KernelResources> kernels() const {
    std::map<std::string, KernelResources> found;
    for (const Elf64_Shdr& section : sections_) {
      if (const std::string kernel = rest_of(section, ".text."); !kernel.empty())
        found[kernel].name = demangled(kernel);
    }
    for (const Elf64_Shdr& section : sections_) {
      if (const auto k = found.find(rest_of(section, ".nv.shared.")); k != found.end()) {
        k->second.shared_bytes = static_cast<int64_t>(section.sh_size);
      }
      if (const auto k = found.find(rest_of(section, ".nv.info.")); k != found.end()) {
        for_each_record(section, [&](uint8_t attribute, uint64_t at) {
          if (attribute == info_max_threads) k->second.threads = read<uint32_t>(bytes_, at);
        });
      }
      if (name_of(section) != ".nv.info") continue;
      for_each_record(section, [&](uint8_t attribute, uint64_t at) {
        if (attribute != info_frame_size && attribute != info_register_count) return;
        const auto k = found.find(symbol(read<uint32_t>(bytes_, at)));
        if (k == found.end()) return;  // a function that kernels call
        (attribute == info_frame_size ? k->second.frame_bytes : k->second.registers) = read<uint32_t>(bytes_, at + 4);
      });
    }
    std::vector<KernelResources> result;
    for (auto& [mangled, kernel] : found) {
      // The position of the architecture in the flags has changed with version 8 of the format.
      kernel.architecture =
          static_cast<int>(header_.e_ident[EI_ABIVERSION] >= 8 ? header_.e_flags >> 8 & 0xFF : header_.e_flags & 0xFF);
      result.push_back(std::move(kernel));
    }
    return result;
  }

 private:
  std::string text_at(uint64_t at) const { return std::string(bytes_.substr(at, bytes_.find('\0', at) - at)); }
  std::string name_of(const Elf64_Shdr& section) const {
    return text_at(sections_[header_.e_shstrndx].sh_offset + section.sh_name);
  }
  std::string rest_of(const Elf64_Shdr& section, std::string_view prefix) const {
    const std::string name = name_of(section);
    return name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : std::string();
  }
  std::string symbol(uint64_t index) const {
    for (const Elf64_Shdr& table : sections_) {
      if (table.sh_type != SHT_SYMTAB) continue;
      const auto entry = read<Elf64_Sym>(bytes_, table.sh_offset + index * sizeof(Elf64_Sym));
      return text_at(sections_[table.sh_link].sh_offset + entry.st_name);
    }
    return {};
  }
  /// Calls f(attribute, offset of its bytes).
  template <class F>
  void for_each_record(const Elf64_Shdr& section, const F& f) const {
    for (uint64_t at = section.sh_offset; at + 4 <= section.sh_offset + section.sh_size;) {
      const auto format = read<uint8_t>(bytes_, at), attribute = read<uint8_t>(bytes_, at + 1);
      const uint64_t size = format == format_with_size ? read<uint16_t>(bytes_, at + 2) : 0;
      at += 4;
      if (size > 0) f(attribute, at);
      at += size;
    }
  }

  std::string_view bytes_;
  Elf64_Ehdr header_;
  std::vector<Elf64_Shdr> sections_;
};

std::string read_bytes(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  LLMTRAIN_CHECK(stream.good(), file + " cannot be read");
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace

std::vector<KernelResources> read_kernel_resources(const std::string& file) {
  const std::string bytes = read_bytes(file);
  std::vector<KernelResources> result;
  const std::string_view magic("\177ELF\002", 5);
  for (size_t at = bytes.find(magic); at != std::string::npos; at = bytes.find(magic, at + 1)) {
    const std::string_view rest = std::string_view(bytes).substr(at);
    if (rest.size() < sizeof(Elf64_Ehdr) || read<Elf64_Ehdr>(rest, 0).e_machine != machine_cuda) continue;
    for (KernelResources& kernel : Cubin(rest).kernels()) result.push_back(std::move(kernel));
  }
  return result;
}

// PTX is text: a line ".target sm_90" begins it, and "[.visible | .weak] .entry NAME(" a kernel.
std::map<std::string, std::set<int>> read_ptx_kernels(const std::string& file) {
  const std::string bytes = read_bytes(file);
  const std::string_view target("\n.target sm_"), entry(".entry ");
  std::map<std::string, std::set<int>> result;
  for (size_t at = bytes.find(target); at != std::string::npos;) {
    const int architecture = std::atoi(bytes.c_str() + at + target.size());
    const size_t end = std::min(bytes.find(target, at + 1), bytes.find('\0', at));
    const std::string_view text = std::string_view(bytes).substr(at, end - at);
    for (size_t k = text.find(entry); k != std::string_view::npos; k = text.find(entry, k + 1)) {
      const size_t name = k + entry.size();
      result[demangled(std::string(text.substr(name, text.find('(', name) - name)))].insert(architecture);
    }
    at = bytes.find(target, end);
  }
  return result;
}

}  // namespace llmtrain::test
