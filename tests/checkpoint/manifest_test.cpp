#include "checkpoint/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/toy_state.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

Manifest toy_manifest() {
  Manifest manifest;
  manifest.step = 12;
  manifest.program = "llmtrain 0.1.0";
  manifest.deck = "[run]\nname = \"a\tb\"\n";
  manifest.schema = make_schema(test::toy_specs());
  manifest.shards = {{{"shard-00000-of-00002.h5", 5000, {1, 2}}, 4000, 500},
                     {{"shard-00001-of-00002.h5", 1, {}}, 0, 1}};
  manifest.files = {{"view.h5", 77, {5, 6}}};
  manifest.ledger_bytes = 1234;
  manifest.ledger_hash = {7, 8};
  manifest.run.counters = {{"tokens", int64_t{1} << 60}};
  manifest.run.values = {{"best", 0.1}, {"worst", HUGE_VAL}};
  manifest.run.parameters = "0123456789abcdef";
  manifest.run.skipped = {{3, 9}};
  return manifest;
}

/// Returns the text of a manifest with this body and its hash.
std::string framed(const std::string& body) {
  return R"({"hash":")" + hex(digest_of(body.data(), body.size())) + R"(","manifest":)" + body + "}\n";
}

std::string refusal(const std::string& text) {
  try {
    parse_manifest(text, "m");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    return error.what();
  }
  return "";
}

TEST(Manifest, ReadsWhatItWrites) {
  const Manifest manifest = toy_manifest();
  EXPECT_EQ(parse_manifest(to_text(manifest), "m"), manifest);
  Manifest other = manifest;
  other.run.values["best"] = std::nextafter(0.1, 1);
  EXPECT_NE(parse_manifest(to_text(other), "m"), manifest);
}

TEST(Manifest, ListsTheSegmentsOfDividedUnitsAlone) {
  Manifest manifest = toy_manifest();
  EXPECT_THAT(to_text(manifest), Not(HasSubstr("segment")));
  manifest.schema.units[1].segment_ends = {256, 1024};
  EXPECT_EQ(parse_manifest(to_text(manifest), "m").schema.units[1].segment_ends, (std::vector<int64_t>{256, 1024}));
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{1024},
                                            {256, 768},
                                            {256, 1280},
                                            {512, 512, 1024},
                                            {768, 512, 1024},
                                            {0, 1024},
                                            {100, 1024}}) {
    manifest.schema.units[1].segment_ends = wrong;
    EXPECT_THAT(refusal(to_text(manifest)), HasSubstr("segment")) << testing::PrintToString(wrong);
  }
}

// With our own attention, manifests are as before there was a library.
TEST(Manifest, NamesTheLibrariesOfAttentionAndProductsWhereThereAreSome) {
  for (const auto library : {&RunState::attention, &RunState::products}) {
    Manifest manifest = toy_manifest();
    for (const char* name : {"attention", "products"}) EXPECT_THAT(to_text(manifest), Not(HasSubstr(name)));
    manifest.run.*library = "cuDNN 9.19.0";
    EXPECT_EQ(parse_manifest(to_text(manifest), "m"), manifest);
    EXPECT_NE(parse_manifest(to_text(manifest), "m"), toy_manifest());
  }
}

TEST(Manifest, SaysWhatTheFilesWere) {
  Manifest manifest = toy_manifest();
  EXPECT_THAT(to_text(manifest), Not(HasSubstr("contents"))) << "of older versions";
  manifest.run.contents = {{"data.train", "a.txt", "00ff", "source 1, weight 0.5"}, {"model.path", "m", "ab", ""}};
  EXPECT_EQ(parse_manifest(to_text(manifest), "m"), manifest);
  manifest.run.contents[1].hash = "ac";
  const Manifest other = parse_manifest(to_text(manifest), "m");
  EXPECT_EQ(other.run.contents[1].hash, "ac") << "control";
}

TEST(Manifest, ListsStatesThatAreNotAMasterAndTwoMoments) {
  Manifest manifest = toy_manifest();
  EXPECT_THAT(to_text(manifest), Not(HasSubstr("states"))) << "as in older versions";
  manifest.schema.states = {{"master"}, {"m", DType::u8}, {"m.scale", DType::f32, 1}};
  EXPECT_EQ(parse_manifest(to_text(manifest), "m"), manifest);
  manifest.schema.states[2].per_chunk = 2;
  EXPECT_EQ(parse_manifest(to_text(manifest), "m").schema.states[2].per_chunk, 2) << "control";
}

TEST(Manifest, ListsTheValuesOfEachTensorWhereTheyDiffer) {
  Manifest manifest = toy_manifest();
  manifest.schema.states = {{"master"}, {"m", DType::u8, 0}};
  EXPECT_THAT(refusal(to_text(manifest)), HasSubstr("has an impossible number of values"));
  for (TensorSchema& tensor : manifest.schema.tensors) tensor.per_chunk = {chunk_elements, 3};
  const Schema read = parse_manifest(to_text(manifest), "m").schema;
  EXPECT_EQ(difference(read, manifest.schema), "");
  for (const int64_t wrong : {-1, 257}) {
    manifest.schema.tensors[1].per_chunk[1] = wrong;
    EXPECT_NE(refusal(to_text(manifest)), "") << wrong;
  }
  manifest.schema.tensors[1].per_chunk[1] = 4;
  EXPECT_THAT(difference(read, manifest.schema), HasSubstr("different numbers of values"));
}

TEST(Manifest, EveryFlippedBitAndEveryCutIsRefused) {
  const std::string text = to_text(toy_manifest());
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string hurt = text;
      hurt[i] = static_cast<char>(hurt[i] ^ (1 << bit));
      ASSERT_NE(refusal(hurt), "") << "byte " << i << " bit " << bit;
    }
    ASSERT_NE(refusal(text.substr(0, i)), "") << "cut at " << i;
  }
  EXPECT_NE(refusal(text + " "), "");
  EXPECT_EQ(refusal(text), "");
}

/// Replaces the first `from` of a manifest's body and corrects the hash: what a forger can do.
std::string forged(const std::string& from, const std::string& to) {
  const std::string text = to_text(toy_manifest());
  std::string body = text.substr(54, text.size() - 54 - 2);
  EXPECT_EQ(framed(body), text);
  const size_t at = body.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return refusal(framed(body.replace(at, from.size(), to)));
}

TEST(Manifest, ForgedContentIsRefused) {
  EXPECT_THAT(forged("\"version\": 1", "\"version\": 2"), HasSubstr("version 2; this program reads version 1"));
  EXPECT_THAT(forged("\"view.h5\"", "\"../view.h5\""), HasSubstr("not the name of a file"));
  EXPECT_THAT(forged("\"view.h5\"", "\"/etc/passwd\""), HasSubstr("not the name of a file"));
  EXPECT_THAT(forged("\"view.h5\"", "\"manifest.json\""), HasSubstr("not a valid name of a file"));
  EXPECT_THAT(forged("shard-00001-of-00002", "shard-00000-of-00002"), HasSubstr("not the name of this shard"));
  EXPECT_THAT(forged("\"index_offset\": 4000", "\"index_offset\": 4600"),
              HasSubstr("index_bytes: must be an integer from 0 to 400, not 500"));
  EXPECT_THAT(forged("\"index_offset\": 4000", "\"index_offset\": -1"), HasSubstr("must be an integer from 0"));
  EXPECT_THAT(forged("\"step\": 12", "\"step\": 12.0"), HasSubstr("must be an integer from 0"));
  EXPECT_THAT(forged("\"step\": 12", "\"stop\": 12"), HasSubstr("m.step: is missing"));
  EXPECT_THAT(forged("\"step\": 12", "\"step\": 12, \"more\": 1"), HasSubstr("is not supported"));
  EXPECT_THAT(forged("\"step\": 12", "\"step\": 12, \"step\": 12"), HasSubstr("step"));
  EXPECT_THAT(forged("\"elements\": 768", "\"elements\": 9223372036854775552"), HasSubstr("impossible size"));
  EXPECT_THAT(forged("\"elements\": 768", "\"elements\": 700"), HasSubstr("impossible size"));
  EXPECT_THAT(forged("\"elements\": 768", "\"elements\": 512"), HasSubstr("overlaps another or is outside its unit"));
  EXPECT_THAT(forged("\"h.0.k\"", "\"h.0.q\""), HasSubstr("repeated"));
  EXPECT_THAT(forged("\"h.0.k\"", "\"../k\""), HasSubstr("not the name of a tensor"));
  EXPECT_THAT(forged("\"offset\": 256", "\"offset\": 255"), HasSubstr("overlaps another or is outside its unit"));
  EXPECT_THAT(forged("   3,\n", "   9,\n"), HasSubstr("not a range after the others"));
  EXPECT_THAT(forged("\"parameters\":", "\"attention\": 7, \"parameters\":"),
              HasSubstr("attention: must be a text, not 7"));
  EXPECT_THAT(forged("\"parameters\":", "\"attention\": \"\", \"parameters\":"), HasSubstr("a library is expected"));
  EXPECT_THAT(forged("\"parameters\":", "\"products\": [], \"parameters\":"), HasSubstr("products: must be a text"));
  EXPECT_THAT(forged("\"parameters\":", "\"products\": \"\", \"parameters\":"), HasSubstr("a library is expected"));
  EXPECT_THAT(forged("\"parameters\":", "\"attentive\": \"x\", \"parameters\":"), HasSubstr("is not supported"));
  EXPECT_THAT(forged("\"hash\": \"0000", "\"hash\": \"00 0"), HasSubstr("32 hexadecimal digits"));
  const auto with_states = [](const std::string& more) {
    const std::string master = R"({"name": "master", "dtype": "fp32", "per_chunk": 256})";
    return forged("\"step\": 12", "\"step\": 12, \"states\": [" + (more == "none" ? "" : master + more) + "]");
  };
  EXPECT_EQ(with_states(""), "") << "control";
  EXPECT_THAT(with_states("none"), HasSubstr("the states are not those of an optimizer"));
  const auto plane = [&](const std::string& name, const std::string& type, const std::string& per_chunk) {
    return with_states(", {\"name\": \"" + name + R"(", "dtype": ")" + type + R"(", "per_chunk": )" + per_chunk + "}");
  };
  EXPECT_EQ(plane("m", "uint8", "256"), "") << "control";
  EXPECT_THAT(plane("master", "uint8", "256"), HasSubstr("is repeated, or has an impossible size"));
  EXPECT_THAT(plane("index", "uint8", "256"), HasSubstr("is repeated, or has an impossible size"));
  EXPECT_THAT(plane("m", "uint8", "257"), HasSubstr("is repeated, or has an impossible size"));
  EXPECT_THAT(plane("m", "uint8", "0"), HasSubstr("has an impossible number of values")) << "no tensor lists any";
  EXPECT_THAT(plane("../m", "uint8", "256"), HasSubstr("not the name of a tensor"));
  EXPECT_THAT(plane("m", "int64", "256"), HasSubstr("the type of a state"));
}

TEST(Manifest, DepthAndNumberOfValuesAreBounded) {
  EXPECT_THAT(refusal(framed(std::string(100'000, '['))), HasSubstr("m:"));
  // NOLINTNEXTLINE(bugprone-string-constructor): so many on purpose
  EXPECT_NE(refusal(framed("[" + std::string(9'000'000, ',') + "]")), "");
  EXPECT_NE(refusal(framed("[]")), "");
  EXPECT_NE(refusal(framed("null")), "");
}

TEST(Schema, DifferencesAreNamed) {
  const Schema schema = make_schema(test::toy_specs());
  EXPECT_EQ(difference(schema, schema), "");
  EXPECT_THAT(difference(schema, make_schema(test::toy_specs(101))), HasSubstr("wte.weight is 100 x 7 instead of 101"));
  auto specs = test::toy_specs();
  specs[2].params[0].slices[0].name = "norm";
  EXPECT_THAT(difference(schema, make_schema(specs)), HasSubstr("norm is missing, 'ln_f.weight' is not in this model"));
}

TEST(Schema, PartsOfAllShardsAreEveryElementOnce) {
  for (const int64_t shards : {1, 2, 3, 7, 50, 51}) {
    const Schema schema = make_schema(test::toy_specs(), master_and_moments(), shards % 2 == 0 ? 256 : 10000);
    std::vector<std::vector<int>> seen;
    for (const UnitSchema& unit : schema.units) seen.emplace_back(static_cast<size_t>(unit.elements), 0);
    for (int64_t s = 0; s < shards; ++s) {
      for (const StateRange& range : ranges_of_shard(schema, s, shards)) {
        const int64_t unit = schema.tensors[static_cast<size_t>(range.tensor)].unit;
        for (int64_t e = range.begin; e < range.end; ++e) ++seen[static_cast<size_t>(unit)][static_cast<size_t>(e)];
      }
    }
    for (const auto& unit : seen) EXPECT_THAT(unit, testing::Each(3)) << shards;
  }
}

}  // namespace
}  // namespace llmtrain
