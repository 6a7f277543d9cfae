package main

import (
	"testing"
	"time"
)

// Files on a dead mount leave the run within its budget, however many they are.
func TestReading(t *testing.T) {
	t.Parallel()
	if got := new(oneRun).reading(); got != readLimit {
		t.Errorf("without a deadline: %s, want %s", got, readLimit)
	}
	for _, left := range []time.Duration{-time.Second, 9 * time.Second, time.Hour} {
		r := &oneRun{end: time.Now().Add(left)}
		if got, most := r.reading(), max(min(left/3, readLimit), 100*time.Millisecond); got <= 0 || got > most {
			t.Errorf("%s before the end: %s, want at most %s", left, got, most)
		}
	}
}
