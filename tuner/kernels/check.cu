// Kernels that prove a candidate: poison before a run, comparison and digest after it.
// grid-stride loops, one dimension; no shared memory, no barrier, no header, so that tests also run
// them on the host.
//
// Poison is a function of (seed, position), so a byte that nobody wrote can be told from one that
// was written. `flip` gives the complement: where two runs from poison and complement agree, the
// kernel wrote. `mask` keeps poison from being NaN as a float.
typedef unsigned long long u64;

__device__ static u64 mixed(u64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ static u64 poison_word(u64 seed, u64 flip, u64 mask, u64 word) {
  return (mixed(seed + word) ^ flip) & mask;
}

struct PoisonArgs {
  u64* words;
  u64 count;
  u64 seed;
  u64 flip;
  u64 mask;
};

extern "C" __global__ void kiln_poison(PoisonArgs args) {
  const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += step) {
    args.words[i] = poison_word(args.seed, args.flip, args.mask, i);
  }
}

struct DigestArgs {
  const u64* words;
  u64 count;
  u64 salt;
  u64* sum;  // += sum over words of mix(position and value): any order gives the same
};

extern "C" __global__ void kiln_digest(DigestArgs args) {
  const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
  u64 sum = 0;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += step) {
    sum += mixed(args.words[i] ^ mixed(args.salt + i));
  }
  atomicAdd(args.sum, sum);
}

struct CompareResult {
  u64 compared;
  u64 mismatches;
  u64 first_mismatch;  // element
  double error_squares;
  double reference_squares;
};

enum { kInteger = 0, kBf16 = 1, kF32 = 2 };

struct CompareArgs {
  const void* candidate;  // ran from poison (seed, flip)
  const void* first;      // the oracle from poison
  const void* second;     // the oracle from its complement
  u64 count;              // elements
  u64 element_bytes;      // 1, 2, 4 or 8
  u64 kind;
  u64 tolerant;  // 1: values of floats are summed as errors, not compared bit by bit
  u64 seed;
  u64 flip;
  u64 mask;
  CompareResult* result;
};

__device__ static u64 element(const void* base, u64 bytes, u64 i) {
  switch (bytes) {
    case 1:
      return static_cast<const unsigned char*>(base)[i];
    case 2:
      return static_cast<const unsigned short*>(base)[i];
    case 4:
      return static_cast<const unsigned int*>(base)[i];
    default:
      return static_cast<const u64*>(base)[i];
  }
}

__device__ static bool is_nan(u64 kind, u64 bits) {
  return kind == kBf16  ? (bits & 0x7FFF) > 0x7F80
         : kind == kF32 ? (bits & 0x7FFFFFFF) > 0x7F800000
                        : false;
}

__device__ static bool is_finite(u64 kind, u64 bits) {
  return kind == kBf16 ? (bits & 0x7F80) != 0x7F80 : (bits & 0x7F800000) != 0x7F800000;
}

__device__ static double float_value(u64 kind, u64 bits) {
  return __uint_as_float(static_cast<unsigned int>(kind == kBf16 ? bits << 16 : bits));
}

struct Totals {
  u64 compared = 0;
  u64 mismatches = 0;
  u64 first_mismatch = ~0ull;
  double error_squares = 0;
  double reference_squares = 0;
};

__device__ static void compare_element(const CompareArgs& args, u64 i, Totals& totals) {
  const u64 got = element(args.candidate, args.element_bytes, i);
  const u64 want = element(args.first, args.element_bytes, i);
  const bool written = want == element(args.second, args.element_bytes, i);
  bool wrong = false;
  if (!written) {
    const u64 byte = i * args.element_bytes;
    const u64 word = poison_word(args.seed, args.flip, args.mask, byte / 8) >> (8 * (byte % 8));
    const u64 untouched =
        args.element_bytes == 8 ? word : word & ((1ull << (8 * args.element_bytes)) - 1);
    wrong = got != untouched;
  } else if (args.tolerant != 0 && is_finite(args.kind, want) && is_finite(args.kind, got)) {
    const double value = float_value(args.kind, want);
    const double error = float_value(args.kind, got) - value;
    totals.error_squares += error * error;
    totals.reference_squares += value * value;
  } else {
    wrong = got != want && !(is_nan(args.kind, got) && is_nan(args.kind, want));
  }
  ++totals.compared;
  if (wrong) {
    ++totals.mismatches;
    totals.first_mismatch = i < totals.first_mismatch ? i : totals.first_mismatch;
  }
}

// Whether a word needs no look at its elements: all are written and equal, or none is and all are
// the candidate's own poison.
__device__ static bool is_plainly_right(const CompareArgs& args, u64 word) {
  const u64 got = static_cast<const u64*>(args.candidate)[word];
  const u64 want = static_cast<const u64*>(args.first)[word];
  const u64 second = static_cast<const u64*>(args.second)[word];
  if (want == second) return args.tolerant == 0 && got == want;
  return (want ^ second) == args.mask &&
         got == poison_word(args.seed, args.flip, args.mask, word);
}

// Word by word; the buffers are aligned to 8 bytes.
extern "C" __global__ void kiln_compare(CompareArgs args) {
  const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
  const u64 per_word = 8 / args.element_bytes;
  const u64 words = (args.count + per_word - 1) / per_word;
  Totals totals;
  for (u64 word = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; word < words;
       word += step) {
    const u64 begin = word * per_word;
    const bool is_whole = begin + per_word <= args.count;
    if (is_whole && is_plainly_right(args, word)) {
      totals.compared += per_word;
      continue;
    }
    const u64 end = is_whole ? begin + per_word : args.count;
    for (u64 i = begin; i < end; ++i) compare_element(args, i, totals);
  }
  atomicAdd(&args.result->compared, totals.compared);
  if (args.tolerant != 0) {
    atomicAdd(&args.result->error_squares, totals.error_squares);
    atomicAdd(&args.result->reference_squares, totals.reference_squares);
  }
  if (totals.mismatches > 0) {
    atomicAdd(&args.result->mismatches, totals.mismatches);
    atomicMin(&args.result->first_mismatch, totals.first_mismatch);
  }
}
