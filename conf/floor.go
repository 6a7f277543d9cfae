package conf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// Floor is the minimum result of a test on a healthy node. It applies only to a run of the same
// test, algorithm, size and number of ranks: on one node, rings reach three quarters of the rate of
// NVLS.
type Floor struct {
	Pos       Pos
	Test      string // a key of FloorTests: "all_reduce"
	Algorithm string // "ring", "bf16 cublaslt"
	Size      int64  // bytes, or n for n x n matrices; 0 if the test has no size
	Ranks     int    // number of GPUs or ports that work together
	Value     float64
	Unit      string
	Source    string
	Verified  bool // this program has measured a higher value on such a node
}

// FloorTest is a test that can have floors.
type FloorTest struct {
	Unit   string
	Sized  string // the unit of Size, "" if the test has no size
	Ranked bool   // it needs at least two ranks
}

// FloorTests returns the tests that can have floors.
func FloorTests() map[string]FloorTest { return maps.Clone(floorTests()) }

var floorTests = sync.OnceValue(func() map[string]FloorTest {
	all := map[string]FloorTest{
		"host_to_device":     {Unit: "GB/s", Sized: "bytes"},
		"device_to_host":     {Unit: "GB/s", Sized: "bytes"},
		"both_ways":          {Unit: "GB/s", Sized: "bytes"}, // to and from the host at once
		"device_to_device":   {Unit: "GB/s", Sized: "bytes", Ranked: true},
		"memory_bandwidth":   {Unit: "GB/s", Sized: "bytes"},
		"gemm":               {Unit: "TFLOP/s", Sized: "n"},
		"launch":             {Unit: "us"},
		"all_reduce":         {Unit: "GB/s", Sized: "bytes", Ranked: true},
		"all_gather":         {Unit: "GB/s", Sized: "bytes", Ranked: true},
		"reduce_scatter":     {Unit: "GB/s", Sized: "bytes", Ranked: true},
		"all_to_all":         {Unit: "GB/s", Sized: "bytes", Ranked: true},
		"broadcast":          {Unit: "GB/s", Sized: "bytes", Ranked: true},
		"sendrecv":           {Unit: "GB/s", Sized: "bytes", Ranked: true},
		"pairs":              {Unit: "GB/s", Sized: "bytes", Ranked: true}, // each GPU with each other, by NCCL
		"soak":               {Unit: "TFLOP/s", Sized: "n"},
		"ib_write_bw":        {Unit: "Gb/s", Sized: "bytes"},
		"overlap_compute":    {Unit: "%", Sized: "bytes", Ranked: true}, // remaining speed
		"overlap_all_reduce": {Unit: "%", Sized: "bytes", Ranked: true},

		"cpu_stream": {Unit: "MB/s"},
		"disk_write": {Unit: "MB/s", Sized: "bytes"},
	}
	// The same with several communicators at once, and over the network only.
	for _, op := range []string{"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv"} {
		for _, name := range []string{"multi_" + op, op + "_no_p2p", "multi_" + op + "_no_p2p"} {
			all[name] = all[op]
		}
	}
	return all
})

// same reports whether two floors are of the same run.
func (f *Floor) same(g *Floor) bool {
	return f.Test == g.Test && f.Algorithm == g.Algorithm && f.Size == g.Size && f.Ranks == g.Ranks
}

// Of describes the runs of a floor: "all_reduce, ring, 16G, 8 ranks".
func (f *Floor) Of() string {
	words := []string{f.Test, f.Algorithm}
	if f.Size > 0 {
		words = append(words, sizeWord(f.Size, floorTests()[f.Test].Sized))
	}
	if f.Ranks > 1 {
		words = append(words, fmt.Sprintf("%d ranks", f.Ranks))
	}
	return strings.Join(words, ", ")
}

// addFloor rejects a second floor of the same run.
func (p *Platform) addFloor(f Floor) error {
	for i := range p.Floors {
		if p.Floors[i].same(&f) {
			return fmt.Errorf("%s: floor of %s is there already, at line %d", f.Pos, f.Of(), p.Floors[i].Pos.Line)
		}
	}
	p.Floors = append(p.Floors, f)
	return nil
}

// inheritFloors copies the floors of runs that p has no floor for.
func (p *Platform) inheritFloors(from *Platform) {
	for _, f := range from.Floors {
		if !slices.ContainsFunc(p.Floors, func(own Floor) bool { return own.same(&f) }) {
			p.Floors = append(p.Floors, f)
		}
	}
	slices.SortStableFunc(p.Floors, func(a, b Floor) int {
		return cmp.Or(cmp.Compare(a.Test, b.Test), cmp.Compare(a.Algorithm, b.Algorithm), cmp.Compare(a.Size, b.Size), cmp.Compare(a.Ranks, b.Ranks))
	})
}

// floorKeys are the keys of a floor, in the order of output.
var floorKeys = []string{"test", "algorithm", "size", "ranks", "value", "unit", "source", "verified"}

// keyError is an error in the value of a key.
type keyError struct {
	key string
	err error
}

func (e *keyError) Error() string { return e.err.Error() }

func wrongKey(key string, v any, want string) error {
	if v == nil {
		return &keyError{key, fmt.Errorf("floor: no %s: want %s", key, want)}
	}
	return &keyError{key, fmt.Errorf("floor: %s = %s: want %s", key, tomltext.Value(v), want)}
}

// parseFloor parses one [[platform.floor]] table; an error can be a keyError.
func parseFloor(table map[string]any) (f Floor, err error) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if !slices.Contains(floorKeys, key) {
			return f, &keyError{key, fmt.Errorf("floor: unknown key %s: want one of %s", key, strings.Join(floorKeys, ", "))}
		}
	}
	name, _ := table["test"].(string)
	test, ok := floorTests()[name]
	if !ok {
		return f, wrongKey("test", table["test"], strings.Join(slices.Sorted(maps.Keys(floorTests())), ", "))
	}
	f.Test = name
	for _, read := range []func() error{
		func() error { return f.algorithm(table["algorithm"]) },
		func() error { return f.size(table["size"], test) },
		func() error { return f.ranks(table["ranks"], test) },
		func() error { return f.value(table["value"]) },
		func() error { return f.unit(table["unit"], test) },
		func() error { return f.source(table["source"]) },
		func() error { return f.verified(table["verified"]) },
	} {
		if err := read(); err != nil {
			return f, err
		}
	}
	return f, nil
}

// algorithm rejects "auto": without the name of the algorithm, results cannot be
// compared.
func (f *Floor) algorithm(v any) error {
	f.Algorithm, _ = v.(string)
	if f.Algorithm == "" || f.Algorithm == "auto" || strings.Trim(f.Algorithm, "abcdefghijklmnopqrstuvwxyz0123456789_ ") != "" {
		return wrongKey("algorithm", v, `the one that ran, like "ring", "nvls", "ce", "bf16 cublaslt"`)
	}
	return nil
}

func (f *Floor) size(v any, test FloorTest) error {
	switch n := v.(type) {
	case nil:
		if test.Sized == "" {
			return nil
		}
	case int64:
		f.Size = n
	case string:
		if test.Sized == "bytes" {
			f.Size = parseSize(n)
		}
	}
	if test.Sized == "" {
		return wrongKey("size", v, "none: "+f.Test+" has no size")
	}
	if f.Size <= 0 {
		if test.Sized == "n" {
			return wrongKey("size", v, "n of matrices of n x n, like 8192")
		}
		return wrongKey("size", v, `bytes, like 1048576, "512M" or "16G"`)
	}
	return nil
}

func (f *Floor) ranks(v any, test FloorTest) error {
	least := 1
	if test.Ranked {
		least = 2
	}
	n, ok := v.(int64)
	if v == nil && least == 1 {
		n, ok = 1, true
	}
	if !ok || n < int64(least) || n > 1<<20 {
		return wrongKey("ranks", v, fmt.Sprintf("how many GPUs or ports are at work together, %d or more", least))
	}
	f.Ranks = int(n)
	return nil
}

func (f *Floor) value(v any) error {
	switch n := v.(type) {
	case int64:
		f.Value = float64(n)
	case float64:
		f.Value = n
	}
	if !(f.Value > 0) || f.Value > 1e9 || math.IsInf(f.Value, 0) {
		return wrongKey("value", v, "a number above 0")
	}
	return nil
}

func (f *Floor) unit(v any, test FloorTest) error {
	f.Unit, _ = v.(string)
	if v == nil {
		f.Unit = test.Unit
	}
	if f.Unit != test.Unit {
		return wrongKey("unit", v, strconv.Quote(test.Unit)+", the unit of "+f.Test)
	}
	return nil
}

func (f *Floor) source(v any) error {
	f.Source, _ = v.(string)
	if f.Source == "" {
		return wrongKey("source", v, `where the number is from, like source = "measured on 12 nodes in May, lowest 471"`)
	}
	return nil
}

func (f *Floor) verified(v any) error {
	is, ok := v.(bool)
	if v != nil && !ok {
		return wrongKey("verified", v, "true or false")
	}
	f.Verified = is
	return nil
}

// parseSize parses "512M" or "1048576", bytes in binary units; 0 for any other text.
func parseSize(text string) int64 {
	digits, unit := text, int64(1)
	if i := strings.IndexAny(text, "KMGT"); i > 0 && i == len(text)-1 {
		digits, unit = text[:i], int64(1)<<(10*(1+strings.IndexByte("KMGT", text[i])))
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return 0
	}
	return n * unit
}

// sizeWord formats a size for parseSize.
func sizeWord(n int64, sized string) string {
	if sized != "bytes" {
		return strconv.FormatInt(n, 10)
	}
	unit := ""
	for _, next := range []string{"K", "M", "G", "T"} {
		if n%1024 != 0 {
			break
		}
		n, unit = n/1024, next
	}
	return strconv.FormatInt(n, 10) + unit
}

// floors reads the floors of a platform. The decoder does not provide their positions: the lines
// come from the headers and the keys below them.
func (r *platformReader) floors(p *Platform, tables []map[string]any, text string, line int) {
	headers := headerLines(text, "platform.floor")
	for i, table := range tables {
		from, to := p.Pos.Line-line+1, 0
		if i < len(headers) {
			from = headers[i]
			if i+1 < len(headers) {
				to = headers[i+1]
			}
		}
		f, err := parseFloor(table)
		f.Pos = Pos{r.file, line + from - 1}
		if wrong, ok := errors.AsType[*keyError](err); ok {
			at := line + from - 1 + keyLine(lineRange(text, from, to), wrong.key)
			r.errs = append(r.errs, fmt.Errorf("%s: %w", Pos{r.file, at}, err))
			continue
		}
		if text, ok := r.sources[f.Source]; ok {
			f.Source = text
		}
		if err := p.addFloor(f); err != nil {
			r.errs = append(r.errs, err)
		}
	}
}

// keyLine returns the number of lines before the key in a text, 0 if it is not set.
func keyLine(text, key string) int {
	for i, line := range strings.Split(text, "\n") {
		if name, _, ok := strings.Cut(line, "="); ok && strings.Trim(name, "\"' \t") == key {
			return i
		}
	}
	return 0
}
