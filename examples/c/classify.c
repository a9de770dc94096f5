/* Calls a compiled function from C: reads rows of 24 floats from standard input and writes a line of scores for each.
 *
 *   python examples/c/classify.py build
 *   cc -O2 -I build examples/c/classify.c -ldl -o build/classify
 *   build/classify build < rows.bin
 */
#include "classify.h"

#define MOST_ROWS 64
#define WIDTH 24
#define CLASSES 10

int main(int count, char **arguments) {
  static float rows[MOST_ROWS * WIDTH], scores[MOST_ROWS * CLASSES];
  classify_model model;
  if (count != 2) {
    fprintf(stderr, "usage: classify FOLDER, with what classify.py wrote there\n");
    return 1;
  }
  int opened = classify_open(&model, arguments[1]);
  if (opened != FUSEC_OK) {
    fprintf(stderr, "%s: %s\n", arguments[1], fusec_strerror(opened));
    return 1;
  }
  size_t found = fread(rows, sizeof(float), MOST_ROWS * WIDTH, stdin) / WIDTH;
  int status = classify_run(&model, rows, scores, (int64_t)found);
  if (status == FUSEC_OK) {
    for (size_t row = 0; row < found; row++)
      for (int k = 0; k < CLASSES; k++) printf("%.9g%c", scores[row * CLASSES + k], k + 1 < CLASSES ? ' ' : '\n');
  } else {
    fprintf(stderr, "%zu rows: %s\n", found, fusec_strerror(status));
  }
  classify_close(&model);
  return status;
}
