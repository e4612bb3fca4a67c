#pragma once
#include <string>

namespace llmtrain {

/// Returns the stem of a word in lower case (ASCII) by Porter's algorithm with the extensions of NLTK 3.
std::string porter_stem(std::string word);

}  // namespace llmtrain
