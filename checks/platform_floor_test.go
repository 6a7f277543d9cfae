package checks

import "testing"

// A floor is for one test, algorithm, size and number of ranks, and for nothing
// else.
func TestFloorOf(t *testing.T) {
	t.Parallel()
	const size = 16 << 30
	p := &Platform{Floors: []Floor{
		{Test: "all_reduce", Algorithm: "ring", Size: size, Ranks: 8, Value: 330},
		{Test: "all_reduce", Algorithm: "nvls", Size: size, Ranks: 8, Value: 431},
		{Test: "host_to_device", Algorithm: "ce", Size: 512 << 20, Ranks: 1, Value: 48},
		{Test: "launch", Algorithm: "empty", Value: 9},
	}}
	for _, c := range []struct {
		test, algorithm string
		size            int64
		ranks           int
		want            float64 // 0: none
	}{
		{"all_reduce", "ring", size, 8, 330},
		{"all_reduce", "nvls", size, 8, 431},
		{"all_reduce", "tree", size, 8, 0},
		{"all_reduce", "auto", size, 8, 0},
		{"all_reduce", "", size, 8, 0},
		{"all_gather", "ring", size, 8, 0},
		{"all_reduce", "ring", size / 2, 8, 0},
		{"all_reduce", "ring", size, 4, 0},
		{"host_to_device", "ce", 512 << 20, 1, 48},
		{"host_to_device", "ce", 512 << 20, 0, 48},
		{"host_to_device", "ce", 512 << 20, 8, 0},
		{"launch", "empty", 0, 1, 9},
		{"launch", "empty", 1, 1, 0},
	} {
		f, known := p.FloorOf(c.test, c.algorithm, c.size, c.ranks)
		if known != (c.want > 0) || f.Value != c.want {
			t.Errorf("%s, %q, %d, %d ranks: %v %v, want %v", c.test, c.algorithm, c.size, c.ranks, f.Value, known, c.want)
		}
	}
	var nobody *Platform
	if _, known := nobody.FloorOf("all_reduce", "ring", size, 8); known {
		t.Error("of a platform that is unknown")
	}
}
