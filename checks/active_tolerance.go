package checks

import (
	_ "embed"
	"fmt"
	"sync"

	"github.com/BurntSushi/toml"
)

// How far the numbers of active tests may be apart.

//go:embed active.toml
var activeData string

// tolerance is a row of active.toml.
type tolerance struct {
	Test     string  `toml:"test"`
	Peers    float64 `toml:"peers"`    // part of the median of its peers
	Baseline float64 `toml:"baseline"` // part of the node's own median, the least that can fail
	MADs     float64 `toml:"mads"`     // median absolute deviations, scaled to standard deviations
	Source   string  `toml:"source"`
}

var tolerances = sync.OnceValue(func() map[string]tolerance {
	rows, err := parseTolerances(activeData)
	if err != nil {
		panic(err) // ours, which a test has read
	}
	return rows
})

// toleranceOf is the row of a test, else that of all the others.
func toleranceOf(test string) tolerance {
	rows := tolerances()
	if t, ok := rows[test]; ok {
		return t
	}
	return rows[""]
}

// parseTolerances reads the rows, by test.
func parseTolerances(text string) (map[string]tolerance, error) {
	var file struct {
		Rows []tolerance `toml:"tolerance"`
	}
	meta, err := toml.Decode(text, &file)
	if err != nil {
		return nil, err
	}
	if more := meta.Undecoded(); len(more) > 0 {
		return nil, fmt.Errorf("unknown key %s", more[0])
	}
	rows := map[string]tolerance{}
	for _, t := range file.Rows {
		_, twice := rows[t.Test]
		switch part := func(f float64) bool { return f > 0 && f < 1 }; {
		case twice:
			return nil, fmt.Errorf("tolerance of test %q is there already", t.Test)
		case !part(t.Peers), !part(t.Baseline):
			return nil, fmt.Errorf("test %q: peers %v, baseline %v: want parts of 1", t.Test, t.Peers, t.Baseline)
		case t.MADs < 1:
			return nil, fmt.Errorf("test %q: mads %v: want 1 or more", t.Test, t.MADs)
		case t.Source == "":
			return nil, fmt.Errorf("test %q: no source", t.Test)
		}
		rows[t.Test] = t
	}
	if _, ok := rows[""]; !ok {
		return nil, fmt.Errorf("no row for test %q", "")
	}
	return rows, nil
}
