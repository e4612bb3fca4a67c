#include "data/tokenize/find_labels.hpp"

#include "core/error.hpp"
#include "data/files/file_digest.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/label_rows.hpp"
#include "data/tokenize/shared_work.hpp"
#include "data/tokenize/tokenize_jobs.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {
namespace {

FoundLabels labels_of(const TokenizeJob& job, const InputFile& file, const LabelRules& rules) {
  FoundLabels found;
  const FileHandle handle = open_content(file);
  LineReader lines(handle, file.bytes, job.begin, job.end, file.format.row_limit);
  const RowReader reader(file.format.row_format, file.format.columns, true);
  std::string_view line;
  while (lines.next(line)) {
    if (is_blank(line)) continue;
    try {
      found.add(reader.read_documents(line).labelled.value(), rules);
    } catch (const RowError& error) {
      fail_at_byte(handle, lines.offset() + static_cast<int64_t>(error.byte()), error.reason());
    } catch (const UserError& error) {
      fail_in_row(handle, lines.offset(), error.what());
    }
  }
  return found;
}

}  // namespace

std::vector<std::string> labels_of_files(const std::vector<InputFile>& files, const LabelRules& rules,
                                         Communicator& communicator, const ProgressReport& report) {
  TokenizeRequest request;
  request.files = files;
  const std::vector<TokenizeJob> jobs = jobs_of(request);
  FoundLabels mine, all;
  share_work<FoundLabels>(
      communicator, own_items(std::ssize(jobs), communicator),
      [&](int64_t item) {
        const TokenizeJob& job = jobs[static_cast<size_t>(item)];
        return labels_of(job, files[job.file], rules);
      },
      [&](int64_t /*item*/, const FoundLabels& found) { mine.add(found); }, percent_report(report, "reading labels"));
  for (const std::string& bytes : communicator.gather_all(mine.packed())) all.add(FoundLabels::unpacked(bytes));
  std::vector<std::string> names;
  throw_on_all_ranks(communicator, [&] { names = all.names(); });
  return names;
}

}  // namespace llmtrain
