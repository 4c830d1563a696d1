/* Voice activity as a stream: 16-bit samples at 16 kHz on stdin, one line per 32 ms on stdout: seconds, and the
 * probability of speech. The model is silero-vad as libvad.a (README.md has the command). */
#include "vad.h"

#include <stdio.h>
#include <string.h>

enum { RATE = 16000, CONTEXT = 64, CHUNK = 512 };

int main(void) {
  smelt_options options = {.threads = 1};
  smelt_model *model;
  if (vad_create(&options, &model)) return fprintf(stderr, "error %s\n", smelt_error()), 1;

  static float samples[CONTEXT + CHUNK], states[2][2 * 128]; /* a call reads one state and writes the other */
  float probability;
  short chunk[CHUNK];
  size_t count;
  for (long call = 0; (count = fread(chunk, sizeof *chunk, CHUNK, stdin)) > 0; call++) {
    memmove(samples, samples + CHUNK, CONTEXT * sizeof *samples);
    memset(samples + CONTEXT, 0, CHUNK * sizeof *samples);
    for (size_t i = 0; i < count; i++) samples[CONTEXT + i] = chunk[i] / 32768.0f;
    float *before = states[call % 2], *after = states[(call + 1) % 2];
    smelt_tensor inputs[] = {
        {SMELT_F32, 2, {1, CONTEXT + CHUNK}, samples, sizeof samples},
        {SMELT_F32, 3, {2, 1, 128}, before, sizeof *states},
    };
    smelt_tensor outputs[] = {{.data = &probability, .bytes = sizeof probability}, {.data = after, .bytes = sizeof *states}};
    if (smelt_model_call(model, inputs, outputs)) return fprintf(stderr, "error %s\n", smelt_error()), 1;
    printf("%.3f %.6f\n", (double)((call + 1) * CHUNK) / RATE, (double)probability);
    fflush(stdout);
  }
  smelt_model_destroy(model);
  return 0;
}
