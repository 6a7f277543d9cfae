/* Products of matrices for a V100: FP64, FP32, FP16. */
#define GEMM_SM 70
#include "tiles.h"
