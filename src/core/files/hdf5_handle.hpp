#pragma once
// Owners of HDF5 identifiers.

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace llmtrain {

/// Disables the library's cleanup at exit: every file is closed by its owner, and the cleanup crashes where an
/// allocation had failed in it.
inline const bool hdf5_stays_at_exit = H5dont_atexit() >= 0;

/// Locks the library for one thread at a time (Debian's build has no locks of its own): the training thread, and the
/// checkpoint writer, which writes HDF5 views.
inline std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// The system's reason for a failed call, if the library reports it; else empty.
inline std::string hdf5_system_error() {
  std::string found;
  const auto look = [](unsigned /*depth*/, const H5E_error2_t* entry, void* to) -> herr_t {
    const std::string text = entry->desc != nullptr ? entry->desc : "", before = "error message = '";
    const size_t begin = text.find(before);
    if (begin == std::string::npos) return 0;
    const size_t from = begin + before.size();
    *static_cast<std::string*>(to) = text.substr(from, text.find('\'', from) - from);
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, look, &found);
  return found;
}

[[noreturn]] inline void fail_hdf5_write(const std::string& path, const std::string& what = "it") {
  const std::string reason = hdf5_system_error();
  throw UserError(ExitCode::io,
                  path + ": HDF5 cannot write " + what + (reason.empty() ? " (is the disk full?)" : ": " + reason));
}

/// Type in files of values that checkpoints hold; the 16-bit ones are stored as their bits.
inline hid_t hdf5_type_of(DType type) {
  if (type == DType::f32) return H5T_IEEE_F32LE;
  LLMTRAIN_CHECK(size_of(type) <= 2, "values in checkpoints have 8 or 16 bits, or are fp32");
  return size_of(type) == 1 ? H5T_STD_U8LE : H5T_STD_U16LE;
}

/// Keeps the library from printing its error stack; our own messages say what the user can do.
class Hdf5Silence {
 public:
  Hdf5Silence() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5Silence() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  Hdf5Silence(const Hdf5Silence&) = delete;
  Hdf5Silence& operator=(const Hdf5Silence&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

/// Closes an identifier with the function of its kind.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Hdf5Handle() { reset(); }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }

  bool valid() const { return id_ >= 0; }
  hid_t get() const { return id_; }
  /// Returns false when the library reports a failure; for a written file, data may then be missing.
  bool reset() {
    const hid_t id = std::exchange(id_, -1);
    return id < 0 || close_(id) >= 0;
  }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// Property list for writing a file that HDF5 1.10 can read, whatever release writes it. Each default of the library
/// follows its own release. Invalid on failure; no file can be created with it then.
inline Hdf5Handle hdf5_write_access(H5F_libver_t oldest = H5F_LIBVER_EARLIEST) {
  Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (H5Pset_libver_bounds(access.get(), oldest, H5F_LIBVER_V110) < 0) return {};
  return access;
}

}  // namespace llmtrain
