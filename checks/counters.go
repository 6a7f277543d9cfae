package checks

// Counters are the counters of one device. Most of them grow until the driver is reloaded or
// the device is reset, which sets them to 0. Flags count as 0 and 1.
type Counters struct {
	Device Device            `json:"device"`
	Values map[string]uint64 `json:"values"`
}

// routine holds the counters that grow on a healthy node.
var routine = map[string]bool{}

// RegisterRoutine adds counters that grow on a healthy node: those of the application itself,
// and those of congestion and adaptive routing. Call it from init.
func RegisterRoutine(names ...string) {
	for _, name := range names {
		routine[name] = true
	}
}

// Routine reports whether a counter grows on a healthy node. A line about a job omits such
// counters.
func Routine(name string) bool { return routine[name] }
