package probe

import (
	"math"
	"runtime"
	"sync"
)

// What a product of [GEMM] comes to, as the CPU knows it: sums of whole numbers modulo
// 2^64, which need no product at all. With weights u of the rows and v of the columns
//
//	sum of u(i) * C(i, j) * v(j) = sum over k of (sum of u(i) * A(i, k)) * (sum of B(k, j) * v(j))
//
// gemmNumber, gemmWeight and seedOf are whole, weight and seeds of kernels/numbers.cu.

func gemmNumber(x, seed uint64, most uint32) int64 {
	h := (x + seed) * 0x9E3779B97F4A7C15
	h ^= h >> 32
	h *= 0xD6E8FEB86659FD93
	return int64((h>>32)*(2*uint64(most)+1)>>32) - int64(most)
}

func gemmWeight(x, seed uint64) uint64 {
	h := (x + seed) * 0xD6E8FEB86659FD93
	h ^= h >> 32
	return h*0x9E3779B97F4A7C15 | 1
}

// seedOf is the seed of the first and of the second factor.
func seedOf(factor int) uint64 { return uint64(factor+1) << 40 }

// amplitude is the largest number that the factors have, small enough for every sum to
// be exact: of n products of numbers between -m and m, spread evenly, the sum is within
// eight standard deviations of 0, and those have the bits that the hardware keeps.
func (t *GEMMType) amplitude(n int) uint32 {
	m := t.most
	for m > 1 && 8*float64(m)*(float64(m)+1)/3*math.Sqrt(float64(n)) > math.Exp2(t.digits) {
		if m > 1024 {
			m /= 2
		} else {
			m--
		}
	}
	return m
}

// Truth is the sum of the right product of n * n matrices. It takes all CPUs some tenths
// of a second for the largest.
func (t *GEMMType) Truth(n int) GEMMSum {
	rows, cols := make([]uint64, n), make([]uint64, n)
	for i := range n {
		rows[i], cols[i] = gemmWeight(uint64(i), gemmSeed), gemmWeight(uint64(i), ^uint64(gemmSeed))
	}
	most := t.amplitude(n)
	x, y := weighted(rows, seedOf(0), most), weighted(cols, seedOf(1), most)
	var total uint64
	for k := range n {
		total += x[k] * y[k]
	}
	return GEMMSum{Total: total}
}

// weighted adds up the rows of a factor as it lies in memory, each times its weight.
func weighted(weights []uint64, seed uint64, most uint32) []uint64 {
	n, parts := len(weights), runtime.GOMAXPROCS(0)
	sums := make([][]uint64, parts)
	var all sync.WaitGroup
	for part := range parts {
		all.Go(func() {
			sum := make([]uint64, n)
			for i := part; i < n; i += parts {
				w, at := weights[i], uint64(i)*uint64(n)
				for k := range sum {
					sum[k] += w * uint64(gemmNumber(at+uint64(k), seed, most))
				}
			}
			sums[part] = sum
		})
	}
	all.Wait()
	for _, sum := range sums[1:] {
		for k := range sum {
			sums[0][k] += sum[k]
		}
	}
	return sums[0]
}
