package checks

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// truth has the CPU find out what a product comes to, while the GPUs work.
func (m *gemmTest) truth(t *probe.GEMMType, n int) {
	for _, known := range m.truths {
		if known.kind == t && known.n == n {
			return
		}
	}
	found := &gemmTruth{kind: t, n: n, sum: make(chan probe.GEMMSum, 1)}
	m.truths = append(m.truths, found)
	go func() { found.sum <- t.Truth(n) }()
}

// judge compares the products of every type, and hands over the rates.
func (m *gemmTest) judge() {
	for _, t := range m.truths {
		t.is = <-t.sum
		var list []*gemmResult
		for _, res := range m.results {
			if res.kind == t.kind && res.n == t.n && len(res.sums) > 0 {
				list = append(list, res)
			}
		}
		m.judgeSums(t.is, list)
	}
	for _, res := range m.results {
		if res.busy <= 0 {
			continue
		}
		if m.long {
			judgeFading(m.r, res)
		}
		m.r.measured(measure{
			Test: m.test, Algorithm: res.algorithm, Size: int64(res.n), Ranks: 1, Device: gpuDevice(res.gpu), Model: res.gpu.Name.Value, Peers: res.algorithm,
			What: res.what(), Value: teraflops(res.flops, res.busy), Unit: "TFLOP/s", Least: m.least,
		})
	}
}

// what names a product in messages: "bf16 cublaslt, n 8192".
func (res *gemmResult) what() string { return fmt.Sprintf("%s, n %d", res.algorithm, res.n) }

// constant says that a GPU has had the same product every time.
func (res *gemmResult) constant() bool {
	for _, s := range res.sums {
		if s != res.sums[0] {
			return false
		}
	}
	return true
}

// judgeSums finds the GPUs that compute wrongly. Where one GPU has what the CPU has, or
// GPUs differ, those that are not right are wrong. Where all GPUs have the same product
// every time, and it is another than the CPU's, no GPU is to blame before software is.
func (m *gemmTest) judgeSums(truth probe.GEMMSum, list []*gemmResult) {
	count := map[probe.GEMMSum]int{}
	var right bool
	for _, res := range list {
		if res.constant() {
			count[res.sums[0]]++
			right = right || res.sums[0] == truth
		}
	}
	alike, most := probe.GEMMSum{}, 0
	for sum, n := range count {
		if n > most && 2*n > len(list) {
			alike, most = sum, n
		}
	}
	switch {
	case right || most == 0:
		alike = truth
	case alike != truth:
		m.r.failures = true
		m.r.report(Device{}, Finding{Code: m.r.Code + ".alike", Severity: Unknown, Want: sumText(truth), Got: sumText(alike)},
			"%s: %d of %s have the same product, and not the CPU's", list[0].what(), most, plural(len(list), "GPU"))
	}
	for _, res := range list {
		wrong, got := 0, truth
		for _, s := range res.sums {
			if s != alike {
				wrong++
				got = s
			}
		}
		if wrong > 0 {
			m.r.report(gpuDevice(res.gpu), Finding{Code: m.r.Code + ".wrong", Severity: Fail, Remedy: ReseatOrRMA, Want: sumText(alike), Got: sumText(got)},
				"%s: wrong results in %d of %d products", res.what(), wrong, len(res.sums))
		}
	}
}

// sumText is the sum of a product as messages have it.
func sumText(s probe.GEMMSum) string {
	if s.Odd > 0 {
		return fmt.Sprintf("sum %016x, %d not whole", s.Total, s.Odd)
	}
	return fmt.Sprintf("sum %016x", s.Total)
}

// fading is by how much the rate may fall under load.
const fading = 0.10

// judgeFading warns of a GPU that is slower in the last tenth of a long test than in
// the first.
func judgeFading(r *activeRun, res *gemmResult) {
	tenth := len(res.rates) / 10
	if tenth == 0 {
		return
	}
	first, last := median(res.rates[:tenth]), median(res.rates[len(res.rates)-tenth:])
	if least := first * (1 - fading); !(last >= least) {
		r.report(gpuDevice(res.gpu), Finding{Code: r.Code + ".fades", Severity: Warn, Want: "at least " + rate(least, "TFLOP/s"), Got: rate(last, "TFLOP/s")},
			"%s: slower and slower under load, %s at first", res.what(), rate(first, "TFLOP/s"))
	}
}
