/* A language model as a program: a conversation on a terminal, one answer, or the completion of a text.
 *
 * Every turn the whole conversation is encoded; tokens that the cache holds already are not computed again. */
#define _GNU_SOURCE
#include "chat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ERROR = 1, USAGE = 2, DEFAULT_CONTEXT = 4096, LINE = 1 << 16 };

int MODEL_CREATE(const smelt_options *options, smelt_model **model);

typedef struct {
  const char *prompt, *system, *weights;
  int raw, ids, stats, threads;
  long context, most;
  double temperature, top_p;
  unsigned long long seed;
} Request;

/* The step's arguments. Keys and values are in pages of one sequence: page i of the pools is page i of the sequence. */
typedef struct {
  smelt_model *model;
  smelt_tensor *inputs, *outputs;
  int32_t *tokens, *table, *sequence, *position, *page, *place, row;
  float *logits, *states;
  List known; /* tokens whose keys and values the cache holds */
  int64_t context;
} Session;

/* A text under construction. */
typedef struct {
  char *bytes;
  size_t length, room;
} Text;

static int refuse(const char *message, const char *expected, const char *got) {
  fprintf(stderr, "error %s\n", message);
  if (expected) fprintf(stderr, "  expected %s\n", expected);
  if (got) fprintf(stderr, "  got      %s\n", got);
  return 0;
}

static int no_memory(void) { return refuse("no memory left", NULL, NULL); }

static int append(Text *text, const char *bytes, size_t length) {
  if (text->length + length + 1 > text->room) {
    size_t room = 2 * (text->length + length + 1);
    char *larger = realloc(text->bytes, room);
    if (!larger) return no_memory();
    text->bytes = larger, text->room = room;
  }
  memcpy(text->bytes + text->length, bytes, length);
  text->length += length;
  text->bytes[text->length] = 0;
  return 1;
}

/* ------------------------------------------------------------------------------------------ the step */

static smelt_tensor tensor(int32_t dtype, int32_t rank, const int64_t *sizes, void *data, int64_t bytes) {
  smelt_tensor made = {.dtype = dtype, .rank = rank, .data = data, .bytes = bytes};
  memcpy(made.sizes, sizes, (size_t)rank * sizeof *sizes);
  return made;
}

static int open_session(Session *session, smelt_model *model, int64_t context) {
  int64_t pages = (context + chat.page - 1) / chat.page, pools = 2 * (int64_t)chat.layers;
  size_t steps = (size_t)chat.chunk * sizeof(int32_t);
  session->model = model, session->context = context;
  session->inputs = calloc((size_t)pools + 7, sizeof *session->inputs);
  session->outputs = calloc((size_t)pools + 2, sizeof *session->outputs);
  session->tokens = malloc(steps), session->sequence = calloc((size_t)chat.chunk, sizeof(int32_t));
  session->position = malloc(steps), session->page = malloc(steps), session->place = malloc(steps);
  session->table = malloc((size_t)pages * sizeof(int32_t));
  session->logits = malloc((size_t)chat.vocabulary * sizeof(float));
  session->states = malloc((size_t)chat.width * sizeof(float));
  if (!session->inputs || !session->outputs || !session->tokens || !session->sequence || !session->position ||
      !session->page || !session->place || !session->table || !session->logits || !session->states)
    return no_memory();
  for (int64_t i = 0; i < pages; i++) session->table[i] = (int32_t)i;
  for (int64_t i = 0; i < pools; i++) { /* pages that are not used yet take no memory */
    const int64_t *page = i % 2 ? chat.values : chat.keys;
    int64_t sizes[5] = {pages}, bytes = pages * chat.cache_itemsize;
    for (int d = 1; d < chat.cache_rank; d++) sizes[d] = page[d - 1], bytes *= page[d - 1];
    void *pool = calloc(1, (size_t)bytes);
    if (!pool) return no_memory();
    session->inputs[1 + i] = tensor(chat.cache_dtype, chat.cache_rank, sizes, pool, bytes);
  }
  return 1;
}

/* Computes the logits after some more tokens of the sequence. */
static int step(Session *session, const int32_t *tokens, int64_t count) {
  int64_t begin = session->known.count, pages = (begin + count + chat.page - 1) / chat.page, one = 1;
  int64_t table[] = {1, pages}, bytes = count * (int64_t)sizeof(int32_t);
  for (int64_t i = 0; i < count; i++) {
    session->tokens[i] = tokens[i], session->position[i] = (int32_t)(begin + i);
    session->page[i] = (int32_t)((begin + i) / chat.page), session->place[i] = (int32_t)((begin + i) % chat.page);
  }
  session->row = (int32_t)(count - 1);
  smelt_tensor *rest = session->inputs + 1 + 2 * chat.layers;
  session->inputs[0] = tensor(SMELT_I32, 1, &count, session->tokens, bytes);
  rest[0] = tensor(SMELT_I32, 2, table, session->table, pages * (int64_t)sizeof(int32_t));
  int32_t *each[] = {session->sequence, session->position, session->page, session->place};
  for (int i = 0; i < 4; i++) rest[1 + i] = tensor(SMELT_I32, 1, &count, each[i], bytes);
  rest[5] = tensor(SMELT_I32, 1, &one, &session->row, sizeof session->row);
  session->outputs[0].data = session->logits, session->outputs[0].bytes = chat.vocabulary * (int64_t)sizeof(float);
  session->outputs[1].data = session->states, session->outputs[1].bytes = chat.width * (int64_t)sizeof(float);
  if (smelt_model_call(session->model, session->inputs, session->outputs)) return refuse(smelt_error(), NULL, NULL);
  for (int64_t i = 0; i < count; i++)
    if (!push(&session->known, tokens[i])) return no_memory();
  return 1;
}

/* Computes a prompt, from the first token on that the cache does not hold. */
static int read_prompt(Session *session, const List *prompt) {
  int64_t same = 0, most = prompt->count - 1;
  while (same < most && same < session->known.count && session->known.items[same] == prompt->items[same]) same++;
  session->known.count = same;
  for (int64_t at = same; at < prompt->count;) {
    int64_t count = prompt->count - at < chat.chunk ? prompt->count - at : chat.chunk;
    if (!step(session, prompt->items + at, count)) return 0;
    at += count;
  }
  return 1;
}

/* ------------------------------------------------------------------------------------------ choosing a token */

static double draw(unsigned long long *state) { /* splitmix64, in [0, 1) */
  unsigned long long word = *state += 0x9e3779b97f4a7c15ULL;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ word >> 27) * 0x94d049bb133111ebULL;
  return (double)((word ^ word >> 31) >> 11) * 0x1p-53;
}

typedef struct { double share; int32_t token; } Candidate;

static int by_share(const void *a, const void *b) {
  const Candidate *x = a, *y = b;
  return x->share > y->share ? -1 : x->share < y->share ? 1 : x->token - y->token;
}

static int32_t likeliest(const float *logits) {
  int32_t best = 0;
  for (int32_t i = 1; i < chat.vocabulary; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

/* A token by chance among the likeliest ones that together have the probability top_p; -1: no memory. */
static int32_t choose(const float *logits, const Request *request, unsigned long long *random) {
  int32_t best = likeliest(logits), count = 0;
  if (request->temperature <= 0) return best;
  Candidate *candidates = malloc((size_t)chat.vocabulary * sizeof *candidates);
  if (!candidates) return no_memory(), -1;
  double sum = 0, least = (1 - request->top_p) / chat.vocabulary; /* less likely ones never reach top_p */
  for (int32_t i = 0; i < chat.vocabulary; i++) sum += exp((logits[i] - (double)logits[best]) / request->temperature);
  for (int32_t i = 0; i < chat.vocabulary; i++) {
    double share = exp((logits[i] - (double)logits[best]) / request->temperature) / sum;
    if (share >= least && share > 0) candidates[count++] = (Candidate){share, i};
  }
  if (!count) return free(candidates), best; /* the logits are not finite */
  qsort(candidates, (size_t)count, sizeof *candidates, by_share);
  double total = 0;
  int32_t kept = 0;
  while (kept < count && (kept == 0 || total < request->top_p)) total += candidates[kept++].share;
  double place = draw(random) * total;
  int32_t chosen = 0;
  while (chosen < kept - 1 && (place -= candidates[chosen].share) >= 0) chosen++;
  int32_t token = candidates[chosen].token;
  free(candidates);
  return token;
}

/* ------------------------------------------------------------------------------------------ an answer */

/* The bytes at the end that begin a character and do not end it. */
static size_t unfinished(const char *bytes, size_t length) {
  for (size_t back = 1; back <= 3 && back <= length; back++) {
    unsigned char byte = (unsigned char)bytes[length - back];
    if (byte >> 6 == 2) continue;
    size_t whole = byte >> 5 == 6 ? 2 : byte >> 4 == 14 ? 3 : byte >> 3 == 30 ? 4 : 1;
    return whole > back ? back : 0;
  }
  return 0;
}

static int is_stop(int32_t token) {
  for (int32_t i = 0; i < chat.stop_count; i++)
    if (chat.stops[i] == token) return 1;
  return 0;
}

/* Adds a token's text to an answer, and writes what is certain of it. */
static int show(Text *answer, size_t *shown, int32_t token, const Request *request) {
  const Tokens *tokens = chat.tokens;
  if (request->ids) printf("%d ", token);
  if (token >= tokens->size || tokens->kinds[token] == SPECIAL_TOKEN) return 1;
  const char *bytes = (const char *)tokens->bytes + tokens->offsets[token];
  size_t length = tokens->offsets[token + 1] - tokens->offsets[token];
  if (tokens->strips && !answer->length && length && *bytes == ' ') bytes++, length--;
  if (!append(answer, bytes, length)) return 0;
  size_t certain = answer->length - unfinished(answer->bytes, answer->length);
  if (!request->ids && certain > *shown) fwrite(answer->bytes + *shown, 1, certain - *shown, stdout);
  *shown = certain;
  fflush(stdout);
  return 1;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int generate(Session *session, const Request *request, const List *prompt, Text *answer) {
  unsigned long long random = request->seed;
  if (!prompt->count) return refuse("the text has no tokens", NULL, NULL);
  if (prompt->count >= session->context) {
    fprintf(stderr, "error too many tokens for the context\n  expected at most %lld\n  got      %lld\n  try      --context\n",
            (long long)session->context - 1, (long long)prompt->count);
    return 0;
  }
  double begin = now();
  if (!read_prompt(session, prompt)) return 0;
  double first = now();
  size_t shown = 0;
  long made = 0;
  for (; made < request->most; made++) {
    int32_t token = choose(session->logits, request, &random);
    if (token < 0) return 0;
    if (is_stop(token)) break;
    if (!show(answer, &shown, token, request)) return 0;
    if (session->known.count + 1 >= session->context) {
      made++;
      break;
    }
    if (made + 1 < request->most && !step(session, &token, 1)) return 0;
  }
  if (answer->length > shown) { /* half a character */
    answer->length = shown;
    if (!append(answer, "\xEF\xBF\xBD", 3)) return 0;
    if (!request->ids) fwrite(answer->bytes + shown, 1, 3, stdout);
  }
  putchar('\n');
  fflush(stdout);
  double end = now();
  if (request->stats)
    fprintf(stderr, "prompt %lld tokens in %.3f s, answer %ld tokens in %.3f s (%.1f tokens/s)\n", (long long)prompt->count,
            first - begin, made, end - first, (double)made / (end - first));
  return 1;
}

/* ------------------------------------------------------------------------------------------ conversations */

static int append_message(Text *text, const char *message, size_t length) {
  if (chat.is_trimmed) {
    while (length && strchr(" \t\r\n\v\f", *message)) message++, length--;
    while (length && strchr(" \t\r\n\v\f", message[length - 1])) length--;
  }
  return append(text, message, length);
}

static int append_text(Text *text, const char *more) { return append(text, more, strlen(more)); }

/* The text before the first message. */
static int open_conversation(Text *text, const char *system) {
  if (!system) return append_text(text, chat.open);
  if (!chat.open_system)
    return refuse("the model's chat template has no system message", NULL, "--system");
  return append_text(text, chat.open_system) && append_message(text, system, strlen(system)) && append_text(text, chat.system_user);
}

/* Answers one message; `text` is the conversation so far and grows by both. */
static int answer_message(Session *session, const Request *request, Text *text, const char *message, size_t length) {
  List prompt = {0};
  Text answer = {0};
  if (!append_message(text, message, length)) return 0;
  size_t before = text->length;
  int done = append_text(text, chat.user_ask) && (encode(chat.tokens, text->bytes, text->length, &prompt) || no_memory()) &&
             generate(session, request, &prompt, &answer);
  text->length = before;
  done = done && append_text(text, chat.user_answer) && append_message(text, answer.bytes ? answer.bytes : "", answer.length) &&
         append_text(text, chat.answer_user);
  free(prompt.items), free(answer.bytes);
  return done;
}

static int complete(Session *session, const Request *request, const char *text) {
  List prompt = {0};
  Text answer = {0};
  for (int32_t i = 0; i < chat.tokens->begin_count; i++)
    if (!push(&prompt, chat.tokens->begin[i])) return no_memory();
  if (!encode(chat.tokens, text, strlen(text), &prompt)) return no_memory();
  int done = generate(session, request, &prompt, &answer);
  free(prompt.items), free(answer.bytes);
  return done;
}

/* One line, one message, until an empty line or the end of the input. */
static int converse(Session *session, const Request *request) {
  Text text = {0};
  char *line = malloc(LINE);
  int done = line && open_conversation(&text, request->system);
  while (done) {
    fputs("> ", stderr);
    if (!fgets(line, LINE, stdin)) break;
    size_t length = strcspn(line, "\r\n");
    if (!length) break;
    done = answer_message(session, request, &text, line, length);
  }
  free(line), free(text.bytes);
  return done;
}

static char *read_all(FILE *file) {
  Text text = {0};
  char bytes[4096];
  size_t got;
  if (!append(&text, "", 0)) return NULL;
  while ((got = fread(bytes, 1, sizeof bytes, file)))
    if (!append(&text, bytes, got)) return NULL;
  return text.bytes;
}

static int run(Session *session, const Request *request) {
  if (request->prompt && request->raw) return complete(session, request, request->prompt);
  if (!chat.open)
    return refuse("the model has no chat template", "--raw --prompt TEXT: the text is completed", NULL);
  if (!request->prompt) return converse(session, request);
  Text text = {0};
  int done = open_conversation(&text, request->system) &&
             answer_message(session, request, &text, request->prompt, strlen(request->prompt));
  free(text.bytes);
  return done;
}

/* ------------------------------------------------------------------------------------------ options */

static int print_help(void) {
  puts("A language model. Without --prompt it answers line by line; an empty line ends it.\n\noptions\n"
       "  --prompt TEXT        one message (- for stdin), one answer\n"
       "  --raw                complete the text of --prompt as it is, without the chat template\n"
       "  --system TEXT        the system message\n"
       "  --max-tokens N       of an answer; default 512\n"
       "  --temperature T      0, the default: the likeliest token each time\n"
       "  --top-p P            draw among the likeliest tokens that together have this probability; default 1\n"
       "  --seed N             of the draws; default 0\n"
       "  --context N          tokens of a conversation at most");
  printf("; default %d\n", chat.context < DEFAULT_CONTEXT ? chat.context : DEFAULT_CONTEXT);
  puts("  --threads N          threads, the caller included; default: one per processor\n"
       "  --weights FILE       the weights, of a model built with --weights separate\n"
       "  --stats              tokens and seconds, on stderr\n"
       "  --ids                numbers of tokens in place of text\n"
       "  --help               this text");
  return 1;
}

static int parse_number(const char *text, double low, double high, double *number) {
  char *end;
  *number = strtod(text, &end);
  return *text && !*end && *number >= low && *number <= high;
}

/* 1, 0 for a mistake, 2 for --help. */
static int parse(int count, char **arguments, Request *request) {
  for (int i = 1; i < count; i++) {
    const char *option = arguments[i];
    double number = 0;
    if (!strcmp(option, "--help") || !strcmp(option, "-h")) return print_help(), 2;
    if (!strcmp(option, "--raw")) request->raw = 1;
    else if (!strcmp(option, "--ids")) request->ids = 1;
    else if (!strcmp(option, "--stats")) request->stats = 1;
    else if (i + 1 == count) return refuse("an option is unknown, or needs a value", "--help lists them", option);
    else {
      const char *value = arguments[++i];
      int fits = 1;
      if (!strcmp(option, "--prompt") || !strcmp(option, "-p")) request->prompt = value;
      else if (!strcmp(option, "--system")) request->system = value;
      else if (!strcmp(option, "--weights")) request->weights = value;
      else if (!strcmp(option, "--max-tokens")) fits = parse_number(value, 1, 1e9, &number), request->most = (long)number;
      else if (!strcmp(option, "--temperature")) fits = parse_number(value, 0, 1e6, &request->temperature);
      else if (!strcmp(option, "--top-p")) fits = parse_number(value, 0, 1, &request->top_p);
      else if (!strcmp(option, "--seed")) request->seed = strtoull(value, NULL, 10);
      else if (!strcmp(option, "--context")) fits = parse_number(value, 2, chat.context, &number), request->context = (long)number;
      else if (!strcmp(option, "--threads")) fits = parse_number(value, 1, 256, &number), request->threads = (int)number;
      else return refuse("an option is unknown", "--help lists them", option);
      if (!fits) return refuse("a value is out of range", option, value);
    }
  }
  return 1;
}

/* The path of the weights beside this program. */
static const char *weights_beside(const char *program) {
  Text path = {0};
  return append_text(&path, program) && append_text(&path, ".weights") ? path.bytes : NULL;
}

int main(int count, char **arguments) {
  Request request = {.most = 512, .top_p = 1, .context = chat.context < DEFAULT_CONTEXT ? chat.context : DEFAULT_CONTEXT};
  int parsed = parse(count, arguments, &request);
  if (parsed != 1) return parsed ? 0 : USAGE;
  if (request.prompt && !strcmp(request.prompt, "-") && !(request.prompt = read_all(stdin))) return ERROR;
  smelt_options options = {.threads = request.threads, .weights = request.weights};
  if (!options.weights) options.weights = weights_beside(arguments[0]);
  smelt_model *model = NULL;
  if (MODEL_CREATE(&options, &model)) return refuse(smelt_error(), NULL, NULL), ERROR;
  Session session = {0};
  int done = open_session(&session, model, request.context) && run(&session, &request);
  smelt_model_destroy(model);
  return done ? 0 : ERROR;
}
