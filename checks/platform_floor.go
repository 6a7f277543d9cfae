package checks

// Floor is what a test of a healthy node reaches at least, of a platform's
// profile or a site's. It says nothing of another algorithm, size or number of
// ranks: NCCL's rings reach three quarters of what its NVLS does on the same GPUs.
type Floor struct {
	Test      string  `toml:"test"`      // all_reduce
	Algorithm string  `toml:"algorithm"` // ring
	Size      int64   `toml:"size"`      // bytes, or n of matrices of n x n; 0 where the test has none
	Ranks     int     `toml:"ranks"`     // GPUs or ports at work together; 1 is one alone
	Value     float64 `toml:"value"`
	Unit      string  `toml:"unit"`     // GB/s (10^9), TFLOP/s, us, Gb/s, MB/s
	Source    string  `toml:"source"`   // where the number is from
	Verified  bool    `toml:"verified"` // this program has measured more on such a node
	File      string  `toml:"file"`     // where it stands: conf/profiles/h100.toml:80
}

// FloorOf is the floor of exactly this run; known is false if there is none. No
// ranks, and one, are the same. It may be asked of a platform that nobody knows.
func (p *Platform) FloorOf(test, algorithm string, size int64, ranks int) (f Floor, known bool) {
	if p == nil || algorithm == "" {
		return Floor{}, false
	}
	for _, f := range p.Floors {
		if f.Test == test && f.Algorithm == algorithm && f.Size == size && max(f.Ranks, 1) == max(ranks, 1) {
			return f, true
		}
	}
	return Floor{}, false
}
