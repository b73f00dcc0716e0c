// Runs a fuzz target where libFuzzer is not: every file of a corpus, then seeded mutations of them.
//   PROGRAM CORPUS [MUTATIONS [SECONDS]]   as many mutations, but no longer than that
// Deterministic but for the end by time. The input at hand is left in the file of
// KILN_FUZZ_LAST_INPUT, so that one that ends the process can be run again.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

namespace {

namespace fs = std::filesystem;

void run(const std::string& input) {
  static const char* const last_input = std::getenv("KILN_FUZZ_LAST_INPUT");
  if (last_input != nullptr) {
    std::ofstream(last_input, std::ios::binary | std::ios::trunc) << input;
  }
  // In memory of its own size, so that a sanitizer sees every read beyond it.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Mutations {
 public:
  explicit Mutations(std::vector<std::string> corpus) : corpus_(std::move(corpus)) {}

  std::string next() {
    std::string input = any();
    for (size_t i = 1 + below(4); i > 0; --i) change(input);
    return input;
  }

 private:
  size_t below(size_t end) { return end == 0 ? 0 : random_() % end; }
  const std::string& any() { return corpus_[below(corpus_.size())]; }

  std::string piece() {
    const std::string& from = any();
    const size_t at = below(from.size());
    return from.substr(at, 1 + below(40));
  }

  void change(std::string& input) {
    static const char* const kNumbers[] = {"0",
                                           "-1",
                                           "1",
                                           "255",
                                           "65536",
                                           "2147483647",
                                           "2147483648",
                                           "-2147483649",
                                           "4294967296",
                                           "9007199254740993",
                                           "9223372036854775807",
                                           "18446744073709551616",
                                           "1e400",
                                           "-0.0",
                                           "null",
                                           "{}",
                                           "[]",
                                           "\"\"",
                                           "true"};
    const size_t at = below(input.size() + 1);
    switch (below(8)) {
      case 0:
        if (at < input.size()) input[at] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(random_());
        break;
      case 2:
        input.insert(at, 1 + below(16), static_cast<char>(random_()));
        break;
      case 3:
        input.erase(at, 1 + below(32));
        break;
      case 4:
        input.insert(at, piece());
        break;
      case 5:
        if (at < input.size()) {
          const std::string other = piece();
          input.replace(at, other.size(), other);
        }
        break;
      case 6: {  // a number of the text becomes another one
        const size_t digit = input.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = input.find_first_not_of("0123456789", digit);
        input.replace(digit, end == std::string::npos ? end : end - digit,
                      kNumbers[below(std::size(kNumbers))]);
        break;
      }
      default: {
        const std::string& other = any();
        input = input.substr(0, at) + other.substr(std::min(at, other.size()));
        break;
      }
    }
    if (input.size() > (1 << 16)) input.resize(1 << 16);
  }

  std::vector<std::string> corpus_;
  std::mt19937 random_{20261130};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS [SECONDS]]\n", argv[0]);
    return 2;
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(argv[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus{""};
  for (const fs::path& file : files) corpus.push_back(read(file));
  for (const std::string& input : corpus) run(input);

  const long wanted = argc > 2 ? std::atol(argv[2]) : 0;
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(argc > 3 ? std::atol(argv[3]) : 3600);
  Mutations mutations(corpus);
  long done = 0;
  while (done < wanted && std::chrono::steady_clock::now() < end) {
    run(mutations.next());
    ++done;
  }
  std::printf("%zu inputs of the corpus and %ld mutations\n", corpus.size(), done);
  return 0;
}
