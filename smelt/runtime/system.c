/* The functions that depend on the operating system: pages, threads with signals blocked, the main thread, forks, pread.
 * Linux and macOS share the POSIX part. Windows has no signals to block, no fork and no pread. */
#define _GNU_SOURCE
#include "runtime.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#define HUGE_PAGE ((i64)2 << 20)

#ifdef _WIN32

#include <fcntl.h>
#include <io.h>
#include <malloc.h>

/* The part of the Win32 API that is used here; windows.h would define hundreds of names. */
typedef struct { unsigned length, load; unsigned long long physical, rest[6]; } MemoryStatus;
typedef struct { uintptr_t status, transferred; unsigned offset, offset_high; void *event; } Overlapped;
__declspec(dllimport) void *VirtualAlloc(void *address, size_t bytes, unsigned kind, unsigned protection);
__declspec(dllimport) int VirtualFree(void *address, size_t bytes, unsigned kind);
__declspec(dllimport) int GlobalMemoryStatusEx(MemoryStatus *status);
__declspec(dllimport) int ReadFile(void *file, void *bytes, unsigned count, unsigned *read, Overlapped *at);
__declspec(dllimport) unsigned GetLastError(void);
__declspec(dllimport) void *CreateFileMappingA(void *file, void *security, unsigned protection, unsigned high, unsigned low,
                                               const char *name);
__declspec(dllimport) void *MapViewOfFile(void *mapping, unsigned access, unsigned high, unsigned low, size_t bytes);
__declspec(dllimport) int UnmapViewOfFile(const void *base);
__declspec(dllimport) int CloseHandle(void *handle);
__declspec(dllimport) unsigned GetActiveProcessorCount(unsigned short group);
enum { COMMIT_RESERVE = 0x3000, RELEASE = 0x8000, READ_WRITE = 0x04, END_OF_FILE = 38 };

void *smelt_map_pages(i64 bytes) { return VirtualAlloc(NULL, (size_t)bytes, COMMIT_RESERVE, READ_WRITE); }

/* Large pages need a privilege that ordinary users lack. */
void *smelt_map_huge(i64 bytes) { return smelt_map_pages(bytes); }

void smelt_unmap(void *base, i64 bytes) {
  (void)bytes;
  VirtualFree(base, 0, RELEASE);
}

void *smelt_take_block(i64 bytes) { return _aligned_malloc((size_t)bytes, 64); }

void smelt_give_block(void *block) { _aligned_free(block); }

i64 smelt_physical_memory(void) {
  MemoryStatus status = {.length = sizeof status};
  return GlobalMemoryStatusEx(&status) ? (i64)status.physical : 0;
}

i64 smelt_cores(void) { return GetActiveProcessorCount(0xFFFF); }

int smelt_read_at(i64 file, i64 offset, char *bytes, i64 count, i64 *got) {
  Overlapped at = {.offset = (unsigned)offset, .offset_high = (unsigned)(offset >> 32)};
  unsigned read = 0;
  void *handle = (void *)_get_osfhandle((int)file);
  if (!ReadFile(handle, bytes, count > 1 << 30 ? 1u << 30 : (unsigned)count, &read, &at) && GetLastError() != END_OF_FILE)
    return EIO;
  *got = read;
  return 0;
}

i64 smelt_open_file(const char *path, i64 *bytes) {
  int file = _open(path, _O_RDONLY | _O_BINARY);
  if (file >= 0) *bytes = _filelengthi64(file);
  return file;
}

void smelt_close_file(i64 file) { _close((int)file); }

void *smelt_map_file(i64 file, i64 bytes) {
  void *mapping = CreateFileMappingA((void *)_get_osfhandle((int)file), NULL, 2, 0, 0, NULL); /* PAGE_READONLY */
  void *base = mapping ? MapViewOfFile(mapping, 4, 0, 0, (size_t)bytes) : NULL; /* FILE_MAP_READ */
  if (mapping) CloseHandle(mapping);
  return base;
}

void smelt_unmap_file(void *base, i64 bytes) { (void)bytes, UnmapViewOfFile(base); }

/* Only Python knows which thread handles Ctrl-C; on other threads PyErr_CheckSignals does nothing. */
int smelt_is_main_thread(void) { return 1; }

void smelt_name_thread(const char *name) { (void)name; }

void smelt_watch_forks(void (*before)(void), void (*parent)(void), void (*child)(void)) {
  (void)before, (void)parent, (void)child;
}

#ifndef SMELT_SINGLE
typedef int SignalMask;
static void block_signals(SignalMask *before) { (void)before; }
static void restore_signals(const SignalMask *before) { (void)before; }
#endif

#else

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

void *smelt_map_pages(i64 bytes) {
  void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return base == MAP_FAILED ? NULL : base;
}

/* Maps one huge page more and unmaps both ends: mmap aligns to pages, not to huge pages. */
void *smelt_map_huge(i64 bytes) {
  char *base = smelt_map_pages(bytes + HUGE_PAGE);
  if (!base) return NULL;
  i64 head = (i64)(-(uintptr_t)base & (uintptr_t)(HUGE_PAGE - 1));
  if (head) munmap(base, (size_t)head);
  if (HUGE_PAGE - head) munmap(base + head + bytes, (size_t)(HUGE_PAGE - head));
#ifdef MADV_HUGEPAGE
  madvise(base + head, (size_t)bytes, MADV_HUGEPAGE); /* a hint: small pages work as well */
#endif
  return base + head;
}

void smelt_unmap(void *base, i64 bytes) { munmap(base, (size_t)bytes); }

void *smelt_take_block(i64 bytes) {
  void *block;
  return posix_memalign(&block, 64, (size_t)bytes) ? NULL : block;
}

void smelt_give_block(void *block) { free(block); }

i64 smelt_physical_memory(void) {
  i64 pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : 0;
}

i64 smelt_cores(void) {
#ifdef __linux__
  cpu_set_t allowed;
  if (!sched_getaffinity(0, sizeof allowed, &allowed)) return CPU_COUNT(&allowed);
#endif
  i64 count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? count : 1;
}

int smelt_read_at(i64 file, i64 offset, char *bytes, i64 count, i64 *got) {
  ssize_t read;
  do read = pread((int)file, bytes, (size_t)count, (off_t)offset);
  while (read < 0 && errno == EINTR);
  *got = read;
  return read < 0 ? errno : 0;
}

i64 smelt_open_file(const char *path, i64 *bytes) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* so that a FIFO does not wait */
  struct stat about;
  if (file >= 0 && (fstat(file, &about) || !S_ISREG(about.st_mode))) {
    close(file);
    errno = EINVAL;
    return -1;
  }
  if (file >= 0) *bytes = about.st_size;
  return file;
}

void smelt_close_file(i64 file) { close((int)file); }

void *smelt_map_file(i64 file, i64 bytes) {
  void *base = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, (int)file, 0);
  return base == MAP_FAILED ? NULL : base;
}

void smelt_unmap_file(void *base, i64 bytes) { munmap(base, (size_t)bytes); }

int smelt_is_main_thread(void) {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();
#elif defined(__APPLE__)
  return pthread_main_np();
#else
  return 1; /* Python's own check decides */
#endif
}

void smelt_name_thread(const char *name) {
#ifdef __linux__
  prctl(PR_SET_NAME, name);
#else
  (void)name;
#endif
}

#ifndef SMELT_SINGLE
void smelt_watch_forks(void (*before)(void), void (*parent)(void), void (*child)(void)) {
  pthread_atfork(before, parent, child);
}

typedef sigset_t SignalMask;

static void block_signals(SignalMask *before) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, before);
}

static void restore_signals(const SignalMask *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }
#endif

#endif

#ifndef SMELT_SINGLE

/* The thread inherits a mask that blocks every signal: signals are delivered to the user's threads only. */
int smelt_start_thread(pthread_t *thread, i64 stack, int detached, void *(*body)(void *), void *argument) {
  pthread_attr_t attributes;
  SignalMask before;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, (size_t)stack);
  if (detached) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  block_signals(&before);
  int failed = pthread_create(thread, &attributes, body, argument);
  restore_signals(&before);
  pthread_attr_destroy(&attributes);
  return failed;
}
#endif
