// The grammar of the example corpus, as data. Lists are written so that no word begins another, adjectives begin with
// consonants ("a brave ..."), and every rule's alternatives differ in their first words: see class Grammar.

#include "text/stories.hpp"

namespace llmtrain {

namespace {

std::vector<WordList> people() {
  return {
      {"name",
       "name he He his His him child",
       {"Ali/he/He/his/His/him/boy",     "Ben/he/He/his/His/him/boy",      "David/he/He/his/His/him/boy",
        "Erik/he/He/his/His/him/boy",    "Finn/he/He/his/His/him/boy",     "Hugo/he/He/his/His/him/boy",
        "Jack/he/He/his/His/him/boy",    "Leo/he/He/his/His/him/boy",      "Max/he/He/his/His/him/boy",
        "Noah/he/He/his/His/him/boy",    "Oscar/he/He/his/His/him/boy",    "Paul/he/He/his/His/him/boy",
        "Sam/he/He/his/His/him/boy",     "Tom/he/He/his/His/him/boy",      "Victor/he/He/his/His/him/boy",
        "Will/he/He/his/His/him/boy",    "Anna/she/She/her/Her/her/girl",  "Clara/she/She/her/Her/her/girl",
        "Ella/she/She/her/Her/her/girl", "Grace/she/She/her/Her/her/girl", "Helen/she/She/her/Her/her/girl",
        "Ivy/she/She/her/Her/her/girl",  "Julia/she/She/her/Her/her/girl", "Kate/she/She/her/Her/her/girl",
        "Lucy/she/She/her/Her/her/girl", "Mia/she/She/her/Her/her/girl",   "Nina/she/She/her/Her/her/girl",
        "Olga/she/She/her/Her/her/girl", "Rosa/she/She/her/Her/her/girl",  "Sara/she/She/her/Her/her/girl",
        "Tina/she/She/her/Her/her/girl", "Zoe/she/She/her/Her/her/girl"}},
      {"trait", "trait", {"bold",  "brave", "busy", "calm",  "clever", "funny",  "gentle", "happy",
                          "jolly", "kind",  "lazy", "loud",  "merry",  "neat",   "polite", "proud",
                          "quiet", "rich",  "shy",  "silly", "small",  "strong", "tall",   "wise"}},
      {"kin",
       "kin",
       {"aunt", "brother", "cousin", "father", "grandmother", "mother", "neighbor", "sister", "teacher", "uncle"}},
      {"feeling",
       "feeling",
       {"cheerful", "cold", "glad", "grateful", "hungry", "lucky", "proud", "safe", "sleepy", "tired", "warm", "weak"}},
  };
}

std::vector<WordList> world() {
  return {
      {"place", "place", {"bakery", "barn",   "beach",  "bridge", "castle",  "church", "farm",   "forest",
                          "garden", "harbor", "hill",   "lake",   "market",  "meadow", "mill",   "park",
                          "pond",   "river",  "school", "shop",   "station", "tower",  "valley", "well"}},
      {"spot",
       "spot",
       {"at the gate", "behind the door", "behind the wall", "below the stairs", "beside the chair", "by the fence",
        "in the boat", "in the grass", "in the kitchen", "near the oven", "on the roof", "on the shelf",
        "over the desk", "under the bed", "under the table", "up in the tree"}},
      {"weather",
       "weather",
       {"bright", "cloudy", "cold", "dark", "foggy", "misty", "rainy", "snowy", "stormy", "sunny", "warm", "windy"}},
      {"time", "time", {"afternoon", "day", "evening", "morning", "night"}},
      {"color",
       "color",
       {"black", "blue", "brown", "golden", "gray", "green", "pink", "purple", "red", "silver", "white", "yellow"}},
      {"box", "box", {"bag", "basket", "bottle", "box", "bucket", "chest", "crate", "drawer", "jar", "sack"}},
  };
}

std::vector<WordList> things() {
  return {
      {"thing", "one many", {"apple/apples", "ball/balls",   "bell/bells",   "button/buttons",  "candle/candles",
                             "coin/coins",   "cup/cups",     "drum/drums",   "egg/eggs",        "feather/feathers",
                             "flag/flags",   "hat/hats",     "kite/kites",   "lamp/lamps",      "marble/marbles",
                             "nut/nuts",     "pear/pears",   "plate/plates", "ribbon/ribbons",  "rope/ropes",
                             "shell/shells", "spoon/spoons", "stone/stones", "whistle/whistles"}},
      {"animal", "one many", {"bear/bears",     "bird/birds",   "cat/cats",       "cow/cows",    "crow/crows",
                              "dog/dogs",       "duck/ducks",   "fox/foxes",      "frog/frogs",  "goat/goats",
                              "hen/hens",       "horse/horses", "mouse/mice",     "pig/pigs",    "pony/ponies",
                              "rabbit/rabbits", "swan/swans",   "turtle/turtles", "wolf/wolves", "zebra/zebras"}},
      {"food", "food", {"bread", "butter",  "cake", "cheese",   "corn", "cream", "fruit", "honey", "jam", "juice",
                        "milk",  "noodles", "pie",  "porridge", "rice", "salad", "soup",  "sugar", "tea", "yogurt"}},
      {"count",
       "word number it was",
       {"one/one/it/was", "two/many/them/were", "three/many/them/were", "four/many/them/were", "five/many/them/were"}},
      {"stock", "word", {"three", "four", "five", "six"}},
      // stock = given + left
      {"share",
       "stock given given_number left left_number",
       {"three/one/one/two/many", "three/two/many/one/one", "four/one/one/three/many", "four/two/many/two/many",
        "four/three/many/one/one", "five/one/one/four/many", "five/two/many/three/many", "six/one/one/five/many",
        "six/two/many/four/many", "six/three/many/three/many"}},
  };
}

std::vector<WordList> actions() {
  return {
      {"hobby",
       "hobby",
       {"climb", "cook", "count", "dance", "draw", "fish", "hide", "jump", "paint", "play", "read", "row", "run",
        "sing", "skate", "swim"}},
      {"said", "said", {"answered", "called", "cried", "laughed", "said", "shouted", "whispered", "yelled"}},
      {"how",
       "how",
       {"boldly", "calmly", "gladly", "happily", "kindly", "loudly", "proudly", "quickly", "sadly", "shyly", "slowly",
        "softly"}},
  };
}

std::vector<GrammarVariable> variables() {
  return {
      {"a", "name"},    {"b", "name", "a"},   // the two friends
      {"t", "trait"},   {"u", "trait", "t"},  // of a; of b
      {"w", "weather"}, {"d", "time"},       {"p", "place"},          {"s", "spot"}, {"r", "spot", "s"},
      {"c", "color"},   {"x", "thing"},      {"y", "animal"},         {"f", "food"}, {"g", "food", "f"},
      {"m", "count"},   {"n", "stock"},      {"k", "share", "", "n"},
  };
}

std::vector<GrammarRule> rules() {
  return {
      {"story", {{1, "One [w] [d] [a]<intro>\n{a} <plot>\n<ending>"}}},
      {"intro",
       {{1, " met [b] at the [p]. {a} was [t] and {b} was [u]."},
        {1, " and [b] ran to the [p]. {a} was a [t] {a.child}, and {b} was [u]."},
        {1, " left the [p]. {a.He} was [t], and {a.his} friend [b] was [u]."},
        {1, ", a [t] {a.child}, went to the [p] with {a.his} [u] friend [b]."}}},
      {"plot",
       {{1, "lost a [c] [x.one] [s]. {b} looked [r] and [=how] [=said], \"{a}, your {c} {x.one} is {s}!\""},
        {1,
         "found [n] [c] [x.many] in a [=box]. {b} got [k.given] and [=how] [=said], \"Now you have {k.left}"
         " {x:k.left_number}, {a}!\""},
        {1,
         "saw [m] [=trait], [c] [y:m.number] [=spot]. \"Look at {m.it}, {b}!\" {a.he} [=said]. The {c} {y:m.number}"
         " {m.was} [=feeling]."},
        {1, "wanted [f] and [g]. \"I have no {g},\" [=said] {b} [=how]. So {a} ate the {f} with [=food] [=spot]."}}},
      {"ending",
       {{1, "\"Thank you, {b},\" [=said] {a} [=how]. So the {t} {a.child} was [=feeling]."},
        {1, "Then {b} went back to the {p} to [=hobby]. {b.He} felt [=feeling]."},
        {1, "At home {a} told {a.his} [=kin] about {b} and the [=trait] [=animal]."},
        {1, "Later the {u} {b.child} gave {a} a [=color] [=thing] and some [=food]."}}},
  };
}

GrammarSource make_source() {
  GrammarSource source;
  for (const auto& part : {people(), world(), things(), actions()}) {
    source.lists.insert(source.lists.end(), part.begin(), part.end());
  }
  source.variables = variables();
  source.rules = rules();
  return source;
}

}  // namespace

const GrammarSource& stories_source() {
  static const GrammarSource source = make_source();
  return source;
}

}  // namespace llmtrain
