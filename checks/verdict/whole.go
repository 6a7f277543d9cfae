package verdict

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Wholes holds the devices of a run that are faulty as a whole, such as a lost GPU, and counts
// the later findings about each: a check that cannot query a lost GPU is not a separate
// fault.
type Wholes struct {
	list []whole
}

type whole struct {
	finding checks.Finding
	folded  int
}

// Take returns the findings that must be reported, and counts the others.
func (w *Wholes) Take(list []checks.Finding) (rest []checks.Finding) {
	for _, x := range list {
		if of := w.find(x); of != nil {
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

// find returns the faulty device of a finding, nil if the finding must be reported. It must be
// reported if it is worse than the finding about the device, which a policy can have softened.
func (w *Wholes) find(x checks.Finding) *whole {
	for i := range w.list {
		at := w.list[i].finding
		switch {
		case x.Aside() || x.Severity > at.Severity || x.Severity <= checks.Skip && !x.Whole:
		case at.Severity == checks.Unknown && x.Code != at.Code: // another source can know a device that does not answer
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

// About returns the finding that a finding is counted with, if there is one.
func (w *Wholes) About(x checks.Finding) (checks.Finding, bool) {
	if of := w.find(x); of != nil {
		return of.finding, true
	}
	return checks.Finding{}, false
}

// Texts returns a line for each device with counted findings.
func (w *Wholes) Texts() (lines []string) {
	for i := range w.list {
		d, n := w.list[i].finding.Device.String(), w.list[i].folded
		switch {
		case n == 0, w.list[i].finding.Severity <= checks.Skip: // a policy ignores it
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
