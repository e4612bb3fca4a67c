// A tool as profilers bring them: llmtrain loads it by KOKKOS_TOOLS_LIBS (host) or NVTX_INJECTION64_PATH (GPU). It
// writes what it is told to the file SPAN_TOOL_LOG, with the number of the process behind its name: "THREAD begin
// CATEGORY NAME" and "THREAD end" (see decks/span_log.hpp).

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define SPAN_TOOL_HAS_NVTX
#endif

namespace {

FILE* log_file = nullptr;

void open_log() {
  const char* path = std::getenv("SPAN_TOOL_LOG");
  log_file =
      std::fopen((std::string(path != nullptr ? path : "span_tool") + "." + std::to_string(getpid())).c_str(), "w");
  if (log_file == nullptr) std::abort();
}

void log_begin(unsigned category, const char* name) {
  std::fprintf(log_file, "%ld begin %u %s\n", syscall(SYS_gettid), category, name);
  std::fflush(log_file);
}

void log_end() {
  std::fprintf(log_file, "%ld end\n", syscall(SYS_gettid));
  std::fflush(log_file);
}

}  // namespace

extern "C" {

void kokkosp_init_library(const int /*sequence*/, const uint64_t /*version*/, const uint32_t /*devices*/,
                          void* /*info*/) {
  open_log();
}
void kokkosp_push_profile_region(const char* name) { log_begin(0, name); }
void kokkosp_pop_profile_region() { log_end(); }

}  // extern "C"

#ifdef SPAN_TOOL_HAS_NVTX

namespace {

/// Only its address is known to the program.
int the_domain = 0;

nvtxDomainHandle_t create_domain(const char* name) {
  if (std::string(name) != "llmtrain") return nullptr;
  return reinterpret_cast<nvtxDomainHandle_t>(&the_domain);
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  if (domain != reinterpret_cast<nvtxDomainHandle_t>(&the_domain)) return 0;
  log_begin(attributes->category, attributes->message.ascii);
  return 0;
}

int pop(nvtxDomainHandle_t domain) {
  if (domain == reinterpret_cast<nvtxDomainHandle_t>(&the_domain)) log_end();
  return 0;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  open_log();
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

#endif
