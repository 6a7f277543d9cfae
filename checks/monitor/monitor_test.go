package monitor

import (
	"slices"
	"testing"
	"time"
)

func TestKindOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Kind{
		"EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0": "disk",
		"XFS (nvme0n1p1): Log I/O Error (0x2) detected at xlog_ioend_work. Shutting down filesystem.":      "disk",
		"XFS (nvme0n1p1): Mounting V5 Filesystem":                                                          "",
		"Out of memory: Killed process 4711 (python) total-vm:1kB":                                         "memory",
		"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:c1:00.0":                     "device",
		"pcieport 0000:00:01.0: pciehp: Slot(1): Link Up":                                                  "",
		"{1}[Hardware Error]: event severity: fatal":                                                       "cpu",
		"INFO: task kworker:7 blocked for more than 120 seconds.":                                          "cpu",
		"NMI watchdog: Watchdog detected hard LOCKUP on cpu 3":                                             "cpu",
		"watchdog: Watchdog detected hard LOCKUP on cpu 3":                                                 "cpu",
		"watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3":                                           "cpu",
		"watchdog: Enabled. Permanently consumes one hw-PMU counter.":                                      "",
		"BTRFS error (device dm-0): bdev /dev/sda errs: wr 1, rd 0, flush 0, corrupt 0, gen 0":             "disk",
		"BTRFS: error (device dm-0) in btrfs_commit_transaction:2332: errno=-5 IO failure":                 "disk",
		"BTRFS: error (device dm-2: state EA) in __btrfs_free_extent:3070: errno=-22 unknown":              "disk",
		"BTRFS: device fsid 0 devid 1 transid 7 /dev/sda scanned by mount (1)":                             "",
		"x": "", "": "",
	} {
		if got := KindOf([]byte(line)); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestConcerns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kinds string
		class string
		want  bool
	}{
		{"gpu", "gpu", true}, {"gpu", "fs", false}, {"gpu,disk", "fs", true}, {"lost", "moab", true}, {"newer", "dmi", true}, {"", "gpu", false},
	} {
		if got := Concerns(Split(test.kinds), test.class); got != test.want {
			t.Errorf("%q, class %s: %v, want %v", test.kinds, test.class, got, test.want)
		}
	}
	if got := Join(Split("gpu,,link")); got != "gpu,link" {
		t.Errorf("got %q", got)
	}
}

// The first event wakes a run at once. A storm wakes few, and its last event is followed by one.
func TestBell(t *testing.T) {
	t.Parallel()
	var b Bell
	begin := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	now := begin
	var runs []time.Duration
	storm := func(length time.Duration) {
		for end := now.Add(length); now.Before(end); now = now.Add(100 * time.Millisecond) {
			b.Ring(GPU, now)
			if kinds, _ := b.Due(now); len(kinds) > 0 {
				runs = append(runs, now.Sub(begin))
				b.Ran(kinds, now)
			}
		}
	}
	storm(time.Hour)
	if len(runs) > 20 || runs[0] != 0 || runs[1] > 2*shortest {
		t.Errorf("an hour of events: runs after %v", runs)
	}
	kinds, next := b.Due(now)
	if len(kinds) != 0 || next.IsZero() || next.Sub(now) > longest {
		t.Errorf("after the storm %v at %v, want a last run", kinds, next)
	}
	if kinds, _ = b.Due(next); !slices.Equal(kinds, []Kind{GPU}) {
		t.Errorf("then %v", kinds)
	}
	b.Ran(kinds, next)
	if kinds, again := b.Due(next.Add(time.Hour)); len(kinds) != 0 || !again.IsZero() {
		t.Errorf("a quiet hour: %v, %v", kinds, again)
	}

	b.Ring(Device, next) // another kind does not wait
	if kinds, _ := b.Due(next.Add(time.Second)); !slices.Equal(kinds, []Kind{Device}) {
		t.Errorf("got %v, want a device at once", kinds)
	}
	now = next.Add(3 * longest) // a quiet time ends the long pauses
	b.Ring(GPU, now)
	kinds, _ = b.Due(now)
	b.Ran(kinds, now)
	b.Ring(GPU, now)
	if _, next := b.Due(now); !slices.Equal(kinds, []Kind{Device, GPU}) || next.Sub(now) != shortest {
		t.Errorf("after a quiet time %v, then a pause of %v", kinds, next.Sub(now))
	}
	var slow Bell // a link that flaps has time to return
	slow.Ring(Link, now)
	slow.Ring(Link, now.Add(5*time.Second))
	if kinds, next := slow.Due(now.Add(9 * time.Second)); len(kinds) != 0 || next.Sub(now) != 10*time.Second {
		t.Errorf("a link: %v, then after %v", kinds, next.Sub(now))
	}
	if kinds, _ := slow.Due(now.Add(10 * time.Second)); !slices.Equal(kinds, []Kind{Link}) {
		t.Errorf("a link after 10 seconds: %v", kinds)
	}
	if kinds, _ := b.Due(now.Add(-24 * time.Hour)); len(kinds) != 1 {
		t.Errorf("the clock was set back: %v, want no pause of a day", kinds)
	}
}

// A monitor that lives, was stopped, or has never run is no cause of doubt.
func TestLedger(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		"":                                    "",
		`{"version":2,"pid":7}`:               "",
		`{"version":1,"pid":7,"alive":900.5}`: "",
		`{"version":1,"pid":7,"alive":100,"stopped":true}`:             "",
		`{"version":1,"pid":7,"alive":100}`:                            "the monitor (PID 7) has given no sign of life for 15m0s",
		`{"version":1,"pid":7,"alive":999,"silent":["links","x"]}`:     "the monitor gets no events from links",
		`{"version":1,"pid":7,"alive":2000}`:                           "",
		`{"version":1,"pid":7,"alive":999,"mark":{"boot":"b"}}` + "\n": "",
	} {
		l, err := ParseLedger([]byte(data))
		if got := l.Doubt(1000); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", data, got, err, want)
		}
	}
	if l, err := ParseLedger([]byte(`{"ver`)); err == nil || l.Version != ledgerVersion {
		t.Errorf("%+v, %v: want an error, and an empty ledger", l, err)
	}
}

// A run that was not made lengthens no pause, and one without a verdict is made again, a few times.
func TestBellRingsAgain(t *testing.T) {
	t.Parallel()
	var b Bell
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	run := func() []Kind {
		kinds, _ := b.Due(now)
		b.Ran(kinds, now)
		return kinds
	}
	b.Ring(GPU, now)
	for range 12 { // a health check is under way
		if kinds := run(); len(kinds) != 1 {
			t.Fatalf("at %v: %v", now, kinds)
		}
		now = now.Add(time.Second)
		b.Retry([]Kind{GPU}, now)
	}
	run()
	b.Ring(GPU, now)
	if _, next := b.Due(now); next.Sub(now) != shortest {
		t.Errorf("the next event waits %v, want %v", next.Sub(now), shortest)
	}

	now = now.Add(time.Hour)
	run()
	b.Judged([]Kind{GPU})
	now = now.Add(time.Hour)
	b.Ring(GPU, now)
	runs := 0
	for end := now.Add(time.Hour); now.Before(end); now = now.Add(time.Second) {
		if kinds := run(); len(kinds) > 0 {
			if runs++; b.Failed(kinds) != (runs == mostTries) {
				t.Errorf("run %d: wrong end", runs)
			}
		}
	}
	if runs != mostTries {
		t.Errorf("%d runs that all failed, want %d", runs, mostTries)
	}
}
