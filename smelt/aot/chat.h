/* A language model as a program: what its files share. `chat.py` writes the tables. */
#ifndef SMELT_CHAT_H
#define SMELT_CHAT_H

#include "api.h"

#include <stddef.h>

/* tokens.c: a tokenizer. Arrays have their lengths in front. */
typedef struct {
  int32_t is_byte_level, is_whole, fuses_unknown, unknown, strips, prepend, replace;
  int32_t size; /* tokens */
  const uint32_t *offsets;
  const uint8_t *bytes, *kinds;
  int32_t added_count;
  const int32_t *added; /* the longest first */
  int32_t sorted_count;
  const int32_t *sorted; /* tokens in the order of their bytes */
  int32_t pair_count;
  const uint64_t *pairs;
  const uint32_t *ranks;
  const int32_t *results;
  const int32_t *single; /* of 256 bytes */
  int32_t character_count;
  const uint32_t *characters;
  const int32_t *character_tokens;
  int32_t program_count;
  const int32_t *starts, *code, *set_starts;
  const uint32_t *ranges;
  int32_t begin_count;
  const int32_t *begin;
} Tokens;

enum { NORMAL_TOKEN, ADDED_TOKEN, SPECIAL_TOKEN };

typedef struct {
  int32_t *items;
  int64_t count, room;
} List;

int push(List *list, int32_t item);                                 /* 0: no memory */
int encode(const Tokens *tokens, const char *text, size_t length, List *out); /* appends; 0: no memory */

/* A model: the sizes of its step, and the texts between messages. */
typedef struct {
  const Tokens *tokens;
  int32_t layers, vocabulary, width, page, chunk, context;
  int32_t cache_dtype, cache_itemsize, cache_rank;
  int64_t keys[4], values[4]; /* sizes of a page */
  int32_t stop_count;
  const int32_t *stops;
  /* A conversation: open, message, answer, answer_user, message, answer …; with a system message: open_system, text,
   * system_user, message … `is_trimmed`: without spaces around messages. open is NULL where there is no template. */
  const char *open, *open_system, *system_user, *user_answer, *user_ask, *answer_user;
  int32_t is_trimmed;
} Chat;

extern const Chat chat;

#endif
