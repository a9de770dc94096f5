// Serves the encoder on an NVIDIA GPU: serve.cpp with arrays in the GPU's memory. Neither CUDA's headers nor its libraries
// are needed; the driver is opened when the program runs.
//
//   fusec compile "bert:encoder()" --spec "ids=i64[B:1..8, S:2..512]" --spec "mask=i64[B, S]" --target cuda:sm_90
//       -o bert-gpu.fusec --c build-gpu
//   c++ -O2 -std=c++17 -I build-gpu examples/c/serve_gpu.cpp -ldl -o build-gpu/serve
//   build-gpu/serve build-gpu WIDTH < ids.txt
#include "Encoder.h"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

// Memory of the GPU for as long as it lives: with an array's numbers, or with room for them.
template <typename T>
class OnGpu {
 public:
  OnGpu(const Encoder_model &model, const T *host, size_t count) : gpu(model.gpu) {
    status = fusec_send(&gpu, host, count * sizeof(T), &memory);
  }
  OnGpu(const OnGpu &) = delete;
  ~OnGpu() { fusec_drop(&gpu, memory); }
  T *data() { return reinterpret_cast<T *>(memory); }

  int status;

 private:
  const fusec_gpu &gpu;
  char *memory = nullptr;
};

static int serve(const Encoder_model &model, size_t width) {
  std::vector<int64_t> ids;
  int64_t texts = 0;
  for (std::string line; std::getline(std::cin, line); texts++) {
    std::istringstream words(line);
    for (int64_t word; words >> word;) ids.push_back(word);
  }
  const int64_t tokens = texts > 0 ? static_cast<int64_t>(ids.size()) / texts : 0;
  const std::vector<int64_t> mask(ids.size(), 1);
  std::vector<float> states(ids.size() * width);
  OnGpu ids_there(model, ids.data(), ids.size()), mask_there(model, mask.data(), mask.size());
  OnGpu states_there(model, static_cast<const float *>(nullptr), states.size());
  for (int status : {ids_there.status, mask_there.status, states_there.status})
    if (status != FUSEC_OK) return status;

  // A stream of yours (a CUstream or cudaStream_t); the kernels are launched on it, and nothing waits for them.
  void *stream = nullptr;
  int status =
      Encoder_run(&model, ids_there.data(), mask_there.data(), states_there.data(), texts, tokens, stream);
  // This waits for the stream.
  if (status == FUSEC_OK)
    status = fusec_receive(&model.gpu, states.data(), states_there.data(), states.size() * sizeof(float), stream);
  if (status == FUSEC_OK)
    for (size_t k = 0; k < ids.size(); k++)
      std::cout << states[k * width] << ((k + 1) % static_cast<size_t>(tokens) ? ' ' : '\n');
  return status;
}

int main(int count, char **arguments) {
  if (count != 3) {
    std::cerr << "usage: serve FOLDER WIDTH\n";
    return 1;
  }
  Encoder_model model;
  int status = Encoder_open(&model, arguments[1]);
  if (status == FUSEC_OK) status = serve(model, std::stoul(arguments[2]));
  if (status != FUSEC_OK)
    std::cerr << arguments[1] << ": " << fusec_strerror(status) << " (" << fusec_gpu_error() << ")\n";
  Encoder_close(&model);
  return status;
}
