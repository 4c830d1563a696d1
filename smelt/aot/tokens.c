/* Text → tokens: special tokens, then pieces by regular expressions, then byte pairs. The same tokens as Python's. */
#include "chat.h"

#include <stdlib.h>
#include <string.h>

int push(List *list, int32_t item) {
  if (list->count == list->room) {
    int64_t room = list->room ? 2 * list->room : 64;
    int32_t *items = realloc(list->items, (size_t)room * sizeof *items);
    if (!items) return 0;
    list->items = items, list->room = room;
  }
  list->items[list->count++] = item;
  return 1;
}

/* ------------------------------------------------------------------------------------------ characters */

/* The code of the character at a place, and its bytes. A byte that begins none counts as one of its own. */
static uint32_t character(const char *text, size_t length, size_t *bytes) {
  const unsigned char *at = (const unsigned char *)text;
  size_t count = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
  uint32_t code = count == 1 ? *at : count ? *at & (0x7Fu >> count) : 0xFFFD;
  *bytes = 1;
  if (!count || count > length) return count == 1 ? code : 0xFFFD;
  for (size_t i = 1; i < count; i++) {
    if (at[i] >> 6 != 2) return 0xFFFD;
    code = code << 6 | (at[i] & 0x3F);
  }
  *bytes = count;
  return code;
}

static int is_in(const Tokens *tokens, int32_t set, uint32_t code) {
  int32_t low = tokens->set_starts[set], high = tokens->set_starts[set + 1];
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (code > tokens->ranges[2 * middle + 1]) low = middle + 1;
    else high = middle;
  }
  return low < tokens->set_starts[set + 1] && code >= tokens->ranges[2 * low];
}

/* ------------------------------------------------------------------------------------------ regular expressions */

enum { END, SET, SPLIT, JUMP, NOT }; /* as in regex.py; targets are relative */

/* Where a match that begins at a place ends: 0 if there is none, -1 without memory. The stack has places to return to. */
static int64_t match(const Tokens *tokens, const int32_t *code, const char *text, size_t length, size_t begin, List *stack) {
  stack->count = 0;
  int32_t at = 0;
  size_t place = begin, bytes = 0;
  for (;;) {
    const int32_t *word = code + at;
    if (*word == END) return (int64_t)place;
    if (*word == SPLIT) {
      if (!push(stack, at + word[2]) || !push(stack, (int32_t)(place - begin))) return -1;
      at += word[1];
      continue;
    }
    if (*word == JUMP) {
      at += word[1];
      continue;
    }
    int found = place < length && is_in(tokens, word[1], character(text + place, length - place, &bytes));
    if (found == (*word == SET)) {
      if (found) place += bytes;
      at += 2;
    } else if (stack->count) place = begin + (size_t)stack->items[--stack->count], at = stack->items[--stack->count];
    else return 0;
  }
}

/* ------------------------------------------------------------------------------------------ byte pairs */

typedef struct {
  int32_t *token, *next; /* next: -1 at the end */
  uint32_t *rank;        /* of the merge with the next one */
  int32_t count, room;
} Word;

static int64_t find_pair(const Tokens *tokens, int32_t left, int32_t right) {
  if (left < 0 || right < 0) return -1;
  uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
  int64_t low = 0, high = tokens->pair_count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (tokens->pairs[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low < tokens->pair_count && tokens->pairs[low] == key ? low : -1;
}

static uint32_t rank_at(const Tokens *tokens, const Word *word, int32_t i) {
  int64_t pair = word->next[i] < 0 ? -1 : find_pair(tokens, word->token[i], word->token[word->next[i]]);
  return pair < 0 ? UINT32_MAX : tokens->ranks[pair];
}

static int add_symbol(Word *word, int32_t token) {
  if (word->count == word->room) {
    int32_t room = word->room ? 2 * word->room : 256;
    int32_t *token_room = realloc(word->token, (size_t)room * 4);
    if (token_room) word->token = token_room;
    int32_t *next_room = realloc(word->next, (size_t)room * 4);
    if (next_room) word->next = next_room;
    uint32_t *rank_room = realloc(word->rank, (size_t)room * 4);
    if (rank_room) word->rank = rank_room;
    if (!token_room || !next_room || !rank_room) return 0;
    word->room = room;
  }
  word->token[word->count++] = token;
  return 1;
}

/* The pair of the least rank is merged, the first of equal ones, until there is none. */
static int merge(const Tokens *tokens, Word *word, List *out) {
  for (int32_t i = 0; i < word->count; i++) word->next[i] = i + 1 < word->count ? i + 1 : -1;
  for (int32_t i = 0; i < word->count; i++) word->rank[i] = rank_at(tokens, word, i);
  for (;;) {
    int32_t best = -1, before = -1, last = -1;
    for (int32_t i = 0; i >= 0 && word->count; last = i, i = word->next[i])
      if (word->rank[i] != UINT32_MAX && (best < 0 || word->rank[i] < word->rank[best])) best = i, before = last;
    if (best < 0) break;
    int64_t pair = find_pair(tokens, word->token[best], word->token[word->next[best]]);
    word->token[best] = tokens->results[pair];
    word->next[best] = word->next[word->next[best]];
    word->rank[best] = rank_at(tokens, word, best);
    if (before >= 0) word->rank[before] = rank_at(tokens, word, before);
  }
  for (int32_t i = word->count ? 0 : -1; i >= 0; i = word->next[i])
    if (word->token[i] >= 0 && !push(out, word->token[i])) return 0;
  return 1;
}

/* The token with exactly these bytes, or -1. */
static int32_t find_whole(const Tokens *tokens, const char *text, size_t length) {
  int32_t low = 0, high = tokens->sorted_count;
  while (low < high) {
    int32_t middle = low + (high - low) / 2, token = tokens->sorted[middle];
    size_t bytes = tokens->offsets[token + 1] - tokens->offsets[token];
    int order = memcmp(tokens->bytes + tokens->offsets[token], text, bytes < length ? bytes : length);
    if (!order) order = bytes < length ? -1 : bytes > length;
    if (!order) return token;
    if (order < 0) low = middle + 1;
    else high = middle;
  }
  return -1;
}

static int encode_bytes(const Tokens *tokens, Word *word, const char *text, size_t length, List *out) {
  int32_t whole = tokens->is_whole ? find_whole(tokens, text, length) : -1;
  if (whole >= 0) return push(out, whole);
  word->count = 0;
  for (size_t i = 0; i < length; i++)
    if (tokens->single[(unsigned char)text[i]] >= 0 && !add_symbol(word, tokens->single[(unsigned char)text[i]])) return 0;
  return merge(tokens, word, out);
}

/* ------------------------------------------------------------------------------------------ characters with a byte fallback */

static int32_t find_character(const Tokens *tokens, uint32_t code) {
  int32_t low = 0, high = tokens->character_count;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (tokens->characters[middle] < code) low = middle + 1;
    else high = middle;
  }
  return low < tokens->character_count && tokens->characters[low] == code ? tokens->character_tokens[low] : -1;
}

static int add_unknown(const Tokens *tokens, Word *word, const char *text, size_t bytes, int *was_unknown) {
  int known = 1;
  for (size_t i = 0; i < bytes; i++) known &= tokens->single[(unsigned char)text[i]] >= 0;
  if (known) {
    *was_unknown = 0;
    for (size_t i = 0; i < bytes; i++)
      if (!add_symbol(word, tokens->single[(unsigned char)text[i]])) return 0;
    return 1;
  }
  int fused = *was_unknown && tokens->fuses_unknown;
  *was_unknown = 1;
  return fused || tokens->unknown < 0 || add_symbol(word, tokens->unknown);
}

static int add_character(const Tokens *tokens, Word *word, const char *text, size_t bytes, uint32_t code, int *was_unknown) {
  int32_t token = find_character(tokens, code);
  if (token < 0) return add_unknown(tokens, word, text, bytes, was_unknown);
  *was_unknown = 0;
  return add_symbol(word, token);
}

static int encode_characters(const Tokens *tokens, Word *word, const char *text, size_t length, List *out) {
  enum { SPACE = 0x2581 };
  static const char space[] = "\xE2\x96\x81";
  int was_unknown = 0;
  word->count = 0;
  if (tokens->prepend && !add_character(tokens, word, space, 3, SPACE, &was_unknown)) return 0;
  for (size_t at = 0, bytes = 0; at < length; at += bytes) {
    uint32_t code = character(text + at, length - at, &bytes);
    int is_space = code == ' ' && tokens->replace;
    if (!add_character(tokens, word, is_space ? space : text + at, is_space ? 3 : bytes, is_space ? SPACE : code, &was_unknown))
      return 0;
  }
  return merge(tokens, word, out);
}

/* ------------------------------------------------------------------------------------------ whole texts */

/* Splits a piece by the pattern of a number, and its pieces by the later ones. Matches are pieces, and so is what is between. */
static int split(const Tokens *tokens, int32_t number, Word *word, const char *text, size_t length, List *out) {
  if (number == tokens->program_count) return !length || encode_bytes(tokens, word, text, length, out);
  const int32_t *code = tokens->code + tokens->starts[number];
  List stack = {0};
  size_t begin = 0, at = 0, bytes = 0;
  int done = 1;
  while (at < length && done) {
    int64_t end = match(tokens, code, text, length, at, &stack);
    if (end < 0) done = 0;
    else if ((size_t)end > at) {
      done = (at == begin || split(tokens, number + 1, word, text + begin, at - begin, out)) &&
             split(tokens, number + 1, word, text + at, (size_t)end - at, out);
      begin = at = (size_t)end;
    } else character(text + at, length - at, &bytes), at += bytes;
  }
  free(stack.items);
  return done && (begin == length || split(tokens, number + 1, word, text + begin, length - begin, out));
}

static int encode_plain(const Tokens *tokens, Word *word, const char *text, size_t length, List *out) {
  if (!length) return 1;
  return tokens->is_byte_level ? split(tokens, 0, word, text, length, out)
                               : encode_characters(tokens, word, text, length, out);
}

/* The added token that a text begins with, the longest; or -1. */
static int32_t find_added(const Tokens *tokens, const char *text, size_t length) {
  for (int32_t i = 0; i < tokens->added_count; i++) {
    int32_t token = tokens->added[i];
    size_t bytes = tokens->offsets[token + 1] - tokens->offsets[token];
    if (bytes <= length && !memcmp(tokens->bytes + tokens->offsets[token], text, bytes)) return token;
  }
  return -1;
}

int encode(const Tokens *tokens, const char *text, size_t length, List *out) {
  Word word = {0};
  size_t begin = 0, at = 0;
  int done = 1;
  while (at < length && done) {
    int32_t token = find_added(tokens, text + at, length - at);
    if (token < 0) at++;
    else {
      done = encode_plain(tokens, &word, text + begin, at - begin, out) && push(out, token);
      begin = at += tokens->offsets[token + 1] - tokens->offsets[token];
    }
  }
  done = done && encode_plain(tokens, &word, text + begin, length - begin, out);
  free(word.token), free(word.next), free(word.rank);
  return done;
}
