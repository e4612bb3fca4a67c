// Files of settings: values with their lines in each format, and what is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/settings.hpp"
#include "core/error.hpp"

namespace llmtrain {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Kind = SettingValue::Kind;
using Reader = SettingValue (*)(std::string_view, const std::string&);

std::string error_of(Reader read, const std::string& text) {
  try {
    read(text, "f");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    return error.what();
  }
  return "none";
}

void expect_common(const SettingValue& root) {
  ASSERT_TRUE(root.find("lr"));
  EXPECT_EQ(root.find("lr")->number(), 1e-4);
  EXPECT_EQ(root.find("lr")->line, 2);
  EXPECT_EQ(root.find("flag")->boolean(), true);
  EXPECT_EQ(root.find("name")->text, "a b");
}

TEST(SettingsReaders, ReadTheSameValuesAndLines) {
  expect_common(read_yaml_settings("# c\nlr: 1e-4\nflag: yes\nname: 'a b'\n", "f"));
  expect_common(read_json_settings("{\n\"lr\": 1e-4,\n\"flag\": true,\n\"name\": \"a b\"}", "f"));
  expect_common(read_toml_settings("# c\nlr = 1e-4\nflag = true\nname = \"a b\"\n", "f"));
  expect_common(read_ini_settings("; c\nlr = 1e-4\nflag = on\nname = a b\n", "f"));
  expect_common(read_python_settings("# c\nlr = 1e-4\nflag = True\nname = 'a b'\n", "f"));
}

TEST(SettingsReaders, YamlQuirks) {
  const SettingValue root =
      read_yaml_settings("a: \"1e-4\"\nb: no\nc: \"no\"\nd: ~\ne: 1_000\nf: &x [1, 2]\ng: *x\n", "f");
  EXPECT_EQ(root.find("a")->number(), 1e-4) << "YAML 1.1 reads 1e-4 as a text";
  EXPECT_TRUE(root.find("b")->is(Kind::boolean));
  EXPECT_TRUE(root.find("c")->is(Kind::text));
  EXPECT_TRUE(root.find("d")->is(Kind::null));
  EXPECT_EQ(root.find("e")->integer(), 1000);
  EXPECT_EQ(*root.find("g"), *root.find("f"));
  const SettingValue merged = read_yaml_settings("base: &b {x: 1, y: 2}\nown:\n  <<: *b\n  y: 3\n", "f");
  EXPECT_EQ(merged.find("own")->find("x")->text, "1");
  EXPECT_EQ(merged.find("own")->find("y")->text, "3");
}

TEST(SettingsReaders, RefuseHostileFiles) {
  std::string bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{0}: &a{0} [*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1}]\n", i, i - 1);
  }
  EXPECT_THAT(error_of(read_yaml_settings, bomb), HasSubstr("more than 100000 values"));
  const std::string deep(80, '['), closing(80, ']');
  EXPECT_THAT(error_of(read_yaml_settings, "a: " + deep + closing), HasSubstr("f:1: nested deeper than 64"));
  EXPECT_THAT(error_of(read_json_settings, "{\"a\": " + deep + closing + "}"), HasSubstr("f:1: "));
  EXPECT_THAT(error_of(read_toml_settings, "a = " + deep + closing), HasSubstr("f:1: "));
  EXPECT_THAT(error_of(read_python_settings, "a = " + deep + closing), HasSubstr("f:1: nested deeper"));
  EXPECT_THAT(error_of(read_yaml_settings, "a: !!python/object/apply:os.system ['x']\n"), HasSubstr("f:1: the tag"));
  EXPECT_THAT(error_of(read_yaml_settings, "a: 1\n---\nb: 2\n"), HasSubstr("second document"));
  EXPECT_THAT(error_of(read_yaml_settings, "a: *nothing\n"), HasSubstr("f:1: "));
}

TEST(SettingsReaders, DuplicateKeys) {
  EXPECT_THAT(error_of(read_yaml_settings, "a: 1\nb: 2\na: 3\n"),
              HasSubstr("f:3: 'a' is given twice, as '1' in line 1 and as '3'"));
  EXPECT_THAT(error_of(read_json_settings, "{\"a\": 1,\n\"a\": 2}"), HasSubstr("f:2: 'a' is given twice"));
  EXPECT_THAT(error_of(read_python_settings, "a = 1\na = 2\n"), HasSubstr("f:2: 'a' is given twice"));
  EXPECT_EQ(read_yaml_settings("a: 1\na: 1\n", "f").members.size(), 1u) << "the same value twice is not a conflict";
}

TEST(SettingsReaders, PythonIsLiteral) {
  const SettingValue root = read_python_settings(
      "\"\"\"doc\"\"\"\nimport time\nsteps = 5 * 8\nx = -1e-3\nconfig.training.curriculum = {'a': True, 'b': [1, (2, "
      "3)]}\n"
      "m = lib.ModelConfig(\n    d_model=256,  # width\n    name='a' 'b',\n    other=steps,\n)\n",
      "f");
  EXPECT_EQ(root.find("steps")->integer(), 40);
  EXPECT_EQ(root.find("x")->number(), -1e-3);
  EXPECT_EQ(root.find("config")->find("training")->find("curriculum")->find("b")->items[1].items[1].text, "3");
  EXPECT_EQ(root.find("m")->callee, "lib.ModelConfig");
  EXPECT_EQ(root.find("m")->find("d_model")->line, 7);
  EXPECT_EQ(root.find("m")->find("name")->text, "ab");
  EXPECT_EQ(root.find("m")->find("other")->integer(), 40) << "a name that was assigned a literal";
}

TEST(SettingsReaders, PythonValuesThatAreNoLiteralsAreUnreadable) {
  for (const std::string text :
       {"'ft-' + str(time.time())", "[i for i in y]", "lambda: 1", "a[0]", "not y", "{**y}", "f(*y)", "1e999"}) {
    const SettingValue root = read_python_settings("\nx = " + text + "\nz = 2 * -3 * 4\n", "f");
    ASSERT_TRUE(root.find("x")->is(Kind::unreadable)) << text;
    EXPECT_THAT(root.find("x")->text, HasSubstr("f:2: ")) << text;
    EXPECT_EQ(root.find("z")->integer(), -24) << "the next line is read";
  }
}

TEST(SettingsReaders, PythonRefusesEverythingElse) {
  for (const std::string text : {"if True:\n    x = 1\n", "def f():\n  pass\n", "x = f'{y}'\n", "x, y = 1, 2\n",
                                 "x = 1; y = 2\n", "x += 1\n", "  x = 1\n", "x = 'a\n", "x == 1\n", "@x\n"}) {
    EXPECT_THAT(error_of(read_python_settings, "\n" + text), ContainsRegex("f:[23]: ")) << text;
  }
}

}  // namespace
}  // namespace llmtrain
