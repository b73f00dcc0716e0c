// The functions of kiln.h: each checks its handles and pointers, does one thing of Session, and
// turns what fails into a status.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jit/base/error.h"
#include "jit/base/hash.h"
#include "jit/base/json.h"
#include "runtime/abi/boundary.h"
#include "runtime/abi/kiln.h"
#include "runtime/call_checks.h"
#include "runtime/handles.h"
#include "runtime/session.h"
#include "templates/abi.h"

namespace {

using kiln::fail;
using kiln::Status;
using kiln::runtime::guarded;
using kiln::runtime::Session;

std::string text_or_empty(const char* text) { return text == nullptr ? "" : text; }

void require_pointer(const void* pointer, const char* function, const char* argument) {
  if (pointer == nullptr) fail(Status::invalid_argument, "{}: {} is NULL", function, argument);
}

// No struct of this interface will ever be so large: such a size was never set.
constexpr size_t kLargestStruct = 4096;

// Fields that the caller's header does not know keep their defaults; fields that this library does
// not know must be zero.
kiln_options read_options(const kiln_options* options) {
  kiln_options known{};
  known.size = sizeof known;
  if (options == nullptr) return known;
  const size_t size = options->size;
  if (size < sizeof(size_t) || size > kLargestStruct) {
    fail(Status::invalid_argument,
         "kiln_open: options->size is {}; set it to sizeof(kiln_options), which is {} here", size,
         sizeof known);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  if (size > sizeof known && std::any_of(bytes + sizeof known, bytes + size,
                                         [](unsigned char byte) { return byte != 0; })) {
    fail(Status::invalid_argument,
         "kiln_open: options has {} bytes, newer than this library's {}, and sets an option that "
         "this library does not "
         "know; update libkiln or leave the new options zero",
         size, sizeof known);
  }
  // An older header ends with one of these fields; half a pointer is never meant.
  constexpr size_t kEnds[] = {offsetof(kiln_options, device),     offsetof(kiln_options, store),
                              offsetof(kiln_options, pack),       offsetof(kiln_options, log),
                              offsetof(kiln_options, log_user),   offsetof(kiln_options, log_level),
                              offsetof(kiln_options, store_mode), offsetof(kiln_options, compiles)};
  if (size < sizeof known &&
      std::find(std::begin(kEnds), std::end(kEnds), size) == std::end(kEnds)) {
    fail(Status::invalid_argument,
         "kiln_open: options->size is {}, which ends inside a field; set it to "
         "sizeof(kiln_options), which is {} here",
         size, sizeof known);
  }
  std::memcpy(&known, options, std::min(size, sizeof known));
  // A C program may have put any number there, which must not be read as the enum.
  int level = 0;
  static_assert(sizeof level == sizeof known.log_level);
  std::memcpy(&level, &known.log_level, sizeof level);
  if (level < KILN_LOG_ERROR || level > KILN_LOG_DEBUG) {
    fail(Status::invalid_argument,
         "kiln_open: options->log_level is {}; it must be KILN_LOG_ERROR (0) to KILN_LOG_DEBUG (3)",
         level);
  }
  return known;
}

// The value of an option that is given by name; the first one when it is not given.
template <typename Value>
Value choice_of(const char* text, const char* option,
                std::initializer_list<std::pair<const char*, Value>> values) {
  if (text == nullptr) return values.begin()->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : values) {
    if (std::string_view(text) == name) return value;
    names.push_back(kiln::in_quotes(name));
  }
  fail(Status::invalid_argument, "kiln_open: options->{} is {}; it must be {}, or NULL for {}",
       option, kiln::in_quotes(text), fmt::join(names, " or "), names.front());
}

// Gives a result struct to a caller whose header may be older or newer; the caller's size stays.
// What a newer header has beyond this library's struct becomes zero.
template <typename Result>
void write_result(const Result& result, Result* out, const char* function, const char* argument) {
  require_pointer(out, function, argument);
  const size_t size = out->size;
  if (size < sizeof(size_t) || size > kLargestStruct) {
    fail(Status::invalid_argument,
         "{}: {}->size is {}; set it to the sizeof of its struct, which is {} here", function,
         argument, size, sizeof result);
  }
  auto* to = reinterpret_cast<char*>(out);
  const size_t known = std::min(size, sizeof result);
  std::memcpy(to + sizeof(size_t), reinterpret_cast<const char*>(&result) + sizeof(size_t),
              known - sizeof(size_t));
  std::memset(to + known, 0, size - known);
}

void write_text(const std::string& text, char* buffer, size_t capacity, size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (buffer == nullptr || capacity == 0) return;
  const size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
}

kiln::runtime::Progress wrap_progress(kiln_progress_fn progress, void* user) {
  if (progress == nullptr) return nullptr;
  return [progress, user](int done, int total, const std::string& what) {
    return progress(user, done, total, what.c_str()) == 0;
  };
}

uint64_t tensor_bytes(const kiln::templates::Op& op, const std::string& shape,
                      const std::string& sizes, const char* name) {
  const kiln::templates::Arg* arg = op.find_arg(name);
  if (arg == nullptr) {
    std::vector<std::string> names;
    for (const kiln::templates::Arg& known : op.args) names.push_back(known.name);
    fail(Status::not_found, "{}: there is no argument {}; the arguments are {}", op.name,
         kiln::in_quotes(name), fmt::join(names, ", "));
  }
  const auto parsed = [](const std::string& text, const char* what) {
    return text.empty() ? kiln::Json::object() : kiln::parse_json(text, what);
  };
  const kiln::templates::Sizes fixed = kiln::templates::parse_shape(op, parsed(shape, "shape"));
  const kiln::templates::Sizes dynamic = kiln::templates::parse_dynamic(op, parsed(sizes, "sizes"));
  const int64_t bytes = kiln::templates::dense_bytes(op, *arg, fixed, dynamic);
  kiln::runtime::require_sizes(op, fixed, dynamic);
  return static_cast<uint64_t>(bytes);
}

kiln::Hash128 abi_hash() {
  kiln::HashRecord record;
  record.field("abi_version", KILN_ABI_VERSION);
  for (const kiln::templates::Op* op : kiln::templates::ops()) {
    record.field("op", op->name).field("version", op->version);
    for (const kiln::templates::Field& field : kiln::templates::abi_fields(*op)) {
      record.field("field", field.name).field("kind", static_cast<int64_t>(field.kind));
      if (field.kind == kiln::templates::FieldKind::pointer) {
        const kiln::templates::Arg& arg = op->args[static_cast<size_t>(field.arg)];
        record.field("dtype", kiln::templates::dtype_name(arg.dtype));
      }
    }
    for (const kiln::templates::Size& size : op->sizes) {
      if (size.kind != kiln::templates::SizeKind::fixed) continue;
      record.field("fixed", size.field);
      for (const kiln::templates::SizeName& name : size.names) record.field(name.name, name.value);
    }
  }
  return record.hash();
}

}  // namespace

extern "C" {

const char* kiln_status_name(kiln_status status) {
  switch (status) {
    case KILN_OK:
      return "KILN_OK";
    case KILN_INVALID_ARGUMENT:
      return "KILN_INVALID_ARGUMENT";
    case KILN_NOT_FOUND:
      return "KILN_NOT_FOUND";
    case KILN_UNSUPPORTED:
      return "KILN_UNSUPPORTED";
    case KILN_NOT_PREPARED:
      return "KILN_NOT_PREPARED";
    case KILN_BAD_STATE:
      return "KILN_BAD_STATE";
    case KILN_CLOSED:
      return "KILN_CLOSED";
    case KILN_FORKED:
      return "KILN_FORKED";
    case KILN_NO_DRIVER:
      return "KILN_NO_DRIVER";
    case KILN_NO_COMPILER:
      return "KILN_NO_COMPILER";
    case KILN_COMPILE_ERROR:
      return "KILN_COMPILE_ERROR";
    case KILN_DRIVER_ERROR:
      return "KILN_DRIVER_ERROR";
    case KILN_OUT_OF_MEMORY:
      return "KILN_OUT_OF_MEMORY";
    case KILN_STORE_ERROR:
      return "KILN_STORE_ERROR";
    case KILN_INTERRUPTED:
      return "KILN_INTERRUPTED";
    case KILN_INTERNAL:
      return "KILN_INTERNAL";
  }
  return "unknown status";
}

const char* kiln_last_error(void) { return kiln::runtime::last_error(); }

const char* kiln_version(void) { return KILN_VERSION; }

kiln_status kiln_open(const kiln_options* options, kiln_session** session) {
  if (session != nullptr) *session = nullptr;
  return guarded([&] {
    require_pointer(session, "kiln_open", "session");
    const kiln_options known = read_options(options);
    kiln::runtime::SessionOptions wanted;
    if (known.device != nullptr) wanted.device = known.device;
    wanted.store = text_or_empty(known.store);
    wanted.pack = text_or_empty(known.pack);
    wanted.store_mode = choice_of<kiln::cache::StoreOptions::Mode>(
        known.store_mode, "store_mode",
        {{"read-write", kiln::cache::StoreOptions::Mode::read_write},
         {"read-only", kiln::cache::StoreOptions::Mode::read_only}});
    wanted.compiles =
        choice_of<kiln::runtime::Compiles>(known.compiles, "compiles",
                                           {{"allowed", kiln::runtime::Compiles::allowed},
                                            {"refused", kiln::runtime::Compiles::refused}});
    wanted.log = kiln::runtime::Log(known.log, known.log_user, known.log_level);
    *session = kiln::runtime::register_session(std::make_unique<Session>(wanted));
  });
}

kiln_status kiln_close(kiln_session* session) {
  if (session == nullptr) return KILN_OK;
  return guarded([&] {
    Session& open = kiln::runtime::require_session(session);
    open.end_preparing("kiln_close");
    if (!session->open.exchange(false))
      fail(Status::closed, "the session has been closed by kiln_close");
    kiln::runtime::mark_plans_closed(&open);
    open.note_use();
    session->session.reset();
  });
}

kiln_status kiln_prepare(kiln_session* session, const char* workload, kiln_progress_fn progress,
                         void* user) {
  return guarded([&] {
    kiln::runtime::require_session(session).prepare(text_or_empty(workload),
                                                    wrap_progress(progress, user));
  });
}

kiln_status kiln_prepare_start(kiln_session* session, const char* workload,
                               kiln_progress_fn progress, void* user) {
  return guarded([&] {
    kiln::runtime::require_session(session).start_preparing(text_or_empty(workload),
                                                            wrap_progress(progress, user));
  });
}

kiln_status kiln_prepare_wait(kiln_session* session, int64_t timeout_ms) {
  return guarded([&] {
    kiln::runtime::require_session(session).wait_for_preparing(
        std::chrono::milliseconds(timeout_ms));
  });
}

kiln_status kiln_seal(kiln_session* session) {
  return guarded([&] { kiln::runtime::require_session(session).seal(); });
}

kiln_status kiln_plan_create(kiln_session* session, const char* op, const char* shape,
                             kiln_plan** plan) {
  if (plan != nullptr) *plan = nullptr;
  return guarded([&] {
    Session& open = kiln::runtime::require_session(session);
    require_pointer(op, "kiln_plan_create", "op");
    require_pointer(plan, "kiln_plan_create", "plan");
    *plan = open.create_plan(op, text_or_empty(shape));
  });
}

kiln_status kiln_plan_destroy(kiln_plan* plan) {
  if (plan == nullptr) return KILN_OK;
  return guarded([&] {
    kiln::runtime::require_plan(plan);
    kiln::runtime::retire_plan(plan);
  });
}

kiln_status kiln_op_supported(kiln_session* session, const char* op, const char* shape,
                              char* buffer, size_t capacity, size_t* needed) {
  std::string text;
  const kiln_status status = guarded([&] {
    Session& open = kiln::runtime::require_session(session);
    require_pointer(op, "kiln_op_supported", "op");
    text = open.why_supported(op, shape);
  });
  const kiln_status written = guarded([&] {
    write_text(status == KILN_OK ? text : kiln::runtime::last_error(), buffer, capacity, needed);
  });
  return status != KILN_OK ? status : written;
}

kiln_status kiln_explain(kiln_session* session, const char* op, const char* shape,
                         const char* sizes, char* buffer, size_t capacity, size_t* needed) {
  return guarded([&] {
    Session& open = kiln::runtime::require_session(session);
    require_pointer(op, "kiln_explain", "op");
    write_text(open.explain(op, text_or_empty(shape), sizes).dump(2), buffer, capacity, needed);
  });
}

kiln_status kiln_tensor_bytes(const char* op, const char* shape, const char* sizes, const char* arg,
                              uint64_t* bytes) {
  if (bytes != nullptr) *bytes = 0;
  return guarded([&] {
    require_pointer(op, "kiln_tensor_bytes", "op");
    require_pointer(arg, "kiln_tensor_bytes", "arg");
    require_pointer(bytes, "kiln_tensor_bytes", "bytes");
    *bytes = tensor_bytes(kiln::templates::require_op(op), text_or_empty(shape),
                          text_or_empty(sizes), arg);
  });
}

kiln_status kiln_get_stats(kiln_session* session, kiln_stats* stats) {
  return guarded([&] {
    write_result(kiln::runtime::require_session(session).stats(), stats, "kiln_get_stats", "stats");
  });
}

kiln_status kiln_get_digests(kiln_session* session, kiln_digests* digests) {
  return guarded([&] {
    const kiln::runtime::Digests known = kiln::runtime::require_session(session).digests();
    kiln_digests result{};
    std::copy(known.exact.bytes.begin(), known.exact.bytes.end(), result.exact);
    std::copy(known.numerics.bytes.begin(), known.numerics.bytes.end(), result.numerics);
    write_result(result, digests, "kiln_get_digests", "digests");
  });
}

kiln_status kiln_get_workload(kiln_session* session, char* buffer, size_t capacity,
                              size_t* needed) {
  return guarded([&] {
    const Session& open = kiln::runtime::require_session(session);
    write_text(kiln::runtime::workload_json(open.used()).dump(), buffer, capacity, needed);
  });
}

kiln_status kiln_memory_allocate(kiln_session* session, size_t bytes, void** memory) {
  if (memory != nullptr) *memory = nullptr;
  return guarded([&] {
    require_pointer(memory, "kiln_memory_allocate", "memory");
    *memory = kiln::runtime::require_session(session).memory().allocate(bytes);
  });
}

kiln_status kiln_memory_free(kiln_session* session, void* memory) {
  return guarded([&] { kiln::runtime::require_session(session).memory().free(memory); });
}

kiln_status kiln_memory_write(kiln_session* session, void* memory, const void* from, size_t bytes) {
  return guarded([&] {
    Session& open = kiln::runtime::require_session(session);
    if (bytes == 0) return;
    require_pointer(memory, "kiln_memory_write", "memory");
    require_pointer(from, "kiln_memory_write", "from");
    open.memory().write(memory, from, bytes);
  });
}

kiln_status kiln_memory_read(kiln_session* session, void* to, const void* memory, size_t bytes) {
  return guarded([&] {
    Session& open = kiln::runtime::require_session(session);
    if (bytes == 0) return;
    require_pointer(to, "kiln_memory_read", "to");
    require_pointer(memory, "kiln_memory_read", "memory");
    open.memory().read(to, memory, bytes);
  });
}

kiln_status kiln_synchronize(kiln_session* session, void* stream) {
  return guarded([&] { kiln::runtime::require_session(session).device().synchronize(stream); });
}

kiln_status kiln_abi_hash(uint8_t hash[16]) {
  return guarded([&] {
    require_pointer(hash, "kiln_abi_hash", "hash");
    const kiln::Hash128 value = abi_hash();
    std::copy(value.bytes.begin(), value.bytes.end(), hash);
  });
}

}  // extern "C"
