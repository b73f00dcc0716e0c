// What the reuse of metadata saves in one prefill chunk (ops.md B12.5, B13): all of it built anew
// in every layer that reads it, and built once and read by the layers that share it, each as one
// CUDA graph. Usage: metadata_bench STORE_FILE [DEVICE [ROWS [TOKENS]]], where tokens are those of
// each of the four requests after the chunk. On a simulated device ("sim:a100-sxm4-80gb") nothing
// is timed; there, too, every layer has to find the same either way.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/abi/kiln.h"
#include "runtime/device.h"

namespace {

constexpr int kLayers = 40;
constexpr int64_t kRequests = 4, kTopK = 512, kWindow = 128;
constexpr int64_t kPage = 64, kWindowPage = 32, kPages = 32768;

int ratio_of(int layer) { return layer < 2 ? 0 : layer < 20 ? 2 : 1; }
bool is_index_source(int layer) {
  constexpr int kSources[] = {2, 8, 14, 20, 24, 28, 32, 36};
  return std::find(std::begin(kSources), std::end(kSources), layer) != std::end(kSources);
}

void require(kiln_status status) {
  if (status == KILN_OK) return;
  std::fprintf(stderr, "%s: %s\n", kiln_status_name(status), kiln_last_error());
  std::exit(1);
}

// An op of the chunk, and the layers that have to build its result: all that read it, and with
// reuse the first of those that share it.
struct Step {
  std::string name;
  std::function<void(int layer, void* stream)> call;
  std::function<bool(int layer)> reads;
  std::function<bool(int layer, int first)> builds;  // first: of the layers looked at
  std::vector<std::pair<void*, int64_t>> results;    // with their bytes
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& result : results) sum += result.second;
    return sum;
  }
};

class Chunk {
 public:
  Chunk(kiln_session* session, int64_t rows, int64_t tokens)
      : session_(session), rows_(rows), tokens_(tokens) {
    std::vector<int32_t> starts, seq_lens;
    for (int64_t b = 0; b <= kRequests; ++b)
      starts.push_back(static_cast<int32_t>(rows * b / kRequests));
    seq_lens.assign(kRequests, static_cast<int32_t>(tokens));
    std::vector<int32_t> requests, positions;
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t b = std::upper_bound(starts.begin(), starts.end(), t) - starts.begin() - 1;
      requests.push_back(static_cast<int32_t>(b));
      positions.push_back(static_cast<int32_t>(tokens + t - starts[static_cast<size_t>(b) + 1]));
    }
    requests_ = on_device(requests);
    positions_ = on_device(positions);
    starts_ = on_device(starts);
    seq_lens_ = on_device(seq_lens);
    for (const int64_t ratio : {2, 1}) add_keys(ratio);
    add_window();
    add_slots();
  }
  const std::vector<Step>& steps() const { return steps_; }

 private:
  kiln_plan* plan(const char* op, const std::string& shape) {
    const std::string workload =
        std::string(R"({"ops":[{"op":")") + op + R"(","shape":)" + shape + "}]}";
    require(kiln_prepare(session_, workload.c_str(), nullptr, nullptr));
    kiln_plan* plan = nullptr;
    require(kiln_plan_create(session_, op, shape.c_str(), &plan));
    return plan;
  }
  int32_t* allocate(int64_t count) {
    void* memory = nullptr;
    require(kiln_memory_allocate(session_, static_cast<size_t>(count) * 4, &memory));
    return static_cast<int32_t*>(memory);
  }
  const int32_t* on_device(const std::vector<int32_t>& values) {
    int32_t* memory = allocate(static_cast<int64_t>(values.size()));
    require(kiln_memory_write(session_, memory, values.data(), values.size() * 4));
    return memory;
  }
  const int32_t* block_table(int64_t width) {
    std::vector<int32_t> pages(static_cast<size_t>(kRequests * width));
    for (size_t i = 0; i < pages.size(); ++i)
      pages[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(kPages));
    return on_device(pages);
  }
  // Of each row up to 512 different entries of those visible, which begin at `first`.
  std::vector<int32_t> topk(int64_t visible, int64_t first) const {
    std::vector<int32_t> chosen(static_cast<size_t>(rows_ * kTopK), -1);
    const int64_t count = std::min(visible, kTopK);
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t i = 0; i < count; ++i)
        chosen[static_cast<size_t>(t * kTopK + i)] =
            static_cast<int32_t>((first + i * visible / count) % visible);
    }
    return chosen;
  }
  // A result of the step that is being made.
  int32_t* result(int64_t count) {
    int32_t* memory = allocate(count);
    results_.emplace_back(memory, count * 4);
    return memory;
  }
  template <class Args>
  void add(const std::string& name, kiln_plan* plan, const Args& args,
           kiln_status (*op)(kiln_plan*, const Args*, void*), std::function<bool(int)> reads,
           std::function<bool(int, int)> builds) {
    add(
        name, [=](int, void* stream) { require(op(plan, &args, stream)); }, std::move(reads),
        std::move(builds));
  }
  void add(const std::string& name, std::function<void(int, void*)> call,
           std::function<bool(int)> reads, std::function<bool(int, int)> builds) {
    steps_.push_back(
        {name, std::move(call), std::move(reads), std::move(builds), std::move(results_)});
    results_.clear();
  }

  void add_keys(int64_t ratio);
  void add_window();
  void add_slots();

  kiln_session* session_;
  int64_t rows_, tokens_;
  // Of the batch, known before the first layer (ops.md B13.0).
  const int32_t *starts_ = nullptr, *seq_lens_ = nullptr;
  const int32_t *requests_ = nullptr, *positions_ = nullptr;
  std::vector<std::pair<void*, int64_t>> results_;
  std::vector<Step> steps_;
};

// All layers of a ratio share it.
void Chunk::add_keys(int64_t ratio) {
  const int64_t keys = tokens_ / ratio;
  kiln_ragged_keys_args args{};
  args.struct_bytes = sizeof args;
  args.query_start_loc = starts_;
  args.seq_lens = seq_lens_;
  args.table_width = args.block_table_stride = (keys + kPage - 1) / kPage;
  args.block_table = block_table(args.table_width);
  args.lens = result(kRequests);
  args.gather_lens = result(kRequests);
  args.indptr = result(kRequests + 1);
  args.indices = result(kRequests * keys);
  args.requests = result(rows_);
  args.positions = result(rows_);
  args.key_begin = result(rows_);
  args.key_end = result(rows_);
  args.num_rows = rows_;
  args.num_requests = kRequests;
  args.max_keys = keys;
  args.capacity = kRequests * keys;
  args.page_size = kPage;
  args.num_pages = kPages;
  const std::string name = "ragged_keys, ratio " + std::to_string(ratio);
  kiln_plan* const plan_of_ratio = plan("ragged_keys", "{\"ratio\":" + std::to_string(ratio) + "}");
  add(
      name, plan_of_ratio, args, kiln_ragged_keys,
      [=](int layer) { return ratio_of(layer) == ratio; },
      [=](int layer, int first) { return layer == std::max(first, ratio == 2 ? 2 : 20); });
}

// All layers share it, where their windows share a block table.
void Chunk::add_window() {
  kiln_window_slots_args args{};
  args.struct_bytes = sizeof args;
  args.positions = positions_;
  args.requests = requests_;
  args.table_width = args.block_table_stride1 = (tokens_ + kWindowPage - 1) / kWindowPage;
  args.block_table_stride0 = kRequests * args.table_width;
  args.block_table = block_table(args.table_width);
  args.slots = result(rows_ * kWindow);
  args.slots_stride1 = args.slot_width = kWindow;
  args.slots_stride0 = rows_ * kWindow;
  args.lens = result(rows_);
  args.num_rows = rows_;
  args.num_groups = 1;
  args.num_requests = kRequests;
  args.page_size = kWindowPage;
  args.num_pages = kPages;
  add(
      "window_slots", plan("window_slots", R"({"window":128,"form":"causal"})"), args,
      kiln_window_slots, [](int) { return true; },
      [](int layer, int first) { return layer == first; });
}

// The layers behind an index source share its slots, and their packed form. Each source has chosen
// others.
void Chunk::add_slots() {
  const int64_t visible = tokens_ / 2;
  const auto reads = [](int layer) { return ratio_of(layer) != 0; };
  const auto builds = [](int layer, int) { return is_index_source(layer); };
  kiln_topk_to_slots_args slots{};
  slots.struct_bytes = sizeof slots;
  slots.topk_stride = slots.slots_stride = kTopK;
  slots.requests = requests_;
  slots.table_width = slots.block_table_stride = (visible + kPage - 1) / kPage;
  slots.block_table = block_table(slots.table_width);
  slots.slots = result(rows_ * kTopK);
  slots.lens = result(rows_);
  slots.num_rows = rows_;
  slots.num_requests = kRequests;
  slots.page_size = kPage;
  slots.num_pages = kPages;
  std::map<int, const int32_t*> topk_of_source;
  for (int layer = 0; layer < kLayers; ++layer) {
    if (is_index_source(layer)) topk_of_source[layer] = on_device(topk(visible, layer));
  }
  kiln_plan* const plan_of_slots = plan("topk_to_slots", R"({"top_k":512})");
  add(
      "topk_to_slots",
      [=](int layer, void* stream) {
        kiln_topk_to_slots_args args = slots;
        args.topk = std::prev(topk_of_source.upper_bound(layer))->second;
        require(kiln_topk_to_slots(plan_of_slots, &args, stream));
      },
      reads, builds);

  kiln_ragged_indptr_args packed{};
  packed.struct_bytes = sizeof packed;
  packed.slots = slots.slots;
  packed.slots_stride = packed.width = kTopK;
  packed.lens = slots.lens;
  packed.indptr = result(rows_ + 1);
  packed.indices = result(rows_ * kTopK);
  packed.num_rows = rows_;
  packed.capacity = rows_ * kTopK;
  add("ragged_indptr", plan("ragged_indptr", "{}"), packed, kiln_ragged_indptr, reads, builds);
}

enum Way { kRebuilt, kReused };

// Of the steps in `only`, or of all, for the layers from `first` on, in the order of a forward.
int64_t run(const std::vector<Step>& steps, const Step* only, int first, Way way, void* stream) {
  int64_t calls = 0;
  for (int layer = first; layer < kLayers; ++layer) {
    for (const Step& step : steps) {
      if (only != nullptr && &step != only) continue;
      if (!(way == kRebuilt ? step.reads(layer) : step.builds(layer, first))) continue;
      step.call(layer, stream);
      ++calls;
    }
  }
  return calls;
}

int64_t bytes_written(const std::vector<Step>& steps, const Step* only, int first, Way way) {
  int64_t bytes = 0;
  for (int layer = first; layer < kLayers; ++layer) {
    for (const Step& step : steps) {
      if (only != nullptr && &step != only) continue;
      if (way == kRebuilt ? step.reads(layer) : step.builds(layer, first)) bytes += step.bytes();
    }
  }
  return bytes;
}

struct Measured {
  int64_t calls = 0;
  double us = 0;
};

// The median of replays of one graph; on a device without a clock the calls run once.
Measured measure(kiln::runtime::Device* device, kiln_session* session,
                 const std::vector<Step>& steps, const Step* only, int first, Way way) {
  Measured measured;
  if (device == nullptr) {
    measured.calls = run(steps, only, first, way, nullptr);
    require(kiln_synchronize(session, nullptr));
    return measured;
  }
  const kiln::runtime::Stream stream = device->create_stream();
  run(steps, only, first, way, stream);
  device->synchronize(stream);
  device->begin_capture(stream);
  measured.calls = run(steps, only, first, way, stream);
  {
    const std::unique_ptr<kiln::runtime::Graph> graph = device->end_capture(stream);
    constexpr int kWarmUps = 5, kReplays = 51;
    std::vector<double> times;
    for (int i = 0; i < kWarmUps + kReplays && measured.calls > 0; ++i) {
      const double ns = device->time_graph_ns(*graph, stream);
      if (i >= kWarmUps) times.push_back(ns / 1e3);
    }
    std::sort(times.begin(), times.end());
    if (!times.empty()) measured.us = times[times.size() / 2];
  }
  device->destroy_stream(stream);
  return measured;
}

// What each layer finds in the results that it reads, as hashes, in the order of a forward.
std::vector<size_t> read_by_layers(kiln_session* session, const std::vector<Step>& steps, Way way) {
  std::vector<size_t> found;
  std::string bytes;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Step& step : steps) {
      if (way == kRebuilt ? step.reads(layer) : step.builds(layer, 0)) step.call(layer, nullptr);
    }
    require(kiln_synchronize(session, nullptr));
    for (const Step& step : steps) {
      if (!step.reads(layer)) continue;
      for (const auto& [memory, size] : step.results) {
        bytes.resize(static_cast<size_t>(size));
        require(kiln_memory_read(session, bytes.data(), memory, bytes.size()));
        found.push_back(std::hash<std::string>{}(bytes));
      }
    }
  }
  return found;
}

void clear(kiln_session* session, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    for (const auto& [memory, size] : step.results) {
      const std::vector<char> poison(static_cast<size_t>(size), '\x5a');
      require(kiln_memory_write(session, memory, poison.data(), poison.size()));
    }
  }
}

void print_row(const char* name, const Measured of[2], int64_t rebuilt, int64_t reused) {
  std::printf("%-22s %7lld %6lld", name, static_cast<long long>(of[kRebuilt].calls),
              static_cast<long long>(of[kReused].calls));
  if (of[kRebuilt].us > 0) {
    std::printf(" %10.1f %8.1f %8.1f", of[kRebuilt].us, of[kReused].us,
                of[kRebuilt].us - of[kReused].us);
  } else {
    std::printf(" %10s %8s %8s", "-", "-", "-");
  }
  std::printf(" %10.2f %8.2f\n", static_cast<double>(rebuilt) / 1e6,
              static_cast<double>(reused) / 1e6);
}

void print_layers(kiln::runtime::Device* device, kiln_session* session,
                  const std::vector<Step>& steps, int first) {
  std::printf("\nlayers %d to %d\n%-22s %7s %6s %10s %8s %8s %10s %8s\n", first, kLayers - 1,
              "per chunk", "calls", "reused", "us rebuilt", "reused", "saved", "MB written",
              "reused");
  const auto row = [&](const char* name, const Step* only) {
    const Measured of[] = {measure(device, session, steps, only, first, kRebuilt),
                           measure(device, session, steps, only, first, kReused)};
    if (of[kRebuilt].calls == 0) return;
    print_row(name, of, bytes_written(steps, only, first, kRebuilt),
              bytes_written(steps, only, first, kReused));
  };
  for (const Step& step : steps) row(step.name.c_str(), &step);
  row("all", nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: metadata_bench STORE_FILE [DEVICE [ROWS [TOKENS]]]\n");
    return 2;
  }
  const std::string id = argc > 2 ? argv[2] : "cuda:0";
  const int64_t rows = argc > 3 ? std::atoll(argv[3]) : 4096;
  const int64_t tokens = argc > 4 ? std::atoll(argv[4]) : 32768;
  if (rows < kRequests || tokens < 2 * rows / kRequests) {
    std::fprintf(stderr, "a chunk has at least 4 rows, and each request twice its share of them\n");
    return 2;
  }
  kiln_options options{};
  options.size = sizeof(options);
  options.store = argv[1];
  options.device = id.c_str();
  kiln_session* session = nullptr;
  require(kiln_open(&options, &session));
  try {
    const bool is_simulated = id.starts_with(kiln::runtime::kSimulatedPrefix);
    const auto device = is_simulated ? nullptr : kiln::runtime::Device::open(id);
    const Chunk chunk(session, rows, tokens);
    std::printf("%s: %lld rows of %lld requests of %lld tokens\n", id.c_str(),
                static_cast<long long>(rows), static_cast<long long>(kRequests),
                static_cast<long long>(tokens));
    std::vector<size_t> found[2];
    for (const Way way : {kRebuilt, kReused}) {
      clear(session, chunk.steps());
      found[way] = read_by_layers(session, chunk.steps(), way);
    }
    if (found[kRebuilt] != found[kReused]) {
      std::fprintf(stderr, "a layer finds something else where results are reused\n");
      return 1;
    }
    std::printf("all layers find the same in %zu results, built anew or reused\n",
                found[kReused].size());
    for (const int first : {20, 0}) print_layers(device.get(), session, chunk.steps(), first);
  } catch (const kiln::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  require(kiln_close(session));
  return 0;
}
