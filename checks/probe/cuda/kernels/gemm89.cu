/* Products of matrices: what an L40S and an H100 add: FP8. The driver has to be one of CUDA 12.4 or later. */
#define GEMM_SM 89
#include "tiles.h"
