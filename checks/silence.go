package checks

import (
	"time"
)

// Silence is a fault of this node that a person has accepted: a failure that fits it is a warning.
type Silence struct {
	Code    string   `json:"code"`
	Device  Device   `json:"device,omitzero"`   // as it was found; zero: the finding is about the node
	Line    string   `json:"line,omitempty"`    // of a finding without a device: the line of the configuration
	Got     string   `json:"got,omitempty"`     // the value that must stay the same; "": any value
	Devices []Device `json:"devices,omitempty"` // of a finding without a device: the node's devices of its kind

	Silenced
}

// Silenced is the decision of the person.
type Silenced struct {
	Until time.Time `json:"until,omitzero"` // zero: until the hardware changes
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// Ended reports whether the date has passed.
func (s Silenced) Ended(now time.Time) bool { return !s.Until.IsZero() && !now.Before(s.Until) }

// Term returns until when the fault is accepted: "silenced until 2026-12-01", "accepted until the
// hardware changes".
func (s Silenced) Term() string {
	at := s.Until.Local()
	switch {
	case s.Until.IsZero():
		return "accepted until the hardware changes"
	case at.Hour() == 0 && at.Minute() == 0:
		return "silenced until " + at.Format("2006-01-02")
	}
	return "silenced until " + at.Format("2006-01-02 15:04")
}

func (s Silenced) String() string { return s.Term() + " by " + s.By + ": " + s.Why }
