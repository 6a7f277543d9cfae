package checks

import (
	"testing"
	"time"
)

func TestLength(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 30 * time.Second: "30s", 10 * time.Minute: "10m", time.Hour: "1h", 90 * time.Minute: "1h30m", 24 * time.Hour: "24h", 61 * time.Second: "1m1s", time.Hour + time.Second: "1h0m1s",
	} {
		if got := Length(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
