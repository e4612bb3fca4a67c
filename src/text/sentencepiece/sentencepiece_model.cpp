#include "text/sentencepiece/sentencepiece_model.hpp"

#include <fmt/format.h>

#include <bitset>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "text/pipeline/token_decoder.hpp"
#include "text/pipeline/vocabulary.hpp"

namespace llmtrain {
namespace {

constexpr size_t max_pieces = size_t{1} << 22;

/// Reads the fields of a protocol buffer message in order, within the given bytes.
class ProtobufReader {
 public:
  enum class Kind : uint8_t { number, fixed64, bytes, fixed32 };

  explicit ProtobufReader(std::string_view message) : rest_(message), size_(message.size()) {}

  /// Returns false at the end, or if the next bytes are not a field: then failed() is true.
  bool next() {
    if (rest_.empty() || failed_) return false;
    uint64_t tag = 0;
    if (!varint(tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return fail();
    field_ = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        kind_ = Kind::number;
        return varint(number_) || fail();
      case 1:
        kind_ = Kind::fixed64;
        return take(8) || fail();
      case 2: {
        kind_ = Kind::bytes;
        uint64_t length = 0;
        return (varint(length) && length <= rest_.size() && take(length)) || fail();
      }
      case 5:
        kind_ = Kind::fixed32;
        return take(4) || fail();
      default:
        return fail();
    }
  }
  bool failed() const { return failed_; }
  /// Position of the next field, or of the failure.
  size_t offset() const { return size_ - rest_.size(); }

  uint32_t field() const { return field_; }
  Kind kind() const { return kind_; }
  bool is(uint32_t field, Kind kind) const { return field_ == field && kind_ == kind; }
  uint64_t number() const { return number_; }
  bool boolean() const { return number_ != 0; }
  std::string_view bytes() const { return bytes_; }
  float real() const {
    float value = 0;
    std::memcpy(&value, bytes_.data(), sizeof(value));  // little-endian, like every supported machine
    return value;
  }

 private:
  bool fail() {
    failed_ = true;
    return false;
  }
  bool take(size_t length) {
    if (length > rest_.size()) return false;
    bytes_ = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  std::string_view rest_;
  size_t size_;
  bool failed_ = false;
  uint32_t field_ = 0;
  Kind kind_ = Kind::number;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& name) : name_(name) {
    using Kind = ProtobufReader::Kind;
    if (static_cast<int64_t>(bytes.size()) > max_sentencepiece_file) refuse("longer than a model may be");
    if (bytes.empty()) refuse("the file is empty");
    ProtobufReader fields(bytes);
    while (fields.next()) {
      if (fields.is(1, Kind::bytes)) add_piece(fields.bytes(), fields.offset());
      if (fields.is(2, Kind::bytes)) read_trainer(fields.bytes());
      if (fields.is(3, Kind::bytes)) read_normalizer(fields.bytes());
      if (fields.is(5, Kind::bytes)) read_denormalizer(fields.bytes());
    }
    if (fields.failed()) refuse(fmt::format("byte {}: not a SentencePiece model, or cut off", fields.offset()));
    check();
  }
  SentencePieceModel take() { return std::move(model_); }

 private:
  using Piece = SentencePieceModel::Piece;
  using Type = SentencePieceModel::Type;

  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::bad_content, name_ + ": " + what);
  }

  void add_piece(std::string_view message, size_t offset) {
    using Kind = ProtobufReader::Kind;
    const size_t id = model_.pieces.size();
    const auto bad = [&](const std::string& what) { refuse(fmt::format("byte {}: piece {} {}", offset, id, what)); };
    if (id >= max_pieces) refuse(fmt::format("more than {} pieces", max_pieces));
    Piece piece;
    uint64_t type = 1;
    ProtobufReader fields(message);
    while (fields.next()) {
      if (fields.is(1, Kind::bytes)) {
        if (fields.bytes().size() > longest_token) bad(fmt::format("has more than {} bytes", longest_token));
        piece.text = fields.bytes();
      }
      if (fields.is(2, Kind::fixed32)) piece.score = fields.real();
      if (fields.is(3, Kind::number)) type = fields.number();
    }
    if (fields.failed()) bad("is cut off");
    if (piece.text.empty()) bad("is empty");
    if (find_invalid_utf8(piece.text) != std::string_view::npos) bad("is not UTF-8");
    if (piece.text.find('\0') != std::string::npos) bad("holds a NUL");
    if (!std::isfinite(piece.score)) bad("has a score that is not a number");
    if (type < 1 || type > 6) bad(fmt::format("has the type {}, which is not supported", type));
    piece.type = static_cast<Type>(type);
    model_.pieces.push_back(std::move(piece));
  }

  void read_trainer(std::string_view message) {
    using Kind = ProtobufReader::Kind;
    ProtobufReader fields(message);
    while (fields.next()) {
      if (fields.is(3, Kind::number)) {
        const uint64_t kind = fields.number();
        if (kind == 3 || kind == 4)
          refuse(fmt::format("models of type {} are not supported, only unigram and BPE", kind == 3 ? "word" : "char"));
        if (kind != 1 && kind != 2) refuse(fmt::format("model_type {} is not supported", kind));
        model_.kind = static_cast<SentencePieceModel::Kind>(kind);
      }
      if (fields.is(24, Kind::number)) model_.whitespace_as_suffix = fields.boolean();
      if (fields.is(35, Kind::number)) model_.byte_fallback = fields.boolean();
      if (fields.is(44, Kind::bytes)) model_.unk_surface = name_of_piece(fields.bytes());
      if (fields.is(46, Kind::bytes)) model_.bos_piece = name_of_piece(fields.bytes());
      if (fields.is(47, Kind::bytes)) model_.eos_piece = name_of_piece(fields.bytes());
      if (fields.is(48, Kind::bytes)) model_.pad_piece = name_of_piece(fields.bytes());
    }
    if (fields.failed()) refuse("its trainer_spec is cut off");
  }
  std::string name_of_piece(std::string_view text) const {
    if (text.size() > longest_token || find_invalid_utf8(text) != std::string_view::npos)
      refuse("the name of a piece in trainer_spec is not text");
    return std::string(text);
  }

  void read_normalizer(std::string_view message) {
    using Kind = ProtobufReader::Kind;
    ProtobufReader fields(message);
    while (fields.next()) {
      if (fields.is(2, Kind::bytes) && !fields.bytes().empty()) {
        model_.charsmap = std::make_shared<const Charsmap>(fields.bytes(), name_);
      }
      if (fields.is(3, Kind::number)) model_.add_dummy_prefix = fields.boolean();
      if (fields.is(4, Kind::number)) model_.remove_extra_whitespaces = fields.boolean();
      if (fields.is(5, Kind::number)) model_.escape_whitespaces = fields.boolean();
    }
    if (fields.failed()) refuse("its normalizer_spec is cut off");
  }

  void read_denormalizer(std::string_view message) {
    ProtobufReader fields(message);
    while (fields.next()) {
      if (fields.is(2, ProtobufReader::Kind::bytes) && !fields.bytes().empty()) {
        refuse("it has rules to change decoded text (denormalizer_spec), which are not supported");
      }
    }
    if (fields.failed()) refuse("its denormalizer_spec is cut off");
  }

  void check() const {
    if (model_.pieces.empty()) refuse("it has no pieces: not a SentencePiece model");
    std::unordered_set<std::string_view> normal, reserved;
    std::bitset<256> bytes;
    int unknown = 0, usable = 0;
    for (size_t id = 0; id < model_.pieces.size(); ++id) {
      const Piece& piece = model_.pieces[id];
      const auto bad = [&](const std::string& what) {
        refuse(fmt::format("piece {} \"{}\" {}", id, piece.text.substr(0, 60), what));
      };
      const bool is_normal =
          piece.type == Type::normal || piece.type == Type::user_defined || piece.type == Type::unused;
      usable += is_normal ? 1 : 0;
      if (!(is_normal ? normal : reserved).insert(piece.text).second) bad("is repeated");
      if (piece.type == Type::unknown && ++unknown > 1) bad("is a second unknown piece");
      if (piece.type != Type::byte) continue;
      const int byte = byte_of_token(piece.text);
      if (byte < 0 || piece.text != fmt::format("<0x{:02X}>", byte)) bad("has type byte, but does not name a byte");
      if (!model_.byte_fallback) bad("is a byte, but the model has no byte_fallback");
      bytes.set(static_cast<size_t>(byte));
    }
    if (unknown == 0) refuse("it has no unknown piece");
    if (usable == 0) refuse("it has no piece for text");
    if (model_.byte_fallback && !bytes.all()) refuse("it has byte_fallback, but not all 256 bytes");
  }

  const std::string& name_;
  SentencePieceModel model_;
};

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& name) {
  return Reader(bytes, name).take();
}

}  // namespace llmtrain
