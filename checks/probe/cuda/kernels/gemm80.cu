/* Products of matrices that an A100 adds: BF16, TF32, and a faster FP16. */
#define GEMM_SM 80
#include "tiles.h"
