#include "tool/tool.hpp"

int main(int argc, char** argv) { return llmtrain::run_tool(argc, argv); }
