// Serves an encoder that `fusec compile --c` exported: reads a line of token ids for each text, all equally long, and
// writes the first hidden number of each token.
//
//   fusec compile "bert:encoder()" --spec "ids=i64[B:1..8, S:2..512]" --spec "mask=i64[B, S]" -o bert.fusec --c build
//   c++ -O2 -std=c++17 -I build examples/c/serve.cpp -ldl -o build/serve
//   build/serve build WIDTH < ids.txt
#include "Encoder.h"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

int main(int count, char **arguments) {
  if (count != 3) {
    std::cerr << "usage: serve FOLDER WIDTH\n";
    return 1;
  }
  Encoder_model model;
  if (int status = Encoder_open(&model, arguments[1])) {
    std::cerr << arguments[1] << ": " << fusec_strerror(status) << "\n";
    return 1;
  }
  const int64_t width = std::stoll(arguments[2]);
  std::vector<int64_t> ids, mask;
  int64_t texts = 0;
  for (std::string line; std::getline(std::cin, line); texts++) {
    std::istringstream words(line);
    for (int64_t word; words >> word;) ids.push_back(word);
  }
  const int64_t tokens = texts > 0 ? static_cast<int64_t>(ids.size()) / texts : 0;
  mask.assign(ids.size(), 1);
  std::vector<float> states(ids.size() * static_cast<size_t>(width));
  const int status = Encoder_run(&model, ids.data(), mask.data(), states.data(), texts, tokens);
  if (status == FUSEC_OK)
    for (size_t k = 0; k < ids.size(); k++)
      std::cout << states[k * static_cast<size_t>(width)] << ((k + 1) % static_cast<size_t>(tokens) ? ' ' : '\n');
  else
    std::cerr << texts << " texts: " << fusec_strerror(status) << "\n";
  Encoder_close(&model);
  return status;
}
