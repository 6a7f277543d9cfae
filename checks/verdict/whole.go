package verdict

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Wholes are the devices of a run that are in a state as a whole, a GPU that is lost, and
// how much else was found of each afterwards: checks that can tell nothing of a lost GPU
// are no faults of their own.
type Wholes struct {
	list []whole
}

type whole struct {
	finding checks.Finding
	folded  int
}

// Take returns the findings that stand for themselves, and counts the rest.
func (w *Wholes) Take(list []checks.Finding) (rest []checks.Finding) {
	for _, x := range list {
		if of := w.of(x); of != nil {
			of.folded++
			continue
		}
		if x.Whole {
			w.list = append(w.list, whole{finding: x})
		}
		rest = append(rest, x)
	}
	return rest
}

// of returns the device that a finding is about, nil if it is to be reported. One that is
// worse than what was said of the device is: a policy may have softened that.
func (w *Wholes) of(x checks.Finding) *whole {
	for i := range w.list {
		at := w.list[i].finding
		switch {
		case x.Aside() || x.Severity > at.Severity || x.Severity <= checks.Skip && !x.Whole:
		case at.Severity == checks.Unknown && x.Code != at.Code: // a device that does not answer may be known otherwise
		case at.Device == (checks.Device{}):
			if x.Whole && x.Device == at.Device && x.Code == at.Code {
				return &w.list[i]
			}
		case x.Device.Of(at.Device):
			return &w.list[i]
		}
	}
	return nil
}

// About returns the finding that a finding is counted with, and whether there is one.
func (w *Wholes) About(x checks.Finding) (checks.Finding, bool) {
	if of := w.of(x); of != nil {
		return of.finding, true
	}
	return checks.Finding{}, false
}

// Folded is how many findings were not reported.
func (w *Wholes) Folded() (n int) {
	for i := range w.list {
		n += w.list[i].folded
	}
	return n
}

// Texts are a line for each device of which more was found.
func (w *Wholes) Texts() (lines []string) {
	for i := range w.list {
		d, n := w.list[i].finding.Device.String(), w.list[i].folded
		switch {
		case n == 0, w.list[i].finding.Severity <= checks.Skip: // a policy has silenced it
			continue
		case d == "":
			d = w.list[i].finding.Code
		}
		plural := "s"
		if n == 1 {
			plural = ""
		}
		lines = append(lines, fmt.Sprintf("%s:  %d more finding%s of other checks, not listed", d, n, plural))
	}
	return lines
}
