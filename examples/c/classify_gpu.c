/* Calls a function compiled for a GPU from C: reads rows of 64 floats from standard input and writes a line of scores
 * for each. Neither CUDA's headers nor its compiler are needed; the driver is opened when the program runs.
 *
 *   python examples/c/classify_gpu.py build
 *   cc -O2 -I build examples/c/classify_gpu.c -ldl -o build/classify_gpu
 *   build/classify_gpu build < rows.bin
 */
#include "classify.h"

#define MOST_ROWS 1024
#define WIDTH 64
#define CLASSES 16

int main(int count, char **arguments) {
  static float rows[MOST_ROWS * WIDTH], scores[MOST_ROWS * CLASSES];
  char *rows_there = NULL, *scores_there = NULL;
  classify_model model;
  if (count != 2) {
    fprintf(stderr, "usage: classify_gpu FOLDER, with what classify_gpu.py wrote there\n");
    return 1;
  }
  int status = classify_open(&model, arguments[1]);
  if (status != FUSEC_OK) {
    fprintf(stderr, "%s: %s (%s)\n", arguments[1], fusec_strerror(status), fusec_gpu_error());
    return 1;
  }
  size_t found = fread(rows, sizeof(float), MOST_ROWS * WIDTH, stdin) / WIDTH;
  /* Arrays of your own, from cudaMalloc or another library, are given as they are. The last argument is a CUstream (or
   * cudaStream_t) that the kernels are launched on; NULL is the default one. Nothing waits for the GPU. */
  void *stream = NULL;
  status = fusec_send(&model.gpu, rows, sizeof rows, &rows_there);
  if (status == FUSEC_OK) status = fusec_send(&model.gpu, NULL, sizeof scores, &scores_there);
  if (status == FUSEC_OK)
    status = classify_run(&model, (const float *)rows_there, (float *)scores_there, (int64_t)found, stream);
  if (status == FUSEC_OK)
    status = fusec_receive(&model.gpu, scores, scores_there, found * CLASSES * sizeof(float), stream);
  if (status == FUSEC_OK) {
    for (size_t row = 0; row < found; row++)
      for (int k = 0; k < CLASSES; k++) printf("%.9g%c", scores[row * CLASSES + k], k + 1 < CLASSES ? ' ' : '\n');
  } else {
    fprintf(stderr, "%zu rows: %s (%s)\n", found, fusec_strerror(status), fusec_gpu_error());
  }
  fusec_drop(&model.gpu, rows_there);
  fusec_drop(&model.gpu, scores_there);
  classify_close(&model);
  return status;
}
