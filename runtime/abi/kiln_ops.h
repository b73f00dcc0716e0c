/* The ops of Kiln. Made from templates/<op>/op.cpp by kiln_gen_ops: do not edit, a test compares.
 * Included by kiln.h, which has the rules that hold for every op and every status. */
#ifndef KILN_OPS_H_
#define KILN_OPS_H_

#include "kiln.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- act_quant ---- */

/* Quantises rows of bf16 by groups to FP8 or FP4 codes and scales, or to the bf16 numbers that
 * these stand for.
 *
 * For each group of neighbouring columns, m its largest magnitude:
 *   q8a: 32 columns  s = power of two at or above max(m, 1e-4) / 448       E4M3, UE8M0
 *   q8c: 32 columns  s = power of two at or above m / 448, at least 2^-126 E4M3, UE8M0
 *   q8d: 64 columns  as q8a                                                E4M3, UE8M0
 *   q4m: 32 columns  s = power of two at or above max(m, 6 * 2^-126) / 6   E2M1, UE8M0
 *   q4n: 16 columns  s = E4M3 nearest to max(m, 6 * 2^-9) / 6, at most 448 E2M1, E4M3
 *   code = nearest to clamp(x / s), ties to the even code
 *   y    = code * s, rounded once to bf16 (nearest even, subnormals kept)
 * The largest code is 448 (E4M3) or 6 (E2M1); x / s is an exact IEEE quotient. A byte of E2M1 codes
 * holds the even column in bits 0..3. The sign of a zero is kept, but a group of zeros becomes
 * scale byte 0 and codes 0 in q8c (y +0).
 * A group that holds a NaN or an infinity: scale byte 255 (UE8M0) or 0x7f (E4M3), E4M3 codes 0x7f,
 * E2M1 codes 0, y NaN.
 * code_bytes is columns (E4M3) or columns / 2 (E2M1); groups is columns / the group, of which
 * columns is a multiple. Each group stands for itself: neither the other rows nor their number
 * change a bit of it.
 *
 * Formula: ops.md B4, (e), (f)3, (f)4. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "format": of codes and scales ("q8a", "q8c", "q8d", "q4m", "q4n")
 *   "columns": elements of a row; a multiple of the group (16 to 1048576)
 *   "output": what is written ("codes", "bf16")
 */
typedef struct kiln_act_quant_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, columns]: what is quantised; 16-byte aligned */
  const uint16_t *x;
  /* elements of x from one row to the next; a multiple of 8 */
  int64_t x_stride;
  /* out, u8 [num_rows, code_bytes]: E4M3, one to a byte, or E2M1, two to a byte; only with
   * output codes, else NULL; 8-byte aligned */
  uint8_t *codes;
  /* elements of codes from one row to the next; a multiple of 8 */
  int64_t codes_stride;
  /* out, u8 [num_rows, groups]: UE8M0 or E4M3; only with output codes, else NULL */
  uint8_t *scales;
  /* elements of scales from one row to the next */
  int64_t scales_stride;
  /* out, bf16 [num_rows, columns]: what the codes and scales stand for; only with output bf16,
   * else NULL; 16-byte aligned */
  uint16_t *y;
  /* elements of y from one row to the next; a multiple of 8 */
  int64_t y_stride;
  /* rows; 0 to 2147483647 */
  int64_t num_rows;
} kiln_act_quant_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_act_quant(kiln_plan *plan, const kiln_act_quant_args *args,
                                    void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_act_quant_workspace(kiln_plan *plan, const kiln_act_quant_args *args,
                                              uint64_t *bytes);

/* ---- combine_topk_swa ---- */

/* Writes, for each query of a prefill chunk, one row of workspace indices: its top-k entries, then
 * its window.
 *
 * For token t of request b (rows past the last request are padding: idx all -1, len 0):
 *   p  = seq_lens[b] - query_len[b] + (t - first row of b)   position of the token
 *   g0 = seq_lens[b] - gather_lens[b]                        first gathered window position
 *   lc = ratio == 0 ? 0 : min((p + 1) / ratio, top_k)
 *   ws = max(p - 127, 0, g0);  lw = p - ws + 1
 *   idx[t, c]           = b * rows_per_request + topk[t, c]   for c < lc when
 *                         0 <= topk[t, c] < compressed_rows, else -1
 *   idx[t, lc + i]      = b * rows_per_request + compressed_rows + (ws - g0) + i   for i < lw
 *   idx[t, c >= lc+lw]  = -1
 *   len[t] = lc + lw
 * lc and lw are never below 0, whatever the lengths hold. An invalid top-k value keeps its column
 * and counts in len.
 *
 * Formula: ops.md B15.2. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "ratio": tokens per compressed entry of the layer; 0: the layer has no compressed list (0 to
 *     128)
 *   "top_k": entries of a top-k row (0 to 8192)
 * A legal call holds:
 *   - idx_width is at least top_k + 128
 *   - num_requests * rows_per_request is at most 2147483647, so that a workspace row fits an int32
 *   - compressed_rows is at most rows_per_request
 */
typedef struct kiln_combine_topk_swa_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [num_tokens, top_k]: compressed entries of each row, request-local, the valid ones
   * first */
  const int32_t *topk;
  /* elements of topk from one row of the chunk to the next */
  int64_t topk_stride;
  /* in, i32 [boundaries]: first row of each request and, last, their end; may be a slice: the
   * first value is subtracted */
  const int32_t *query_start_loc;
  /* in, i32 [num_requests]: tokens of each request after this step */
  const int32_t *seq_lens;
  /* in, i32 [num_requests]: window rows of each request in the workspace */
  const int32_t *gather_lens;
  /* out, i32 [num_tokens, idx_width]: workspace rows */
  int32_t *idx;
  /* elements of idx from one row of the chunk to the next */
  int64_t idx_stride;
  /* out, i32 [num_tokens]: columns of idx that count */
  int32_t *len;
  /* rows of the chunk, padding included; 0 to 2147483647 */
  int64_t num_tokens;
  /* requests of the chunk; 0 to 2147483646 */
  int64_t num_requests;
  /* columns of idx that are written; 0 to 2147483647 */
  int64_t idx_width;
  /* workspace rows of one request; 0 to 2147483647 */
  int64_t rows_per_request;
  /* workspace rows of one request before its window part; 0 to 2147483647 */
  int64_t compressed_rows;
} kiln_combine_topk_swa_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_combine_topk_swa(kiln_plan *plan, const kiln_combine_topk_swa_args *args,
                                           void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_combine_topk_swa_workspace(kiln_plan *plan,
                                                     const kiln_combine_topk_swa_args *args,
                                                     uint64_t *bytes);

/* ---- compressed_kv_insert ---- */

/* Rotates, quantises and writes the latents of a compressor into its paged cache.
 *
 * For row t, s = slots[t], p = positions[t] - positions[t] % ratio, the first position of the
 * group:
 *   x' = latent[t] with its last 64 elements rotated: in pairs i = 0..31
 *     a' = a * cos - b * sin, b' = a * sin + b * cos
 *     cos = rope_table[p, i], sin = rope_table[p, 32 + i]
 *     in fp32, products rounded, then one addition, then bf16 (nearest even)
 *   entry s % page_size of page s / page_size = x', quantised
 * Formats; a page holds first the codes of all entries, then their scales (ops.md B8):
 *   f1: q8a: 512 E4M3 codes, 16 UE8M0 scales (one per 32 elements)        528 bytes
 *   f2: q4n: 512 E2M1 codes (even element in bits 0..3), 32 E4M3 scales (one per 16)   288 bytes
 *   f3: q8d: 448 E4M3 codes, then 64 bf16; 7 UE8M0 scales (one per 64) and a 0   584 bytes
 *   f4: 512 bf16: what codes and scales of f2 stand for                  1024 bytes
 * q8a, q4n and q8d are those of act_quant, to the bit: a group that holds a NaN or an infinity
 * becomes scale 0x7f and codes 0 (f2), scale 255 and codes 0x7f (f1, f3), or 0x7fc0 (f4); a NaN
 * that rotation makes in the bf16 of f3 is 0x7fff.
 * A row whose slot is negative or beyond the cache is not written. The caller gives the slot -1 to
 * a row whose token completes no group, and to one whose group compressor_update has not completed
 * because the request has no block of the ring: nothing new stands in such a row. Entries are
 * written whole; every other byte of the cache is left as it is. No two rows have the same slot.
 *
 * Formula: ops.md B4, B5, B8, B9, (f)4, (f)5. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "format": layout of the cache ("f1", "f2", "f3", "f4")
 *   "ratio": tokens of an entry (1 to 128)
 * A legal call holds:
 *   - num_pages * page_size is at most 2147483647, so that a slot fits the int32 of its readers
 */
typedef struct kiln_compressed_kv_insert_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, 512]: latents before RoPE; 16-byte aligned */
  const uint16_t *latent;
  /* elements of latent from one row to the next; a multiple of 8 */
  int64_t latent_stride;
  /* in, i32 [num_rows]: position of a token of each row's group; a row whose position is outside
   * of rope_table is not rotated */
  const int32_t *positions;
  /* in, i64 [num_rows]: where each row goes in the cache */
  const int64_t *slots;
  /* in, f32 [num_positions, 64]: of each position 32 cosines, then 32 sines, of the layer's
   * frequencies; 16-byte aligned */
  const float *rope_table;
  /* elements of rope_table from one position to the next; a multiple of 4 */
  int64_t rope_table_stride;
  /* out, u8 [num_pages, page_bytes]: pages of entries; 8-byte aligned */
  uint8_t *cache;
  /* elements of cache from one page of the cache to the next; a multiple of 8 */
  int64_t cache_stride;
  /* rows of the step, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* rows of rope_table; 0 to 2147483647 */
  int64_t num_positions;
  /* entries of a page; 1 to 65536 */
  int64_t page_size;
  /* pages of the cache; 0 to 2147483647 */
  int64_t num_pages;
} kiln_compressed_kv_insert_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_compressed_kv_insert(kiln_plan *plan,
                                               const kiln_compressed_kv_insert_args *args,
                                               void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_compressed_kv_insert_workspace(
    kiln_plan *plan, const kiln_compressed_kv_insert_args *args, uint64_t *bytes);

/* ---- compressor_update ---- */

/* Pools the tokens of each group that a step completes to one normalised latent vector and keeps
 * what later steps need in a ring.
 *
 * projections holds, for each token, 512 values and with ratio 2 also 512 scores behind them:
 * row_floats is 512 * ratio. Row t of request b = requests[t], at p = positions[t], completes a
 * group when (p + 1) is a multiple of ratio; with ratio 2 the group is p - 1 and p:
 *   m = max(score[p - 1], score[p]);  e[i] = exp(score[i] - m)       each channel by itself
 *   pooled = (value[p - 1] * e[p - 1] + value[p] * e[p]) / (e[p - 1] + e[p])
 *   latent[t] = RMSNorm(bf16(pooled)) = bf16((x * r) * norm_weight), x = bf16(pooled),
 *               r = 1 / sqrt(sum(x^2) / 512 + 1e-20)
 * With ratio 1 pooled is the value itself. With rounding "none" x = pooled. From x on every
 * operation is that of rms_norm: the same bits, in the same order.
 * Rows of latent whose token completes no group are left as they are. A row whose request is
 * outside 0 .. num_requests - 1 or whose position is below 0 is padding and does nothing; it stands
 * behind the rows of the last request, as query_start_loc spans tokens only (with ratio 2 padding
 * among them would take the place of tokens in the ring).
 * Ratio 2 only: token p - 1 is row t - 1, or, for the first row of a request, row (p - 1) %
 * block_rows of the request's block of the ring. The last min(query_len, block_rows) tokens of each
 * request are stored there in turn, behind all reads of the call: token p as row p % block_rows,
 * values then scores. block_rows is at least the number of tokens that may be taken back plus 2;
 * any number is legal. A request has no block when ring_blocks[b] is below 1 (block 0 is never
 * used) or not below num_blocks, or when block_rows is 0: then nothing is stored, and a group whose
 * first token would stand in the ring is not completed: its row of latent is left as it is, too.
 * The caller gives such a row, which is the first of its request at an odd position, the slot -1 in
 * compressed_kv_insert and index_key_insert, like the rows that complete no group: its entry is not
 * emitted.
 * Rows of a request are neighbours, in the order of their positions. No two requests share a block.
 *
 * Formula: ops.md B9, B8, B3, (f)6, (f)12. Version 1. Result: bit-exact, but for latent, see there.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "ratio": tokens of a group (1 to 2)
 *   "rounding": of pooled values before they are normalised ("bf16", "none")
 */
typedef struct kiln_compressor_update_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, f32 [num_rows, row_floats]: of each token 512 values, then with ratio 2 512 scores;
   * 16-byte aligned */
  const float *projections;
  /* elements of projections from one row to the next; a multiple of 4 */
  int64_t projections_stride;
  /* in, i32 [num_rows]: position of each row */
  const int32_t *positions;
  /* in, i32 [num_rows]: request of each row */
  const int32_t *requests;
  /* in, i32 [boundaries]: first row of each request and, last, their end; may be a slice: the
   * first value is subtracted; only with ratio 2, else NULL */
  const int32_t *query_start_loc;
  /* in, i32 [num_requests]: block of each request; only with ratio 2, else NULL */
  const int32_t *ring_blocks;
  /* in, bf16 [512]: a factor for each channel; 16-byte aligned */
  const uint16_t *norm_weight;
  /* in and out, f32 [num_blocks, block_rows, 1024]: rows that later steps complete groups with;
   * only with ratio 2, else NULL; 16-byte aligned */
  float *ring;
  /* elements of ring from one block to the next; a multiple of 4 */
  int64_t ring_stride0;
  /* elements of ring from one row to the next; a multiple of 4 */
  int64_t ring_stride1;
  /* out, bf16 [num_rows, 512]: latent vector of each row that completes a group; 16-byte
   * aligned; rms error at most 0.000976562 of the output's rms */
  uint16_t *latent;
  /* elements of latent from one row to the next; a multiple of 8 */
  int64_t latent_stride;
  /* rows, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* requests; 0 to 2147483646 */
  int64_t num_requests;
  /* blocks of the ring; 0 to 2147483647 */
  int64_t num_blocks;
  /* rows of a block; 0 to 65536 */
  int64_t block_rows;
} kiln_compressor_update_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_compressor_update(kiln_plan *plan,
                                            const kiln_compressor_update_args *args, void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_compressor_update_workspace(kiln_plan *plan,
                                                      const kiln_compressor_update_args *args,
                                                      uint64_t *bytes);

/* ---- embed_expand ---- */

/* Copies the embedding of each token into its residual streams.
 *
 * For each row t and stream c:
 *   h[t, c] = table[ids[t] - first_id]  where 0 <= ids[t] - first_id < num_embeddings
 *   h[t, c] = 0                         elsewhere
 * A rank has the ids first_id .. first_id + num_embeddings - 1; the sum over the ranks is the
 * embedding. Rows of padding and of images, whose ids are no token's, become zeros, and features
 * may be written over them. num_streams 1 gives plain rows.
 *
 * Formula: ops.md B6.3. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "columns": columns of an embedding; a multiple of 8 (8 to 16384)
 *   "num_streams": residual streams that are written (1 to 8)
 */
typedef struct kiln_embed_expand_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [num_rows]: token of each row */
  const int32_t *ids;
  /* in, bf16 [num_embeddings, columns]: embeddings of this rank; 16-byte aligned */
  const uint16_t *table;
  /* elements of table from one embedding to the next; a multiple of 8 */
  int64_t table_stride;
  /* out, bf16 [num_rows, num_streams, columns]: the residual streams; 16-byte aligned */
  uint16_t *h;
  /* elements of h from one row to the next; a multiple of 8 */
  int64_t h_stride0;
  /* elements of h from one stream to the next; a multiple of 8 */
  int64_t h_stride1;
  /* rows (tokens), padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* rows of table; 0 to 2147483647 */
  int64_t num_embeddings;
  /* id of the first row of table; 0 to 2147483647 */
  int64_t first_id;
} kiln_embed_expand_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_embed_expand(kiln_plan *plan, const kiln_embed_expand_args *args,
                                       void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_embed_expand_workspace(kiln_plan *plan,
                                                 const kiln_embed_expand_args *args,
                                                 uint64_t *bytes);

/* ---- engram_fetch ---- */

/* Rows of the Engram table that the hashes name, decoded or as they are.
 *
 * For row t, head h and r = rows[t, h] - first_row:
 *   x[t, h * columns + d] = bf16(table[r, d] * 2^(table_scales[r, d / 32] - 127))
 * where 0 <= r < num_table_rows, else 0: padding (-1 of engram_hash) and rows of other ranks. A
 * rank has some of the heads, whole, or the rows first_row .. first_row + num_table_rows - 1 of
 * all; then the sum of x over the ranks has the values of the row, as all but one are 0 (-0 may
 * become 0). Elements are rounded once (nearest even, subnormals kept, overflow to infinity); NaN
 * codes and scales of 255 give NaN. "codes_q8a" writes the table's bytes instead, for linear_fp8
 * with that x_format; elsewhere codes and scales are 0, so that the sum of the bytes is the row.
 * source says where table and table_scales lie. "device": a kernel reads each row as often as it is
 * named. "host": pinned host memory, mapped into the device's addresses (cudaHostAlloc,
 * cudaHostRegister); the pointers are those of the device (cudaHostGetDevicePointer); a row that
 * several rows and heads name crosses the bus once and is copied on the device. The result is the
 * same to the bit.
 *
 * Formula: ops.md B19.3, (f)3. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "num_heads": columns of rows that are fetched here: all 3 * num_heads of engram_hash, or a
 *     rank's (1 to 192)
 *   "columns": elements of a row of the table; a multiple of 32 (32 to 1024)
 *   "source": memory of the table ("device", "host")
 *   "x_format": what is written ("bf16", "codes_q8a")
 */
typedef struct kiln_engram_fetch_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [num_rows, num_heads]: row for each head, as engram_hash gives them */
  const int32_t *rows;
  /* elements of rows from one row to the next */
  int64_t rows_stride;
  /* in, u8 [num_table_rows, columns]: E4M3 codes; with source host pinned memory of the host (on
   * the simulator memory of the device); 16-byte aligned */
  const uint8_t *table;
  /* elements of table from one row of table to the next; a multiple of 16 */
  int64_t table_stride;
  /* in, u8 [num_table_rows, groups]: their UE8M0 scales, one for 32 columns; with source host
   * pinned memory of the host (on the simulator memory of the device) */
  const uint8_t *table_scales;
  /* elements of table_scales from one row of table to the next */
  int64_t table_scales_stride;
  /* out, bf16 [num_rows, x_columns]: rows of the table, side by side: num_heads * columns; only
   * with x_format bf16, else NULL; 16-byte aligned */
  uint16_t *x;
  /* elements of x from one row to the next; a multiple of 8 */
  int64_t x_stride;
  /* out, u8 [num_rows, x_columns]: their codes; only with x_format codes_q8a, else NULL; 16-byte
   * aligned */
  uint8_t *x_codes;
  /* elements of x_codes from one row to the next; a multiple of 16 */
  int64_t x_codes_stride;
  /* out, u8 [num_rows, x_groups]: their scales, one for 32 columns; only with x_format
   * codes_q8a, else NULL */
  uint8_t *x_scales;
  /* elements of x_scales from one row to the next */
  int64_t x_scales_stride;
  /* rows (tokens), padding included; 0 to 8388608 */
  int64_t num_rows;
  /* rows of table; 0 to 2147483647 */
  int64_t num_table_rows;
  /* number of the first row of table; 0 to 2147483647 */
  int64_t first_row;
  /* scratch of the call, 256-byte aligned; NULL when it needs none */
  void *workspace;
  /* its size; at least what kiln_engram_fetch_workspace answers */
  uint64_t workspace_bytes;
} kiln_engram_fetch_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_engram_fetch(kiln_plan *plan, const kiln_engram_fetch_args *args,
                                       void *stream);

/* Bytes of workspace that a call with these sizes, or smaller ones, needs; pointers and strides
 * in args are not looked at. Touches no device.
 * KILN_INVALID_ARGUMENT, KILN_NOT_PREPARED (it depends on the kernels: prepare first),
 * KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_engram_fetch_workspace(kiln_plan *plan,
                                                 const kiln_engram_fetch_args *args,
                                                 uint64_t *bytes);

/* ---- engram_hash ---- */

/* Rows of the Engram table for each token: hashes of the n-grams that end there.
 *
 * For row t of request b = requests[t], with t0 = ids[t] and tn the id n places before it, n = 1 ..
 * 3, in 64-bit integers that wrap:
 *   r[0] = t0 * multipliers[0];  r[n] = r[n - 1] xor (tn * multipliers[n])
 *   rows[t, (n - 1) * num_heads + a] = r[n] mod primes[..] + offsets[..], of that column
 * An id before the first row of b in this call is taken from history: history[b, 2] is the last one
 * before, history[b, 1] the one before that. A negative id is dead: an image, a masked token, or
 * nothing, as before the sequence. Where one is met, it and all farther back count as pad_id; a
 * dead t0 makes all four pad_id, and the gate of engram_inject is shut for it.
 * Ids are compressed ids, below 2^31, of one map for the vocabulary. primes are above 0; offsets
 * are the sums of the primes before, so that every column has rows of its own, and the last row
 * fits int32. Multipliers are odd and so small that products stay below 2^63 (ops.md B19.2 has
 * those of the model). A row whose request is outside 0 .. num_requests - 1, or a row before the
 * first one of its request, is padding: its rows are -1, which engram_fetch reads nowhere.
 *
 * Formula: ops.md B19.2. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "num_heads": hashes of each of the three lengths of n-gram; columns is 3 * num_heads (1 to
 *     64)
 */
typedef struct kiln_engram_hash_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [num_rows]: compressed id of each row; negative: dead */
  const int32_t *ids;
  /* in, i32 [num_rows]: request of each row */
  const int32_t *requests;
  /* in, i32 [boundaries]: num_requests + 1: the first row of each request, then the end,
   * ascending; the first need not be 0 */
  const int32_t *query_start_loc;
  /* in, i32 [num_requests, 3]: ids before the first row of each request */
  const int32_t *history;
  /* elements of history from one request to the next */
  int64_t history_stride;
  /* in, i64 [4]: of the token and of those before it */
  const int64_t *multipliers;
  /* in, i32 [columns]: rows of the table for each column */
  const int32_t *primes;
  /* in, i32 [columns]: first row of each column */
  const int32_t *offsets;
  /* out, i32 [num_rows, columns]: rows of the table; -1: none */
  int32_t *rows;
  /* elements of rows from one row to the next */
  int64_t rows_stride;
  /* rows (tokens), padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* requests; 0 to 2147483646 */
  int64_t num_requests;
  /* id that stands for what is not there; 0 to 2147483647 */
  int64_t pad_id;
} kiln_engram_hash_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_engram_hash(kiln_plan *plan, const kiln_engram_hash_args *args,
                                      void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_engram_hash_workspace(kiln_plan *plan, const kiln_engram_hash_args *args,
                                                uint64_t *bytes);

/* ---- engram_inject ---- */

/* Adds the gated value of the Engram to the residual streams, in place.
 *
 * keys_and_value[t] holds a key for each stream, stream c at column c * columns, and behind them
 * one value. For row t and stream c, in fp32, with k that key:
 *   dot = (sum over d of (h[t, c, d] * (q_weight[c, d] * k_weight[c, d])) * k[d])
 *         * rsqrt(mean(h[t, c]^2) + 1e-20) * rsqrt(mean(k^2) + 1e-20) * columns^-0.5
 *   g = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))
 *   h[t, c, d] = bf16(h[t, c, d] + g * value[d])
 * with one fused multiply-add and one rounding to bf16 in the last line. The sums are added in the
 * order of rms_norm, so that a row's bits do not depend on the kernel or on other rows. A row whose
 * id is negative is dead or masked: its streams are left as they are, to the bit, whatever its keys
 * and value hold. ids may be NULL: no row is.
 *
 * Formula: ops.md B19.5, (f)13. Version 1. Result: rms error at most 0.0002 of the output's rms.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "columns": columns of a stream; a multiple of 8 (8 to 16384)
 *   "num_streams": residual streams (1 to 8)
 */
typedef struct kiln_engram_inject_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in and out, bf16 [num_rows, num_streams, columns]: the residual streams; 16-byte aligned */
  uint16_t *h;
  /* elements of h from one row to the next; a multiple of 8 */
  int64_t h_stride0;
  /* elements of h from one stream to the next; a multiple of 8 */
  int64_t h_stride1;
  /* in, bf16 [num_rows, kv_columns]: a key for each stream, then the value: (num_streams + 1) *
   * columns; 16-byte aligned */
  const uint16_t *keys_and_value;
  /* elements of keys_and_value from one row to the next; a multiple of 8 */
  int64_t keys_and_value_stride;
  /* in, bf16 [num_streams, columns]: weights of h; 16-byte aligned */
  const uint16_t *q_weight;
  /* elements of q_weight from one stream to the next; a multiple of 8 */
  int64_t q_weight_stride;
  /* in, bf16 [num_streams, columns]: weights of the keys; 16-byte aligned */
  const uint16_t *k_weight;
  /* elements of k_weight from one stream to the next; a multiple of 8 */
  int64_t k_weight_stride;
  /* in, i32 [num_rows]: compressed id of each row; negative: dead; NULL is legal */
  const int32_t *ids;
  /* rows (tokens), padding included; 0 to 16777216 */
  int64_t num_rows;
} kiln_engram_inject_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_engram_inject(kiln_plan *plan, const kiln_engram_inject_args *args,
                                        void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_engram_inject_workspace(kiln_plan *plan,
                                                  const kiln_engram_inject_args *args,
                                                  uint64_t *bytes);

/* ---- gather_dequant_kv ---- */

/* Copies the last entries of each request from its paged KV cache into a dense bf16 workspace.
 *
 * For request b:
 *   g = gather_lens ? gather_lens[b] : lens[b];  s = lens[b] - g
 *   for i < min(g, max_rows):  x = s + i
 *   out[b, offset + i, 0..511] = entry x % page_size of page block_table[b, x / page_size]
 * The entry is dequantised: every element is the exact product of code and scale, rounded once to
 * bf16 (nearest even, subnormals kept, overflow to infinity); NaN codes and NaN scales give NaN.
 * Other elements of out are left as they are. A row whose entry does not exist (x < 0, a column
 * beyond the table, a page outside the cache) becomes zeros; nothing outside the cache is read.
 * Pages hold first the codes of all entries, then their scales (ops.md B8):
 *   f1: 512 E4M3 codes, 16 UE8M0 scales (one per 32 elements)             528 bytes an entry
 *   f2: 512 E2M1 codes (even element in bits 0..3), 32 E4M3 scales (one per 16)   288 bytes
 *   f3: 448 E4M3 codes then 64 bf16, 8 UE8M0 scales (one per 64, the last unused) 584 bytes
 *   f4: 512 bf16                                                         1024 bytes
 *
 * Formula: ops.md B15.1, B8, (f)3. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "format": layout of the cache ("f1", "f2", "f3", "f4")
 */
typedef struct kiln_gather_dequant_kv_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, u8 [num_pages, page_bytes]: pages of entries; 8-byte aligned */
  const uint8_t *cache;
  /* elements of cache from one page of the cache to the next; a multiple of 8 */
  int64_t cache_stride;
  /* in, i32 [num_requests]: entries of each request */
  const int32_t *lens;
  /* in, i32 [num_requests]: entries of each request that are wanted, counted from its end; NULL
   * means all; NULL is legal */
  const int32_t *gather_lens;
  /* in, i32 [num_requests, table_width]: page of the cache for each page of a request; only
   * entries in use are read */
  const int32_t *block_table;
  /* elements of block_table from one request to the next */
  int64_t block_table_stride;
  /* out, bf16 [num_requests, out_rows, 512]: workspace; 16-byte aligned */
  uint16_t *out;
  /* elements of out from one request to the next; a multiple of 8 */
  int64_t out_stride0;
  /* elements of out from one row to the next; a multiple of 8 */
  int64_t out_stride1;
  /* requests; 0 to 2147483647 */
  int64_t num_requests;
  /* capacity in rows: no request gathers more; 0 to 2147483647 */
  int64_t max_rows;
  /* first row of out that is written; 0 to 2147483647 */
  int64_t offset;
  /* entries of a page; 1 to 65536 */
  int64_t page_size;
  /* pages of the cache; 0 to 2147483647 */
  int64_t num_pages;
  /* columns of block_table; 0 to 2147483647 */
  int64_t table_width;
} kiln_gather_dequant_kv_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_gather_dequant_kv(kiln_plan *plan,
                                            const kiln_gather_dequant_kv_args *args, void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_gather_dequant_kv_workspace(kiln_plan *plan,
                                                      const kiln_gather_dequant_kv_args *args,
                                                      uint64_t *bytes);

/* ---- hc_fold_norm ---- */

/* Folds the four residual streams into one row and normalises it.
 *
 * For each row t and column d, in fp32 and every operation rounded:
 *   folded[t, d] = bf16(((pre[t, 0] * h[t, 0, d] + pre[t, 1] * h[t, 1, d])
 *                  + pre[t, 2] * h[t, 2, d]) + pre[t, 3] * h[t, 3, d])
 *   x = rms_norm(folded, weight), as that op defines it
 *   x_codes, x_scales = act_quant(x), format q8a
 * x_format says what of x is written: "codes_q8a" is what linears with x_format "codes_q8a" take.
 * folded is written where it is not NULL: the last fold of a forward hands it to the draft, and
 * with 1/4 as every pre it is the mean of the streams.
 * Where the four streams are equal, before the first layer, folded is one of them: rms_norm is that
 * form.
 *
 * Formula: ops.md B1.3, B2, B3, B20.1. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "columns": columns of a stream (the hidden size); a multiple of 8, where codes are written of
 *     32 (8 to 16384)
 *   "x_format": what is written of x ("bf16", "codes_q8a", "bf16_and_codes_q8a")
 */
typedef struct kiln_hc_fold_norm_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, 4, columns]: the residual streams; 16-byte aligned */
  const uint16_t *h;
  /* elements of h from one row to the next; a multiple of 8 */
  int64_t h_stride0;
  /* elements of h from one stream to the next; a multiple of 8 */
  int64_t h_stride1;
  /* in, f32 [num_rows, 4]: weight of each stream; 16-byte aligned */
  const float *pre;
  /* elements of pre from one row to the next; a multiple of 4 */
  int64_t pre_stride;
  /* in, bf16 [columns]: a factor for each column of the norm; 16-byte aligned */
  const uint16_t *weight;
  /* out, bf16 [num_rows, columns]: the input of the next sub-layer; only with x_format bf16 or
   * bf16_and_codes_q8a, else NULL; 16-byte aligned */
  uint16_t *x;
  /* elements of x from one row to the next; a multiple of 8 */
  int64_t x_stride;
  /* out, u8 [num_rows, columns]: its E4M3 codes; only with x_format codes_q8a or
   * bf16_and_codes_q8a, else NULL; 8-byte aligned */
  uint8_t *x_codes;
  /* elements of x_codes from one row to the next; a multiple of 8 */
  int64_t x_codes_stride;
  /* out, u8 [num_rows, groups]: their UE8M0 scales, one for 32 columns; groups is columns / 32;
   * only with x_format codes_q8a or bf16_and_codes_q8a, else NULL */
  uint8_t *x_scales;
  /* elements of x_scales from one row to the next */
  int64_t x_scales_stride;
  /* out, bf16 [num_rows, columns]: the row before its norm; NULL is legal; 16-byte aligned */
  uint16_t *folded;
  /* elements of folded from one row to the next; a multiple of 8 */
  int64_t folded_stride;
  /* rows (tokens), padding included; 0 to 16777216 */
  int64_t num_rows;
} kiln_hc_fold_norm_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_hc_fold_norm(kiln_plan *plan, const kiln_hc_fold_norm_args *args,
                                       void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_hc_fold_norm_workspace(kiln_plan *plan,
                                                 const kiln_hc_fold_norm_args *args,
                                                 uint64_t *bytes);

/* ---- hc_fused_post_pre_delayed ---- */

/* From the output of a sub-layer to the input and the gates of the next one: hc_post_fold_norm and
 * hc_stats.
 *
 * With these ops as they define themselves; h, x and mean to the bit, the gates within the bound of
 * hc_stats in fp32:
 *   h, x, x_codes, x_scales, mean = hc_post_fold_norm(y, h, post, comb, pre, weight)
 *   next_pre, next_post, next_comb = hc_stats(h, fn, scale, base)
 * post and comb are those of the sub-layer that gave y. pre came with them, from the statistics
 * before: the fold does not wait for the new ones. next_pre is what this op takes as pre at the
 * next sub-layer's end. fn, scale and base are those of the next sub-layer. None of the outputs may
 * be one of the inputs, but for h.
 * Not legal where the streams change in between, as across an Engram.
 *
 * Formula: ops.md B1.5, B1.1 to B1.4, B20.1. Version 1. Result: bit-exact, but for next_pre,
 * next_post, next_comb, see there.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "columns": columns of a stream (the hidden size); a multiple of 32 (32 to 16384)
 *   "x_format": what is written of x ("bf16", "codes_q8a", "bf16_and_codes_q8a")
 */
typedef struct kiln_hc_fused_post_pre_delayed_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, columns]: output of the sub-layer; 16-byte aligned */
  const uint16_t *y;
  /* elements of y from one row to the next; a multiple of 8 */
  int64_t y_stride;
  /* in and out, bf16 [num_rows, 4, columns]: the residual streams; 16-byte aligned */
  uint16_t *h;
  /* elements of h from one row to the next; a multiple of 8 */
  int64_t h_stride0;
  /* elements of h from one stream to the next; a multiple of 8 */
  int64_t h_stride1;
  /* in, f32 [num_rows, 4]: how much of y each stream takes; 16-byte aligned */
  const float *post;
  /* elements of post from one row to the next; a multiple of 4 */
  int64_t post_stride;
  /* in, f32 [num_rows, 4, 4]: how much of stream i stream j takes; 16-byte aligned */
  const float *comb;
  /* elements of comb from one row to the next; a multiple of 4 */
  int64_t comb_stride0;
  /* elements of comb from one stream to the next; a multiple of 4 */
  int64_t comb_stride1;
  /* in, f32 [num_rows, 4]: weight of each stream in this fold; 16-byte aligned */
  const float *pre;
  /* elements of pre from one row to the next; a multiple of 4 */
  int64_t pre_stride;
  /* in, bf16 [columns]: a factor for each column of the norm; 16-byte aligned */
  const uint16_t *weight;
  /* in, f32 [24, width]: what each gate sees of the streams; width is 4 * columns; 16-byte
   * aligned */
  const float *fn;
  /* elements of fn from one gate to the next; a multiple of 4 */
  int64_t fn_stride;
  /* in, f32 [3]: of the logits of pre, of post and of comb */
  const float *scale;
  /* in, f32 [24]: added to the logits */
  const float *base;
  /* out, bf16 [num_rows, columns]: the input of the next sub-layer; only with x_format bf16 or
   * bf16_and_codes_q8a, else NULL; 16-byte aligned */
  uint16_t *x;
  /* elements of x from one row to the next; a multiple of 8 */
  int64_t x_stride;
  /* out, u8 [num_rows, columns]: its E4M3 codes; only with x_format codes_q8a or
   * bf16_and_codes_q8a, else NULL; 8-byte aligned */
  uint8_t *x_codes;
  /* elements of x_codes from one row to the next; a multiple of 8 */
  int64_t x_codes_stride;
  /* out, u8 [num_rows, groups]: their UE8M0 scales, one for 32 columns; groups is columns / 32;
   * only with x_format codes_q8a or bf16_and_codes_q8a, else NULL */
  uint8_t *x_scales;
  /* elements of x_scales from one row to the next */
  int64_t x_scales_stride;
  /* out, bf16 [num_rows, columns]: mean of the streams; NULL is legal; 16-byte aligned */
  uint16_t *mean;
  /* elements of mean from one row to the next; a multiple of 8 */
  int64_t mean_stride;
  /* out, f32 [num_rows, 4]: weight of each stream in the next fold; 16-byte aligned; rms error
   * at most 1e-06 of the output's rms */
  float *next_pre;
  /* elements of next_pre from one row to the next; a multiple of 4 */
  int64_t next_pre_stride;
  /* out, f32 [num_rows, 4]: how much of the next output each stream takes; 16-byte aligned; rms
   * error at most 1e-06 of the output's rms */
  float *next_post;
  /* elements of next_post from one row to the next; a multiple of 4 */
  int64_t next_post_stride;
  /* out, f32 [num_rows, 4, 4]: how much of stream i stream j takes next; 16-byte aligned; rms
   * error at most 1e-06 of the output's rms */
  float *next_comb;
  /* elements of next_comb from one row to the next; a multiple of 4 */
  int64_t next_comb_stride0;
  /* elements of next_comb from one stream to the next; a multiple of 4 */
  int64_t next_comb_stride1;
  /* rows (tokens), padding included; 0 to 16777216 */
  int64_t num_rows;
  /* scratch of the call, 256-byte aligned; NULL when it needs none */
  void *workspace;
  /* its size; at least what kiln_hc_fused_post_pre_delayed_workspace answers */
  uint64_t workspace_bytes;
} kiln_hc_fused_post_pre_delayed_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_hc_fused_post_pre_delayed(
    kiln_plan *plan, const kiln_hc_fused_post_pre_delayed_args *args, void *stream);

/* Bytes of workspace that a call with these sizes, or smaller ones, needs; pointers and strides
 * in args are not looked at. Touches no device.
 * KILN_INVALID_ARGUMENT, KILN_NOT_PREPARED (it depends on the kernels: prepare first),
 * KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_hc_fused_post_pre_delayed_workspace(
    kiln_plan *plan, const kiln_hc_fused_post_pre_delayed_args *args, uint64_t *bytes);

/* ---- hc_post ---- */

/* Mixes the output of a sub-layer into the four residual streams, in place.
 *
 * For row t, stream j and column d, from the streams as they were:
 *   h'[t, j, d] = bf16(post[t, j] * y[t, d] + sum over i of comb[t, i, j] * h[t, i, d])
 * in fp32, every product and every sum rounded, post * y first and then i = 0 .. 3. The sum is over
 * the first index of comb; its columns are the streams that are written.
 * sqrsum "stored" also writes, for the statistics of the next sub-layer, the sums of the squares of
 * h'[t], as rounded to bf16: sqrsum[t, p] is that of the columns 256 p .. 256 p + 255 of all four
 * streams. The sum of a row is that of its parts. Their bits do not depend on the kernel.
 * y is the output of the sub-layer after the reduction over ranks.
 *
 * Formula: ops.md B1.4, B1.5, (f)5. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "columns": columns of a stream (the hidden size); a multiple of 8 (8 to 16384)
 *   "sqrsum": whether the sums of squares are written ("none", "stored")
 */
typedef struct kiln_hc_post_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, columns]: output of the sub-layer; 16-byte aligned */
  const uint16_t *y;
  /* elements of y from one row to the next; a multiple of 8 */
  int64_t y_stride;
  /* in and out, bf16 [num_rows, 4, columns]: the residual streams; 16-byte aligned */
  uint16_t *h;
  /* elements of h from one row to the next; a multiple of 8 */
  int64_t h_stride0;
  /* elements of h from one stream to the next; a multiple of 8 */
  int64_t h_stride1;
  /* in, f32 [num_rows, 4]: how much of y each stream takes; 16-byte aligned */
  const float *post;
  /* elements of post from one row to the next; a multiple of 4 */
  int64_t post_stride;
  /* in, f32 [num_rows, 4, 4]: how much of stream i stream j takes; 16-byte aligned */
  const float *comb;
  /* elements of comb from one row to the next; a multiple of 4 */
  int64_t comb_stride0;
  /* elements of comb from one stream to the next; a multiple of 4 */
  int64_t comb_stride1;
  /* out, f32 [num_rows, parts]: sums of squares of the four streams; parts is columns / 256,
   * rounded up; only with sqrsum stored, else NULL */
  float *sqrsum;
  /* elements of sqrsum from one row to the next */
  int64_t sqrsum_stride;
  /* rows (tokens), padding included; 0 to 16777216 */
  int64_t num_rows;
} kiln_hc_post_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_hc_post(kiln_plan *plan, const kiln_hc_post_args *args, void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_hc_post_workspace(kiln_plan *plan, const kiln_hc_post_args *args,
                                            uint64_t *bytes);

/* ---- hc_post_fold_norm ---- */

/* Mixes the output of a sub-layer into the four residual streams, in place, folds them into one row
 * and normalises it: hc_post and hc_fold_norm in one pass.
 *
 * For each row, with hc_post and hc_fold_norm as these ops define them, to the bit:
 *   h, sqrsum = hc_post(y, h, post, comb)
 *   x, x_codes, x_scales = hc_fold_norm(h, pre, weight)
 *   mean[t] = bf16((h[t, 0] + h[t, 1] + h[t, 2] + h[t, 3]) / 4), where it is not NULL
 * pre are the weights that the statistics before gave for this sub-layer, so that nothing here
 * waits for the statistics of the new streams; sqrsum is a part of those. mean is what the draft
 * captures: the fold with 1/4 for each stream.
 *
 * Formula: ops.md B1.3 to B1.5, B20.1. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "columns": columns of a stream (the hidden size); a multiple of 8, where codes are written of
 *     32 (8 to 16384)
 *   "x_format": what is written of x ("bf16", "codes_q8a", "bf16_and_codes_q8a")
 *   "sqrsum": whether the sums of squares are written ("none", "stored")
 */
typedef struct kiln_hc_post_fold_norm_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, columns]: output of the sub-layer; 16-byte aligned */
  const uint16_t *y;
  /* elements of y from one row to the next; a multiple of 8 */
  int64_t y_stride;
  /* in and out, bf16 [num_rows, 4, columns]: the residual streams; 16-byte aligned */
  uint16_t *h;
  /* elements of h from one row to the next; a multiple of 8 */
  int64_t h_stride0;
  /* elements of h from one stream to the next; a multiple of 8 */
  int64_t h_stride1;
  /* in, f32 [num_rows, 4]: how much of y each stream takes; 16-byte aligned */
  const float *post;
  /* elements of post from one row to the next; a multiple of 4 */
  int64_t post_stride;
  /* in, f32 [num_rows, 4, 4]: how much of stream i stream j takes; 16-byte aligned */
  const float *comb;
  /* elements of comb from one row to the next; a multiple of 4 */
  int64_t comb_stride0;
  /* elements of comb from one stream to the next; a multiple of 4 */
  int64_t comb_stride1;
  /* in, f32 [num_rows, 4]: weight of each stream; 16-byte aligned */
  const float *pre;
  /* elements of pre from one row to the next; a multiple of 4 */
  int64_t pre_stride;
  /* in, bf16 [columns]: a factor for each column of the norm; 16-byte aligned */
  const uint16_t *weight;
  /* out, bf16 [num_rows, columns]: the input of the next sub-layer; only with x_format bf16 or
   * bf16_and_codes_q8a, else NULL; 16-byte aligned */
  uint16_t *x;
  /* elements of x from one row to the next; a multiple of 8 */
  int64_t x_stride;
  /* out, u8 [num_rows, columns]: its E4M3 codes; only with x_format codes_q8a or
   * bf16_and_codes_q8a, else NULL; 8-byte aligned */
  uint8_t *x_codes;
  /* elements of x_codes from one row to the next; a multiple of 8 */
  int64_t x_codes_stride;
  /* out, u8 [num_rows, groups]: their UE8M0 scales, one for 32 columns; groups is columns / 32;
   * only with x_format codes_q8a or bf16_and_codes_q8a, else NULL */
  uint8_t *x_scales;
  /* elements of x_scales from one row to the next */
  int64_t x_scales_stride;
  /* out, bf16 [num_rows, columns]: mean of the streams; NULL is legal; 16-byte aligned */
  uint16_t *mean;
  /* elements of mean from one row to the next; a multiple of 8 */
  int64_t mean_stride;
  /* out, f32 [num_rows, parts]: sums of squares of the four streams; parts is columns / 256,
   * rounded up; only with sqrsum stored, else NULL */
  float *sqrsum;
  /* elements of sqrsum from one row to the next */
  int64_t sqrsum_stride;
  /* rows (tokens), padding included; 0 to 16777216 */
  int64_t num_rows;
  /* scratch of the call, 256-byte aligned; NULL when it needs none */
  void *workspace;
  /* its size; at least what kiln_hc_post_fold_norm_workspace answers */
  uint64_t workspace_bytes;
} kiln_hc_post_fold_norm_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_hc_post_fold_norm(kiln_plan *plan,
                                            const kiln_hc_post_fold_norm_args *args, void *stream);

/* Bytes of workspace that a call with these sizes, or smaller ones, needs; pointers and strides
 * in args are not looked at. Touches no device.
 * KILN_INVALID_ARGUMENT, KILN_NOT_PREPARED (it depends on the kernels: prepare first),
 * KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_hc_post_fold_norm_workspace(kiln_plan *plan,
                                                      const kiln_hc_post_fold_norm_args *args,
                                                      uint64_t *bytes);

/* ---- hc_stats ---- */

/* The gates of a sub-layer from the residual streams that it starts with.
 *
 * For each row t, v = h[t] as num_streams * columns numbers:
 *   rs = 1 / sqrt(sum(v^2) / (num_streams * columns) + 1e-20)
 *   m[k] = (sum over c of v[c] * fn[k, c]) * rs, k = 0 .. 23
 *   pre[t, j] = sigmoid(m[j] * scale[0] + base[j]) + 1e-6
 *   post[t, j] = 2 * sigmoid(m[4 + j] * scale[1] + base[4 + j])
 *   A[r, c] = m[8 + 4 r + c] * scale[2] + base[8 + 4 r + c]
 *   A[r, :] = softmax(A[r, :]) + 1e-6;  A[r, c] /= sum over r of A[r, c] + 1e-6
 *   19 times:  A[r, c] /= sum over c of A[r, c] + 1e-6, then over r likewise
 *   comb[t] = A
 * Column i * columns + d of fn belongs to stream i. pre are the weights of the next sub-layer's
 * fold, post and comb those of this one's hc_post.
 * precision "fp32": fn counts with all of its 24 bits, as three bf16 whose products with h are
 * exact; the gates are within 1e-6 (relative rms). "tf32" takes two, 16 bits where TF32 has 11:
 * within 1e-4.
 * num_streams 1 is the form for the first layer, whose four streams are equal: h is one of them and
 * fn[k, d] the sum over i of fn[k, i * columns + d], which the caller makes when it loads the
 * weights.
 * A row of zeros has m = 0. A row that holds a NaN or an infinity has gates of NaN. Where the sum
 * of squares leaves fp32, rs is 0.
 *
 * Formula: ops.md B1.1, B1.2, (f)2. Version 1. Result: as the shape says, see above.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "columns": columns of a stream (the hidden size); a multiple of 32 (32 to 16384)
 *   "num_streams": residual streams: 4, or 1 where all of them are equal (1 to 4)
 *   "precision": how much of fn counts ("fp32", "tf32")
 */
typedef struct kiln_hc_stats_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, num_streams, columns]: the residual streams; 16-byte aligned */
  const uint16_t *h;
  /* elements of h from one row to the next; a multiple of 8 */
  int64_t h_stride0;
  /* elements of h from one stream to the next; a multiple of 8 */
  int64_t h_stride1;
  /* in, f32 [24, width]: what each gate sees of the streams; width is num_streams * columns;
   * 16-byte aligned */
  const float *fn;
  /* elements of fn from one gate to the next; a multiple of 4 */
  int64_t fn_stride;
  /* in, f32 [3]: of the logits of pre, of post and of comb */
  const float *scale;
  /* in, f32 [24]: added to the logits */
  const float *base;
  /* out, f32 [num_rows, 4]: weight of each stream in the next fold; 16-byte aligned */
  float *pre;
  /* elements of pre from one row to the next; a multiple of 4 */
  int64_t pre_stride;
  /* out, f32 [num_rows, 4]: how much of the output each stream takes; 16-byte aligned */
  float *post;
  /* elements of post from one row to the next; a multiple of 4 */
  int64_t post_stride;
  /* out, f32 [num_rows, 4, 4]: how much of stream i stream j takes; 16-byte aligned */
  float *comb;
  /* elements of comb from one row to the next; a multiple of 4 */
  int64_t comb_stride0;
  /* elements of comb from one stream to the next; a multiple of 4 */
  int64_t comb_stride1;
  /* rows (tokens), padding included; 0 to 16777216 */
  int64_t num_rows;
  /* scratch of the call, 256-byte aligned; NULL when it needs none */
  void *workspace;
  /* its size; at least what kiln_hc_stats_workspace answers */
  uint64_t workspace_bytes;
} kiln_hc_stats_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_hc_stats(kiln_plan *plan, const kiln_hc_stats_args *args, void *stream);

/* Bytes of workspace that a call with these sizes, or smaller ones, needs; pointers and strides
 * in args are not looked at. Touches no device.
 * KILN_INVALID_ARGUMENT, KILN_NOT_PREPARED (it depends on the kernels: prepare first),
 * KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_hc_stats_workspace(kiln_plan *plan, const kiln_hc_stats_args *args,
                                             uint64_t *bytes);

/* ---- index_key_insert ---- */

/* Normalises, rotates, quantises and writes the index keys of a step into their paged cache.
 *
 * For row t, s = slots[t], p = positions[t] - positions[t] % ratio, the first position of the
 * group:
 *   x  = bf16((k[t] * r) * weight), r = 1 / sqrt(sum(k[t]^2) / 128 + 1e-20)
 *   x' = x with its last 64 elements rotated: in pairs i = 0..31
 *     a' = a * cos - b * sin, b' = a * sin + b * cos
 *     cos = rope_table[p, i], sin = rope_table[p, 32 + i]
 *     in fp32, products rounded, then one addition, then bf16 (nearest even)
 *   entry s % page_size of page s / page_size = x', quantised
 * k is the product of latent and wk, rounded to bf16. The norm is that of rms_norm, to the bit, and
 * so is the order of its sum; every config adds in the same order.
 * Formats; a page holds first the codes of all entries, then their scales (ops.md B8):
 *   f5: q4m: 128 E2M1 codes (even element in bits 0..3), 4 UE8M0 scales (one per 32)   68 bytes
 *   f6: q8k: 128 E4M3 codes, one scale 2^n in fp32                                    132 bytes
 * q4m is that of act_quant; q8k is its q8a with one group of 128. A group that holds a NaN or an
 * infinity becomes scale 255 and codes 0 (f5), or scale 0x7fc00000 and codes 0x7f (f6).
 * A row whose slot is negative or beyond the cache is not written. The caller gives the slot -1 to
 * a row whose token completes no group, and to one whose group compressor_update has not completed
 * because the request has no block of the ring: nothing new stands in such a row. Entries are
 * written whole; every other byte of the cache is left as it is. No two rows have the same slot.
 *
 * Formula: ops.md B3, B4, B5, B8, B10, (f)4, (f)5. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "format": layout of the cache ("f5", "f6")
 *   "ratio": tokens of an entry (1 to 128)
 * A legal call holds:
 *   - num_pages * page_size is at most 2147483647, so that a slot fits the int32 of its readers
 */
typedef struct kiln_index_key_insert_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, 128]: index keys before their norm; 16-byte aligned */
  const uint16_t *k;
  /* elements of k from one row to the next; a multiple of 8 */
  int64_t k_stride;
  /* in, bf16 [128]: of the norm; 16-byte aligned */
  const uint16_t *weight;
  /* in, i32 [num_rows]: position of a token of each row's group; a row whose position is outside
   * of rope_table is not rotated */
  const int32_t *positions;
  /* in, i64 [num_rows]: where each row goes in the cache */
  const int64_t *slots;
  /* in, f32 [num_positions, 64]: of each position 32 cosines, then 32 sines, of the layer's
   * frequencies; 16-byte aligned */
  const float *rope_table;
  /* elements of rope_table from one position to the next; a multiple of 4 */
  int64_t rope_table_stride;
  /* out, u8 [num_pages, page_bytes]: pages of entries; 4-byte aligned */
  uint8_t *cache;
  /* elements of cache from one page of the cache to the next; a multiple of 4 */
  int64_t cache_stride;
  /* rows of the step, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* rows of rope_table; 0 to 2147483647 */
  int64_t num_positions;
  /* entries of a page; 1 to 65536 */
  int64_t page_size;
  /* pages of the cache; 0 to 2147483647 */
  int64_t num_pages;
} kiln_index_key_insert_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_index_key_insert(kiln_plan *plan, const kiln_index_key_insert_args *args,
                                           void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_index_key_insert_workspace(kiln_plan *plan,
                                                     const kiln_index_key_insert_args *args,
                                                     uint64_t *bytes);

/* ---- index_query ---- */

/* Rotates and quantises the queries of the indexer and scales its head weights.
 *
 * For row t and head h, p = positions[t]:
 *   x' = q[t, h] with its last 64 elements rotated: in pairs i = 0..31
 *     a' = a * cos - b * sin, b' = a * sin + b * cos
 *     cos = rope_table[p, i], sin = rope_table[p, 32 + i]
 *     in fp32, products rounded, then one addition, then bf16 (nearest even)
 *   q4m:  codes[t, h] = 128 E2M1 codes of x' (even element in bits 0..3: 64 bytes),
 *         scales[t, h] = 4 UE8M0 scales, one per 32 elements
 *   q8k:  codes[t, h] = 128 E4M3 codes of x' with one scale s = 2^n for all
 *   bf16: y[t, h] = what the codes and scales of q4m stand for
 *   weights[t, h] = head_weights[t, h] * 2^-6, in q8k * 2^-6 * s
 * 2^-6 is 128^-0.5 * 32^-0.5, for any num_heads. head_weights is the product of x and weights_proj,
 * rounded to bf16; both products are exact in fp32 unless they leave its range.
 * code_bytes is 64 (q4m) or 128 (q8k). q4m is that of act_quant; q8k is its q8a with one group of
 * 128. A group that holds a NaN or an infinity becomes scale 255 and codes 0 (q4m), codes 0x7f and
 * a NaN as weight (q8k), or NaN (bf16).
 * A row whose position is outside of rope_table is not rotated: padding gives numbers that nobody
 * reads. A row's bits depend on the row alone, on every rank.
 *
 * Formula: ops.md B11, B4, B5, (f)4, (f)5. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "num_heads": heads of the indexer (1 to 128)
 *   "output": what is written of the queries ("q4m", "q8k", "bf16")
 */
typedef struct kiln_index_query_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, num_heads, 128]: queries before RoPE; 16-byte aligned */
  const uint16_t *q;
  /* elements of q from one row to the next; a multiple of 8 */
  int64_t q_stride0;
  /* elements of q from one head to the next; a multiple of 8 */
  int64_t q_stride1;
  /* in, bf16 [num_rows, num_heads]: weight of each head before its factor; 4-byte aligned */
  const uint16_t *head_weights;
  /* elements of head_weights from one row to the next */
  int64_t head_weights_stride;
  /* in, i32 [num_rows]: row of rope_table for each row; one outside of it is not rotated */
  const int32_t *positions;
  /* in, f32 [num_positions, 64]: of each position 32 cosines, then 32 sines, of the layer's
   * frequencies; 16-byte aligned */
  const float *rope_table;
  /* elements of rope_table from one position to the next; a multiple of 4 */
  int64_t rope_table_stride;
  /* out, u8 [num_rows, num_heads, code_bytes]: E2M1 or E4M3 codes; only with output q4m or q8k,
   * else NULL; 8-byte aligned */
  uint8_t *codes;
  /* elements of codes from one row to the next; a multiple of 8 */
  int64_t codes_stride0;
  /* elements of codes from one head to the next; a multiple of 8 */
  int64_t codes_stride1;
  /* out, u8 [num_rows, num_heads, 4]: UE8M0 scales; only with output q4m, else NULL */
  uint8_t *scales;
  /* elements of scales from one row to the next */
  int64_t scales_stride0;
  /* elements of scales from one head to the next */
  int64_t scales_stride1;
  /* out, bf16 [num_rows, num_heads, 128]: quantised queries as numbers; only with output bf16,
   * else NULL; 16-byte aligned */
  uint16_t *y;
  /* elements of y from one row to the next; a multiple of 8 */
  int64_t y_stride0;
  /* elements of y from one head to the next; a multiple of 8 */
  int64_t y_stride1;
  /* out, f32 [num_rows, num_heads]: factor of each head's scores */
  float *weights;
  /* elements of weights from one row to the next */
  int64_t weights_stride;
  /* rows, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* rows of rope_table; 0 to 2147483647 */
  int64_t num_positions;
} kiln_index_query_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_index_query(kiln_plan *plan, const kiln_index_query_args *args,
                                      void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_index_query_workspace(kiln_plan *plan, const kiln_index_query_args *args,
                                                uint64_t *bytes);

/* ---- linear_fp8 ---- */

/* Multiplies rows of activations by E4M3 weights that have a UE8M0 scale for each block of 32 x 32.
 *
 * For each row t, group g and column n of y:
 *   y[t, g, n] = sum_k x[t, g, k] * w[g, n, k] * 2^(w_scales[g, n / 32, k / 32] - 127)
 * Sums are fp32, rounded once to the type of y. There is no bias. Groups are linears of one shape,
 * each with its own part of x and y (wo_a; else groups is 1); their weights follow one another.
 * x_format says what multiplies the weights: "bf16_q8a": x quantised by groups of 32 along
 * in_features, as act_quant does with q8a, the form the model was trained with; "codes_q8a": E4M3
 * codes times 2^(scale - 127), so that several linears share one act_quant; "bf16": x as it is.
 * w_layout is "checkpoint", [groups * out_features, in_features], or "packed", what pack_weights
 * makes of it; nothing can check that. The rows of w and w_scales are dense. A shape is served as
 * it is: nothing has to be padded to a tile.
 * Decoded weights and activations are exact bf16 numbers for scales of 2^-124 to 2^119. Beyond
 * these they are rounded once to bf16 and may be infinite; scale byte 0 is 2^-127. A weight scale
 * of 255 is undefined: no writer stores one, and it spoils only its 32 columns. The weight codes
 * 0x7f and 0xff read as 480 and -480. An infinity or a NaN in x, its codes or its scales (255)
 * makes its row of the group NaN or infinite, and so does a sum beyond fp32. A row of zeros gives
 * zeros.
 * The bits of a row depend on the shape and the kernels, not on the other rows; kernels of one
 * reduction signature agree to the bit.
 *
 * Formula: ops.md B6, B4, B16.3, (f)3. Version 1. Result: rms error at most 0.00390625 of the
 * output's rms, but for y_f32, see there.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "out_features": columns of y of a group; a multiple of 32 (32 to 65536)
 *   "in_features": elements of a row of x; a multiple of 32 (32 to 65536)
 *   "groups": linears side by side (1 to 64)
 *   "x_format": what of x is multiplied ("bf16_q8a", "codes_q8a", "bf16")
 *   "y_format": type of the result ("bf16", "f32")
 *   "w_layout": order of the bytes of w ("checkpoint", "packed")
 * A legal call holds:
 *   - rows of w are dense: w_stride is the bytes of a row, no more
 *   - rows of w_scales are dense: w_scales_stride is in_features / 32, no more
 */
typedef struct kiln_linear_fp8_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, groups, in_features]: activations; only with x_format bf16_q8a or bf16,
   * else NULL; 16-byte aligned */
  const uint16_t *x;
  /* elements of x from one row to the next; a multiple of 8 */
  int64_t x_stride0;
  /* elements of x from one group to the next; a multiple of 8 */
  int64_t x_stride1;
  /* in, u8 [num_rows, groups, in_features]: E4M3 codes of act_quant; only with x_format
   * codes_q8a, else NULL; 16-byte aligned */
  const uint8_t *x_codes;
  /* elements of x_codes from one row to the next; a multiple of 16 */
  int64_t x_codes_stride0;
  /* elements of x_codes from one group to the next; a multiple of 16 */
  int64_t x_codes_stride1;
  /* in, u8 [num_rows, groups, x_groups]: their UE8M0 scales; only with x_format codes_q8a, else
   * NULL */
  const uint8_t *x_scales;
  /* elements of x_scales from one row to the next */
  int64_t x_scales_stride0;
  /* elements of x_scales from one group to the next */
  int64_t x_scales_stride1;
  /* in, u8 [w_rows, w_row_bytes]: E4M3 codes; checkpoint: [groups * out_features, in_features];
   * packed: [groups * out_features / 8, ceil(in_features / 64) * 512]; 16-byte aligned */
  const uint8_t *w;
  /* elements of w from one row to the next */
  int64_t w_stride;
  /* in, u8 [scale_rows, scale_columns]: UE8M0, [groups * out_features / 32, in_features / 32] */
  const uint8_t *w_scales;
  /* elements of w_scales from one row of blocks to the next */
  int64_t w_scales_stride;
  /* out, bf16 [num_rows, groups, out_features]: result; only with y_format bf16, else NULL;
   * 16-byte aligned */
  uint16_t *y;
  /* elements of y from one row to the next; a multiple of 8 */
  int64_t y_stride0;
  /* elements of y from one group to the next; a multiple of 8 */
  int64_t y_stride1;
  /* out, f32 [num_rows, groups, out_features]: result; only with y_format f32, else NULL;
   * 16-byte aligned; rms error at most 0.0001 of the output's rms */
  float *y_f32;
  /* elements of y_f32 from one row to the next; a multiple of 4 */
  int64_t y_f32_stride0;
  /* elements of y_f32 from one group to the next; a multiple of 4 */
  int64_t y_f32_stride1;
  /* rows of x and y; 0 to 1048576 */
  int64_t num_rows;
  /* scratch of the call, 256-byte aligned; NULL when it needs none */
  void *workspace;
  /* its size; at least what kiln_linear_fp8_workspace answers */
  uint64_t workspace_bytes;
} kiln_linear_fp8_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_linear_fp8(kiln_plan *plan, const kiln_linear_fp8_args *args,
                                     void *stream);

/* Bytes of workspace that a call with these sizes, or smaller ones, needs; pointers and strides
 * in args are not looked at. Touches no device.
 * KILN_INVALID_ARGUMENT, KILN_NOT_PREPARED (it depends on the kernels: prepare first),
 * KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_linear_fp8_workspace(kiln_plan *plan, const kiln_linear_fp8_args *args,
                                               uint64_t *bytes);

/* ---- moe_align ---- */

/* Sorts the pairs of row and expert by expert, the run of each padded to whole blocks, for the
 * grouped GEMMs of the experts.
 *
 * Pair t * top_k + i is column i of row t of experts. Its expert is e = experts[t, i], with an
 * expert_map e = expert_map[experts[t, i]], the number of the expert on this rank. A pair is
 * skipped when experts[t, i] is negative or beyond the map, or e is outside 0 .. num_experts - 1.
 * With n[e] pairs of expert e and r[e] = n[e] rounded up to block_size:
 *   start[e]            = r[0] + .. + r[e - 1]
 *   sorted_token_ids    from start[e] on the n[e] pairs of e in ascending order, then
 *                       num_rows * top_k as padding up to start[e] + r[e]
 *   expert_ids[b]       = e for the blocks b of start[e] .. start[e] + r[e] - 1
 *   num_tokens_post_pad = the sum of all r[e]
 *   expert_counts[e]    = n[e]
 * Both lists have room for whatever is routed: num_rows * top_k + num_experts * (block_size - 1)
 * entries, rounded up to whole blocks; kiln_tensor_bytes answers it. Behind num_tokens_post_pad
 * sorted_token_ids holds num_rows * top_k and expert_ids -1, so that a kernel in a graph may look
 * at all blocks. The order is that of a stable sort: it does not depend on the kernels, and no
 * number is left to chance. num_rows 0 is legal.
 *
 * Formula: ops.md B18.1, (f)11. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "num_experts": experts on this rank (1 to 1024)
 *   "top_k": experts of a row (1 to 32)
 *   "block_size": entries of a block, a multiple of 8 (16 to 128)
 */
typedef struct kiln_moe_align_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [num_rows, top_k]: experts of each row; negative: none */
  const int32_t *experts;
  /* elements of experts from one row to the next */
  int64_t experts_stride;
  /* in, i32 [num_global_experts]: of each expert its number on this rank, negative: another
   * rank's; NULL: they are the same; NULL is legal */
  const int32_t *expert_map;
  /* out, i32 [entries]: pairs by expert, padded; room for num_rows * top_k + num_experts *
   * (block_size - 1), rounded up to block_size; 16-byte aligned */
  int32_t *sorted_token_ids;
  /* out, i32 [blocks]: expert of each block; room for sorted_token_ids / block_size; -1: none */
  int32_t *expert_ids;
  /* out, i32 [1]: entries of all runs, padding included */
  int32_t *num_tokens_post_pad;
  /* out, i32 [num_experts]: pairs of each expert; NULL is legal */
  int32_t *expert_counts;
  /* rows, padding included; 0 to 33554432 */
  int64_t num_rows;
  /* entries of expert_map, that is the experts of all ranks: with a map of 0 entries every pair
   * is skipped, without a map it is not read; 0 to 2147483647 */
  int64_t num_global_experts;
  /* scratch of the call, 256-byte aligned; NULL when it needs none */
  void *workspace;
  /* its size; at least what kiln_moe_align_workspace answers */
  uint64_t workspace_bytes;
} kiln_moe_align_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_moe_align(kiln_plan *plan, const kiln_moe_align_args *args,
                                    void *stream);

/* Bytes of workspace that a call with these sizes, or smaller ones, needs; pointers and strides
 * in args are not looked at. Touches no device.
 * KILN_INVALID_ARGUMENT, KILN_NOT_PREPARED (it depends on the kernels: prepare first),
 * KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_moe_align_workspace(kiln_plan *plan, const kiln_moe_align_args *args,
                                              uint64_t *bytes);

/* ---- moe_combine ---- */

/* Adds what the experts of each row have made of it, and the shared expert.
 *
 *   sum[t]   = 0 + pairs[t, i1] + pairs[t, i2] + ..    in fp32, one after the other
 *   y[t]     = bf16(sum[t] + shared[t])                with result "bf16"
 *   y_f32[t] = sum[t]                                  with result "f32"
 * over the columns i of row t in ascending order of experts[t, i], of equal ones the first column
 * first. A column adds nothing when its expert is negative, or, with an expert_map, beyond the map
 * or negative there; whatever its row of pairs holds, it is not read. A row without any has sum 0.
 * shared NULL: nothing is added.
 * pairs holds results that the routing weights have multiplied (they enter before the down
 * projection). With experts spread over ranks, every rank adds those that its expert_map names, the
 * one of its moe_align; "f32" is for sums that are added over the ranks before the shared expert.
 * The order does not depend on the kernels nor on the other rows.
 *
 * Formula: ops.md B18.3, (f)11. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "top_k": experts of a row (1 to 32)
 *   "hidden_size": columns of a row, a multiple of 8 (8 to 16384)
 *   "result": what is written ("bf16", "f32")
 */
typedef struct kiln_moe_combine_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, top_k, hidden_size]: result of each expert of each row; 16-byte aligned */
  const uint16_t *pairs;
  /* elements of pairs from one row to the next; a multiple of 8 */
  int64_t pairs_stride0;
  /* elements of pairs from one column to the next; a multiple of 8 */
  int64_t pairs_stride1;
  /* in, i32 [num_rows, top_k]: expert of each pair; negative: none */
  const int32_t *experts;
  /* elements of experts from one row to the next */
  int64_t experts_stride;
  /* in, i32 [num_experts]: of each expert its number on this rank, negative: another rank's;
   * NULL: all are here; NULL is legal */
  const int32_t *expert_map;
  /* in, bf16 [num_rows, hidden_size]: result of the shared expert; only with result bf16, else
   * NULL; NULL is legal; 16-byte aligned */
  const uint16_t *shared;
  /* elements of shared from one row to the next; a multiple of 8 */
  int64_t shared_stride;
  /* out, bf16 [num_rows, hidden_size]: result; only with result bf16, else NULL; 16-byte aligned */
  uint16_t *y;
  /* elements of y from one row to the next; a multiple of 8 */
  int64_t y_stride;
  /* out, f32 [num_rows, hidden_size]: result; only with result f32, else NULL; 16-byte aligned */
  float *y_f32;
  /* elements of y_f32 from one row to the next; a multiple of 4 */
  int64_t y_f32_stride;
  /* rows, padding included; 0 to 33554431 */
  int64_t num_rows;
  /* entries of expert_map, that is the experts of all ranks (num_global_experts of moe_align); 0
   * to 2147483647 */
  int64_t num_experts;
} kiln_moe_combine_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_moe_combine(kiln_plan *plan, const kiln_moe_combine_args *args,
                                      void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_moe_combine_workspace(kiln_plan *plan, const kiln_moe_combine_args *args,
                                                uint64_t *bytes);

/* ---- moe_route ---- */

/* Chooses the top-k experts of each row from the router's logits, and their weights.
 *
 * For row t, where is_valid[t] is not 0 (NULL: everywhere):
 *   s[e]          = sqrt(ln(1 + exp(logits[t, e])))
 *   key[e]        = s[e] + (is_image[t] != 0 ? bias_image[e] : bias[e])
 *   experts[t]    = the top_k experts of the largest keys, the largest first
 *   weights[t, i] = s[experts[t, i]] / (sum + 1e-20) * 1.5
 * where sum adds the s of the chosen experts, the first one first, and 1.5 is the model's routed
 * scaling factor. Of equal keys the lower expert goes first. An expert whose key is NaN or
 * -infinity is never chosen: one with a logit of NaN, one that a bias of -infinity shuts out. Where
 * fewer than top_k are left, the remaining experts are -1 with weight 0.
 * Other rows are padding: experts all -1, weights all 0, whatever their logits hold.
 * s is within 3e-7 of the formula (relative), also where exp(logit) is far below the least number
 * of fp32, down to logits of -174, below which s is subnormal; no step depends on the GPU or on the
 * other rows, so that all ranks and all batches choose the same experts from the same logits. A
 * chosen logit of +infinity has a weight of NaN, those beside it 0, as the formula says.
 * Biases enter the choice, never the weights; a model without has zeros. Experts are not grouped.
 * logits are to be added in fp32 from products of bf16.
 *
 * Formula: ops.md B17, (f)10. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "num_experts": experts of all ranks (1 to 1024)
 *   "top_k": experts of a row, at most num_experts (1 to 32)
 */
typedef struct kiln_moe_route_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, f32 [num_rows, num_experts]: router logits */
  const float *logits;
  /* elements of logits from one row to the next */
  int64_t logits_stride;
  /* in, f32 [num_experts]: what a key adds to the score */
  const float *bias;
  /* in, f32 [num_experts]: the same for the rows of images; NULL: bias is for all rows; NULL is
   * legal */
  const float *bias_image;
  /* in, u8 [num_rows]: not 0 for a row whose token stands for a part of an image; NULL: no row
   * is; NULL is legal */
  const uint8_t *is_image;
  /* in, u8 [num_rows]: 0 for a row of padding; NULL: no row is; NULL is legal */
  const uint8_t *is_valid;
  /* out, i32 [num_rows, top_k]: chosen experts by descending key; -1: none */
  int32_t *experts;
  /* elements of experts from one row to the next */
  int64_t experts_stride;
  /* out, f32 [num_rows, top_k]: their weights; 0 where there is none */
  float *weights;
  /* elements of weights from one row to the next */
  int64_t weights_stride;
  /* rows, padding included; 0 to 2147483647 */
  int64_t num_rows;
} kiln_moe_route_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_moe_route(kiln_plan *plan, const kiln_moe_route_args *args,
                                    void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_moe_route_workspace(kiln_plan *plan, const kiln_moe_route_args *args,
                                              uint64_t *bytes);

/* ---- pack_weights ---- */

/* Copies the codes of a weight matrix from the layout of a checkpoint to the packed one, in which
 * linears read them fastest.
 *
 * Done once, when weights are loaded. A linear that is given packed weights says so in its shape
 * ("w_layout": "packed"); their scales stay as they are in the checkpoint. kiln_tensor_bytes says
 * how much memory packed takes. Row r of packed holds the rows 8 r to 8 r + 7 of w, in blocks of 64
 * columns and 512 bytes; columns that w lacks in the last block are 0. A matrix whose rows fall
 * into groups (wo_a) is packed as one.
 * e4m3: bytes 64 g + 4 j to 64 g + 4 j + 3 of a block hold row g, columns 4 j to 4 j + 3, as a
 * little-endian word. Its lower half has columns 4 j (a) and 4 j + 2 (b), its upper half 4 j + 1
 * (a) and 4 j + 3 (b):
 *   bit 15: bit 7 of a; bits 4 to 10: bits 0 to 6 of a
 *   bit 11: bit 7 of b; bits 12 to 14: bits 4 to 6 of b; bits 0 to 3: bits 0 to 3 of b
 *
 * Formula: ops.md B6. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "format": of the codes ("e4m3")
 * A legal call holds:
 *   - num_rows is a multiple of 32
 *   - in_features is a multiple of 32
 */
typedef struct kiln_pack_weights_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, u8 [num_rows, in_features]: codes as in the checkpoint; 16-byte aligned */
  const uint8_t *w;
  /* elements of w from one row to the next; a multiple of 16 */
  int64_t w_stride;
  /* out, u8 [block_rows, block_row_bytes]: the same codes; 16-byte aligned */
  uint8_t *packed;
  /* elements of packed from one row of blocks to the next; a multiple of 16 */
  int64_t packed_stride;
  /* rows of w, of all groups; a multiple of 32; 0 to 8388608 */
  int64_t num_rows;
  /* columns of w; a multiple of 32; 32 to 65536 */
  int64_t in_features;
} kiln_pack_weights_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_pack_weights(kiln_plan *plan, const kiln_pack_weights_args *args,
                                       void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_pack_weights_workspace(kiln_plan *plan,
                                                 const kiln_pack_weights_args *args,
                                                 uint64_t *bytes);

/* ---- qkv_norm ---- */

/* The norms of the q and the kv part of projected rows, and the q part's FP8 codes and scales.
 *
 * For each row, with rms_norm and act_quant as these ops define them, to the bit:
 *   qr = rms_norm(qkv[t, 0 .. q_columns - 1], q_weight)
 *   kv = rms_norm(qkv[t, q_columns .. q_columns + kv_columns - 1], kv_weight)
 *   qr_codes, qr_scales = act_quant(qr), format q8a
 * qr_format says what of qr is written: "codes_q8a" is what linears with x_format "codes_q8a" take,
 * so that neither they nor a pass in between quantise it.
 *
 * Formula: ops.md B7, B3, B4. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "q_columns": elements of the q part; a multiple of 32 (32 to 8192)
 *   "kv_columns": elements of the kv part; a multiple of 8 (8 to 4096)
 *   "qr_format": what is written of the q part ("bf16", "codes_q8a", "bf16_and_codes_q8a")
 */
typedef struct kiln_qkv_norm_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, qkv_columns]: the projected rows; 16-byte aligned */
  const uint16_t *qkv;
  /* elements of qkv from one row to the next; a multiple of 8 */
  int64_t qkv_stride;
  /* in, bf16 [q_columns]: a factor for each column of the q part; 16-byte aligned */
  const uint16_t *q_weight;
  /* in, bf16 [kv_columns]: a factor for each column of the kv part; 16-byte aligned */
  const uint16_t *kv_weight;
  /* out, bf16 [num_rows, q_columns]: the norm of the q part; only with qr_format bf16 or
   * bf16_and_codes_q8a, else NULL; 16-byte aligned */
  uint16_t *qr;
  /* elements of qr from one row to the next; a multiple of 8 */
  int64_t qr_stride;
  /* out, u8 [num_rows, q_columns]: its E4M3 codes; only with qr_format codes_q8a or
   * bf16_and_codes_q8a, else NULL; 8-byte aligned */
  uint8_t *qr_codes;
  /* elements of qr_codes from one row to the next; a multiple of 8 */
  int64_t qr_codes_stride;
  /* out, u8 [num_rows, q_groups]: their UE8M0 scales, one for 32 columns; only with qr_format
   * codes_q8a or bf16_and_codes_q8a, else NULL */
  uint8_t *qr_scales;
  /* elements of qr_scales from one row to the next */
  int64_t qr_scales_stride;
  /* out, bf16 [num_rows, kv_columns]: the norm of the kv part; 16-byte aligned */
  uint16_t *kv;
  /* elements of kv from one row to the next; a multiple of 8 */
  int64_t kv_stride;
  /* rows; 0 to 2147483647 */
  int64_t num_rows;
} kiln_qkv_norm_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_qkv_norm(kiln_plan *plan, const kiln_qkv_norm_args *args, void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_qkv_norm_workspace(kiln_plan *plan, const kiln_qkv_norm_args *args,
                                             uint64_t *bytes);

/* ---- ragged_indptr ---- */

/* Packs the columns that count of dense rows of slots, one row behind the other, with the
 * boundaries of the rows.
 *
 * With n[t] = lens[t], at least 0 and at most width:
 *   indptr[t] = min(n[0] + .. + n[t - 1], capacity)   for t = 0 .. num_rows
 *   indices[indptr[t] + i] = slots[t, i]   for i < n[t], as far as capacity reaches
 * The rest of indices is left as it is: what lies beyond capacity is dropped, and indptr never
 * points behind it. Every column that counts keeps its place in its row, also one that holds -1.
 * slots and lens are those of topk_to_slots, window_slots (one group) or combine_topk_swa; the
 * result serves all layers that would have read them, for kernels that take ragged lists.
 *
 * Formula: ops.md B13.3 1. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 */
typedef struct kiln_ragged_indptr_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [num_rows, width]: slots of each row */
  const int32_t *slots;
  /* elements of slots from one row to the next */
  int64_t slots_stride;
  /* in, i32 [num_rows]: columns of slots that count */
  const int32_t *lens;
  /* out, i32 [boundaries]: first entry of each row in indices and, last, the end of all */
  int32_t *indptr;
  /* out, i32 [capacity]: slots of all rows, packed */
  int32_t *indices;
  /* rows, padding included; 0 to 2147483646 */
  int64_t num_rows;
  /* columns of slots; 0 to 2147483647 */
  int64_t width;
  /* entries that indices has room for; 0 to 2147483647 */
  int64_t capacity;
} kiln_ragged_indptr_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_ragged_indptr(kiln_plan *plan, const kiln_ragged_indptr_args *args,
                                        void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_ragged_indptr_workspace(kiln_plan *plan,
                                                  const kiln_ragged_indptr_args *args,
                                                  uint64_t *bytes);

/* ---- ragged_keys ---- */

/* Writes what all layers of one ratio need to know of a chunk: lengths, bounds and slots of its
 * packed keys, and of each row its request, position and visible keys.
 *
 * Of request b, query_len = query_start_loc[b + 1] - query_start_loc[b], prefix_len = seq_lens[b] -
 * query_len:
 *   lens[b]        = seq_lens[b] / ratio, at least 0
 *   gather_lens[b] = query_len + min(prefix_len, 127), at least 0
 *   indptr[b]      = min(lens[0] + .. + lens[b - 1], capacity)   for b = 0 .. num_requests
 *   indices[indptr[b] + j] = block_table[b, j / page_size] * page_size + j % page_size,
 *                    for j < lens[b], as far as capacity reaches
 * Of row t of request b:
 *   requests[t]  = b
 *   positions[t] = prefix_len + (t - first row of b)
 *   key_begin[t] = indptr[b]
 *   key_end[t]   = min(lens[0] + .. + lens[b - 1] + max(positions[t] + 1, 0) / ratio,
 *                      capacity)
 * Rows past the last request are padding: requests and positions -1, key_begin and key_end 0. A
 * column beyond block_table and a page outside 0 .. num_pages - 1 give the slot -1. The rest of
 * indices is left as it is.
 * All of it depends on lengths, table and ratio alone: one call serves all layers that share a
 * table and a ratio, until the next chunk. lens and gather_lens are those of gather_dequant_kv and
 * combine_topk_swa, requests and positions those of the ops that take rows. max_keys sets how many
 * CTAs share a request; longer requests are right too.
 *
 * Formula: ops.md B13, B13.0, B13.3 2, B15, (f)8. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "ratio": tokens per compressed entry of the layers (1 to 128)
 * A legal call holds:
 *   - num_pages * page_size is at most 2147483647, so that a slot fits an int32
 */
typedef struct kiln_ragged_keys_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [boundaries]: first row of each request and, last, their end; may be a slice: the
   * first value is subtracted */
  const int32_t *query_start_loc;
  /* in, i32 [num_requests]: tokens of each request after this step */
  const int32_t *seq_lens;
  /* in, i32 [num_requests, table_width]: page of the cache for each page of a request; only
   * entries in use are read */
  const int32_t *block_table;
  /* elements of block_table from one request to the next */
  int64_t block_table_stride;
  /* out, i32 [num_requests]: compressed entries of each request */
  int32_t *lens;
  /* out, i32 [num_requests]: window rows that each request can see */
  int32_t *gather_lens;
  /* out, i32 [boundaries]: first key of each request in indices and, last, the end of all */
  int32_t *indptr;
  /* out, i32 [capacity]: slots of all keys, packed; NULL: none; NULL is legal */
  int32_t *indices;
  /* out, i32 [num_rows]: request of each row; -1: padding */
  int32_t *requests;
  /* out, i32 [num_rows]: position of each row; -1: padding */
  int32_t *positions;
  /* out, i32 [num_rows]: first packed key that a row sees */
  int32_t *key_begin;
  /* out, i32 [num_rows]: end of the packed keys that a row sees */
  int32_t *key_end;
  /* rows of the chunk, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* requests of the chunk; 0 to 2147483646 */
  int64_t num_requests;
  /* keys of the longest request; 1 to 2147483647 */
  int64_t max_keys;
  /* keys that indices has room for; 0 to 2147483647 */
  int64_t capacity;
  /* columns of block_table; 0 to 2147483647 */
  int64_t table_width;
  /* entries of a page; 1 to 65536 */
  int64_t page_size;
  /* pages of the cache; 0 to 2147483647 */
  int64_t num_pages;
} kiln_ragged_keys_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_ragged_keys(kiln_plan *plan, const kiln_ragged_keys_args *args,
                                      void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_ragged_keys_workspace(kiln_plan *plan, const kiln_ragged_keys_args *args,
                                                uint64_t *bytes);

/* ---- rms_norm ---- */

/* Divides rows of bf16 by their root mean square and multiplies them by a weight.
 *
 * For each row, in fp32 and every operation rounded once:
 *   r = 1 / sqrt(sum(x^2) * (1 / columns) + 1e-20)
 *   y = bf16((x * r) * weight)
 * The order of the sum is fixed, so that the bits of a row depend neither on the other rows nor on
 * their number nor on the kernel: the squares of elements 8j .. 8j + 7 are added as two chains of
 * fused multiply-adds, of the even and of the odd ones, and these to s[j]; then s[j] += s[j + h]
 * for h = the largest power of two below columns / 8, down to 1. The product with 1 / columns,
 * which is rounded to fp32, and the sum with 1e-20 are one fused multiply-add.
 * A row of zeros gives zeros. Where the sum leaves fp32, r is 0.
 *
 * Formula: ops.md B3. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "columns": elements of a row; a multiple of 8 (8 to 16384)
 */
typedef struct kiln_rms_norm_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, columns]: what is normalised; 16-byte aligned */
  const uint16_t *x;
  /* elements of x from one row to the next; a multiple of 8 */
  int64_t x_stride;
  /* in, bf16 [columns]: a factor for each column; 16-byte aligned */
  const uint16_t *weight;
  /* out, bf16 [num_rows, columns]: the normalised rows; 16-byte aligned */
  uint16_t *y;
  /* elements of y from one row to the next; a multiple of 8 */
  int64_t y_stride;
  /* rows; 0 to 2147483647 */
  int64_t num_rows;
} kiln_rms_norm_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_rms_norm(kiln_plan *plan, const kiln_rms_norm_args *args, void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_rms_norm_workspace(kiln_plan *plan, const kiln_rms_norm_args *args,
                                             uint64_t *bytes);

/* ---- rope ---- */

/* Rotates pairs of neighbouring elements of bf16, in place, by the angles of each row's position,
 * or back.
 *
 * For elements a = x[t, h, 2i] and b = x[t, h, 2i + 1], cos = rope_table[positions[t], i] and sin =
 * rope_table[positions[t], 32 + i]:
 *   forward:  a' = a * cos - b * sin;  b' = a * sin + b * cos
 *   inverse:  a' = a * cos + b * sin;  b' = b * cos - a * sin
 * in fp32, each product rounded, then the sum, then once to bf16. inverse after sparse_mla_decode
 * with inverse_rope "none" gives the bits of "gptj".
 * x is the part of each head that is rotated, its last 64 elements: with heads of 512 elements the
 * pointer stands at element 448 of the first one, and the strides are those of the heads. What lies
 * between is neither read nor written.
 * A row whose position is not in the table, as padded rows with -1, is left as it is. Which
 * frequencies count, the table says: see rope_table.
 *
 * Formula: ops.md B5, B7, B16.1, (f)5. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "num_heads": heads of a row (1 to 1024)
 *   "direction": of the rotation ("forward", "inverse")
 */
typedef struct kiln_rope_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in and out, bf16 [num_rows, num_heads, 64]: the last 64 elements of each head; 16-byte
   * aligned */
  uint16_t *x;
  /* elements of x from one row to the next; a multiple of 8 */
  int64_t x_stride0;
  /* elements of x from one head to the next; a multiple of 8 */
  int64_t x_stride1;
  /* in, i32 [num_rows]: row of rope_table for each row of x */
  const int32_t *positions;
  /* in, f32 [num_positions, 64]: of each position 32 cosines, then 32 sines; 16-byte aligned */
  const float *rope_table;
  /* elements of rope_table from one position to the next; a multiple of 4 */
  int64_t rope_table_stride;
  /* rows, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* rows of rope_table; 0 to 2147483647 */
  int64_t num_positions;
} kiln_rope_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_rope(kiln_plan *plan, const kiln_rope_args *args, void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_rope_workspace(kiln_plan *plan, const kiln_rope_args *args,
                                         uint64_t *bytes);

/* ---- rope_table ---- */

/* Writes cosines and sines of the angles of consecutive positions, for rope and sparse_mla_decode.
 *
 * For row j and pair i = 0 .. 31:
 *   angle = fp32(first_position + j) * f_i          one product in fp32
 *   rope_table[j, i] = fp32(cos(angle));  rope_table[j, 32 + i] = fp32(sin(angle))
 * cos and sin in float64. f_i is the fp32 nearest to
 *   base_10000:         10000^(-2i / 64)
 *   base_160000_yarn:   (g / 16) * ramp + g * (1 - ramp),  g = 160000^(-2i / 64),
 *                       ramp = clamp((i - 15) / 10, 0, 1)
 * Of DeepSeek-V4.1-Flash the layers with a compressed list take the latter (compress_ratio 1 or 2),
 * layers 0 and 1 and the draft layers the former. A position is that of a token, or of the first
 * token of a compressed entry.
 * Any alignment and stride is legal here, but rope and the ops that insert or quantise with RoPE
 * read 16 bytes at a time: for them rope_table is 16-byte aligned and its stride a multiple of 4.
 *
 * Formula: ops.md B5, (f)5. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "frequencies": of the pairs ("base_10000", "base_160000_yarn")
 * A legal call holds:
 *   - first_position + num_positions is at most 16777216, so that a position is exact in fp32
 */
typedef struct kiln_rope_table_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* out, f32 [num_positions, 64]: of each position 32 cosines, then 32 sines */
  float *rope_table;
  /* elements of rope_table from one position to the next */
  int64_t rope_table_stride;
  /* rows of rope_table; 0 to 16777216 */
  int64_t num_positions;
  /* position of the first row; 0 to 16777216 */
  int64_t first_position;
} kiln_rope_table_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_rope_table(kiln_plan *plan, const kiln_rope_table_args *args,
                                     void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_rope_table_workspace(kiln_plan *plan, const kiln_rope_table_args *args,
                                               uint64_t *bytes);

/* ---- sparse_mla_decode ---- */

/* Attention of each row over the keys that its two lists of slots name in paged caches; a key is
 * also its value.
 *
 * For row t and local head h, over the valid columns n of the window list and then of the
 * compressed list:
 *   s[n] = 512^-0.5 * dot(q[t, h], k_n)          fp32 sums
 *   m    = max_n s[n];  p[n] = exp(s[n] - m);  l = sum_n p[n]
 *   out[t, h, 0..511] = (sum_n p[n] * k_n) / (l + exp(sink[h] - m))
 *   lse[t, h] = m + ln(l)                          natural, without the sink
 * Column n of a list is valid when n < lens[t] and its slot is in 0 .. num_pages * page_size - 1;
 * -1 and any other number outside is skipped wherever it stands. A length below 0 counts as 0, one
 * above the width as the width; any width from 0 up is legal. Nothing is read through a column that
 * is not valid. A slot that is listed twice counts twice. k_n is the entry of its slot, 512 bf16
 * values dequantised as by gather_dequant_kv; here the E4M3 codes 0x7f and 0xff read as 480 and
 * -480, and a UE8M0 scale of 255 is undefined: no writer stores them.
 * An element that is not finite spoils no more than depends on it: one of q its head of its row,
 * one of sink its head of all rows, one of a valid slot the rows that list the slot. With
 * compressed_format "none" the compressed sizes are not used.
 * A row without valid columns gives out = 0 (with inverse_rope of either sign) and lse = -infinity.
 * A sink of -infinity is the same as none, +infinity gives out = 0; so does one above m by more
 * than 88.
 * With probability "bf16" p is rounded to bf16 before it multiplies the values, as the model's
 * reference does; with "split" it keeps 16 bits, at twice the work of that product.
 * With inverse_rope "gptj" elements 448..511 of out are rotated back by the row's position, pair by
 * pair, after a rounding to bf16:
 *   a' = a * cos + b * sin;  b' = b * cos - a * sin
 * Slot page * page_size + r is entry r of the page. Pages hold first the codes of all entries, then
 * their scales (ops.md B8):
 *   f1: 512 E4M3 codes, 16 UE8M0 scales (one per 32 elements)             528 bytes an entry
 *   f2: 512 E2M1 codes (even element in bits 0..3), 32 E4M3 scales (one per 16)   288 bytes
 *   f3: 448 E4M3 codes then 64 bf16, 8 UE8M0 scales (one per 64, the last unused) 584 bytes
 *   f4: 512 bf16                                                         1024 bytes
 * The bits of a row depend on the two widths and the kernels, not on the other rows.
 *
 * Formula: ops.md B14, B14.1, B8, B16.1, (f)9. Version 2. Result: rms error at most 0.00390625 of
 * the output's rms, but for lse, see there.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "num_heads": local heads (1 to 64)
 *   "window_format": layout of the window cache ("f1", "f2", "f3", "f4")
 *   "compressed_format": layout of the compressed cache; none: the layer has no compressed list
 *     ("none", "f1", "f2", "f3", "f4")
 *   "probability": precision of p in the product with the values ("bf16", "split")
 *   "inverse_rope": rotation of the last 64 elements of out ("none", "gptj")
 * A legal call holds:
 *   - num_window_pages * window_page_size is at most 2147483647, so that a slot fits an int32
 *   - num_compressed_pages * compressed_page_size is at most 2147483647, so that a slot fits an
 *     int32
 */
typedef struct kiln_sparse_mla_decode_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, num_heads, 512]: queries after RoPE, not scaled; 16-byte aligned */
  const uint16_t *q;
  /* elements of q from one row to the next; a multiple of 8 */
  int64_t q_stride0;
  /* elements of q from one head to the next; a multiple of 8 */
  int64_t q_stride1;
  /* in, u8 [num_window_pages, window_page_bytes]: pages of entries of this layer; 16-byte
   * aligned */
  const uint8_t *window_cache;
  /* elements of window_cache from one page to the next; a multiple of 16 */
  int64_t window_cache_stride;
  /* in, i32 [num_rows, window_width]: slots of window_cache; -1: none */
  const int32_t *window_slots;
  /* elements of window_slots from one row to the next */
  int64_t window_slots_stride;
  /* in, i32 [num_rows]: columns of window_slots that count */
  const int32_t *window_lens;
  /* in, u8 [num_compressed_pages, compressed_page_bytes]: pages of entries of the layer that
   * compressed them; only with compressed_format f1, f2, f3 or f4, else NULL; 16-byte aligned */
  const uint8_t *compressed_cache;
  /* elements of compressed_cache from one page to the next; a multiple of 16 */
  int64_t compressed_cache_stride;
  /* in, i32 [num_rows, compressed_width]: slots of compressed_cache; -1: none; only with
   * compressed_format f1, f2, f3 or f4, else NULL */
  const int32_t *compressed_slots;
  /* elements of compressed_slots from one row to the next */
  int64_t compressed_slots_stride;
  /* in, i32 [num_rows]: columns of compressed_slots that count; only with compressed_format f1,
   * f2, f3 or f4, else NULL */
  const int32_t *compressed_lens;
  /* in, f32 [num_heads]: logit of each head that has no value; NULL is legal */
  const float *sink;
  /* in, i32 [num_rows]: row of rope_table for each row; one outside of it is not rotated; only
   * with inverse_rope gptj, else NULL */
  const int32_t *positions;
  /* in, f32 [num_positions, 64]: of each position 32 cosines, then 32 sines; only with
   * inverse_rope gptj, else NULL */
  const float *rope_table;
  /* elements of rope_table from one position to the next */
  int64_t rope_table_stride;
  /* out, bf16 [num_rows, num_heads, 512]: attention output; 16-byte aligned */
  uint16_t *out;
  /* elements of out from one row to the next; a multiple of 8 */
  int64_t out_stride0;
  /* elements of out from one head to the next; a multiple of 8 */
  int64_t out_stride1;
  /* out, f32 [num_rows, num_heads]: log of the sum of exp(s); NULL is legal; rms error at most
   * 1.52588e-05 of the output's rms */
  float *lse;
  /* elements of lse from one row to the next */
  int64_t lse_stride;
  /* rows, padding included; 0 to 1048576 */
  int64_t num_rows;
  /* columns of window_slots; 0 to 1073741824 */
  int64_t window_width;
  /* columns of compressed_slots; 0 to 1073741824 */
  int64_t compressed_width;
  /* entries of a page; 1 to 65536 */
  int64_t window_page_size;
  /* pages of window_cache; 0 to 2147483647 */
  int64_t num_window_pages;
  /* entries of a page; 0 is for layers without a compressed list; 0 to 65536 */
  int64_t compressed_page_size;
  /* pages of compressed_cache; 0 to 2147483647 */
  int64_t num_compressed_pages;
  /* rows of rope_table; 0 to 2147483647 */
  int64_t num_positions;
  /* scratch of the call, 256-byte aligned; NULL when it needs none */
  void *workspace;
  /* its size; at least what kiln_sparse_mla_decode_workspace answers */
  uint64_t workspace_bytes;
} kiln_sparse_mla_decode_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_sparse_mla_decode(kiln_plan *plan,
                                            const kiln_sparse_mla_decode_args *args, void *stream);

/* Bytes of workspace that a call with these sizes, or smaller ones, needs; pointers and strides
 * in args are not looked at. Touches no device.
 * KILN_INVALID_ARGUMENT, KILN_NOT_PREPARED (it depends on the kernels: prepare first),
 * KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_sparse_mla_decode_workspace(kiln_plan *plan,
                                                      const kiln_sparse_mla_decode_args *args,
                                                      uint64_t *bytes);

/* ---- topk_to_slots ---- */

/* Turns the top-k entries of each row, which count from the start of the row's request, into slots
 * of the compressed cache.
 *
 * For row t of request b = requests[t], where is_valid[t] is not 0 (NULL: everywhere):
 *   v           = topk[t, i]
 *   slots[t, i] = v < 0 ? -1 : block_table[b, v / page_size] * page_size + v % page_size
 *   lens[t]     = number of i with topk[t, i] >= 0
 * Other rows are padding: slots all -1, lens 0, and nothing is read through their request and their
 * entries.
 * Columns keep their place. A request outside 0 .. num_requests - 1, an entry beyond the table and
 * a page outside 0 .. num_pages - 1 give -1; the column still counts in lens. The entries of top-k
 * ops stand first, so lens is the length of their prefix.
 * One call serves all layers that use the same top-k entries: slots and lens are the caller's
 * memory, and sparse_mla_decode reads them as compressed_slots and compressed_lens.
 *
 * Formula: ops.md B13.1, (f)8. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "top_k": entries of a top-k row (1 to 8192)
 * A legal call holds:
 *   - num_pages * page_size is at most 2147483647, so that a slot fits an int32
 */
typedef struct kiln_topk_to_slots_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [num_rows, top_k]: compressed entries of each row, request-local; negative: none */
  const int32_t *topk;
  /* elements of topk from one row to the next */
  int64_t topk_stride;
  /* in, i32 [num_rows]: request of each row */
  const int32_t *requests;
  /* in, u8 [num_rows]: 0 for a row of padding; NULL: no row is; NULL is legal */
  const uint8_t *is_valid;
  /* in, i32 [num_requests, table_width]: page of the cache for each page of a request; only
   * entries in use are read */
  const int32_t *block_table;
  /* elements of block_table from one request to the next */
  int64_t block_table_stride;
  /* out, i32 [num_rows, top_k]: slots of the cache; -1: none */
  int32_t *slots;
  /* elements of slots from one row to the next */
  int64_t slots_stride;
  /* out, i32 [num_rows]: columns of slots that count */
  int32_t *lens;
  /* rows, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* requests; 0 to 2147483647 */
  int64_t num_requests;
  /* columns of block_table; 0 to 2147483647 */
  int64_t table_width;
  /* entries of a page; 1 to 65536 */
  int64_t page_size;
  /* pages of the cache; 0 to 2147483647 */
  int64_t num_pages;
} kiln_topk_to_slots_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_topk_to_slots(kiln_plan *plan, const kiln_topk_to_slots_args *args,
                                        void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_topk_to_slots_workspace(kiln_plan *plan,
                                                  const kiln_topk_to_slots_args *args,
                                                  uint64_t *bytes);

/* ---- window_kv_insert ---- */

/* Rotates, quantises and writes the window kv of a step into its paged cache.
 *
 * For row t, s = slots[t], p = positions[t]:
 *   x  = kv[t], or with norm "rms" bf16((kv[t] * r) * weight),
 *        r = 1 / sqrt(sum(kv[t]^2) / 512 + 1e-20)
 *   x' = x with its last 64 elements rotated: in pairs i = 0..31
 *     a' = a * cos - b * sin, b' = a * sin + b * cos
 *     cos = rope_table[p, i], sin = rope_table[p, 32 + i]
 *     in fp32, products rounded, then one addition, then bf16 (nearest even)
 *   entry s % page_size of page s / page_size = x', quantised
 * Formats; a page holds first the codes of all entries, then their scales (ops.md B8):
 *   f1: q8a: 512 E4M3 codes, 16 UE8M0 scales (one per 32 elements)        528 bytes
 *   f3: q8d: 448 E4M3 codes, then 64 bf16; 7 UE8M0 scales (one per 64) and a 0   584 bytes
 *   f4: 512 bf16: what codes and scales of f1 stand for                  1024 bytes
 * The norm is that of rms_norm, to the bit, and so is the order of its sum; every config adds in
 * the same order. q8a and q8d are those of act_quant, to the bit: a group that holds a NaN or an
 * infinity becomes scale 255 and codes 0x7f (f4: 0x7fc0); a NaN that rotation makes in the bf16 of
 * f3 is 0x7fff.
 * A row whose slot is negative or beyond the cache is not written. Entries are written whole; every
 * other byte of the cache is left as it is. No two rows have the same slot.
 *
 * Formula: ops.md B3, B4, B5, B7, B8, (f)4, (f)5. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "format": layout of the cache ("f1", "f3", "f4")
 *   "norm": of the rows, before they are rotated ("none", "rms")
 * A legal call holds:
 *   - num_pages * page_size is at most 2147483647, so that a slot fits the int32 of its readers
 */
typedef struct kiln_window_kv_insert_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, bf16 [num_rows, 512]: kv after its norm, or before it; 16-byte aligned */
  const uint16_t *kv;
  /* elements of kv from one row to the next; a multiple of 8 */
  int64_t kv_stride;
  /* in, bf16 [512]: of the norm; only with norm rms, else NULL; 16-byte aligned */
  const uint16_t *weight;
  /* in, i32 [num_rows]: row of rope_table for each row; one outside of it is not rotated */
  const int32_t *positions;
  /* in, i64 [num_rows]: where each row goes in the cache */
  const int64_t *slots;
  /* in, f32 [num_positions, 64]: of each position 32 cosines, then 32 sines, of the layer's
   * frequencies; 16-byte aligned */
  const float *rope_table;
  /* elements of rope_table from one position to the next; a multiple of 4 */
  int64_t rope_table_stride;
  /* out, u8 [num_pages, page_bytes]: pages of entries; 8-byte aligned */
  uint8_t *cache;
  /* elements of cache from one page of the cache to the next; a multiple of 8 */
  int64_t cache_stride;
  /* rows of the step, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* rows of rope_table; 0 to 2147483647 */
  int64_t num_positions;
  /* entries of a page; 1 to 65536 */
  int64_t page_size;
  /* pages of the cache; 0 to 2147483647 */
  int64_t num_pages;
} kiln_window_kv_insert_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_window_kv_insert(kiln_plan *plan, const kiln_window_kv_insert_args *args,
                                           void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_window_kv_insert_workspace(kiln_plan *plan,
                                                     const kiln_window_kv_insert_args *args,
                                                     uint64_t *bytes);

/* ---- window_slots ---- */

/* Writes the slots of each row's window in the paged window caches.
 *
 * For row t of request b = requests[t], where is_valid[t] is not 0 (NULL: everywhere), and for each
 * group g of caches, which has a block table of its own:
 *   causal: last = positions[t];     start = max(last - (window - 1), 0, replay_start[b])
 *   draft:  last = seq_lens[b] - 1;  start = max(seq_lens[b] - query_len[b] - window, 0)
 *   n     = last - start + 1, at least 0, at most slot_width
 *   slots[g, t, i] = block_table[g, b, x / page_size] * page_size + x % page_size,
 *                    x = start + i, for i < n
 *   slots[g, t, i] = -1  for n <= i < slot_width
 *   lens[t] = n
 * The oldest position stands first. Other rows are padding: slots all -1, lens 0, and nothing is
 * read through their request. In the form draft all rows of a request see the window before the
 * block and the whole block.
 * A page outside 0 .. num_pages - 1 and a column beyond the table give -1, so does a request
 * outside 0 .. num_requests - 1 (in the form draft it has n = 0); these columns still count in
 * lens. Entries of block_table that no window reaches are never read: their pages may have been
 * freed.
 * One call serves all layers: slots and lens are the caller's memory, and sparse_mla_decode reads
 * one group of them as window_slots and window_lens.
 *
 * Formula: ops.md B13.2, (f)8. Version 1. Result: bit-exact.
 * Shape (fixed, JSON for kiln_plan_create):
 *   "window": positions that a row sees, itself included (1 to 8192)
 *   "form": causal: a row sees up to itself; draft: up to the end of its request ("causal",
 *     "draft")
 * A legal call holds:
 *   - slot_width is at least window
 *   - num_pages * page_size is at most 2147483647, so that a slot fits an int32
 *   - num_rows * num_groups is at most 2147483647
 */
typedef struct kiln_window_slots_args {
  /* sizeof of this struct */
  uint64_t struct_bytes;
  /* in, i32 [num_rows]: position of each row; below 0: the row has no window; only with form
   * causal, else NULL */
  const int32_t *positions;
  /* in, i32 [num_rows]: request of each row */
  const int32_t *requests;
  /* in, u8 [num_rows]: 0 for a row of padding; NULL: no row is; NULL is legal */
  const uint8_t *is_valid;
  /* in, i32 [boundaries]: first row of each request and, last, their end; query_len is the
   * distance of two; only with form draft, else NULL */
  const int32_t *query_start_loc;
  /* in, i32 [num_requests]: tokens of each request after this step; only with form draft, else
   * NULL */
  const int32_t *seq_lens;
  /* in, i32 [num_requests]: first position of each request that has an entry; NULL means 0; only
   * with form causal, else NULL; NULL is legal */
  const int32_t *replay_start;
  /* in, i32 [num_groups, num_requests, table_width]: page of the cache for each page of a
   * request; only entries in use are read */
  const int32_t *block_table;
  /* elements of block_table from one group to the next */
  int64_t block_table_stride0;
  /* elements of block_table from one request to the next */
  int64_t block_table_stride1;
  /* out, i32 [num_groups, num_rows, slot_width]: slots of the caches; -1: none */
  int32_t *slots;
  /* elements of slots from one group to the next */
  int64_t slots_stride0;
  /* elements of slots from one row to the next */
  int64_t slots_stride1;
  /* out, i32 [num_rows]: columns of slots that count, in every group */
  int32_t *lens;
  /* rows, padding included; 0 to 2147483647 */
  int64_t num_rows;
  /* groups of caches with a block table of their own; 1 to 2147483647 */
  int64_t num_groups;
  /* requests; 0 to 2147483646 */
  int64_t num_requests;
  /* columns of slots that are written; 0 to 2147483647 */
  int64_t slot_width;
  /* columns of block_table; 0 to 2147483647 */
  int64_t table_width;
  /* entries of a page; 1 to 65536 */
  int64_t page_size;
  /* pages of each cache; 0 to 2147483647 */
  int64_t num_pages;
} kiln_window_slots_args;

/* Launches on stream. Legal under capture once prepared. Returns at once: a fault on the device
 * shows at the caller's next synchronisation.
 * KILN_INVALID_ARGUMENT, KILN_DRIVER_ERROR (the launch), KILN_CLOSED, KILN_FORKED.
 * The first call of a plan that was not prepared prepares it and may fail as kiln_prepare does:
 * KILN_UNSUPPORTED, KILN_NO_COMPILER, KILN_COMPILE_ERROR, KILN_DRIVER_ERROR, KILN_OUT_OF_MEMORY,
 * KILN_BAD_STATE (inside a callback of a kiln_prepare). Under capture and after kiln_seal it
 * returns KILN_NOT_PREPARED. */
KILN_API kiln_status kiln_window_slots(kiln_plan *plan, const kiln_window_slots_args *args,
                                       void *stream);

/* *bytes = 0: this op needs no workspace.
 * KILN_INVALID_ARGUMENT, KILN_CLOSED, KILN_FORKED. */
KILN_API kiln_status kiln_window_slots_workspace(kiln_plan *plan,
                                                 const kiln_window_slots_args *args,
                                                 uint64_t *bytes);

#ifdef __cplusplus
}
#endif

#endif /* KILN_OPS_H_ */
