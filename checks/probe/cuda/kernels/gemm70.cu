/* Products of matrices: what a V100 can do: FP64, FP32, FP16. */
#define GEMM_SM 70
#include "tiles.h"
