package run

// onPanic handles a panic in a goroutine of the supervisor.
var onPanic func(cause any)

// OnPanic sets the function that handles a panic in a goroutine of [Go].
func OnPanic(do func(cause any)) { onPanic = do }

// Go starts a goroutine of the supervisor. A panic in it must not end the program with Go's own
// status, because slurmd would drain the node. So the supervisor starts every goroutine by Go
// (tests/imports checks this).
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
