/* Products of matrices that an L40S and an H100 add: FP8. They need a driver of CUDA 12.4 or later.
   */
#define GEMM_SM 89
#include "tiles.h"
