// NVIDIA's driver for tests, as libcuda.so.1: memory is the host's, a module is the path of a library that the emulator's
// compiler made, work is done at once. It shows whether `cuda_driver.py` calls the driver as the driver expects.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int Result;
typedef unsigned long long Address;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
int fake_status;  // what work fails with
enum { STREAMS = 5 };  // the recorder and four queues
static int a_context, a_pool, streams[STREAMS], opened;
static void *const a_recorder = &streams[0];
static int is_stream(void *stream) { return (int *)stream > streams && (int *)stream < streams + opened; }
static __thread void *current;
typedef struct { void (*run)(int, int, const long long *); int count; } Function;

// A graph is the list of what was asked for while the stream recorded.
typedef struct Work { struct Work *next; const Function *called; int blocks, threads; long long *given;
  void *to; const void *from; size_t count; } Work;
typedef struct { Work *first, **last; } Graph;
static Graph *recording;
static Result later(Work work) {
  Work *made = malloc(sizeof work);
  *made = work;
  made->next = 0;
  *recording->last = made;
  recording->last = &made->next;
  return SUCCESS;
}

Result cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int fake_version = 13000;
Result cuDriverGetVersion(int *version) { *version = fake_version; return SUCCESS; }
Result cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
Result cuDeviceGet(int *device, int number) { *device = number; return number ? 101 : SUCCESS; }
Result cuDeviceGetName(char *name, int length, int device) { strncpy(name, "a driver for tests", length); return device; }
Result cuDeviceGetAttribute(int *found, int attribute, int device) {
  *found = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 4 : 49152;  // compute capability, multiprocessors
  return device;
}
Result cuDevicePrimaryCtxRetain(void **context, int device) { *context = &a_context; return device; }
Result cuCtxSetCurrent(void *context) { current = context; return SUCCESS; }
Result cuStreamCreate(void **stream, unsigned flags) {
  if (flags != 1 || opened == STREAMS) return INVALID_VALUE;
  *stream = &streams[opened++];
  return SUCCESS;
}
Result cuDeviceGetDefaultMemPool(void **pool, int device) { *pool = &a_pool; return device; }
Result cuMemPoolSetAttribute(void *pool, int attribute, void *value) {
  return pool == &a_pool && attribute == 4 && *(unsigned long long *)value == ~0ull ? SUCCESS : INVALID_VALUE;
}
Result cuMemGetInfo_v2(size_t *free, size_t *total) {
  if (current != &a_context) return INVALID_CONTEXT;
  *free = 1ull << 33; *total = 1ull << 34;
  return SUCCESS;
}
Result cuModuleLoadData(void **module, const void *image) {
  *module = dlopen((const char *)image, RTLD_NOW | RTLD_LOCAL);
  return *module ? SUCCESS : INVALID_VALUE;
}
Result cuModuleGetFunction(void **function, void *module, const char *name) {
  char text[512] = "emulate_", count[512] = "arity_";
  strncat(text, name, 400); strncat(count, name, 400);
  Function *made = malloc(sizeof *made);
  made->run = (void (*)(int, int, const long long *))dlsym(module, text);
  if (!made->run) return NOT_FOUND;
  made->count = *(int *)dlsym(module, count);
  *function = made;
  return SUCCESS;
}
Result cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                      unsigned shared, void *stream, void **parameters, void **extra) {
  const Function *called = function;
  long long *given = malloc(sizeof *given * (called->count + 1));
  if (current != &a_context || !(recording ? stream == a_recorder : is_stream(stream)) || y != 1 || z != 1 || ty != 1 || tz != 1 || shared || extra)
    return INVALID_VALUE;
  for (int i = 0; i < called->count; i++) given[i] = *(long long *)parameters[i];
  if (recording) return later((Work){ 0, called, x, threads, given });
  called->run(x, threads, given);
  free(given);
  return SUCCESS;
}
Result cuStreamBeginCapture_v2(void *stream, int mode) {
  if (recording || stream != a_recorder || mode != 1) return INVALID_VALUE;
  recording = calloc(1, sizeof *recording);
  recording->last = &recording->first;
  return SUCCESS;
}
Result cuStreamEndCapture(void *stream, void **graph) {
  *graph = recording;
  recording = 0;
  return stream == a_recorder ? SUCCESS : INVALID_VALUE;
}
Result cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) { *made = graph; return flags; }
Result cuGraphDestroy(void *graph) { return graph ? SUCCESS : INVALID_VALUE; }
Result cuGraphExecDestroy(void *graph) { return graph ? SUCCESS : INVALID_VALUE; }
Result cuGraphLaunch(void *graph, void *stream) {
  for (const Work *work = ((Graph *)graph)->first; work; work = work->next) {
    if (work->called) work->called->run(work->blocks, work->threads, work->given);
    else if (work->count == (size_t)-1) clock_gettime(CLOCK_MONOTONIC, work->to);
    else memmove(work->to, work->from, work->count);
  }
  return is_stream(stream) ? SUCCESS : INVALID_VALUE;
}
// Freed memory comes again, as from a driver's pool.
static struct { Address address; size_t count; int used; } blocks[4096];
static int made;
Result cuMemAllocAsync(Address *address, size_t count, void *stream) {
  if (count > 1ull << 33) return OUT_OF_MEMORY;
  int i = 0;
  while (i < made && (blocks[i].used || blocks[i].count != count)) i++;
  if (i == made) {
    if (++made > 4096) return OUT_OF_MEMORY;
    blocks[i].address = (Address)aligned_alloc(256, (count + 255) / 256 * 256);
    blocks[i].count = count;
  }
  blocks[i].used = 1;
  *address = blocks[i].address;
  return current == &a_context && is_stream(stream) ? SUCCESS : INVALID_CONTEXT;
}
Result cuMemHostAlloc(void **address, size_t count, unsigned flags) { *address = malloc(count); return flags; }
Result cuMemFreeAsync(Address address, void *stream) {
  int i = 0;
  while (i < made && !(blocks[i].used && blocks[i].address == address)) i++;
  if (i == made || !is_stream(stream)) return INVALID_VALUE;
  blocks[i].used = 0;
  return SUCCESS;
}
Address fake_pinned;  // memory of the host that the driver knows
Result cuPointerGetAttribute(void *found, int attribute, Address address) {
  *(unsigned *)found = 1;
  return attribute == 2 && address == fake_pinned ? SUCCESS : INVALID_VALUE;
}
static Result copy(void *to, const void *from, size_t count, void *stream) {
  if (recording && stream == a_recorder) return later((Work){ 0, 0, 0, 0, 0, to, from, count });
  memmove(to, from, count);
  return is_stream(stream) ? SUCCESS : INVALID_VALUE;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t n, void *s) { return copy((void *)to, from, n, s); }
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t n, void *s) { return copy(to, (void *)from, n, s); }
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, void *s) { return copy((void *)to, (void *)from, n, s); }
Result cuMemsetD8Async(Address to, unsigned char value, size_t n, void *s) {
  memset((void *)to, value, n);
  return is_stream(s) ? SUCCESS : INVALID_VALUE;
}
Result cuStreamSynchronize(void *stream) { return is_stream(stream) ? fake_status : INVALID_VALUE; }
Result cuEventCreate(void **event, unsigned flags) {
  *event = calloc(1, sizeof(struct timespec));
  return flags == 0 || flags == 2 ? SUCCESS : INVALID_VALUE;  // 2: without a time
}
Result cuEventRecord(void *event, void *stream) {
  return clock_gettime(CLOCK_MONOTONIC, event) || (!is_stream(stream) && stream != (void *)1);  // ours, the default one
}
Result cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  return (is_stream(stream) || stream == (void *)1) && event ? flags : INVALID_VALUE;
}
Result cuEventQuery(void *event) { return event ? SUCCESS : INVALID_VALUE; }
Result cuEventDestroy_v2(void *event) { free(event); return SUCCESS; }
Result cuEventRecordWithFlags(void *event, void *stream, unsigned flags) {
  return recording && stream == a_recorder && flags == 1 ? later((Work){ .to = event, .count = (size_t)-1 }) : INVALID_VALUE;
}
Result cuEventSynchronize(void *event) { return event ? SUCCESS : INVALID_VALUE; }
Result cuEventElapsedTime_v2(float *milliseconds, void *first, void *second) {
  const struct timespec *a = first, *b = second;
  *milliseconds = 1e3f * (b->tv_sec - a->tv_sec) + 1e-6f * (b->tv_nsec - a->tv_nsec);
  return SUCCESS;
}
Result cuEventElapsedTime(float *milliseconds, void *a, void *b) { return cuEventElapsedTime_v2(milliseconds, a, b); }
Result cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
  char text[256];
  Dl_info here;
  dladdr((void *)cuInit, &here);
  void *library = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  strncpy(text, name, 240); text[240] = 0;
  strcat(text, "_v2");
  *found = dlsym(library, text);
  if (!*found) *found = dlsym(library, name);
  if (status) *status = *found ? 0 : 1;
  return *found ? SUCCESS : NOT_FOUND;
}
