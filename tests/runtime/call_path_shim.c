/* Preloaded into call_path_program: counts what the calling thread allocates, locks and asks of the
 * environment while it is watched and not inside the fake driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

enum { ALLOCATIONS, LOCKS, ENVIRONMENT, KINDS };

static __thread int counts[KINDS];
static __thread int is_watched;
static int (*driver_is_inside)(void);

void call_path_watch(int on, int (*is_inside)(void)) {
  driver_is_inside = is_inside;
  is_watched = on;
}
int call_path_count(int kind) {
  const int count = counts[kind];
  counts[kind] = 0;
  return count;
}

static void count(int kind) {
  if (!is_watched) return;
  is_watched = 0; /* asking the fake must not count */
  if (!driver_is_inside()) ++counts[kind];
  is_watched = 1;
}

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t number, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* pointer);

void* malloc(size_t bytes) {
  count(ALLOCATIONS);
  return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) {
  count(ALLOCATIONS);
  return __libc_calloc(number, bytes);
}
void* realloc(void* old, size_t bytes) {
  count(ALLOCATIONS);
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  count(ALLOCATIONS);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** result, size_t alignment, size_t bytes) {
  count(ALLOCATIONS);
  *result = __libc_memalign(alignment, bytes);
  return *result == NULL ? ENOMEM : 0;
}
void free(void* pointer) {
  count(ALLOCATIONS);
  __libc_free(pointer);
}

#define COUNTED(kind, result, name, argument)                             \
  result name(argument given) {                                           \
    static result (*real)(argument);                                      \
    if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name);           \
    count(kind);                                                          \
    return real(given);                                                   \
  }
COUNTED(LOCKS, int, pthread_mutex_lock, pthread_mutex_t*)
COUNTED(LOCKS, int, pthread_mutex_trylock, pthread_mutex_t*)
COUNTED(LOCKS, int, pthread_rwlock_rdlock, pthread_rwlock_t*)
COUNTED(LOCKS, int, pthread_rwlock_wrlock, pthread_rwlock_t*)
COUNTED(LOCKS, int, pthread_spin_lock, pthread_spinlock_t*)
COUNTED(LOCKS, int, sem_wait, sem_t*)
COUNTED(ENVIRONMENT, char*, getenv, const char*)
COUNTED(ENVIRONMENT, char*, secure_getenv, const char*)
