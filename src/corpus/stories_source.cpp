// The grammar of the example corpus, as data. No word of a list is a prefix of another, and the alternatives of a rule
// differ in their first words: see class Grammar. Words after "a" begin with consonants.
//
// Names, towns, pets and treasures begin with a capital letter that is unique within their list, and counts are digits.
// These characters are rare, so a small model soon learns to look back for them: a model of 160,000 parameters (3
// layers of width 64) recalls nearly all after 3.5 million characters. It did not recall lower-case nouns after 4.5
// million, so no such noun returns here; pronouns, "boy" and "girl" agree with the names.

#include "corpus/stories.hpp"

namespace llmtrain {

namespace {

std::vector<WordList> people() {
  return {
      {"name",
       "name he He his child",
       {"Anna/she/She/her/girl", "Ben/he/He/his/boy",        "Clara/she/She/her/girl", "David/he/He/his/boy",
        "Emma/she/She/her/girl", "Finn/he/He/his/boy",       "Grace/she/She/her/girl", "Jack/he/He/his/boy",
        "Kate/she/She/her/girl", "Leo/he/He/his/boy",        "Mia/she/She/her/girl",   "Noah/he/He/his/boy",
        "Paul/he/He/his/boy",    "Queenie/she/She/her/girl", "Rosa/she/She/her/girl",  "Uma/she/She/her/girl",
        "Victor/he/He/his/boy",  "Will/he/He/his/boy",       "Yara/she/She/her/girl",  "Zack/he/He/his/boy"}},
      {"trait", "trait", {"bold",  "brave", "busy", "calm",  "clever", "funny",  "gentle", "happy",
                          "jolly", "kind",  "lazy", "loud",  "merry",  "neat",   "polite", "proud",
                          "quiet", "rich",  "shy",  "silly", "small",  "strong", "tall",   "wise"}},
      {"feeling",
       "feeling",
       {"cheerful", "cold", "glad", "grateful", "hungry", "lucky", "proud", "safe", "sleepy", "tired", "warm", "weak"}},
      {"said", "said", {"answered", "called", "cried", "laughed", "said", "shouted", "whispered", "yelled"}},
      {"how",
       "how",
       {"boldly", "calmly", "gladly", "happily", "kindly", "loudly", "proudly", "quickly", "sadly", "shyly", "slowly",
        "softly"}},
  };
}

std::vector<WordList> places() {
  return {
      {"town", "town", {"Avon",  "Bath", "Cork",  "Delft", "Essen", "Fargo", "Genoa",  "Jena",   "Kyoto", "Lyon",
                        "Milan", "Nice", "Paris", "Quito", "Rome",  "Ulm",   "Venice", "Warsaw", "York",  "Zurich"}},
      {"spot",
       "spot",
       {"at the gate", "behind the door", "behind the wall", "below the stairs", "beside the chair", "by the fence",
        "in the boat", "in the grass", "in the kitchen", "near the oven", "on the roof", "on the shelf",
        "over the desk", "under the bed", "under the table", "up in the tree"}},
      {"weather",
       "weather",
       {"bright", "cloudy", "cold", "dark", "foggy", "misty", "rainy", "snowy", "stormy", "sunny", "warm", "windy"}},
      {"time", "time", {"afternoon", "day", "evening", "morning", "night"}},
  };
}

std::vector<WordList> things() {
  return {
      {"treasure",
       "one many",
       {"Apple/Apples", "Ball/Balls", "Cup/Cups", "Drum/Drums", "Egg/Eggs", "Flag/Flags", "Gem/Gems", "Jar/Jars",
        "Kite/Kites", "Lamp/Lamps", "Mug/Mugs", "Nut/Nuts", "Plum/Plums", "Quilt/Quilts", "Rope/Ropes",
        "Umbrella/Umbrellas", "Vase/Vases", "Whistle/Whistles", "Zither/Zithers"}},
      {"pet",
       "pet",
       {"Biscuit", "Coco", "Duke", "Fluff", "Ginger", "Jumbo", "Kiwi", "Lucky", "Muffin", "Nibbles", "Pepper", "Rusty",
        "Velvet", "Whiskers", "Ziggy"}},
      {"animal",
       "animal",
       {"bear", "cat", "dog", "fox", "goat", "hen", "lion", "mouse", "owl", "pig", "rabbit", "swan", "turtle", "wolf",
        "yak", "zebra"}},
      {"food",
       "food",
       {"bread", "corn", "fish", "honey", "jam", "lemon", "milk", "pie", "rice", "soup", "tea", "yogurt"}},
      {"color",
       "color",
       {"black", "blue", "crimson", "dark", "gray", "green", "lilac", "mint", "pink", "red", "silver", "violet",
        "white", "yellow"}},
      {"stock", "count", {"3", "4", "5", "6"}},
      // stock = given + left
      {"share",
       "stock given left left_number",
       {"3/1/2/many", "3/2/1/one", "4/1/3/many", "4/2/2/many", "4/3/1/one", "5/1/4/many", "5/2/3/many", "5/3/2/many",
        "6/1/5/many", "6/2/4/many", "6/3/3/many"}},
  };
}

std::vector<GrammarVariable> variables() {
  return {
      {"a", "name"}, {"b", "name", "a"},  // the two friends
      {"p", "town"}, {"x", "treasure"},  {"z", "pet"}, {"n", "stock"}, {"k", "share", "", "n"},
  };
}

std::vector<GrammarRule> rules() {
  return {
      {"story", {{1, "One [=weather] [=time] [a]<meeting>\n{a} <event>\n<ending>"}}},
      {"meeting",
       {{1, " met [b] in [p]."},
        {1, " and [b] ran to [p]."},
        {1, " saw [b], a [=trait] {b.child} from [p]."},
        {1, ", a [=trait] {a.child} from [p], met [b]."}}},
      {"event",
       {{1,
         "had a [=color] [x.one] and some [=trait] [=food]. \"I like your {x.one},\" [=said] {b} [=how]."
         " So {a} hid {a.his} {x.one} [=spot]."},
        {1,
         "found [n] [=trait] [x.many]. \"I want [k.given],\" {b} [=said] [=how]."
         " Soon {a} had {k.left} {x:k.left_number} [=spot] and {b} had {k.given}."},
        {1,
         "fed a [=color] [=animal], [z]. \"Is {z} [=trait]?\" {b} [=said] [=how]."
         " So {b.he} gave {z} some [=trait] [=food] [=spot]."}}},
      {"ending",
       {{1, "Then {a} was [=feeling] in {p}, but {b} was [=feeling]."},
        {1, "Soon {b} left {p}. {b.He} told {a} about a [=trait] [=animal]."},
        {1, "So {b} and {a} left {p}, and {b} felt [=feeling]."}}},
  };
}

GrammarSource make_source() {
  GrammarSource source;
  for (const auto& part : {people(), places(), things()}) {
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
