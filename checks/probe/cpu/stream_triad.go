package cpu

// The loop of STREAM's triad is in C, because Go has no store that bypasses the caches. Any other
// store first reads the memory that it overwrites: a third more traffic, which STREAM does not
// count. On one core of a fourth-generation EPYC (family 25, model 17) this loop reaches 30.7 GB/s,
// the plain loop of gcc -O3 21.1, and Go's 17.6 (BenchmarkTriad).

// #cgo CFLAGS: -O3
// #include <stddef.h>
// #include <stdint.h>
// #if defined(__SSE2__)
// #include <emmintrin.h>
// #endif
//
// // a and n are multiples of 8 doubles, a cache line.
// static void triad(double *restrict a, const double *restrict b, const double *restrict c, double q, size_t n)
// {
// #if defined(__SSE2__)
// 	const __m128d qq = _mm_set1_pd(q);
// 	for (size_t i = 0; i < n; i += 8) {
// 		_mm_stream_pd(a + i, _mm_add_pd(_mm_load_pd(b + i), _mm_mul_pd(qq, _mm_load_pd(c + i))));
// 		_mm_stream_pd(a + i + 2, _mm_add_pd(_mm_load_pd(b + i + 2), _mm_mul_pd(qq, _mm_load_pd(c + i + 2))));
// 		_mm_stream_pd(a + i + 4, _mm_add_pd(_mm_load_pd(b + i + 4), _mm_mul_pd(qq, _mm_load_pd(c + i + 4))));
// 		_mm_stream_pd(a + i + 6, _mm_add_pd(_mm_load_pd(b + i + 6), _mm_mul_pd(qq, _mm_load_pd(c + i + 6))));
// 	}
// 	_mm_sfence();
// #else
// 	for (size_t i = 0; i < n; i++)
// 		a[i] = b[i] + q * c[i];
// #endif
// }
//
// #if defined(__SSE2__)
// enum { past_caches = 1 };
// #else
// enum { past_caches = 0 };
// #endif
import "C"

import "unsafe"

// StreamAlgorithm names the loop that runs: with stores that bypass the caches, or without.
func StreamAlgorithm() string {
	if C.past_caches != 0 {
		return "triad nt"
	}
	return "triad"
}

// triad sets a = b + q*c. Each slice begins at a cache line and consists of whole lines.
func triad(a, b, c []float64, q float64) {
	if len(a) > 0 {
		C.triad(doubles(a), doubles(b), doubles(c), C.double(q), C.size_t(len(a)))
	}
}

func doubles(s []float64) *C.double { return (*C.double)(unsafe.Pointer(unsafe.SliceData(s))) }
