#include "device/profile_tools.hpp"

#if __has_include(<nvtx3/nvToolsExt.h>)  // an optional part of the CUDA Toolkit

#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <string>

#include "core/profile.hpp"

namespace llmtrain {

namespace {

nvtxDomainHandle_t domain = nullptr;

/// Categories of NVTX begin with 1.
uint32_t category_of(SpanKind kind) { return static_cast<uint32_t>(kind) + 1; }

constexpr SpanListener nvtx_ranges = {[](SpanKind kind, const char* name) {
                                        nvtxEventAttributes_t attributes{};
                                        attributes.version = NVTX_VERSION;
                                        attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
                                        attributes.category = category_of(kind);
                                        attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
                                        attributes.message.ascii = name;
                                        nvtxDomainRangePushEx(domain, &attributes);
                                      },
                                      [] { nvtxDomainRangePop(domain); }};

}  // namespace

void attach_profile_tools() {
  // The first call of NVTX loads the tool that NVTX_INJECTION64_PATH names; without a tool there is no domain.
  if (domain == nullptr) domain = nvtxDomainCreateA("llmtrain");
  if (domain == nullptr) return;
  for (const SpanKind kind : {SpanKind::phase, SpanKind::kernel, SpanKind::communication}) {
    nvtxDomainNameCategoryA(domain, category_of(kind), std::string(name_of(kind)).c_str());
  }
  set_span_listener(&nvtx_ranges);
}

// The domain is never destroyed: a span of another thread may still be open.
void detach_profile_tools() { set_span_listener(nullptr); }

}  // namespace llmtrain

#else

namespace llmtrain {

void attach_profile_tools() {}
void detach_profile_tools() {}

}  // namespace llmtrain

#endif
