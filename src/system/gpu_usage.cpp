#include "system/gpu_usage.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace llmtrain {

namespace {

// Declarations of nvml.h (NVML API Reference, driver 418 and later), of what is called here.
using NvmlDevice = struct NvmlDeviceState*;
constexpr int nvml_success = 0;
constexpr unsigned clock_sm = 1, clock_memory = 2;  // nvmlClockType_t
constexpr unsigned sensor_gpu = 0;                  // nvmlTemperatureSensors_t
struct NvmlUtilization {
  unsigned gpu, memory;  ///< percent
};
struct NvmlMemory {
  unsigned long long total, free, used;  ///< bytes
};

}  // namespace

struct GpuUsage::Library {
  struct Gpu {
    NvmlDevice handle;
    unsigned index;
  };

  explicit Library(const std::string& name) : handle(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) return;
    find("nvmlInit_v2", init);
    find("nvmlShutdown", shutdown);
    find("nvmlDeviceGetHandleByPciBusId_v2", handle_of_address);
    find("nvmlDeviceGetIndex", index_of);
    find("nvmlDeviceGetUtilizationRates", utilization);
    find("nvmlDeviceGetMemoryInfo", memory);
    find("nvmlDeviceGetPowerUsage", power);
    find("nvmlDeviceGetTotalEnergyConsumption", energy);
    find("nvmlDeviceGetClockInfo", clock);
    find("nvmlDeviceGetTemperature", temperature);
    started = init != nullptr && shutdown != nullptr && init() == nvml_success;
  }
  ~Library() {
    if (started) shutdown();
    if (handle != nullptr) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void add(const std::string& address) {
    Gpu gpu{};
    if (!succeeds(handle_of_address, address.c_str(), &gpu.handle)) return;
    if (!succeeds(index_of, gpu.handle, &gpu.index)) gpu.index = static_cast<unsigned>(gpus.size());
    const bool known = std::ranges::any_of(gpus, [&](const Gpu& other) { return other.index == gpu.index; });
    if (!known) gpus.push_back(gpu);  // ranks may share one
  }

  void* handle;
  bool started = false;
  std::vector<Gpu> gpus;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*handle_of_address)(const char* address, NvmlDevice* device) = nullptr;
  int (*index_of)(NvmlDevice device, unsigned* index) = nullptr;
  int (*utilization)(NvmlDevice device, NvmlUtilization* percent) = nullptr;
  int (*memory)(NvmlDevice device, NvmlMemory* bytes) = nullptr;
  int (*power)(NvmlDevice device, unsigned* milliwatts) = nullptr;
  int (*energy)(NvmlDevice device, unsigned long long* millijoules) = nullptr;
  int (*clock)(NvmlDevice device, unsigned kind, unsigned* megahertz) = nullptr;
  int (*temperature)(NvmlDevice device, unsigned sensor, unsigned* celsius) = nullptr;

  /// False also if the library, an older one, has no such function.
  template <class F, class... Arguments>
  static bool succeeds(F* function, Arguments... arguments) {
    return function != nullptr && function(arguments...) == nvml_success;
  }

 private:
  template <class F>
  void find(const char* name, F*& function) const {
    function = reinterpret_cast<F*>(dlsym(handle, name));
  }
};

GpuUsage::GpuUsage(const std::vector<std::string>& addresses, const std::string& library)
    : wanted_(!addresses.empty()) {
  if (addresses.empty()) return;
  auto loaded = std::make_unique<Library>(library);
  if (!loaded->started) return;
  for (const std::string& address : addresses) loaded->add(address);
  library_ = std::move(loaded);
}

GpuUsage::~GpuUsage() = default;

std::vector<NamedValue> GpuUsage::sample() const {
  std::vector<NamedValue> values;
  if (library_ == nullptr) return values;
  for (const Library::Gpu& gpu : library_->gpus) {
    const auto put = [&](const char* name, double value) {
      values.push_back({fmt::format("gpu{}/{}", gpu.index, name), {}, value});
    };
    NvmlUtilization percent{};
    if (Library::succeeds(library_->utilization, gpu.handle, &percent)) put("utilization_percent", percent.gpu);
    NvmlMemory bytes{};
    if (Library::succeeds(library_->memory, gpu.handle, &bytes)) {
      put("memory_used_bytes", static_cast<double>(bytes.used));
      put("memory_total_bytes", static_cast<double>(bytes.total));
    }
    unsigned value = 0;
    if (Library::succeeds(library_->power, gpu.handle, &value)) put("power_watts", value / 1000.0);
    if (Library::succeeds(library_->clock, gpu.handle, clock_sm, &value)) put("clock_sm_mhz", value);
    if (Library::succeeds(library_->clock, gpu.handle, clock_memory, &value)) put("clock_memory_mhz", value);
    if (Library::succeeds(library_->temperature, gpu.handle, sensor_gpu, &value)) put("temperature_celsius", value);
  }
  return values;
}

std::optional<double> GpuUsage::joules() const {
  if (!wanted_) return 0;
  if (library_ == nullptr || library_->gpus.empty()) return std::nullopt;
  double sum = 0;
  for (const Library::Gpu& gpu : library_->gpus) {
    unsigned long long millijoules = 0;
    if (!Library::succeeds(library_->energy, gpu.handle, &millijoules)) return std::nullopt;
    sum += static_cast<double>(millijoules) / 1000;
  }
  return sum;
}

}  // namespace llmtrain
