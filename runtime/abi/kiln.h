/* Kiln: kernels of DeepSeek-V4.1-Flash, tuned for the GPU that is there, behind a plain C
 * interface.
 *
 * Life cycle, one session per device:
 *
 *   kiln_open
 *   kiln_prepare       compiles or loads all that the workload can reach (kiln_prepare_start does
 *                      so in the background)
 *   kiln_seal          from here nothing compiles
 *   kiln_plan_create   an op and a fixed shape, resolved once
 *   kiln_<op>          with a plan, its arguments and a stream, as often as wanted
 *   kiln_close
 *
 * Rules that hold everywhere:
 *   - The caller owns all device memory. Kiln allocates none in a call.
 *   - Strides are explicit, 64-bit, in elements of the tensor; the innermost stride is 1.
 *     Dimensions may be permuted. Lengths, slots and tables live on the device.
 *   - A stride that is walked, because its dimension is larger than 1, is at least the extent of
 *     the innermost dimension, of inputs as of outputs. One that is not walked may hold anything.
 *   - Of an output with two strides one dimension nests in the other: all rows of the one with the
 *     smaller stride fit between two steps of the other. Inputs may overlap beyond that, but an
 *     output shares no memory with another argument.
 *   - Streams are `void *`: a cudaStream_t or CUstream; NULL is the legacy default stream. A
 *     simulated device has no other stream than NULL and refuses any other: KILN_INVALID_ARGUMENT
 *     from kiln_synchronize, KILN_DRIVER_ERROR from an op call.
 *   - Every struct starts with its size, so that it can grow: set it with sizeof. Of a result
 *     struct that is newer than the library, the fields that the library does not know are set to
 *     zero.
 *   - A function that fails returns a status other than KILN_OK and leaves a sentence in
 *     kiln_last_error() of that thread. Nothing throws, prints, exits or changes errno, locale,
 *     signals or the current CUDA context of the caller.
 *   - Each function lists the statuses of its own. Beside them, every function that takes a session
 *     or a plan returns KILN_INVALID_ARGUMENT when that is NULL (unless NULL is said to be legal),
 *     KILN_CLOSED after it was closed, and KILN_FORKED in a child that was forked after kiln_open.
 *     Any function may return KILN_OUT_OF_MEMORY when host memory runs out, and KILN_INTERNAL.
 *   - An op call takes no lock, allocates nothing, reads no environment and synchronises nothing.
 *     It is legal while its stream is being captured. Only a call whose kernels were never
 *     prepared would have to compile: under capture, or after kiln_seal, it returns
 *     KILN_NOT_PREPARED and leaves the capture valid.
 *   - All other functions but kiln_synchronize are legal while any stream is being captured, in
 *     every capture mode and on every thread; they record nothing and leave the capture valid. A
 *     capture or graph that holds calls of a session must not be used after its kiln_close, which
 *     unloads the kernels.
 *   - Sessions and plans may be used from any thread. kiln_close must not run while another thread
 *     is inside a call on that session.
 *   - A simulated device ("sim:SLUG") is for tests and tools, and keeps to all of this but speed:
 *     an op call runs its kernels before it returns, one call after another, and takes locks and
 *     memory to do so. It checks what kernels do with memory (KILN_SIM_CHECK=0 in the environment
 *     of kiln_open turns that off). What it finds, and what a GPU would fault on, ends the work as
 *     on a GPU: that op call and all later work returns KILN_DRIVER_ERROR with the report. A kernel
 *     that runs for more than a minute is such a fault.
 *
 * The ops themselves are in kiln_ops.h, made from their descriptions. Sizes, shapes and workloads
 * in JSON use the field names there.
 */
#ifndef KILN_H_
#define KILN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KILN_API __attribute__((visibility("default")))
#else
#define KILN_API
#endif

/* Version of this interface. kiln_version() gives that of the library. */
#define KILN_ABI_VERSION 1

/* What a function returns. Numbers never change their meaning. */
typedef enum kiln_status {
  KILN_OK = 0,
  /* the input is wrong; the text names the argument, what was expected and what came */
  KILN_INVALID_ARGUMENT = 1,
  /* no such op, device or file */
  KILN_NOT_FOUND = 2,
  /* legal input that this GPU, driver or build cannot serve */
  KILN_UNSUPPORTED = 3,
  /* the call would have to compile or load, and may not (sealed, under capture, or compiles
   * "refused"); from kiln_prepare_wait: not all is ready yet */
  KILN_NOT_PREPARED = 4,
  /* out of order: for example kiln_prepare after kiln_seal */
  KILN_BAD_STATE = 5,
  /* the session or plan has been closed */
  KILN_CLOSED = 6,
  /* the session was opened before a fork. CUDA works in a forked child only if the parent never
   * initialised it, so start workers by spawn or exec, or fork before the first kiln_open */
  KILN_FORKED = 7,
  /* libcuda.so.1 is missing or does not start; the text lists where it was searched */
  KILN_NO_DRIVER = 8,
  /* NVRTC is missing or unusable, and the store does not hold the kernel */
  KILN_NO_COMPILER = 9,
  /* NVRTC refused a source; the text has its log */
  KILN_COMPILE_ERROR = 10,
  /* the CUDA driver returned an error; the text names it and the operation */
  KILN_DRIVER_ERROR = 11,
  KILN_OUT_OF_MEMORY = 12,
  /* an explicit operation on the store failed; open and prepare never return it */
  KILN_STORE_ERROR = 13,
  /* the progress callback asked to stop */
  KILN_INTERRUPTED = 14,
  /* a defect in Kiln: please report the text */
  KILN_INTERNAL = 15
} kiln_status;

/* One device, one store; owned by the library until kiln_close. */
typedef struct kiln_session kiln_session;
/* An op with a fixed shape; owned by its session. */
typedef struct kiln_plan kiln_plan;

/* "KILN_OK", ...; "unknown status" for other numbers. Static memory. */
KILN_API const char *kiln_status_name(kiln_status status);

/* The sentence of the last failure on this thread; "" when there was none. Valid until this
 * thread's next failing call. */
KILN_API const char *kiln_last_error(void);

/* "0.1.0". Static memory. */
KILN_API const char *kiln_version(void);

typedef enum kiln_log_level {
  KILN_LOG_ERROR = 0,
  KILN_LOG_WARNING = 1,
  KILN_LOG_INFO = 2,
  KILN_LOG_DEBUG = 3
} kiln_log_level;

/* Receives one line without a newline. May be called from any thread that is inside open, prepare,
 * seal, plan_create or close, or that makes the first, compiling call of an unprepared plan, and
 * from the library's own of kiln_prepare_start; never from a prepared op call. Must not call
 * Kiln. */
typedef void (*kiln_log_fn)(void *user, kiln_log_level level, const char *line);

typedef struct kiln_options {
  size_t size; /* sizeof(kiln_options) */
  /* "cuda:0" (default when NULL), "cuda:N"; "sim:SLUG": that GPU, simulated on this host */
  const char *device;
  /* file of decisions and binaries; NULL: KILN_DB, else the first of these that can be written:
   * $XDG_CACHE_HOME/kiln/kiln.db, $HOME/.cache/kiln/kiln.db, kiln-<uid>/kiln.db in KILN_LOCAL or
   * else /var/tmp; else none, in memory. ":memory:" for none */
  const char *store;
  const char *pack; /* read-only files under it, as KILN_PACK names them; NULL: KILN_PACK */
  kiln_log_fn log;  /* NULL: silent */
  void *log_user;
  kiln_log_level log_level; /* least important level that is passed on; 0 passes errors only */
  /* "read-write" (default when NULL); "read-only": the store's file is read as it is, nothing is
   * made or written, and what is compiled is lost with the session */
  const char *store_mode;
  /* "allowed" (default when NULL): a kernel that the store lacks is compiled; "refused": it is an
   * error, KILN_NOT_PREPARED from kiln_prepare and from the first call of an unprepared plan, also
   * when a default config could stand in */
  const char *compiles;
} kiln_options;

/* Opens a session on one device. Retains the device's primary context; compiles and loads nothing.
 * Unless store_mode is "read-only", makes the store's file and its folders where there are none,
 * and writes one row of it, so that a file that cannot be written is known now; a damaged file is
 * put aside and a new one is begun.
 * A store that cannot be used is not an error: the session then reads what it can, else works from
 * memory, and says so once, as a warning.
 * options: NULL for all defaults; read and copied here, strings too, and not needed afterwards. log
 * and log_user are used until kiln_close has returned.
 * session: receives the handle; NULL on failure.
 * KILN_INVALID_ARGUMENT, KILN_NO_DRIVER, KILN_NOT_FOUND (no such device), KILN_UNSUPPORTED (compute
 * capability below 8.0, a driver older than CUDA 11.4, or for a simulated device a libkiln_sim.so
 * that is missing, cannot be loaded or is of another build), KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY
 * (also of the device). */
KILN_API kiln_status kiln_open(const kiln_options *options, kiln_session **session);

/* Frees the session and its plans; later calls on them return KILN_CLOSED. Its kernels are unloaded
 * at once, also while others use the device's context: finish the work that was launched before
 * this, and replay no captured graph that holds it afterwards. NULL is legal.
 * First notes in the store which buckets were called (kiln_get_workload), for `kiln workload`: one
 * small write, none when nothing was called or store_mode is "read-only". A process that ends
 * without kiln_close notes nothing, and a store that refuses is a warning.
 * A preparation in the background is stopped; the kernel that it is compiling is waited for.
 * KILN_BAD_STATE while a kiln_prepare of this session, or the first call of an unprepared plan, is
 * running, and inside a callback of a prepare; KILN_CLOSED when it was closed before. */
KILN_API kiln_status kiln_close(kiln_session *session);

/* done of total kernels are ready; what names the current one. Return non-zero to stop:
 * kiln_prepare, or kiln_prepare_wait, then returns KILN_INTERRUPTED, and what is ready stays ready.
 * Called on the thread inside kiln_prepare, or on that of kiln_prepare_start; from there another
 * kiln_prepare, kiln_prepare_wait, kiln_seal, kiln_close, or the first call of an unprepared plan,
 * of the same session returns KILN_BAD_STATE. */
typedef int (*kiln_progress_fn)(void *user, int done, int total, const char *what);

/* Makes every kernel ready that the workload can reach: the tuned config of every bucket of its
 * sizes, and the default config, which covers every legal size. Finds them in the store, compiles
 * what is missing, loads them and sets their attributes. Writes what it compiled to the store; one
 * that refuses is a warning, not an error.
 * Processes that prepare with one store at the same time, such as the ranks of a node, share what is
 * missing: each kernel is compiled by one of them, and the others take it from the store. On one
 * machine they compile no more at once, all together, than one of them may (KILN_JOBS). What a
 * process that died was compiling the next one compiles, at once when it was on this machine, else
 * after 30 seconds without a sign of life; nobody waits for a kernel longer than 10 minutes. Waiting
 * for more than 5 seconds is one line in the log, with the process that is waited for. A store that
 * is only read, or in memory, shares nothing. When all is in the store, nothing is written.
 * workload: JSON, NULL or "" for all ops with the model's shapes:
 *   {"tensor_parallel": 2,
 *    "ops": [{"op": "combine_topk_swa",
 *             "shape": {"ratio": 2, "top_k": 512},
 *             "sizes": {"num_tokens": [1, 8192]}}]}
 * All of it is optional:
 *   tensor_parallel  1, 2 (default), 4 or 8: which model shapes
 *   ops              all ops when left out
 *   shape            the model's shapes when left out
 *   sizes            range [least, most] of a dynamic size; all buckets when left out
 * May be called again to add to what is prepared. Not legal after kiln_seal or inside a callback of
 * a prepare (KILN_BAD_STATE). After a failure what is ready stays ready.
 * KILN_INVALID_ARGUMENT, KILN_NOT_FOUND (no such op), KILN_UNSUPPORTED, KILN_BAD_STATE,
 * KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY (also of the device),
 * KILN_NOT_PREPARED (a kernel would have to be compiled, and compiles is "refused"),
 * KILN_INTERRUPTED. */
KILN_API kiln_status kiln_prepare(kiln_session *session, const char *workload,
                                  kiln_progress_fn progress, void *user);

/* As kiln_prepare, but returns when the default config of every shape of the workload is ready, and
 * makes the tuned ones ready in a thread of the library: calls take the default until the kernels
 * of their bucket are there, and what is ready switches shape by shape. kiln_<op>_workspace answers
 * from now on for what is coming too, so ask it again after this returned. kiln_get_digests is of
 * what calls take at that moment: compare digests when kiln_prepare_wait has returned KILN_OK.
 * progress: called on that thread, until kiln_prepare_wait has said how it ended or kiln_close has
 * returned; from there nothing of the same session may be prepared, waited for, sealed or closed
 * (KILN_BAD_STATE). user is passed to it. Log lines come from that thread too.
 * Statuses as of kiln_prepare, for what is made ready here; after a failure nothing goes on in the
 * background. KILN_BAD_STATE also while an earlier one still runs; KILN_OUT_OF_MEMORY also when no
 * thread can be started. Legal while a stream is captured, before kiln_seal. */
KILN_API kiln_status kiln_prepare_start(kiln_session *session, const char *workload,
                                        kiln_progress_fn progress, void *user);

/* Waits for the newest kiln_prepare_start. timeout_ms: how long at most, in milliseconds; 0 asks
 * without waiting, a negative number waits as long as it takes.
 * KILN_OK: all is ready. KILN_NOT_PREPARED: it still runs, and the text says how many kernels of
 * how many are ready. Any status of kiln_prepare: it ended with that, and what is ready stays
 * ready; asking again answers the same. KILN_BAD_STATE: none was started, or this is a callback of
 * a prepare. Legal in any state of the session and while a stream is captured. */
KILN_API kiln_status kiln_prepare_wait(kiln_session *session, int64_t timeout_ms);

/* From here on a compile is an error: calls that would need one return KILN_NOT_PREPARED.
 * Idempotent. KILN_BAD_STATE while a kiln_prepare of this session, one that kiln_prepare_start
 * began (kiln_prepare_wait first), or the first call of an unprepared plan is running. */
KILN_API kiln_status kiln_seal(kiln_session *session);

/* Resolves an op and a fixed shape ("{\"format\": \"f1\"}", field names as in kiln_ops.h). Before
 * kiln_seal a plan whose kernels are not ready is legal; its first call outside capture compiles
 * them. After kiln_seal such a plan is refused with KILN_NOT_PREPARED. Compiles and loads nothing
 * itself.
 * plan: receives the handle; NULL on failure. Plans of equal op and shape share their kernels.
 * KILN_INVALID_ARGUMENT (the shape, or a NULL), KILN_NOT_FOUND (no such op), KILN_UNSUPPORTED (the
 * op needs a newer compute capability), KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_plan_create(kiln_session *session, const char *op, const char *shape,
                                      kiln_plan **plan);

/* Closes one plan; later calls on it return KILN_CLOSED. To be able to say so the library keeps a
 * shell of about 200 bytes for every plan that was ever created, until the process ends: create
 * plans once, not per call. NULL is legal. KILN_CLOSED when it, or its session, was closed before.
 */
KILN_API kiln_status kiln_plan_destroy(kiln_plan *plan);

/* Text results: the text is copied into buffer (capacity bytes, always terminated unless
 * that is 0) and *needed receives its whole length with the terminator; buffer may be NULL with
 * capacity 0, needed may be NULL. Too small a buffer truncates and is no error. */

/* Can this session's device serve this op with this fixed shape? KILN_OK: yes. KILN_UNSUPPORTED,
 * KILN_NOT_FOUND or KILN_INVALID_ARGUMENT: no, and the text says why and what to use instead. After
 * any failure the text is that of kiln_last_error(). Looks for NVRTC and loads it when the store
 * lacks the kernel; compiles nothing.
 * shape: NULL asks about the op in general. */
KILN_API kiln_status kiln_op_supported(kiln_session *session, const char *op, const char *shape,
                                       char *buffer, size_t capacity, size_t *needed);

/* JSON: which config a call of these sizes takes and why: bucket, decision kind, evidence, binaries
 * with their registers, what was searched.
 * sizes: JSON object of dynamic sizes ("{\"num_tokens\": 1500}"); NULL for every bucket. Opens no
 * file that is not open, compiles and loads nothing. For sizes that were not prepared, would_take
 * is what a prepare would choose, when calls take the default instead; else null.
 * KILN_INVALID_ARGUMENT (shape, sizes, sizes that no call may have, or a NULL op), KILN_NOT_FOUND
 * (no such op), KILN_UNSUPPORTED (the op needs a newer compute capability). */
KILN_API kiln_status kiln_explain(kiln_session *session, const char *op, const char *shape,
                                  const char *sizes, char *buffer, size_t capacity,
                                  size_t *needed);

/* Bytes of one tensor argument of an op when its rows lie without gaps: what to allocate for a
 * result, for packed weights (op "pack_weights", arg "packed"), for a cache. Needs no session and
 * touches no device.
 * sizes: JSON object of every dynamic size ("{\"num_rows\": 5120, \"in_features\": 4096}"); NULL
 * for an op without any. shape: the fixed sizes, as for kiln_plan_create; NULL for an op without
 * any. arg: the name of the pointer in the op's struct. *bytes: 0 when this shape has no such
 * argument. KILN_INVALID_ARGUMENT (shape, sizes, sizes that no call may have, or a NULL),
 * KILN_NOT_FOUND (no such op, or argument). */
KILN_API kiln_status kiln_tensor_bytes(const char *op, const char *shape, const char *sizes,
                                       const char *arg, uint64_t *bytes);

typedef struct kiln_stats {
  size_t size; /* in: sizeof(kiln_stats) */
  /* NVRTC runs of this session */
  uint64_t compiles;
  /* binaries found in the store, already loaded, or compiled by another session of this process or
   * by another process */
  uint64_t binary_hits;
  /* ... not in the store. How it was made then is counted as well: among compiles, or, when another
   * session or process compiled it, among binary_hits. */
  uint64_t miss_absent;
  /* ... in the store, but its checksum did not hold; made and counted as after miss_absent */
  uint64_t miss_damaged;
  /* ... found, but the driver refused it; compiled anew */
  uint64_t miss_unloadable;
  /* buckets that a decision of the store serves */
  uint64_t decision_hits;
  /* buckets that took the default config: no decision, or one that is not used */
  uint64_t decision_defaults;
  uint64_t kernels_loaded;
  /* op calls that reached the driver, summed over plans */
  uint64_t calls;
  /* always 0: this interface never tunes */
  uint64_t tunes;
} kiln_stats;

/* Counters of the session since kiln_open. KILN_INVALID_ARGUMENT: stats is NULL, or its size not
 * set. */
KILN_API kiln_status kiln_get_stats(kiln_session *session, kiln_stats *stats);

/* Two digests of everything prepared so far, equal on ranks that compute the same:
 *   exact:    problem, config and binary of every bucket
 *   numerics: op version and reduction signature, equal also across different cards */
typedef struct kiln_digests {
  size_t size; /* in: sizeof(kiln_digests) */
  uint8_t exact[16];
  uint8_t numerics[16];
} kiln_digests;
/* KILN_INVALID_ARGUMENT: digests is NULL, or its size not set. */
KILN_API kiln_status kiln_get_digests(kiln_session *session, kiln_digests *digests);

/* JSON: the workload that op calls of this session reached the driver with so far, as kiln_prepare
 * takes it: of each shape the buckets that were called, each range from the least to the most of
 * them. {"ops":[]} before the first call. May be asked at any time between kiln_open and
 * kiln_close, also while a stream is captured and while other threads call ops: what they call
 * meanwhile may be missing. */
KILN_API kiln_status kiln_get_workload(kiln_session *session, char *buffer, size_t capacity,
                                       size_t *needed);

/* Memory of the session's device, the same way on a GPU and on a simulated one: for examples, tests
 * and tools. An op takes any memory that its device can reach, so a server that has its own
 * allocator needs none of these. All may be called from any thread, and while a stream is captured;
 * none waits for a stream: kiln_synchronize first with the one whose work is read or overwritten.
 *
 * bytes: at least 1. memory: receives the address, aligned to 256 bytes; NULL on failure. The
 * contents are not initialised. Freed by kiln_memory_free, else by kiln_close.
 * KILN_OUT_OF_MEMORY, KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR. */
KILN_API kiln_status kiln_memory_allocate(kiln_session *session, size_t bytes, void **memory);

/* memory: what kiln_memory_allocate gave, or NULL. Finish the work that uses it first.
 * KILN_INVALID_ARGUMENT for any other address. */
KILN_API kiln_status kiln_memory_free(kiln_session *session, void *memory);

/* Copies from the host to the device and back; finished on return.
 * memory: any address inside an allocation of this session that holds these bytes from there.
 * from, to: host memory of the caller's, not needed afterwards. bytes: 0 is legal and copies
 * nothing; the pointers are not looked at then.
 * KILN_INVALID_ARGUMENT (a NULL, or bytes that do not lie in one allocation), KILN_DRIVER_ERROR
 * (also for a kernel that failed before). */
KILN_API kiln_status kiln_memory_write(kiln_session *session, void *memory, const void *from,
                                       size_t bytes);
KILN_API kiln_status kiln_memory_read(kiln_session *session, void *to, const void *memory,
                                      size_t bytes);

/* Waits for the work of one stream of the session's device. Any thread, also several at once.
 * stream: a CUstream, NULL for the default stream. On a simulated device all work is finished when
 * its call returns, so that this says how it went.
 * KILN_DRIVER_ERROR: a kernel failed (the sentence says what, on a simulated GPU with the line of
 * the source; every later call says the same), or the stream is being captured: that capture is
 * then invalid, and so is one of a blocking stream when NULL is waited for. KILN_INVALID_ARGUMENT:
 * not a stream of a simulated device. */
KILN_API kiln_status kiln_synchronize(kiln_session *session, void *stream);

/* Hash of the op structs and versions that this library was built with, 16 bytes: compare it with
 * that of the process you talk to. KILN_INVALID_ARGUMENT: hash is NULL. */
KILN_API kiln_status kiln_abi_hash(uint8_t hash[16]);

#ifdef __cplusplus
}
#endif

#include "kiln_ops.h"

#endif /* KILN_H_ */
