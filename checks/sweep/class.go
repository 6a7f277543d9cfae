package sweep

import (
	"math"
	"slices"
)

// class describes the values of comparable looks.
type class struct {
	key        classKey
	values     []float64 // sorted
	lows, mids []float64
	spreads    []float64
	median     float64
	sigma      float64
	low, mid   float64 // medians of the windows' low deciles and medians; NaN: there are too few
	lowSigma   float64 // spread of the low deciles
	judged     bool    // there are enough values
	floor      float64 // of the site, 0 without one
	known      float64 // what healthy networks reach: the floor of the site, or one of judge.toml; 0: unknown
	note       string  // the whole fleet misses the floor of the site
	wide       string  // the whole fleet misses that of judge.toml
}

// classKey has looks that must be alike: the same test between nodes of the same models, with ports of the
// same speeds, at the same distance.
type classKey struct {
	test  int32
	far   int8 // 0 unknown, 1 within a leaf, 2 between leaves, 3 with the slow leaf
	kinds int64
}

var farNames = [...]string{"", "leaf", "spine", "spine"}

func (c *class) add(l *look) {
	c.values = append(c.values, l.value)
	c.spreads = append(c.spreads, l.spread/math.Sqrt(max(float64(l.repeats), 1)))
	if !math.IsNaN(l.low) {
		c.lows, c.mids = append(c.lows, l.low), append(c.mids, l.mid)
	}
}

// compute computes the distribution of values. One faulty node of n spoils 2/n of all pairs: the
// median is that of the others.
func (c *class) compute(from *class, lower bool, nodes int) {
	c.judged = len(from.values) >= int(limitOf("class_min"))
	if len(from.values) == 0 {
		c.median, c.sigma, c.low, c.mid, c.judged = math.NaN(), math.NaN(), math.NaN(), math.NaN(), false
		return
	}
	values := slices.Sorted(slices.Values(from.values))
	shift := min(1/float64(max(nodes, 1)), 0.4)
	if lower {
		shift = -shift
	}
	c.median = quantile(values, 0.5+shift)
	// Few looks can be alike by chance: they vary at least as much as their repeats suggest.
	c.sigma = max(spreadOf(values, c.median), median(from.spreads), limitOf("sigma_floor")*math.Abs(c.median))
	if nodes <= allPairsFleet {
		c.sigma = max(limitOf("few_spreads")*median(from.spreads), 2*limitOf("sigma_floor")*math.Abs(c.median))
	}
	if lower {
		c.sigma = max(c.sigma, upperSpread(values, c.median, nodes))
	}
	c.low, c.mid = math.NaN(), math.NaN()
	if len(from.lows) >= int(limitOf("class_min")) {
		lows, mids := slices.Sorted(slices.Values(from.lows)), slices.Sorted(slices.Values(from.mids))
		c.low, c.mid = quantile(lows, 0.5+shift), quantile(mids, 0.5+shift)
		c.lowSigma = max(spreadOf(lows, c.low), limitOf("sigma_floor")*math.Abs(c.low))
	}
}

// limit returns the value beyond which a look is suspicious.
func (c *class) limit(k Kind) float64 {
	cut := limitOf("suspect_z") * c.sigma
	if k.Lower() {
		limit := max(limitOf(string(k)+"_factor")*c.median, c.median+limitOf(string(k)+"_excess"), c.median+cut)
		if c.floor > 0 && c.note == "" {
			limit = min(limit, c.floor)
		}
		return limit
	}
	limit := c.median - cut
	if c.note == "" {
		limit = max(limit, c.floor)
	}
	return max(limit, 0)
}
