package run

// onPanic hears of a panic in a goroutine of the supervisor.
var onPanic func(cause any)

// OnPanic sets the function that handles a panic of a goroutine of [Go].
func OnPanic(do func(cause any)) { onPanic = do }

// Go starts a goroutine of the supervisor. A panic in it must not end the program with
// Go's own status, for which slurmd would drain the node, so every goroutine of the
// supervisor is started by it (tests/imports looks).
func Go(do func()) {
	go func() {
		if onPanic != nil {
			defer func() {
				if cause := recover(); cause != nil {
					onPanic(cause)
				}
			}()
		}
		do()
	}()
}
