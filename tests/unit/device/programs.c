/* Programs written by hand against the runtime's contract, as the kernel compiler writes them. smelt.h comes first. */

/* ---- y = 2 x, by one thread */
int twice_measure(const i64 *s, i64 *out) { out[0] = out[1] = 0, out[2] = s[0]; return 0; }
int twice_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  (void)rt, (void)ctx;
  const float *x = b[0];
  float *y = b[1];
  for (i64 i = 0; i < s[0]; i++) y[i] = 2 * x[i];
  return 0;
}

/* ---- how [0, N) was divided: per element how often it was visited, by whom, and where its piece began */
typedef struct { const Runtime *rt; Context *ctx; int *visits, *worker; i64 *begin; i64 *nested; } Cover;
static void visit(void *given, i64 begin, i64 end, i64 worker) {
  Cover *c = given;
  for (i64 i = begin; i < end; i++) c->visits[i]++, c->worker[i] = (int)worker, c->begin[i] = begin;
}
int cover_measure(const i64 *s, i64 *out) {
  out[0] = out[1] = 0, out[2] = out[3] = out[4] = s[0];
  return 0;
}
int cover_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  Cover c = {rt, ctx, b[2], b[3], b[4], 0};
  for (i64 i = 0; i < s[0]; i++) c.visits[i] = 0;
  rt->parallel(rt, ctx, visit, &c, s[0], *(const i64 *)b[1]);
  return 0;
}

/* ---- a parallel step inside another: for each of N outer elements, how many inner ones, and a worker that differed */
static void inner(void *given, i64 begin, i64 end, i64 worker) {
  i64 *told = given;
  told[0] += end - begin, told[1] |= worker ^ told[2];
}
static void outer(void *given, i64 begin, i64 end, i64 worker) {
  Cover *c = given;
  for (i64 i = begin; i < end; i++) {
    i64 told[3] = {0, 0, worker};
    c->rt->parallel(c->rt, c->ctx, inner, told, 100, 1);
    c->nested[i] = told[1] ? -1 : told[0];
  }
}
int nested_measure(const i64 *s, i64 *out) { out[0] = out[1] = 0, out[2] = s[0]; return 0; }
int nested_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  Cover c = {rt, ctx, 0, 0, 0, b[1]};
  rt->parallel(rt, ctx, outer, &c, s[0], 1);
  return 0;
}

/* ---- the sum of bound * x + constant, in blocks of 64 over arena and scratch; the order belongs to the problem */
typedef struct { Context *ctx; const double *w, *x; double c, *parts; i64 n; int odd; } Sum;
static void add(void *given, i64 begin, i64 end, i64 worker) {
  Sum *sum = given;
  double *scratch = (double *)(sum->ctx->scratch + worker * sum->ctx->scratch_stride);
  if ((unsigned long)scratch % 64) sum->odd = 1;
  for (i64 block = begin; block < end; block++) {
    *scratch = 0;
    for (i64 i = block * 64; i < sum->n && i < block * 64 + 64; i++) *scratch += sum->w[i] * sum->x[i] + sum->c;
    sum->parts[block] = *scratch;
  }
}
int sum_measure(const i64 *s, i64 *out) { out[0] = (s[0] + 63) / 64 * 8, out[1] = 8; return 0; }
int sum_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  Sum sum = {ctx, b[0], b[1], *(double *)b[3], (double *)ctx->arena, s[0], 0};
  i64 blocks = (s[0] + 63) / 64;
  rt->parallel(rt, ctx, add, &sum, blocks, 1);
  if (sum.odd || (unsigned long)ctx->arena % 64 || (unsigned long)b[3] % 64) return 1;
  double total = 0;
  for (i64 i = 0; i < blocks; i++) total += sum.parts[i];
  *(double *)b[2] = total;
  return 0;
}

/* ---- runs until it is cancelled, in a parallel step; says in its result that it has begun */
typedef struct { Context *ctx; volatile int *begun; } Hold;
static void wait_here(void *given, i64 begin, i64 end, i64 worker) {
  Hold *hold = given;
  (void)begin, (void)end, (void)worker;
  *hold->begun = 1;
  while (!(*hold->ctx->cancel && hold->ctx->stop(hold->ctx))) {}
}
int hold_measure(const i64 *s, i64 *out) { (void)s, out[0] = out[1] = 0; return 0; }
int hold_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  Hold hold = {ctx, b[2]};
  (void)s;
  rt->parallel(rt, ctx, wait_here, &hold, 2, 1);
  return *ctx->cancel && ctx->stop(ctx) ? SMELT_CANCELLED : 0;
}

/* ---- fails with status x[0] and the record 10 x[0], 11, 0, …; its sizes must be at least 2 */
int fail_measure(const i64 *s, i64 *out) { out[0] = out[1] = 0, out[2] = 1; return s[0] < 2 ? 1 + 4 : 0; }
int fail_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  (void)rt, (void)s;
  int status = (int)*(i64 *)b[0];
  ctx->record[0] = 10 * status, ctx->record[1] = 11;
  *(i64 *)b[1] = 5;
  return status;
}

/* ---- an arena of x bytes */
int hungry_measure(const i64 *s, i64 *out) { out[0] = s[0] << 40, out[1] = 0; return 0; }
int hungry_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  (void)rt, (void)ctx, (void)s;
  *(float *)b[1] = 0;
  return 0;
}

/* ---- the values above zero, and two rows of as many indices; only data tells how many */
int above_measure(const i64 *s, i64 *out) { (void)s, out[0] = out[1] = 0, out[2] = -1, out[3] = 2, out[4] = -1; return 0; }
int above_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  const float *x = b[0];
  i64 n = 0, at = 0;
  for (i64 i = 0; i < s[0]; i++) n += x[i] > 0;
  float *values = rt->grow(ctx, n * 4);
  i64 *places = rt->grow(ctx, n * 16);
  if (!values || !places || (unsigned long)values % 64 || (unsigned long)places % 64) return SMELT_NO_MEMORY;
  for (i64 i = 0; i < s[0]; i++)
    if (x[i] > 0) values[at] = x[i], places[at] = places[n + at] = i, at++;
  b[1] = values, b[2] = places;
  ctx->late[0] = n, ctx->late[2] = n;
  return 0;
}

/* ---- 16-bit elements as they are, and the sizes behind 2 N + 1 and N * M */
int same_measure(const i64 *s, i64 *out) { out[0] = out[1] = 0, out[2] = s[0]; return 0; }
int same_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  (void)rt, (void)ctx;
  for (i64 i = 0; i < s[0]; i++) ((short *)b[1])[i] = ((short *)b[0])[i];
  return 0;
}
int sizes_measure(const i64 *s, i64 *out) { (void)s, out[0] = out[1] = 0, out[2] = 2; return 0; }
int sizes_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  (void)rt, (void)ctx;
  ((i64 *)b[2])[0] = s[0], ((i64 *)b[2])[1] = s[1];
  return 0;
}

/* ---- arithmetic of the calling thread: 1 flushes small numbers to zero */
unsigned flush_to_zero(int on) {
#ifdef __x86_64__
  unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(on ? before | 0x8040 : before & ~0x8040u);
  return before >> 15 & 1;
#else
  return (void)on, 2;
#endif
}

/* ---- N workers of one step at once: each of N chunks returns when all have begun. How many workers there were. */
typedef struct { Context *ctx; _Atomic i64 begun, workers; i64 wanted; } Meeting;
static void meet(void *given, i64 begin, i64 end, i64 worker) {
  Meeting *meeting = given;
  (void)begin, (void)end;
  meeting->workers |= (i64)1 << worker;
  meeting->begun++;
  while (meeting->begun < meeting->wanted && !(*meeting->ctx->cancel && meeting->ctx->stop(meeting->ctx))) {}
}
int meeting_measure(const i64 *s, i64 *out) { (void)s, out[0] = out[1] = 0; return 0; }
int meeting_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  Meeting meeting = {ctx, 0, 0, s[0]};
  *(volatile i64 *)b[1] = -1; /* it has begun */
  rt->parallel(rt, ctx, meet, &meeting, s[0], 1);
  *(i64 *)b[1] = __builtin_popcountll((unsigned long long)meeting.workers);
  return *ctx->cancel && ctx->stop(ctx) ? SMELT_CANCELLED : 0;
}

/* ---- which of all calls this one was, with an arena of N MiB; where x[0] is not 0 it runs until it is stopped */
static _Atomic i64 tickets;
int ticket_measure(const i64 *s, i64 *out) { out[0] = s[0] << 20, out[1] = 0; return 0; }
int ticket_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {
  (void)rt, (void)s, *(i64 *)b[1] = tickets++;
  while (*(const float *)b[0] != 0 && !(*ctx->cancel && ctx->stop(ctx))) {}
  return *ctx->cancel && ctx->stop(ctx) ? SMELT_CANCELLED : 0;
}
