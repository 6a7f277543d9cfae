package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

func TestCommonest(t *testing.T) {
	t.Parallel()
	for want, count := range map[string]map[string]int{"": {}, "a": {"a": 2, "b": 2}, "b": {"a": 1, "b": 7}} {
		if got := checks.Commonest(count); got != want {
			t.Errorf("%v: %q", count, got)
		}
	}
}
