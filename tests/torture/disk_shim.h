// Faults of the disk for one process: which call under a folder fails, and how. disk_shim.cpp
// replaces the functions of libc that SQLite and the store write with. A test program links it; any
// other program links it too, or takes it as a preloaded library, with the same text in KILN_DISK
// and the folder in KILN_DISK_ROOT. One that ends by itself leaves in the file KILN_DISK_COUNT how
// many calls it made: those that write, a space, those that make.
//
//   enospc:N       the Nth call that writes, and every later one, finds the disk full
//   eio:N          likewise with an error of the disk; eio:N:once only that one
//   edquot-create:N  the Nth call that makes a file or folder, and every later one, is over quota
//   kill:N         the process is killed instead of the Nth call that writes or makes
//   statfs:MAGIC   the folder lies on a file system of this type, for example 0x6969 (NFS)
//   noshm          files named *-shm cannot be mapped
//
// Calls that write: write, pwrite, ftruncate, fsync, fdatasync. Calls that make: open of a file
// that was not there, rename, link, mkdir, unlink. Several faults are separated by a comma.
#pragma once

#include <cstdint>
#include <string>

namespace kiln::testing {

// The numbers count from here. "" for no fault. Only while no other thread works on files there.
void set_disk_faults(const std::string& root, const std::string& faults);

struct DiskCalls {
  int64_t writes = 0;
  int64_t makes = 0;
};
DiskCalls disk_calls();  // since set_disk_faults(), also those that failed

}  // namespace kiln::testing
