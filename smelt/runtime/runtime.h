/* What the runtime's own files share. Memory, the pool and executables know nothing of Python; python.c fills the
 * `PyObject` fields and is the only file that touches them, always under the interpreter's lock. */
#ifndef SMELT_RUNTIME_H
#define SMELT_RUNTIME_H

#include "smelt.h"

#include <pthread.h>
#include <stdatomic.h>

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
int smelt_is_main_thread(void);              /* 1 also where the system cannot say */
void smelt_name_thread(const char *name);
void smelt_watch_forks(void (*before)(void), void (*parent)(void), void (*child)(void));
int smelt_start_thread(pthread_t *thread, i64 stack, int detached, void *(*body)(void *), void *argument); /* 0 = ok */

/* memory.c */
void *smelt_allocate(i64 bytes);             /* 64-byte aligned, contents undefined; NULL if refused */
void *smelt_allocate_zeroed(i64 bytes);
i64 smelt_machine_memory(void);              /* bytes that this machine has */
void smelt_set_machine_memory(i64 bytes);    /* fewer, where a container has a limit */
void smelt_release(void *block, i64 bytes);  /* with the bytes that were asked for */
i64 smelt_allocations(void);                 /* how many blocks were ever taken: unchanged while sizes repeat */
i64 smelt_allocated(void);                   /* bytes in use now */

i64 smelt_span(i64 bytes);                   /* what a block of so many bytes takes from the system at most */

/* watch.c */
void smelt_lock(void);    /* one lock for all lists of slots, held for a few instructions; survives fork */
void smelt_unlock(void);
i64 smelt_now(void);      /* nanoseconds of a clock that only goes forwards */
i64 smelt_lately(void);
void smelt_enter(Slot *slot);
void smelt_leave(Slot *slot);
void smelt_limit(Slot *slot, i64 deadline, const volatile int *token);
void smelt_alarm(void);            /* has every call with a limit look whether it has to end */
int smelt_stop(Context *ctx);
void smelt_wait_for_memory(void);  /* with the lock held, for some milliseconds at most */
void smelt_tell_memory(void);
void smelt_forked(void);
extern int (*smelt_signals)(Slot *slot); /* python.c: runs handlers of signals; 1 where one of them raised */

/* pool.c */
extern Runtime smelt_runtime;
int smelt_set_threads(i64 threads, i64 spin); /* spin: nanoseconds before an idle worker sleeps; 0 = ok */
i64 smelt_started(void);                      /* helpers that exist now */
i64 smelt_features(void);

/* executable.c */

/* Bytes that several executables may take together. */
typedef struct {
  i64 limit, fixed, used; /* fixed: what stays between calls, weights above all; used: that and all slots' memory */
  i64 running, waiting;   /* calls that have been let in or wait; those of them that wait for memory */
} Account;

/* What one running call owns: its context, its memory, its tables. Used by one call at a time, kept for the next. */
struct Slot {
  i64 workers; /* scratch areas; the pool lets no more workers than that into a call. First: pool.c reads it alone */
  Context context;
  int cancel;      /* something may have happened: `smelt_stop` finds out */
  int cancelled, stopped, on_main, watched; /* stopped: the status that the call ends with */
  i64 deadline;    /* a time of smelt_now; 0: none */
  const volatile int *token;
  const void *thread; /* of the call */
  Slot *next_watched;
  int used;
  Executable *executable;
  Slot *next;      /* of all slots of the executable */
  Slot *next_free;
  i64 bytes;       /* of this block: the slot and the tables behind it */
  i64 arena_bytes, scratch_bytes;
  i64 charged, results, outside; /* bytes: on the account in all; of the call's results; of copies of its inputs */
  i64 needed_arena, needed_scratch, since; /* the most that calls needed since that time */
  i64 taken;       /* when it was last taken */
  int counted, over; /* the account knows of the call; it refused memory */
  Grown *grown;
  atomic_flag growing;
  int ran;         /* since it was taken */
  int known;       /* `measured` belongs to `measured_for` */
  i64 *symbols, *measured_for, *measured, *late;
  void **buffers;
  void *state;       /* python.c: the calling thread's, while the interpreter's lock is released */
  PyObject *raised[3]; /* python.c: what a signal's handler raised */
  void *views;       /* python.c: one Py_buffer for every input and result */
  PyObject **shapes; /* python.c: the results' sizes as tuples, or NULL */
  PyObject *keep;    /* python.c: what the call's pointers point into */
};

/* One size of an input: scale * symbols[symbol] + offset; a plain number has symbol -1. */
typedef struct { i64 symbol, scale, offset; } Dim;

/* donated: of an input 1 where a call may write to it, else 0; of a result 1 + the input that it takes the place of. */
typedef struct { i64 kind, itemsize, align, rank, donated; const Dim *dims; } Port;

/* A program with its bound arguments. */
struct Executable {
  Run run;
  Measure measure;
  i64 symbols, bound, inputs, results, constants, dims; /* dims: of all results together */
  i64 bytes;            /* of this block */
  const i64 *preset;    /* symbols that the bound arguments decide; -1: open */
  const i64 *extents;   /* bytes of each bound argument */
  const Port *ports;    /* inputs, then results; the results' sizes come from measure */
  void **buffers;       /* bound arguments and constants in place, NULL elsewhere */
  Slot *slots, *free;
  Account *account;     /* NULL: no limit */
  Executable *next;     /* of all that take part in trimming */
  int closed, quick;    /* quick: python.c can find the symbols by itself */
  i64 view_bytes;       /* what python.c wants behind a slot for one view */
  void (*forget)(Slot *slot); /* python.c: drop a slot's objects */
  PyObject *keep, *empty, *dtypes, *foreign, *view_name, *dtype_name;
};

Slot *smelt_take(Executable *executable);  /* NULL: no memory */
void smelt_give(Slot *slot);
int smelt_measure(Slot *slot);             /* of slot->symbols: 0, 1 + the failed check, or SMELT_NO_MEMORY */
int smelt_execute(Slot *slot);             /* after measure, with all buffers in place: the program's status */
void smelt_cancel(Executable *executable); /* stops the calls that run now, not later ones */
void smelt_trim(Executable *executable);   /* gives back the memory of idle slots */
void smelt_register(Executable *executable); /* idle memory of it is given back by later calls, whosoever they are */
void smelt_unregister(Executable *executable);
int smelt_charge(Account *account, i64 bytes); /* fixed bytes, negative ones go back; 0 = ok, 1 = no, 2 = not now */
void smelt_close(Executable *executable);

#endif
