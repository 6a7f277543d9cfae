package checks

import "slices"

// XidClass is the effect of an Xid or SXid on the node.
type XidClass string

// The classes. The higher the class, the more severe.
const (
	XidIgnore    XidClass = "IGNORE"    // no effect
	XidFollow    XidClass = "FOLLOW"    // a consequence of another Xid, which decides
	XidApp       XidClass = "APP"       // a fault of an application
	XidConfig    XidClass = "CONFIG"    // a wrong setting
	XidWatch     XidClass = "WATCH"     // warn and count
	XidState     XidClass = "STATE"     // a hint: the state in NVML decides
	XidDiag      XidClass = "DIAG"      // run a diagnostic when the node is idle
	XidReset     XidClass = "RESET"     // drain; a GPU reset clears it
	XidReboot    XidClass = "REBOOT"    // drain; a reboot clears it
	XidHold      XidClass = "RMA-HOLD"  // drain; only an operator clears it
	XidDecode    XidClass = "DECODE"    // the numbers in the line decide
	XidAuthority XidClass = "AUTHORITY" // Xid 154: the driver names the required action
)

// XidClasses lists the classes in rising order. The last two are resolved to one of the
// others.
var XidClasses = [...]XidClass{
	XidIgnore, XidFollow, XidApp, XidConfig, XidWatch, XidState, XidDiag, XidReset, XidReboot, XidHold, XidDecode, XidAuthority,
}

// Rank returns the index of a class in XidClasses.
func (c XidClass) Rank() int { return slices.Index(XidClasses[:], c) }

// Drains reports whether the class drains the node.
func (c XidClass) Drains() bool { return c == XidReset || c == XidReboot || c == XidHold }

// Repeat raises the class of events that occur too often.
type Repeat struct {
	Events int      `toml:"events"`
	Hours  int      `toml:"hours"`
	Class  XidClass `toml:"class"`
	Same   string   `toml:"same"` // "place": count only events on the same GPC and TPC
	Jobs   bool     `toml:"jobs"` // count only events of different jobs
}

// Meaning returns the effect of a class in a few words.
func (c XidClass) Meaning() string {
	switch c {
	case XidIgnore:
		return "no effect"
	case XidFollow:
		return "a consequence of another error, which decides; alone it warns once"
	case XidApp:
		return "a fault of an application: warns once; DIAG if three jobs have it within a day"
	case XidConfig:
		return "warns: a setting is wrong"
	case XidWatch:
		return "warns"
	case XidState:
		return "warns, until NVML shows the state of the GPU"
	case XidDiag:
		return "warns: run a diagnostic when the node is idle"
	case XidReset:
		return "drains the node; a GPU reset or a reboot clears it"
	case XidReboot:
		return "drains the node; a reboot clears it"
	case XidHold:
		return "drains the node; only nhc-gpu clear clears it"
	case XidDecode:
		return "the numbers in its line decide"
	case XidAuthority:
		return "the driver names the required action"
	}
	return ""
}
