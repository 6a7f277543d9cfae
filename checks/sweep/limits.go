package sweep

import (
	_ "embed"
	"math"
	"slices"
	"sync"

	"github.com/BurntSushi/toml"
)

// judge.toml holds the limits and the codes.

//go:embed judge.toml
var judgeTOML string

// Limit is a [[limit]] of judge.toml.
type Limit struct {
	Name   string  `toml:"name"`
	Value  float64 `toml:"value"`
	Unit   string  `toml:"unit"`
	Source string  `toml:"source"`
}

// Code is a [[code]] of judge.toml.
type Code struct {
	Code  string `toml:"code"`
	Fault string `toml:"fault"` // in a few words
	Do    string `toml:"do"`
}

type judgeTable struct {
	Limits []Limit `toml:"limit"`
	Codes  []Code  `toml:"code"`
	limits map[string]float64
}

var readJudge = sync.OnceValue(func() (t judgeTable) {
	if _, err := toml.Decode(judgeTOML, &t); err != nil {
		panic("sweep: judge.toml: " + err.Error()) // TestTable
	}
	t.limits = map[string]float64{}
	for _, l := range t.Limits {
		t.limits[l.Name] = l.Value
	}
	return t
})

// Limits returns the limits by which a sweep judges, and their sources.
func Limits() []Limit { return readJudge().Limits }

// Codes returns the codes of all findings of a sweep.
func Codes() []Code { return readJudge().Codes }

func limitOf(name string) float64 {
	v, ok := readJudge().limits[name]
	if !ok {
		panic("sweep: no limit " + name) // TestTable
	}
	return v
}

// Rounds returns how many looks with windows a fault that comes and goes needs: in each look it is
// active with the probability share, and one of them must meet it with the probability sure.
func Rounds(share, sure float64) int {
	if share <= 0 || share >= 1 {
		return 1
	}
	return int(math.Ceil(math.Log(1-sure) / math.Log(1-share)))
}

// quantile returns a quantile of sorted values, NaN of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// summarize returns the value of a look and the standard deviation of its repeats. Latencies are
// skewed upwards, and traffic of other jobs lowers rates: there the best repeat counts.
func summarize(values []float64, lower, beside bool) (value, spread float64) {
	sum, square := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	mean := sum / float64(len(values))
	for _, v := range values {
		square += (v - mean) * (v - mean)
	}
	if len(values) > 1 {
		spread = math.Sqrt(square / float64(len(values)-1))
	}
	switch {
	case lower:
		return slices.Min(values), spread
	case beside:
		return slices.Max(values), spread
	}
	return mean, spread
}

// normalTail returns the probability of a value beyond z standard deviations on one side.
func normalTail(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }

// poissonTail returns the probability of at least n events where mean is expected.
func poissonTail(n int, mean float64) float64 {
	if n <= 0 {
		return 1
	}
	if mean <= 0 {
		return 0
	}
	lg, _ := math.Lgamma(float64(n) + 1)
	term := math.Exp(float64(n)*math.Log(mean) - mean - lg)
	sum := 0.0
	for k := n; k < n+1000 && term > 0; k++ {
		sum += term
		if term < sum*1e-12 && float64(k) > mean {
			break
		}
		term *= mean / float64(k+1)
	}
	return min(sum, 1)
}

// spreadOf returns 1.4826 times the median absolute deviation.
func spreadOf(sorted []float64, center float64) float64 {
	off := make([]float64, len(sorted))
	for i, v := range sorted {
		off[i] = math.Abs(v - center)
	}
	return 1.4826 * median(off)
}

// upperSpread returns the standard deviation that an upper quantile suggests: latencies are skewed
// upwards. The quantile excludes the pairs of one faulty node.
func upperSpread(sorted []float64, center float64, nodes int) float64 {
	q := 0.9 * (1 - 2/float64(max(nodes, 3)))
	if q < 0.6 {
		return 0
	}
	return (quantile(sorted, q) - center) / (math.Sqrt2 * math.Erfinv(2*q-1))
}

func median(values []float64) float64 {
	return quantile(slices.Sorted(slices.Values(values)), 0.5)
}

// indexes32 returns the numbers of so many nodes.
func indexes32(n int) (list []int32) {
	for i := range n {
		list = append(list, int32(i))
	}
	return list
}

func indexes[T any](list []T) []int {
	all := make([]int, len(list))
	for i := range all {
		all[i] = i
	}
	return all
}
