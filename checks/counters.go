package checks

// Counters are what one device counts. Most of them grow until the driver is
// loaded anew or the device is reset, which begins them at 0. Flags count as 0
// and 1.
type Counters struct {
	Device Device            `json:"device"`
	Values map[string]uint64 `json:"values"`
}

// routine are the counters that grow on a healthy node.
var routine = map[string]bool{}

// RegisterRoutine notes counters that grow on a healthy node: the application's own, and
// those that congestion or adaptive routing make. Call it from init.
func RegisterRoutine(names ...string) {
	for _, name := range names {
		routine[name] = true
	}
}

// Routine says whether a counter grows on a healthy node, so that a line about a job
// need not tell it.
func Routine(name string) bool { return routine[name] }
