package session

import (
	"testing"
	"time"
)

func TestAllowed(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tt := range []struct {
		name string
		of   Asked
		want time.Duration
	}{
		{"by hand", Asked{Timeout: 30 * s}, 30 * s},
		{"by hand, without an end", Asked{}, 0},
		{"one line has no TIMEOUT", Asked{Timeout: 30 * s, Line: true}, 0},
		{"one line under slurmd", Asked{Timeout: 30 * s, Line: true, Check: true}, 50 * s},
		{"a health check", Asked{Timeout: 30 * s, Check: true}, 30 * s},
		{"a health check without an end", Asked{Check: true}, 50 * s},
		{"a health check with a long one", Asked{Timeout: 300 * s, Check: true}, 50 * s},
		{"a health check in the background", Asked{Timeout: 300 * s, Check: true, Background: true}, 300 * s},
		{"in the background without an end", Asked{Check: true, Background: true}, 50 * s},
		{"nhc.toml gives a health check more", Asked{Timeout: 10 * s, Role: 40 * s, Check: true}, 40 * s},
		{"and not more than slurmd", Asked{Timeout: 10 * s, Role: 400 * s, Check: true}, 50 * s},
		{"nhc.toml gives a prolog less", Asked{Timeout: 30 * s, Role: 20 * s, Job: true}, 20 * s},
		{"and never more", Asked{Timeout: 30 * s, Role: 40 * s, Job: true}, 30 * s},
		{"slurm.conf has the last word", Asked{Timeout: 30 * s, Role: 20 * s, Slurm: 12 * s, Job: true}, 10 * s},
		{"slurm.conf gives next to nothing", Asked{Timeout: 30 * s, Slurm: 2 * s, Job: true}, 1 * s},
		{"slurm.conf limits no health check", Asked{Timeout: 30 * s, Slurm: 12 * s, Check: true}, 30 * s},
		{"a prolog without an end", Asked{Slurm: 60 * s, Job: true}, 58 * s},
	} {
		if got := tt.of.Allowed(); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	const s, ms = time.Second, time.Millisecond
	for _, tt := range []struct {
		name                   string
		allowed, now           time.Duration
		within, reading, facts time.Duration // of 2 s, of a file, of 5 s
		acting, helping        time.Duration // from now; -1: no limit
	}{
		{name: "no end", allowed: 0, now: 7 * s, within: 2 * s, reading: 5 * s, facts: 5 * s, acting: -1, helping: 10 * s},
		{name: "at the start", allowed: 30 * s, within: 2 * s, reading: 5 * s, facts: 5 * s, acting: 30*s + 500*ms, helping: 10 * s},
		{name: "half of it gone", allowed: 30 * s, now: 18 * s, within: 2 * s, reading: 4 * s, facts: 5 * s, acting: 12*s + 500*ms, helping: 10 * s},
		{name: "a second left", allowed: 30 * s, now: 29 * s, within: s, reading: s / 3, facts: s, acting: s + 500*ms, helping: s + 500*ms},
		{name: "at the end", allowed: 30 * s, now: 30 * s, within: 100 * ms, reading: 100 * ms, facts: s, acting: 500 * ms, helping: 500 * ms},
		{name: "beyond it", allowed: 30 * s, now: 40 * s, within: 100 * ms, reading: 100 * ms, facts: s, acting: 500 * ms, helping: 500 * ms},
	} {
		b := Budget{Began: began, End: at(99 * s)}
		b.Give(tt.allowed)
		now := at(tt.now)
		if b.Limited() != (tt.allowed > 0) {
			t.Errorf("%s: limited %v", tt.name, b.Limited())
		}
		got := []time.Duration{b.Within(2*s, now), b.Reading(now), b.Facts(5*s, now), b.Helping(now).Sub(now)}
		for i, want := range []time.Duration{tt.within, tt.reading, tt.facts, tt.helping} {
			if got[i] != want {
				t.Errorf("%s: %d: %v, want %v", tt.name, i, got[i], want)
			}
		}
		marking := tt.acting
		if marking < 0 {
			marking = Helper
		}
		if got := b.Marking(now).Sub(now); got != marking {
			t.Errorf("%s: marks for %v, want %v", tt.name, got, marking)
		}
		if end := b.Acting(now); tt.acting < 0 != end.IsZero() || tt.acting >= 0 && end.Sub(now) != tt.acting {
			t.Errorf("%s: acts until %v, want %v", tt.name, end, tt.acting)
		}
	}
}
