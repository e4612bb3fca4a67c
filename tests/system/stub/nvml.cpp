// Stands for NVIDIA's management library on a node with two GPUs; the second one does not support power. The functions
// and codes are those of nvml.h.

#include <cstring>

namespace {

enum Code { success = 0, uninitialized = 1, invalid_argument = 2, not_supported = 3, not_found = 6 };
int users = 0;
int gpus[2] = {0, 1};  // handles point here

Code check(const int* device) {
  if (users == 0) return uninitialized;
  return device == &gpus[0] || device == &gpus[1] ? success : invalid_argument;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  ++users;
  return success;
}

int nvmlShutdown() { return users-- > 0 ? success : uninitialized; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, int** device) {
  if (users == 0) return uninitialized;
  for (int& gpu : gpus) {
    if (std::strcmp(address, gpu == 0 ? "0000:1b:00.0" : "0000:3a:00.0") != 0) continue;
    *device = &gpu;
    return success;
  }
  return not_found;
}

int nvmlDeviceGetIndex(int* device, unsigned* index) {
  if (const Code code = check(device); code != success) return code;
  *index = static_cast<unsigned>(*device);
  return success;
}

int nvmlDeviceGetUtilizationRates(int* device, unsigned* percent) {
  if (const Code code = check(device); code != success) return code;
  percent[0] = 90U + static_cast<unsigned>(*device);
  percent[1] = 10;  // of the memory's time
  return success;
}

int nvmlDeviceGetMemoryInfo(int* device, unsigned long long* bytes) {
  if (const Code code = check(device); code != success) return code;
  bytes[0] = 80'000'000'000;
  bytes[1] = 50'000'000'000;  // free
  bytes[2] = 30'000'000'000;
  return success;
}

int nvmlDeviceGetPowerUsage(int* device, unsigned* milliwatts) {
  if (const Code code = check(device); code != success) return code;
  if (*device == 1) return not_supported;
  *milliwatts = 612'500;
  return success;
}

int nvmlDeviceGetTotalEnergyConsumption(int* device, unsigned long long* millijoules) {
  if (const Code code = check(device); code != success) return code;
  if (*device == 1) return not_supported;
  *millijoules = 2'500;
  return success;
}

int nvmlDeviceGetClockInfo(int* device, unsigned kind, unsigned* megahertz) {
  if (const Code code = check(device); code != success) return code;
  if (kind != 1 && kind != 2) return invalid_argument;
  *megahertz = kind == 1 ? 1755 : 2619;
  return success;
}

int nvmlDeviceGetTemperature(int* device, unsigned sensor, unsigned* celsius) {
  if (const Code code = check(device); code != success) return code;
  if (sensor != 0) return invalid_argument;
  *celsius = 61;
  return success;
}

}  // extern "C"
