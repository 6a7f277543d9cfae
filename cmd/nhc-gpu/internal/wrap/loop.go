package wrap

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// forever runs the program in a loop until a signal ends it.
func (w *wrapper) forever() {
	l := parseLoop(w.loop)
	if l.none {
		w.vecho("WARNING:  Looping requested but no interval found.  Defaulting to 5 minutes.")
	}
	y, m, d := w.now().Date()
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.Local)
	last := time.Time{}
	for {
		wait := loopWait(w.now(), midnight, last, l.every)
		w.vecho("Looping every %d seconds.  Next loop in %d seconds.", int64(l.every.Seconds()), int64(wait.Seconds()))
		timer := time.NewTimer(wait)
		select {
		case <-w.sig.Ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		last = w.now()
		w.announce(l)
		w.once()
	}
}

// loopWait returns the time until the next run. last is when the last run began; its monotonic
// clock prevents an immediate repetition after the clock was set back.
func loopWait(now, midnight, last time.Time, every time.Duration) time.Duration {
	wait := untilNext(now, midnight, every)
	if !last.IsZero() && now.Sub(last)+wait <= every/2 {
		wait += every
	}
	return wait
}

func (w *wrapper) announce(l loopSpec) {
	if l.clear {
		if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err == nil {
			_ = console.Stdout.Raw([]byte("\x1b[H\x1b[2J\x1b[3J")) // as clear(1)
		}
	}
	if l.ruler {
		fmt.Fprintln(console.Stdout, strings.Repeat("-", 76))
	}
	if l.time {
		fmt.Fprintf(console.Stdout, "Invoking %s at %s\n", w.name, w.stamp())
	}
}
