package fabric

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// IBCounter is a row of ibcounters.toml: how to judge a counter of a port. The file documents the
// fields.
type IBCounter struct {
	Name      string
	Bits      int
	Saturates bool
	Per       string
	Warn      float64 // ibNever: no limit
	Fail      float64
	Outlier   float64  // ibNever: not compared with other ports
	Parts     []string // counters that this one includes, and that are judged themselves
	Again     int
	Link      bool
	Layer     string
	Remedy    checks.Remedy
	Do        string
	Means     string
	Source    string
}

// ibNever is a limit that no value reaches.
const ibNever = -1

// The periods of limits.
const (
	inAny    = "any"
	inSecond = "second"
	inMinute = "minute"
	inHour   = "hour"
)

// The most counters of a table, and the period of hourly limits.
const (
	ibMaxCounters = 96 // the history has two values of each, and some more
	ibWindow      = time.Hour
)

// Base returns the name without its directory.
func (c *IBCounter) Base() string { return path.Base(c.Name) }

// Judged reports whether the counter has a limit.
func (c *IBCounter) Judged() bool { return c.Warn >= 0 || c.Fail >= 0 }

// read reports whether the counter is judged, alone or against other ports.
func (c *IBCounter) read() bool { return c.Judged() || c.Outlier >= 0 }

// layerEFA is the link layer of AWS's EFA in rows; the kernel has no name for it.
const layerEFA = "EFA"

// layerOPA is the layer of Omni-Path in rows; its link layer is that of InfiniBand.
const layerOPA = "Omni-Path"

var rowLayers = []string{layerIB, layerOPA, LayerEth, layerEFA}

// rowLayer returns the layer of a port's counters.
func rowLayer(p *Port) string {
	if p.HCA.Driver == "hfi1" {
		return layerOPA
	}
	return layerOf(p)
}

// layerOf returns the link layer of a port, as named in rows. Kernels that show none support
// InfiniBand only.
func layerOf(p *Port) string {
	switch p.Layer {
	case "", layerIB:
		return layerIB
	case LayerEth:
		return LayerEth
	}
	return layerEFA
}

// of reports whether ports of this layer, as returned by rowLayer, have the counter.
func (c *IBCounter) of(layer string) bool { return c.Layer == "" || slices.Contains(c.layers(), layer) }

func (c *IBCounter) layers() []string { return strings.Split(c.Layer, ", ") }

// unit returns the period of a limit.
func (c *IBCounter) unit() time.Duration {
	switch c.Per {
	case inSecond:
		return time.Second
	case inMinute:
		return time.Minute
	}
	return time.Hour
}

// window returns the period of counting growth; 0 means since the last run.
func (c *IBCounter) window() time.Duration {
	if c.Per == inSecond || c.Per == inMinute {
		return 0
	}
	return ibWindow
}

// width returns the bits that distinguish a wrap from a reset: a counter that stops at its
// maximum never wraps.
func (c *IBCounter) width() int {
	if c.Saturates {
		return 0
	}
	return c.Bits
}

// full reports whether the counter has stopped at its maximum.
func (c *IBCounter) full(n uint64) bool {
	return c.Saturates && c.Bits < 64 && n == 1<<c.Bits-1
}

// rate returns growth per unit of the limit. It does not extrapolate a shorter period: ten in
// five minutes are ten in the hour.
func (c *IBCounter) rate(g checks.Growth) float64 {
	g.Over = max(g.Over, c.unit())
	return g.Per(c.unit())
}

// text formats growth per unit of the limit. A count, as opposed to a rate, is exact.
func (c *IBCounter) text(g checks.Growth) string {
	if g.Over <= c.unit() {
		return strconv.FormatUint(g.N, 10)
	}
	return figure(c.rate(g))
}

// figure formats a rate with at most one decimal.
func figure(rate float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(rate, 'f', 1, 64), ".0")
}

// unitText returns the unit of a rate.
func (c *IBCounter) unitText() string {
	if c.Per == inSecond || c.Per == inMinute {
		return "a " + c.Per
	}
	return "in an hour"
}

// limitText formats a limit.
func (c *IBCounter) limitText(limit float64) string {
	switch {
	case c.Per == inAny && limit == 0:
		return "none in an hour"
	case c.Per == inAny:
		return fmt.Sprintf("at most %g in an hour", limit)
	case c.Per == inHour:
		return fmt.Sprintf("at most %g an hour", limit)
	}
	return fmt.Sprintf("at most %g a %s", limit, c.Per)
}

// ibCounterFile has the site's rows, unless IB_COUNTERS or the line names another file.
const ibCounterFile = "/etc/nhc/ibcounters.toml"

// readIBCounters returns the table with the rows of the site. Without a usable site file it
// returns the built-in table and the error. named is the file on the line, or "".
func readIBCounters(env *checks.Env, named string) ([]IBCounter, error) {
	file := cmp.Or(named, env.Lookup("IB_COUNTERS"), ibCounterFile)
	env.At("read %s", file)
	data, err := probe.ReadTrusted(env.Host, file)
	if errors.Is(err, fs.ErrNotExist) && file == ibCounterFile {
		return IBCounterRows, nil
	}
	if err != nil {
		return IBCounterRows, err
	}
	rows, err := parseIBCounters(file, string(data), IBCounterRows)
	if err != nil {
		first, _, more := strings.Cut(err.Error(), "\n")
		if more {
			first += " (nhc-gpu lint shows all errors)"
		}
		return IBCounterRows, errors.New(first)
	}
	return rows, nil
}

// IBCounterErrors returns all errors of a site's counter file, each with its line; nil if there
// are none.
func IBCounterErrors(file string, text []byte) error {
	_, err := parseIBCounters(file, string(text), IBCounterRows)
	return err
}

// ibCounterText is a row as written in TOML. A nil pointer means the key is absent.
type ibCounterText struct {
	Name      string   `toml:"name"`
	Bits      *int     `toml:"bits"`
	Saturates *bool    `toml:"saturates"`
	Per       *string  `toml:"per"`
	Warn      *float64 `toml:"warn"`
	Fail      *float64 `toml:"fail"`
	Outlier   *float64 `toml:"outlier"`
	Parts     []string `toml:"parts"`
	Again     *int     `toml:"again"`
	Link      *bool    `toml:"link"`
	Layer     *string  `toml:"layer"`
	Remedy    *string  `toml:"remedy"`
	Do        *string  `toml:"do"`
	Means     *string  `toml:"means"`
	Source    *string  `toml:"source"`
}

// parseIBCounters parses a counter file and applies it to existing rows.
func parseIBCounters(file, text string, over []IBCounter) ([]IBCounter, error) {
	var t struct {
		Sources  map[string]string `toml:"sources"`
		Counters []ibCounterText   `toml:"counter"`
	}
	r, err := checks.DecodeSite(file, text, &t)
	if err != nil {
		return nil, err
	}
	rows, given := slices.Clone(over), map[string]bool{}
	for i := range t.Counters {
		c := &t.Counters[i]
		line := r.Line(`\s*\[\[\s*counter\s*\]\]`, i)
		at := slices.IndexFunc(rows, func(row IBCounter) bool { return row.Name == c.Name || row.Base() == c.Name })
		row := IBCounter{Name: c.Name, Bits: 64, Per: inAny, Warn: ibNever, Fail: ibNever, Outlier: ibNever}
		if at >= 0 {
			row = rows[at]
		}
		if c.Source != nil {
			*c.Source = cmp.Or(t.Sources[*c.Source], *c.Source)
		}
		c.into(&row)
		if err := row.sound(); err != nil {
			r.Wrong(line, "%s: %v", cmp.Or(c.Name, "counter"), err)
			continue
		}
		if given[row.Name] {
			r.Wrong(line, "%s is given twice, want it once", c.Name)
		}
		given[row.Name] = true
		if at < 0 {
			rows = append(rows, row)
		} else {
			rows[at] = row
		}
	}
	if len(rows) > ibMaxCounters {
		r.Wrong(0, "%d counters, want at most %d", len(rows), ibMaxCounters)
	}
	if len(r.Errs) > 0 {
		return nil, errors.Join(r.Errs...)
	}
	return rows, nil
}

// into copies the keys that are present into a row.
func (c *ibCounterText) into(row *IBCounter) {
	put(&row.Bits, c.Bits)
	put(&row.Saturates, c.Saturates)
	put(&row.Per, c.Per)
	put(&row.Warn, c.Warn)
	put(&row.Fail, c.Fail)
	put(&row.Outlier, c.Outlier)
	if c.Parts != nil {
		row.Parts = c.Parts
	}
	put(&row.Again, c.Again)
	put(&row.Link, c.Link)
	put(&row.Layer, c.Layer)
	if c.Remedy != nil {
		row.Remedy = checks.Remedy(*c.Remedy)
	}
	put(&row.Do, c.Do)
	put(&row.Means, c.Means)
	put(&row.Source, c.Source)
}

func put[T any](into, from *T) {
	if from != nil {
		*into = *from
	}
}

// ibCounterName matches valid counter names: a name becomes part of a path.
var ibCounterName = checks.Lazily(`^(counters|hw_counters|device|net)/[A-Za-z0-9_]{1,64}$`)

// ibRemedies are the remedies that a counter can have.
var ibRemedies = []string{string(checks.CheckCable), string(checks.CheckFabric), string(checks.FixConfig), string(checks.RebootNode), string(checks.ReseatOrRMA), string(checks.RestartApp)}

// sound rejects an unusable row.
func (c *IBCounter) sound() error {
	limit := func(n float64) bool { return n == ibNever || n >= 0 && !math.IsInf(n, 0) }
	switch {
	case !ibCounterName().MatchString(c.Name):
		return fmt.Errorf("name %q, want a known counter, or counters/NAME, hw_counters/NAME, device/NAME or net/NAME", c.Name)
	case c.Bits < 1 || c.Bits > 64:
		return fmt.Errorf("bits %d, want 1 to 64", c.Bits)
	case !slices.Contains([]string{inAny, inSecond, inMinute, inHour}, cmp.Or(c.Per, inAny)):
		return fmt.Errorf("per %q, want any, second, minute or hour", c.Per)
	case !limit(c.Warn):
		return fmt.Errorf("warn %g, want a number from 0, or -1 for never", c.Warn)
	case !limit(c.Fail):
		return fmt.Errorf("fail %g, want a number from 0, or -1 for never", c.Fail)
	case !limit(c.Outlier):
		return fmt.Errorf("outlier %g, want a number from 0, or -1 for never", c.Outlier)
	case c.Outlier >= 0 && c.Per != inSecond && c.Per != inMinute:
		return fmt.Errorf("outlier with per %q, want second or minute", c.Per)
	case c.Again < 0 || c.Again > int(ibWindow/ibSpell):
		return fmt.Errorf("again %d, want 0 to %d", c.Again, int(ibWindow/ibSpell))
	case c.Layer != "" && slices.ContainsFunc(c.layers(), func(l string) bool { return !slices.Contains(rowLayers, l) }):
		return fmt.Errorf("layer %q, want one or more of %s", c.Layer, strings.Join(rowLayers, ", "))
	case c.Remedy != checks.NoRemedy && !slices.Contains(ibRemedies, string(c.Remedy)):
		return fmt.Errorf("remedy %q, want one of %s", c.Remedy, strings.Join(ibRemedies, ", "))
	}
	return nil
}

// ibSpell is the least distance of two times at which a counter was too fast, so that the
// interval of the checks does not matter.
const ibSpell = 5 * time.Minute

// IBCountedNames returns the counters of ports in job records: all of the table.
var IBCountedNames = sync.OnceValue(func() (names []string) {
	for i := range IBCounterRows {
		names = append(names, IBCounterRows[i].Name)
	}
	return names
})

func init() {
	for i := range IBCounterRows {
		if c := &IBCounterRows[i]; !c.Judged() {
			checks.RegisterRoutine("ib." + c.Base())
		}
	}
}
