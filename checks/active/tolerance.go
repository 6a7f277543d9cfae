package active

import (
	"github.com/nhc-gpu/nhc-gpu/checks"

	_ "embed"
	"fmt"
	"sync"
	"time"

	"github.com/BurntSushi/toml"
)

// The tolerances and the time limits of active tests.

//go:embed active.toml
var activeData string

//go:embed active_time.toml
var activeTimes string

// tolerance is a row of active.toml.
type tolerance struct {
	Test     string  `toml:"test"`
	Peers    float64 `toml:"peers"`    // fails at this part below the median of its peers
	Warn     float64 `toml:"warn"`     // warns at this part below; 0: no warning before the failure
	Again    int     `toml:"again"`    // a failure is measured again, this many times longer; 0: not again
	Baseline float64 `toml:"baseline"` // fails only at this part below the node's own median
	MADs     float64 `toml:"mads"`     // median absolute deviations, scaled to standard deviations
	Source   string  `toml:"source"`
}

// commonFloor is a row of active.toml: a value that healthy GPUs of every platform reach.
type commonFloor struct {
	Test      string  `toml:"test"`
	Algorithm string  `toml:"algorithm"`
	Size      int64   `toml:"size"`   // minimum
	Figure    string  `toml:"figure"` // of the platform; "": Value applies
	Part      float64 `toml:"part"`   // of the figure
	Value     float64 `toml:"value"`
	Unit      string  `toml:"unit"`
	Source    string  `toml:"source"`
}

// loadRow is a row of active.toml: the power that a GPU draws under a test.
type loadRow struct {
	Test   string  `toml:"test"`
	With   string  `toml:"with"` // code that multiplies: cublaslt, own
	Part   float64 `toml:"part"` // part of the power limit in force
	Source string  `toml:"source"`
}

// activeRows are the rows of active.toml.
type activeRows struct {
	tolerances map[string]tolerance // by test
	floors     []commonFloor
	loads      []loadRow
}

var activeTable = sync.OnceValue(func() activeRows {
	rows, err := parseActiveRows(activeData)
	if err != nil {
		panic(err) // embedded, and read by a test
	}
	return rows
})

// toleranceOf returns the row of a test, otherwise the general one.
func toleranceOf(test string) tolerance {
	rows := activeTable().tolerances
	if t, ok := rows[test]; ok {
		return t
	}
	return rows[""]
}

// parseActiveRows parses active.toml.
func parseActiveRows(text string) (rows activeRows, err error) {
	var file struct {
		Tolerances []tolerance   `toml:"tolerance"`
		Floors     []commonFloor `toml:"floor"`
		Loads      []loadRow     `toml:"load"`
	}
	if err := decodeAll(text, &file); err != nil {
		return rows, err
	}
	rows.tolerances = map[string]tolerance{}
	part := func(f float64) bool { return f > 0 && f < 1 }
	for _, t := range file.Tolerances {
		_, twice := rows.tolerances[t.Test]
		switch {
		case twice:
			return rows, fmt.Errorf("tolerance of test %q: duplicate", t.Test)
		case !part(t.Peers), !part(t.Baseline):
			return rows, fmt.Errorf("test %q: peers %v, baseline %v: want parts of 1", t.Test, t.Peers, t.Baseline)
		case t.Warn < 0 || t.Warn >= t.Peers || t.Again < 0:
			return rows, fmt.Errorf("test %q: warn %v, again %d: want less than peers, and 0 or more", t.Test, t.Warn, t.Again)
		case t.MADs < 1:
			return rows, fmt.Errorf("test %q: mads %v: want 1 or more", t.Test, t.MADs)
		case t.Source == "":
			return rows, fmt.Errorf("test %q: no source", t.Test)
		}
		rows.tolerances[t.Test] = t
	}
	if _, ok := rows.tolerances[""]; !ok {
		return rows, fmt.Errorf("no row for test %q", "")
	}
	for _, f := range file.Floors {
		switch _, known := (&checks.Platform{}).Figure(f.Figure); {
		case f.Figure != "" && (!known || !part(f.Part) || f.Value != 0), f.Figure == "" && f.Value <= 0:
			return rows, fmt.Errorf("floor of test %q: want a figure with its part, or a value", f.Test)
		case f.Test == "" || f.Algorithm == "" || f.Unit == "" || f.Source == "":
			return rows, fmt.Errorf("floor of test %q: want test, algorithm, unit and source", f.Test)
		}
		rows.floors = append(rows.floors, f)
	}
	for _, l := range file.Loads {
		if l.Test == "" || l.With == "" || !part(l.Part) || l.Source == "" {
			return rows, fmt.Errorf("load of test %q: want test, with, a part of 1 and source", l.Test)
		}
		rows.loads = append(rows.loads, l)
	}
	return rows, nil
}

// loadOf returns the power that a test makes a GPU draw.
func loadOf(test, with string) (row loadRow, known bool) {
	for _, l := range activeTable().loads {
		if l.Test == test && l.With == with {
			return l, true
		}
	}
	return loadRow{}, false
}

// decodeAll decodes a text with known keys only.
func decodeAll(text string, to any) error {
	meta, err := toml.Decode(text, to)
	if err != nil {
		return err
	}
	if more := meta.Undecoded(); len(more) > 0 {
		return fmt.Errorf("unknown key %s", more[0])
	}
	return nil
}

// activeTime is a row of active_time.toml.
type activeTime struct {
	Test     string        `toml:"test"`
	Bound    time.Duration `toml:"bound"`    // of the whole test
	Patience time.Duration `toml:"patience"` // of one piece of its work
	Source   string        `toml:"source"`
}

// The tests with a row of their own, and all others.
const (
	timeOfNCCL    = "nccl"
	timeOfNetwork = "nccl_network"
	timeOfOthers  = ""
)

var activeTimeTable = sync.OnceValue(func() map[string]activeTime {
	rows, err := parseActiveTimes(activeTimes)
	if err != nil {
		panic(err) // embedded, and read by a test
	}
	return rows
})

// timeOf returns the row of a test.
func timeOf(test string) activeTime { return activeTimeTable()[test] }

// parseActiveTimes parses active_time.toml.
func parseActiveTimes(text string) (map[string]activeTime, error) {
	var file struct {
		Times []activeTime `toml:"time"`
	}
	if err := decodeAll(text, &file); err != nil {
		return nil, err
	}
	rows := map[string]activeTime{}
	for _, t := range file.Times {
		if t.Patience <= 0 || t.Patience >= t.Bound || t.Source == "" {
			return nil, fmt.Errorf("test %q: bound %v, patience %v: want a patience below the bound, and a source", t.Test, t.Bound, t.Patience)
		}
		rows[t.Test] = t
	}
	for _, test := range []string{timeOfNCCL, timeOfNetwork, timeOfOthers} {
		if _, ok := rows[test]; !ok {
			return nil, fmt.Errorf("no row for test %q", test)
		}
	}
	return rows, nil
}
