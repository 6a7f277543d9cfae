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

// TestAdviceConflicts: no check replaces the advice of another, whichever comes first.
func TestAdviceConflicts(t *testing.T) {
	t.Parallel()
	all := map[string]string{"a.b": "Wait."}
	advise(all, "check_x", map[string]string{"a.b": "Wait.", "a.c": "Look."})
	defer func() {
		if recover() == nil || all["a.b"] != "Wait." || all["a.c"] != "Look." {
			t.Errorf("other advice replaces that of a check: %v", all)
		}
	}()
	advise(all, "check_y", map[string]string{"a.b": "Do not wait."})
}
