/* The entry from Python: a built-in function per executable that checks inputs, allocates the results, releases the GIL
 * and runs. It declares the part of Python's stable ABI that it uses, so it needs no Python.h.
 *
 * Only the common case is handled here. Everything else (another dtype or memory order, a wrong size, a data-dependent
 * size, no memory) returns None; `_slow` in device/runtime.py then handles the call, with proper messages. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef ptrdiff_t Py_ssize_t;
typedef struct {
  void *buf;
  PyObject *obj;
  Py_ssize_t len, itemsize;
  int readonly, ndim;
  char *format;
  Py_ssize_t *shape, *strides, *suboffsets;
  void *internal;
} Py_buffer;
typedef struct {
  const char *name;
  PyObject *(*function)(PyObject *self, PyObject *const *args, Py_ssize_t count);
  int flags;
  const char *doc;
} PyMethodDef;
enum { METH_FASTCALL = 0x80, PyBUF_WRITABLE = 0x1, PyBUF_FORMAT = 0x4, PyBUF_C_CONTIGUOUS = 0x38 };

#ifdef _WIN32
__declspec(dllimport)
#endif
extern PyObject _Py_NoneStruct;
void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object);
int PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
void PyBuffer_Release(Py_buffer *view);
PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *object, PyObject *name, ...);
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
PyObject *PyTuple_New(Py_ssize_t size);
Py_ssize_t PyTuple_Size(PyObject *tuple);
PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t index);
int PyTuple_SetItem(PyObject *tuple, Py_ssize_t index, PyObject *value);
PyObject *PyList_New(Py_ssize_t size);
int PyList_SetItem(PyObject *list, Py_ssize_t index, PyObject *value);
PyObject *PyLong_FromLongLong(long long value);
PyObject *PyUnicode_InternFromString(const char *text);
PyObject *PyCapsule_New(void *pointer, const char *name, void (*destructor)(PyObject *));
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);
PyObject *PyCFunction_NewEx(PyMethodDef *method, PyObject *self, PyObject *module);
long long PyLong_AsLongLong(PyObject *number);
PyObject *PyErr_NoMemory(void);
int PyErr_CheckSignals(void);
void PyErr_Fetch(PyObject **type, PyObject **value, PyObject **traceback);
void PyErr_Restore(PyObject *type, PyObject *value, PyObject *traceback);
void PyErr_Clear(void);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);

static const char CAPSULE[] = "smelt.executable";

static PyObject *none(void) {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

/* ------------------------------------------------------------------------------------------ arrays */

/* NumPy's kind letter of a buffer's format; 0 if it is not in native byte order. */
static int kind_of(const char *format) {
  if (!format) return 'u';
  if (*format == '@') format++;
  int complex = *format == 'Z';
  if (complex) format++;
  if (!*format || format[1]) return 0;
  if (complex) return *format == 'f' || *format == 'd' ? 'c' : 0;
  if (*format == '?') return 'b';
  if (strchr("bhilqn", *format)) return 'i';
  if (strchr("BHILQN", *format)) return 'u';
  return strchr("efd", *format) ? 'f' : 0;
}

/* Acquires a view of an array; 0 if it does not match the port. Dtypes without a buffer format (bfloat16, …) are viewed
 * as unsigned integers of the same size, after a check of the dtype. */
static int acquire(Executable *e, i64 port, PyObject *array, int flags, Py_buffer *view) {
  PyObject *foreign = PyTuple_GetItem(e->foreign, port), *seen = array;
  const Port *p = &e->ports[port];
  if (foreign != &_Py_NoneStruct) {
    PyObject *dtype = PyObject_GetAttr(array, e->dtype_name);
    if (dtype) Py_DecRef(dtype); /* the array keeps it alive; only its address is compared */
    if (dtype != foreign) return 0;
    seen = PyObject_CallMethodObjArgs(array, e->view_name, PyTuple_GetItem(e->dtypes, port), NULL);
    if (!seen) return 0;
  }
  int failed = PyObject_GetBuffer(seen, view, flags | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
  if (seen != array) Py_DecRef(seen); /* the view holds it */
  if (failed) return 0;
  if (view->itemsize == p->itemsize && view->ndim == p->rank && kind_of(view->format) == p->kind &&
      (uintptr_t)view->buf % (uintptr_t)p->align == 0)
    return 1;
  PyBuffer_Release(view);
  return 0;
}

static void release_views(Slot *slot, i64 count) {
  Py_buffer *views = slot->views;
  for (i64 i = 0; i < count; i++) PyBuffer_Release(&views[i]);
}

static int fits(const Port *port, const Py_ssize_t *shape, i64 *symbols) {
  for (i64 d = 0; d < port->rank; d++)
    if (!smelt_fit_dim(port->dims[d], (i64)shape[d], symbols)) return 0;
  return 1;
}

/* ------------------------------------------------------------------------------------------ one call */

/* Whether a donated input overlaps no other input and no bound argument. */
static int is_unaliased(const Slot *slot, i64 input) {
  Executable *e = slot->executable;
  const Py_buffer *views = slot->views, *view = &views[input];
  for (i64 i = 0; i < e->inputs; i++)
    if (i != input && smelt_overlaps(view->buf, view->len, views[i].buf, views[i].len)) return 0;
  for (i64 i = 0; i < e->bound; i++)
    if (smelt_overlaps(view->buf, view->len, slot->buffers[i], e->extents[i])) return 0;
  return 1;
}

/* Whether the inputs match their ports; `taken` counts the views that were acquired. */
static int take_inputs(Slot *slot, PyObject *inputs, i64 *taken) {
  Executable *e = slot->executable;
  Py_buffer *views = slot->views;
  memcpy(slot->symbols, e->preset, (size_t)e->symbols * sizeof(i64));
  for (i64 i = 0; i < e->inputs; i++) {
    int flags = e->ports[i].donated ? PyBUF_WRITABLE : 0;
    if (!acquire(e, i, PyTuple_GetItem(inputs, i), flags, &views[i])) return 0;
    ++*taken;
    if (!fits(&e->ports[i], views[i].shape, slot->symbols)) return 0;
    slot->buffers[e->bound + i] = views[i].buf;
  }
  for (i64 i = 0; i < e->inputs; i++)
    if (e->ports[i].donated && !is_unaliased(slot, i)) return 0;
  return 1;
}

static int make_shapes(Slot *slot) {
  Executable *e = slot->executable;
  const i64 *sizes = slot->measured + 2;
  for (i64 r = 0; r < e->results; r++) {
    i64 rank = e->ports[e->inputs + r].rank;
    PyObject *shape = PyTuple_New(rank);
    if (!shape) return 0;
    slot->shapes[r] = shape;
    for (i64 d = 0; d < rank; d++) {
      PyObject *size = sizes[d] < 0 ? NULL : PyLong_FromLongLong(sizes[d]);
      if (!size) return 0;
      PyTuple_SetItem(shape, d, size);
    }
    sizes += rank;
  }
  return 1;
}

static void forget(Slot *slot) {
  for (i64 r = 0; r < slot->executable->results; r++) {
    PyObject *shape = slot->shapes[r];
    slot->shapes[r] = NULL;
    if (shape) Py_DecRef(shape);
  }
}

/* A tuple of the results: new arrays, or the donated inputs whose memory they reuse; `taken` counts the views that were
 * acquired. */
static PyObject *make_results(Slot *slot, PyObject *inputs, i64 *taken) {
  Executable *e = slot->executable;
  Py_buffer *views = slot->views;
  if (e->results && !slot->shapes[e->results - 1] && !make_shapes(slot)) {
    forget(slot);
    return NULL;
  }
  PyObject *results = PyTuple_New(e->results);
  if (!results) return NULL;
  for (i64 r = 0; r < e->results; r++) {
    i64 port = e->inputs + r, donated = e->ports[port].donated;
    if (donated) {
      PyObject *given = PyTuple_GetItem(inputs, donated - 1);
      if (!acquire(e, port, given, PyBUF_WRITABLE, &views[port])) {
        Py_DecRef(results);
        return NULL;
      }
      ++*taken;
      slot->buffers[e->bound + port] = views[port].buf;
      Py_IncRef(given);
      PyTuple_SetItem(results, r, given);
      continue;
    }
    PyObject *array = PyObject_CallFunctionObjArgs(e->empty, slot->shapes[r], PyTuple_GetItem(e->dtypes, port), NULL);
    int failed = !array || PyObject_GetBuffer(array, &views[port], PyBUF_WRITABLE);
    PyObject *foreign = PyTuple_GetItem(e->foreign, port);
    if (!failed && foreign != &_Py_NoneStruct) {
      PyObject *other = PyObject_CallMethodObjArgs(array, e->view_name, foreign, NULL);
      Py_DecRef(array);
      array = other;
    }
    *taken += !failed;
    if (failed || !array) {
      if (array) Py_DecRef(array);
      Py_DecRef(results);
      return NULL;
    }
    slot->buffers[e->bound + port] = views[port].buf;
    PyTuple_SetItem(results, r, array);
  }
  return results;
}

/* The caller's arrays as results: they must match exactly and overlap neither inputs nor each other. */
static PyObject *take_results(Slot *slot, PyObject *results, i64 *taken) {
  Executable *e = slot->executable;
  Py_buffer *views = slot->views;
  const i64 *sizes = slot->measured + 2;
  if (PyTuple_Size(results) != e->results) return NULL;
  for (i64 r = 0; r < e->results; r++) {
    i64 port = e->inputs + r, rank = e->ports[port].rank;
    if (e->ports[port].donated) return NULL;
    Py_buffer *view = &views[port];
    if (!acquire(e, port, PyTuple_GetItem(results, r), PyBUF_WRITABLE, view)) return NULL;
    ++*taken;
    for (i64 d = 0; d < rank; d++)
      if (view->shape[d] != sizes[d]) return NULL;
    sizes += rank;
    for (i64 other = 0; other < port; other++)
      if (smelt_overlaps(view->buf, view->len, views[other].buf, views[other].len)) return NULL;
    for (i64 i = 0; i < e->bound; i++)
      if (smelt_overlaps(view->buf, view->len, slot->buffers[i], e->extents[i])) return NULL;
    slot->buffers[e->bound + port] = view->buf;
  }
  Py_IncRef(results);
  return results;
}

/* Runs the handlers of signals that arrived while the GIL was released; saves the exception of a handler. */
static int handle_signals(Slot *slot) {
  PyEval_RestoreThread(slot->state);
  int raised = PyErr_CheckSignals();
  if (raised) PyErr_Fetch(&slot->raised[0], &slot->raised[1], &slot->raised[2]);
  slot->state = PyEval_SaveThread();
  return raised != 0;
}

static int execute(Slot *slot) {
  slot->state = PyEval_SaveThread();
  int status = smelt_execute(slot);
  PyEval_RestoreThread(slot->state);
  return status;
}

static void raise_again(Slot *slot) {
  PyErr_Restore(slot->raised[0], slot->raised[1], slot->raised[2]);
  slot->raised[0] = slot->raised[1] = slot->raised[2] = NULL;
}

/* A failure as a list: the status, whether the program had started, and the record. */
static PyObject *failure(int status, Slot *slot) {
  PyObject *list = PyList_New(10);
  if (!list) return NULL;
  for (int i = 0; i < 10; i++) {
    PyObject *number = PyLong_FromLongLong(i == 0 ? status : i == 1 ? slot->ran : slot->context.record[i - 2]);
    if (!number) {
      Py_DecRef(list);
      return NULL;
    }
    PyList_SetItem(list, i, number);
  }
  return list;
}

static void take_keep(Slot *slot) {
  slot->keep = slot->executable->keep;
  Py_IncRef(slot->keep);
}

static void give_back(Slot *slot) {
  PyObject *keep = slot->keep;
  slot->keep = NULL;
  smelt_give(slot);
  Py_DecRef(keep);
}

static void limit(Slot *slot, i64 left, i64 token) {
  if (left || token) smelt_limit(slot, left ? smelt_now() + left : 0, (const volatile int *)(intptr_t)token);
}

static PyObject *run_slot(Slot *slot, PyObject *inputs, PyObject *out) {
  i64 taken = 0;
  PyObject *results = NULL;
  if (take_inputs(slot, inputs, &taken) && smelt_all_known(slot) && !smelt_measure(slot))
    results = out ? take_results(slot, out, &taken) : make_results(slot, inputs, &taken);
  if (results) {
    if (slot->executable->account && !out) slot->results = smelt_new_bytes(slot);
    int status = execute(slot);
    if (status) {
      Py_DecRef(results);
      results = failure(status, slot);
    }
  } else {
    PyErr_Clear(); /* `_slow` finds the same problem and reports it */
    results = none();
  }
  release_views(slot, taken);
  if (slot->raised[0]) {
    if (results) Py_DecRef(results);
    raise_again(slot);
    return NULL;
  }
  return results;
}

/* call(inputs, out) or call(inputs, out, nanoseconds, address of a flag) → the results. None: use `_slow`. A list: the
 * program failed. The call ends after the nanoseconds, or when the flag is set; 0: no limit, no flag. */
static PyObject *call(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  Executable *e = PyCapsule_GetPointer(self, CAPSULE);
  if (!e) return NULL;
  if ((count != 2 && count != 4) || e->closed || !e->quick || PyTuple_Size(args[0]) != e->inputs) {
    PyErr_Clear();
    return none();
  }
  Slot *slot = smelt_take(e);
  if (!slot) return none(); /* `_slow` reports that there is no memory */
  take_keep(slot);
  if (count == 4) limit(slot, PyLong_AsLongLong(args[2]), PyLong_AsLongLong(args[3]));
  PyObject *results = run_slot(slot, args[0], args[1] == &_Py_NoneStruct ? NULL : args[1]);
  give_back(slot);
  return results;
}

static PyMethodDef method = {"call", call, METH_FASTCALL, "call(inputs, out): run on arrays; None: use the slow path"};

/* ------------------------------------------------------------------------------------------ the life of an executable */

static void drop(PyObject **field) {
  PyObject *object = *field;
  *field = NULL;
  if (object) Py_DecRef(object);
}

static void destroy_executable(PyObject *capsule) {
  Executable *e = PyCapsule_GetPointer(capsule, CAPSULE);
  smelt_unregister(e);
  smelt_close(e); /* no call is running: it would hold a reference to the function, which holds the capsule */
  drop(&e->keep), drop(&e->empty), drop(&e->dtypes), drop(&e->foreign), drop(&e->view_name), drop(&e->dtype_name);
  smelt_release(e, e->bytes);
}

/* layout, pointers: as for `smelt_make`. objects: keep, numpy.empty, the dtypes with the buffer protocol of inputs and
 * results, and for each None or its real dtype. Returns the built-in function. */
PyObject *smelt_bind(const i64 *layout, i64 numbers, void **pointers, PyObject *objects) {
  Executable *e = smelt_make(layout, numbers, pointers, NULL);
  if (!e) return PyErr_NoMemory();
  e->view_bytes = sizeof(Py_buffer), e->forget = forget;
  PyObject **fields[] = {&e->keep, &e->empty, &e->dtypes, &e->foreign};
  for (int i = 0; i < 4; i++) Py_IncRef(*fields[i] = PyTuple_GetItem(objects, i));
  e->view_name = PyUnicode_InternFromString("view");
  e->dtype_name = PyUnicode_InternFromString("dtype");
  PyObject *capsule = PyCapsule_New(e, CAPSULE, destroy_executable);
  if (!capsule) return NULL;
  smelt_register(e);
  smelt_signals = handle_signals;
  PyObject *function = PyCFunction_NewEx(&method, capsule, NULL);
  Py_DecRef(capsule); /* the function holds it */
  return function;
}

/* The functions that `_slow` calls, with the GIL held. */

Executable *smelt_executable(PyObject *capsule) { return PyCapsule_GetPointer(capsule, CAPSULE); }

Slot *smelt_slot_take(Executable *e, i64 left, i64 token) {
  if (e->closed) return NULL;
  Slot *slot = smelt_take(e);
  if (!slot) return NULL;
  take_keep(slot);
  limit(slot, left, token);
  return slot;
}

void smelt_slot_give(Slot *slot) { give_back(slot); }

int smelt_slot_measure(Slot *slot, const i64 *symbols) {
  memcpy(slot->symbols, symbols, (size_t)slot->executable->symbols * sizeof(i64));
  return smelt_measure(slot);
}

/* arrays: pointers of inputs and results; that of a late result is NULL, and is set to the program's buffer.
 * results, copies: bytes of results that were allocated for the call, and of copies of inputs. May raise. */
int smelt_slot_run(Slot *slot, void **arrays, i64 results, i64 copies) {
  Executable *e = slot->executable;
  i64 bytes = (e->inputs + e->results) * (i64)sizeof(void *);
  memcpy(slot->buffers + e->bound, arrays, (size_t)bytes);
  if (e->account) slot->results = results, slot->outside = copies;
  int status = execute(slot);
  memcpy(arrays, slot->buffers + e->bound, (size_t)bytes);
  if (slot->raised[0]) raise_again(slot);
  return status;
}

/* Whether the program has started. */
int smelt_slot_ran(const Slot *slot) { return slot->ran; }

void smelt_set_account(Executable *e, Account *account) { e->account = account; }

const i64 *smelt_slot_measured(Slot *slot) { return slot->measured; }

const i64 *smelt_slot_late(Slot *slot) { return slot->late; }

const i64 *smelt_slot_record(Slot *slot) { return slot->context.record; }

void smelt_shut(Executable *e) {
  smelt_close(e);
  Py_IncRef(&_Py_NoneStruct);
  PyObject *keep = e->keep;
  e->keep = &_Py_NoneStruct;
  Py_DecRef(keep);
}
