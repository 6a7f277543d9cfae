package ask

import (
	"errors"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// An ID that is not a number is refused at once, with the way to the number.
func TestCheckID(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"1234_7", "1234+1", "1234.0", "x", ""} {
		var wrong options.Wrong
		if err := checkID(id); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "scontrol show job") {
			t.Errorf("%q: %v", id, err)
		}
	}
	if err := checkID("1234"); err != nil {
		t.Error(err)
	}
}
