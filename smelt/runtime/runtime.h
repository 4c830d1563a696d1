/* Declarations shared by the runtime's files. Memory, the pool and executables do not depend on Python. Only python.c
 * uses the `PyObject` fields, with the GIL held. */
#ifndef SMELT_RUNTIME_H
#define SMELT_RUNTIME_H

#include "smelt.h"

#include <stdatomic.h>
#ifndef SMELT_SINGLE /* a build without threads: single.c in place of pool.c and watch.c */
#include <pthread.h>
#endif

#ifdef SMELT_BARE /* no operating system */
#define SMELT_THREAD_LOCAL
#else
#define SMELT_THREAD_LOCAL _Thread_local
#endif

typedef struct _object PyObject;
typedef struct Executable Executable;
typedef struct Slot Slot;
typedef struct Grown Grown;

enum { MAX_THREADS = 256 };

/* system.c */
void *smelt_map_pages(i64 bytes);            /* NULL if refused */
void *smelt_map_huge(i64 bytes);             /* a multiple of 2 MiB */
void smelt_unmap(void *base, i64 bytes);
void *smelt_take_block(i64 bytes);           /* a small block, 64-byte aligned */
void smelt_give_block(void *block);
i64 smelt_physical_memory(void);             /* bytes; 0: unknown */
int smelt_read_at(i64 file, i64 offset, char *bytes, i64 count, i64 *got); /* 0, or an errno */
i64 smelt_open_file(const char *path, i64 *bytes); /* of a regular file, to read; < 0: see errno */
void smelt_close_file(i64 file);
void *smelt_map_file(i64 file, i64 bytes);   /* read-only, shared with other processes; NULL if refused */
void smelt_unmap_file(void *base, i64 bytes);
i64 smelt_cores(void);                       /* processors that this process may use */
int smelt_is_main_thread(void);              /* 1 also if the system cannot tell */
void smelt_name_thread(const char *name);
void smelt_watch_forks(void (*before)(void), void (*parent)(void), void (*child)(void));
#ifndef SMELT_SINGLE
int smelt_start_thread(pthread_t *thread, i64 stack, int detached, void *(*body)(void *), void *argument); /* 0 = ok */
#endif

/* features.c */
i64 smelt_features(void);                    /* one bit each, in the order of FEATURES in device/runtime.py */

/* memory.c */
void *smelt_allocate(i64 bytes);             /* 64-byte aligned, contents undefined; NULL if refused */
void *smelt_allocate_zeroed(i64 bytes);
i64 smelt_machine_memory(void);              /* bytes of physical memory, or the container's limit */
void smelt_set_machine_memory(i64 bytes);    /* sets the container's limit */
void smelt_release(void *block, i64 bytes);  /* bytes: as allocated */
i64 smelt_allocations(void);                 /* blocks allocated since the start: constant while sizes repeat */
i64 smelt_allocated(void);                   /* bytes in use now */

i64 smelt_span(i64 bytes);                   /* bytes that the system reserves for a block, at most */

/* heap.c */

/* The head of a block of memory that the caller provides. */
typedef struct { void *free; i64 used, peak; atomic_flag busy; } Heap;

Heap *smelt_open_heap(void *memory, i64 bytes); /* NULL: too small */
void *smelt_heap_allocate(Heap *heap, i64 bytes);
void smelt_heap_release(Heap *heap, void *memory);

/* watch.c */
void smelt_lock(void);    /* one lock for all lists of slots, held for a few instructions; survives fork */
void smelt_unlock(void);
i64 smelt_now(void);      /* nanoseconds of a monotonic clock */
i64 smelt_recent(void);   /* a recent smelt_now, cheaper */
void smelt_enter(Slot *slot);
void smelt_leave(Slot *slot);
int smelt_is_own(const Slot *slot); /* this thread has taken the slot */
void smelt_limit(Slot *slot, i64 deadline, const volatile int *token);
void smelt_alarm(void);            /* makes every call with a limit check whether it must end */
int smelt_stop(Context *ctx);
void smelt_wait_for_memory(void);  /* with the lock held, for some milliseconds at most */
void smelt_signal_memory(void);    /* wakes calls that wait for memory */
void smelt_forked(void);
extern int (*smelt_signals)(Slot *slot); /* python.c: runs signal handlers; 1 if one of them raised */

/* pool.c */
extern Runtime smelt_runtime;
int smelt_set_threads(i64 threads, i64 spin); /* spin: nanoseconds before an idle worker sleeps; 0 = ok */
void smelt_limit_thread(i64 most);            /* most workers of this thread's calls; 0: no limit of its own */
i64 smelt_started(void);                      /* running helper threads */
void smelt_begin_call(void);                  /* this thread runs a program: helpers leave it a core */
void smelt_end_call(void);
int smelt_is_nested(void);                    /* this thread runs a program: a signal handler makes another call */

static inline i64 smelt_threads(void) { /* the pool may change while calls run */
#ifdef SMELT_SINGLE
  return smelt_runtime.threads; /* some machines without threads lack an atomic load of 64 bits */
#else
  return __atomic_load_n(&smelt_runtime.threads, __ATOMIC_RELAXED);
#endif
}

/* checksum.c */
unsigned long long smelt_checksum(const void *bytes, i64 count);
int smelt_checksum_file(i64 file, i64 offset, i64 count, unsigned long long *sums); /* of every MiB */

/* executable.c */

/* A memory limit that several executables share. */
typedef struct {
  i64 limit, fixed, used; /* fixed: stays between calls, mostly weights; used: fixed + the memory of all slots */
  i64 running, waiting;   /* calls, waiting ones included; calls that wait for memory */
  Slot *first, *last;     /* queue of the waiting calls that hold no memory */
} Account;

/* The context, memory and tables of one call. A slot serves one call at a time and is reused by later calls. */
struct Slot {
  i64 workers; /* scratch areas, and the most workers of a call. First field: pool.c reads only this one */
  Context context;
  int cancel;      /* non-zero: `smelt_stop` checks whether the call must end */
  int cancelled, stopped, on_main, watched; /* stopped: the status that the call ends with */
  i64 deadline;    /* a time of smelt_now; 0: none */
  const volatile int *token;
  const void *thread; /* of the call */
  Slot *next_watched;
  int used;
  Executable *executable;
  Slot *next;      /* in the list of all slots of the executable */
  Slot *next_free;
  i64 bytes;       /* of this block: the slot and the tables behind it */
  i64 arena_bytes, scratch_bytes;
  i64 charged, results, outside; /* bytes: charged to the account; of the call's results; of copies of its inputs */
  i64 needed_arena, needed_scratch, since; /* the largest need of calls since that time */
  i64 taken;       /* time of the last use */
  int counted, over; /* the account counts the call as running; the account refused memory */
  int queued;
  Slot *next_queued;
  Grown *grown;
  atomic_flag growing;
  int ran;         /* since it was taken */
  int known;       /* `measured` belongs to `measured_for` */
  i64 *symbols, *measured_for, *measured, *late;
  void **buffers;
  void *state;       /* python.c: the calling thread's, while the interpreter's lock is released */
  PyObject *raised[3]; /* python.c: the exception of a signal handler */
  void *views;       /* python.c: one Py_buffer for every input and result */
  PyObject **shapes; /* python.c: the results' sizes as tuples, or NULL */
  PyObject *keep;    /* python.c: owners of the memory that the call uses */
};

/* One size of an input: scale * symbols[symbol] + offset; symbol -1: a static size. */
typedef struct { i64 symbol, scale, offset; } Dim;

/* donated: of an input 1 if a call may overwrite it, else 0; of a result 1 + the index of the input whose memory it reuses. */
typedef struct { i64 kind, itemsize, align, rank, donated; const Dim *dims; } Port;

/* A program with its bound arguments. */
struct Executable {
  Run run;
  Measure measure;
  i64 symbols, bound, inputs, results, constants, dims; /* dims: total rank of the results */
  i64 bytes;            /* of this block */
  const i64 *preset;    /* values of symbols that bound arguments determine; -1: solved at each call */
  const i64 *extents;   /* bytes of each bound argument */
  const Port *ports;    /* inputs, then results; the results' sizes come from measure */
  void **buffers;       /* bound arguments and constants; NULL for inputs and results */
  Slot *slots, *free;
  Account *account;     /* NULL: no limit */
  Heap *heap;       /* where slots and their memory come from; NULL: smelt_allocate */
  Executable *next;     /* in the list of registered executables */
  int closed, quick;    /* quick: `Dim` can solve the symbols */
  i64 view_bytes;       /* bytes behind a slot for each input and result, for python.c and model.c */
  void (*forget)(Slot *slot); /* python.c: drop a slot's objects */
  PyObject *keep, *empty, *dtypes, *foreign, *view_name, *dtype_name;
};

/* layout: symbols, bound, inputs, results, constants, quick; the preset symbols; the bytes of each bound argument; for
 * every input and result kind, itemsize, alignment, rank, `donated` and (inputs only) three numbers per dimension.
 * pointers: run, measure, the bound arguments, the constants. NULL: no memory. */
Executable *smelt_make(const i64 *layout, i64 numbers, void *const *pointers, Heap *heap);
int smelt_fit_dim(Dim dim, i64 size, i64 *symbols); /* sets a symbol at its first use and compares it at the others */
int smelt_all_known(const Slot *slot);              /* every symbol has a value */
i64 smelt_new_bytes(const Slot *slot);              /* of the results whose sizes are known before the call */
int smelt_overlaps(const void *a, i64 a_bytes, const void *b, i64 b_bytes);

Slot *smelt_take(Executable *executable);  /* NULL: no memory */
void smelt_give(Slot *slot);
int smelt_measure(Slot *slot);             /* of slot->symbols: 0, 1 + the failed check, or SMELT_NO_MEMORY */
int smelt_execute(Slot *slot);             /* after measure, with all buffers set: the program's status */
void smelt_cancel(Executable *executable); /* stops running calls, not later ones */
void smelt_trim(Executable *executable);   /* frees the memory of idle slots */
void smelt_register(Executable *executable); /* from now on calls of any executable free its idle memory */
void smelt_unregister(Executable *executable);
int smelt_charge(Account *account, i64 bytes); /* fixed bytes; < 0: uncharge; 0 = ok, 1 = never fits, 2 = retry later */
void *smelt_obtain(Heap *heap, i64 bytes);  /* memory of a heap, or of the system where there is none */
void smelt_return(Heap *heap, void *block, i64 bytes);
void smelt_close(Executable *executable);
void smelt_forget_calls(void); /* after a fork, with the lock held: frees the memory of other threads' calls */

#endif
