package active

import (
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// What is wrong with the words of an active test is said when they are bound, so that
// lint and plan hear of it: at night it would be unknown each time.

func usableTime(d time.Duration) error {
	if d <= 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: d.String(), Want: "a time above 0"}
	}
	return nil
}

func usableBytes(n checks.Size) error {
	if n <= 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: n.String(), Want: "a size above 0"}
	}
	return nil
}
