// Integer and vector types of device code; NVRTC sees no standard header.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

constexpr int warp_lanes = 32;
constexpr u32 all_lanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % warp_lanes; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / warp_lanes; }
