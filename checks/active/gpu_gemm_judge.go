package active

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// computeTruth starts the CPU's computation of a product, while the GPUs work.
func (m *gemmTest) computeTruth(t *cuda.GEMMType, n int) {
	for _, known := range m.truths {
		if known.kind == t && known.n == n {
			return
		}
	}
	found := &gemmTruth{kind: t, n: n, sum: make(chan cuda.GEMMSum, 1)}
	m.truths = append(m.truths, found)
	go func() { found.sum <- t.Truth(n) }()
}

// judge compares the products of every type, and records the rates.
func (m *gemmTest) judge() {
	m.reportShort()
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
			res.again = median(res.rates[len(res.rates)/2:])
		}
		m.r.record(measure{
			Test: m.test, Algorithm: res.algorithm, Size: int64(res.n), Ranks: 1, Device: checks.GPUDevice(res.gpu), Model: res.gpu.Name.Value, Peers: res.algorithm,
			What: res.what(), Says: "rate of matrix products (" + res.what() + ")", Value: res.rate(), Again: res.again, Unit: "TFLOP/s", Least: m.leastOf(res), Limited: m.loads[res.gpu.Index].describeLimit(),
		})
	}
}

// leastOf returns the rate that the line requires of a result. If built-in kernels had to replace
// cuBLASLt they are slower: then a low rate is not the GPU's fault.
func (m *gemmTest) leastOf(res *gemmResult) float64 {
	if m.own || m.least <= 0 || !strings.HasSuffix(res.algorithm, " own") {
		return m.least
	}
	if res.rate() < m.least {
		m.note("unjudged", checks.Warn, "%s: the rate on the line, %s, is for cuBLASLt and was not compared", ownKernels, rate(m.least, "TFLOP/s"))
	}
	return 0
}

// judgeLoad warns of GPUs that a long test did not load: they drew far less than their power
// limit. It skips --own: those kernels cannot load the GPU fully.
func (m *gemmTest) judgeLoad() {
	if !m.long || m.own {
		return
	}
	for _, res := range m.results {
		with := "cublaslt"
		if strings.HasSuffix(res.algorithm, " own") {
			with = "own"
		}
		row, known := loadOf(m.test, with)
		l := m.loads[res.gpu.Index]
		if !known || res.kind.Name == "fp64" || res.kind.Name == "fp32" || !l.isUnderloaded(row.Part) {
			continue
		}
		text := res.what() + ": load too small for a soak test"
		if with == "own" {
			text = res.what() + ": built-in kernels instead of cuBLASLt do not load the GPU fully"
		}
		least := uint32(row.Part * float64(l.enforced))
		m.r.report(checks.GPUDevice(res.gpu), checks.Finding{Code: m.r.Code + ".power", Severity: checks.Warn, Want: "at least " + gpu.Watts(least), Got: gpu.Watts(l.power)}, "%s", text)
	}
}

// reportShort reports, once for each GPU, the types that did not fit its free memory.
func (m *gemmTest) reportShort() {
	for _, s := range m.short {
		m.r.failures = true
		m.r.report(checks.GPUDevice(s.gpu), checks.Finding{Code: m.r.Code + ".memory", Severity: checks.Unknown, Want: fmt.Sprintf("%d MiB", (s.need+1<<20-1)>>20), Got: fmt.Sprintf("%d MiB", s.free>>20)},
			"too little free memory for %s", strings.Join(s.types, ", "))
	}
}

// what describes a product in messages: "bf16 cublaslt, n 8192".
func (res *gemmResult) what() string { return fmt.Sprintf("%s, n %d", res.algorithm, res.n) }

// isConstant reports whether a GPU had the same product every time.
func (res *gemmResult) isConstant() bool {
	for _, s := range res.sums {
		if s != res.sums[0] {
			return false
		}
	}
	return true
}

// judgeSums finds the GPUs that compute wrongly, among those of one model and algorithm: if one
// of them has the CPU's product every time, all others without it are wrong.
func (m *gemmTest) judgeSums(truth cuda.GEMMSum, list []*gemmResult) {
	groups := map[string][]*gemmResult{}
	var order []string
	for _, res := range list {
		key := res.gpu.Name.Value + "|" + res.algorithm
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], res)
	}
	for _, key := range order {
		m.judgeAlike(truth, groups[key])
	}
}

// judgeAlike judges GPUs that do the same work. If most have the same product every time and it
// differs from the CPU's, or if none has the CPU's and they differ from each other, the software
// is suspected before any GPU.
func (m *gemmTest) judgeAlike(truth cuda.GEMMSum, list []*gemmResult) {
	right, alike, most := inCommon(truth, list)
	switch {
	case right || len(list) == 1 && !list[0].isConstant(): // a single GPU: it differs from itself
		alike = truth
	case most == 0:
		m.reportUnlikeCPU(truth, list[0].sums[len(list[0].sums)-1], "%s: none of %s has the CPU's product, and their products differ", list[0].what(), checks.Plural(len(list), "GPU"))
		return
	default:
		m.reportUnlikeCPU(truth, alike, "%s: %d of %s have the same product, which differs from the CPU's", list[0].what(), most, checks.Plural(len(list), "GPU"))
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
			m.r.report(checks.GPUDevice(res.gpu), checks.Finding{Code: m.r.Code + ".wrong", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: sumText(alike), Got: sumText(got)},
				"%s: wrong results in %d of %d products", res.what(), wrong, len(res.sums))
		}
	}
}

// inCommon reports whether a GPU has the CPU's product every time. If none has, alike is the
// product that more than half of them have every time, and most the number of these GPUs, 0 for
// none.
func inCommon(truth cuda.GEMMSum, list []*gemmResult) (right bool, alike cuda.GEMMSum, most int) {
	count := map[cuda.GEMMSum]int{}
	for _, res := range list {
		if res.isConstant() {
			count[res.sums[0]]++
		}
	}
	for sum, n := range count {
		if 2*n > len(list) {
			alike, most = sum, n
		}
	}
	return count[truth] > 0, alike, most
}

func (m *gemmTest) reportUnlikeCPU(truth, got cuda.GEMMSum, format string, args ...any) {
	m.r.failures = true
	m.r.report(checks.Device{}, checks.Finding{Code: m.r.Code + ".alike", Severity: checks.Unknown, Want: sumText(truth), Got: sumText(got)}, format, args...)
}

// sumText formats the checksum of a product.
func sumText(s cuda.GEMMSum) string {
	if s.Odd > 0 {
		return fmt.Sprintf("sum %016x, %d not whole", s.Total, s.Odd)
	}
	return fmt.Sprintf("sum %016x", s.Total)
}

// fading is the part that the rate may lose under load.
const fading = 0.10

// judgeFading warns of a GPU that is slower in the last tenth of a long test than in the first.
func judgeFading(r *activeRun, res *gemmResult) {
	tenth := len(res.rates) / 10
	if tenth == 0 {
		return
	}
	first, last := median(res.rates[:tenth]), median(res.rates[len(res.rates)-tenth:])
	if least := first * (1 - fading); !(last >= least) {
		r.report(checks.GPUDevice(res.gpu), checks.Finding{Code: r.Code + ".fades", Severity: checks.Warn, Want: "at least " + rate(least, "TFLOP/s"), Got: rate(last, "TFLOP/s")},
			"%s: rate falls under load, %s at first", res.what(), rate(first, "TFLOP/s"))
	}
}
