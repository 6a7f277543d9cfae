package checks

import "fmt"

// acts reports whether the run carries out the action that the arguments
// describe: "kill process 4711 (sleep) of alice". Every action of a check (kill,
// mount, restart, remove, mkdir, -e) asks here directly before it acts. A run
// that holds its actions notes the text instead, and the report shows it as
// "not done: would kill process 4711 (sleep) of alice".
func (e *Env) acts(format string, args ...any) bool {
	if !e.Hold {
		return true
	}
	e.held = append(e.held, fmt.Sprintf(format, args...))
	return false
}

// Held returns the actions that a run with Hold did not carry out, in order.
func (e *Env) Held() []string { return e.held }
