package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Strikes are the runs in which faults were present, for policies that wait for several. The last
// event of a node has the number of its run, so that a run without a fault writes nothing.
type Strikes struct {
	Faults []Fault `json:"faults"`
}

// Fault is a fault, and the numbers of the runs in which it was present, in rising order.
type Fault struct {
	Key   string    `json:"key"`
	Runs  []int64   `json:"runs"`
	Since time.Time `json:"since"` // the first of these runs
}

// unknown returns 1 for an unknown result, 0 for a fault.
func (f *Fault) unknown() int {
	if strings.Contains(f.Key, " "+StaysUnknown+" ") || strings.Contains(f.Key, " "+UnknownGPU+" ") {
		return 1
	}
	return 0
}

// mostFaults bounds the number of faults. Unknown results are removed first, since many GPUs can be unreadable
// for many checks at once, then those that were not present for the longest time.
const mostFaults = 256

// Last returns the number of the last run with a fault, 0 if there is none.
func (s *Strikes) Last() (run int64) {
	for _, f := range s.Faults {
		for _, r := range f.Runs {
			run = max(run, r)
		}
	}
	return run
}

// ofUsers are the kinds of devices whose names users choose, unless the code says that the site's line does.
var ofUsers, ofLine = []string{"path", "process"}, []string{"ps.daemon.down", "ps.blacklist.running"}

// KeyOf identifies a fault by its check, code and device. A device whose name a user can choose does not
// count: a process with another name in each run would never reach the second strike. A drill is not the
// fault that it rehearses.
func KeyOf(f *checks.Finding) string {
	key := f.Check + " " + f.Code + " "
	if !slices.Contains(ofUsers, f.Device.Kind) || slices.Contains(ofLine, f.Code) {
		key += f.Device.String()
	}
	if f.Drill {
		return checks.DrillMark + key
	}
	return key
}

// Add records a fault in a run, and returns the number of runs with it among the last of runs.
func (s *Strikes) Add(key string, run int64, of int, now time.Time) (n int, since time.Time) {
	s.Faults = slices.DeleteFunc(s.Faults, func(f Fault) bool { // a number that has not been reached is that of another memory
		if len(f.Runs) == 0 { // of a damaged file
			return true
		}
		last := f.Runs[len(f.Runs)-1]
		return last > run || last <= run-conf.MostStrikes
	})
	i := slices.IndexFunc(s.Faults, func(f Fault) bool { return f.Key == key })
	if i < 0 {
		s.Faults, i = append(s.Faults, Fault{Key: key}), len(s.Faults)
	}
	f := &s.Faults[i]
	f.Runs = slices.DeleteFunc(f.Runs, func(r int64) bool { return r <= run-int64(of) })
	if len(f.Runs) == 0 {
		f.Since = now.UTC().Truncate(time.Second)
	}
	if !slices.Contains(f.Runs, run) {
		f.Runs = append(f.Runs, run)
	}
	n, since = len(f.Runs), f.Since
	slices.SortStableFunc(s.Faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.unknown(), b.unknown()), cmp.Compare(b.Runs[len(b.Runs)-1], a.Runs[len(a.Runs)-1]))
	})
	s.Faults = s.Faults[:min(len(s.Faults), mostFaults)]
	return n, since
}
