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

// TestAdvise: no check replaces the advice of another, whichever comes first.
func TestAdvise(t *testing.T) {
	t.Parallel()
	all := map[string]string{"a.b": "Wait."}
	if got := advise(all, map[string]string{"a.b": "Wait.", "a.c": "Look."}); got != nil || all["a.c"] != "Look." {
		t.Errorf("conflicts %v, %v", got, all)
	}
	if got := advise(all, map[string]string{"a.b": "Do not wait."}); len(got) != 1 || got[0] != "a.b" || all["a.b"] != "Wait." {
		t.Errorf("conflicts %v, want a.b; %v", got, all)
	}
}
