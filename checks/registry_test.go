package checks

import (
	"testing"
	"time"
)

// TestDeadlineCancelsNothing: the supervisor gives a step up; what a check has under way then
// must not fail by itself, and look like a fault of the node.
func TestDeadlineCancelsNothing(t *testing.T) {
	t.Parallel()
	ctx := WithDeadline(t.Context(), time.Now().Add(-time.Second))
	if _, ends := ctx.Deadline(); !ends || ctx.Err() != nil || Room(ctx) != 0 {
		t.Errorf("deadline %v, error %v, room %v", ends, ctx.Err(), Room(ctx))
	}
}
