package checks

import "slices"

// XidClass says what an Xid or SXid means for the node.
type XidClass string

// The classes. The higher a class, the more of the node is at stake.
const (
	XidIgnore    XidClass = "IGNORE"    // nothing
	XidFollow    XidClass = "FOLLOW"    // follows another Xid, which decides
	XidApp       XidClass = "APP"       // an application's fault
	XidConfig    XidClass = "CONFIG"    // something is set up wrong
	XidWatch     XidClass = "WATCH"     // warn and count
	XidState     XidClass = "STATE"     // a hint: what NVML says decides
	XidDiag      XidClass = "DIAG"      // run a diagnosis when the node is idle
	XidReset     XidClass = "RESET"     // drain; a reset of the GPU clears it
	XidReboot    XidClass = "REBOOT"    // drain; a new boot clears it
	XidHold      XidClass = "RMA-HOLD"  // drain; only an operator clears it
	XidDecode    XidClass = "DECODE"    // the numbers in the line decide
	XidAuthority XidClass = "AUTHORITY" // Xid 154: the driver itself says what is to be done
)

// XidClasses are the classes in rising order; the last two become one of the
// others.
var XidClasses = [...]XidClass{
	XidIgnore, XidFollow, XidApp, XidConfig, XidWatch, XidState, XidDiag, XidReset, XidReboot, XidHold, XidDecode, XidAuthority,
}

// Rank is the place of a class in rising order.
func (c XidClass) Rank() int { return slices.Index(XidClasses[:], c) }

// Drains says whether the class takes the node out of service.
func (c XidClass) Drains() bool { return c == XidReset || c == XidReboot || c == XidHold }

// Repeat makes another class of events that come too often.
type Repeat struct {
	Events int      `toml:"events"`
	Hours  int      `toml:"hours"`
	Class  XidClass `toml:"class"`
	Same   string   `toml:"same"` // place: only on the same GPC and TPC
	Jobs   bool     `toml:"jobs"` // only those of different jobs
}

// Meaning is what a class does, in a few words.
func (c XidClass) Meaning() string {
	switch c {
	case XidIgnore:
		return "nothing is made of it"
	case XidFollow:
		return "another error decides; alone it is a warning, told once"
	case XidApp:
		return "an application's fault: a warning, told once; DIAG when three jobs have it within a day"
	case XidConfig:
		return "a warning: something is set up wrong"
	case XidWatch:
		return "a warning"
	case XidState:
		return "a warning, until NVML says whether it matters"
	case XidDiag:
		return "a warning: run a diagnosis when the node is idle"
	case XidReset:
		return "drains the node; a GPU reset or a new boot clears it"
	case XidReboot:
		return "drains the node; a new boot clears it"
	case XidHold:
		return "drains the node; only nhc-gpu clear clears it"
	case XidDecode:
		return "the numbers of its line decide"
	case XidAuthority:
		return "the driver says what the GPU needs"
	}
	return ""
}
