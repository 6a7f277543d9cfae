package monitor

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Ledger is what the monitor stores: where it goes on after its restart, and that it lives. A boot
// removes it.
type Ledger struct {
	Version int            `json:"version"`
	PID     int            `json:"pid"`
	Mark    checks.LogMark `json:"mark"`              // every event before it was followed by a run
	Alive   float64        `json:"alive"`             // seconds since the boot: the last sign of life
	Stopped bool           `json:"stopped,omitempty"` // a person or systemd has stopped it
	Lost    uint64         `json:"lost,omitempty"`    // records and messages that were not read, since the boot
	Runs    int            `json:"runs,omitempty"`    // that events have woken, since the boot
	Silent  []string       `json:"silent,omitempty"`  // the sources that do not answer
}

const ledgerVersion = 1

// Heartbeat is the time between two signs of life, Silence the time without one after which the monitor
// counts as dead.
const (
	Heartbeat = 30 * time.Second
	Silence   = 5 * Heartbeat
)

// ParseLedger reads a ledger; no data, and data of another version, is an empty one.
func ParseLedger(data []byte) (l Ledger, err error) {
	if len(data) > 0 {
		if err = json.Unmarshal(data, &l); err != nil {
			return Ledger{Version: ledgerVersion}, fmt.Errorf("the state of the monitor is damaged: %w", err)
		}
	}
	if l.Version != ledgerVersion {
		l = Ledger{Version: ledgerVersion}
	}
	return l, nil
}

// Doubt returns why the monitor cannot be relied on, "" if it lives, was stopped or has never run.
// uptime is the time since the boot, in seconds.
func (l Ledger) Doubt(uptime float64) string {
	age := time.Duration((uptime - l.Alive) * float64(time.Second))
	switch {
	case l.PID == 0 || l.Stopped:
		return ""
	case age > Silence:
		return fmt.Sprintf("the monitor (PID %d) has given no sign of life for %s", l.PID, age.Round(time.Minute))
	case len(l.Silent) > 0:
		return fmt.Sprintf("the monitor gets no events from %s", l.Silent[0])
	}
	return ""
}
