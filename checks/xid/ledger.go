package xid

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// xidLedger is the record of events that runs keep. It outlives the kernel's ring buffer and a boot.
type xidLedger struct {
	Boot   string            `json:"boot"`             // the boot of Cursor and Resets
	Cursor uint64            `json:"cursor"`           // first record that is not read yet
	Epoch  int64             `json:"epoch,omitempty"`  // Unix time of time 0 of that boot's log
	Driver string            `json:"driver,omitempty"` // version
	Resets map[string]int    `json:"resets,omitempty"` // number of resets by GPU; "": resets of all GPUs
	UUIDs  map[string]string `json:"uuids,omitempty"`
	Events []xidEvent        `json:"events,omitempty"` // the oldest first

	ResetAt map[string]uint64 `json:"reset_at,omitempty"` // record number of the last reset, as Resets
	Own     int               `json:"own,omitempty"`      // number of the last reset by a remedy that Resets has
}

// xidLedgerName and xidClearsName are the names of the state files.
const (
	xidLedgerName = "xid"
	xidClearsName = "xid-clear"
	xidResetsName = "xid-reset"
)

// epoch returns how often a GPU was reset in this boot.
func (l *xidLedger) epoch(gpu string) int { return l.Resets[gpu] + l.Resets[""] }

// allReset reports whether each of these GPUs was reset after a record. Such a reset includes the
// NVSwitches.
func (l *xidLedger) allReset(gpus []string, seq uint64) bool {
	return len(gpus) > 0 && !slices.ContainsFunc(gpus, func(gpu string) bool { return max(l.ResetAt[gpu], l.ResetAt[""]) <= seq })
}

// begin starts a new boot in the ledger.
func (l *xidLedger) begin(boot string) {
	if l.Boot != boot {
		*l = xidLedger{Boot: boot, Driver: l.Driver, Events: l.Events}
	}
}

// clockStep is the largest drift of the node's clock that is tolerated, seconds.
const clockStep = 60

// setEpoch corrects the times of this boot's events after a step of the node's clock.
func (l *xidLedger) setEpoch(epoch int64) {
	step := epoch - l.Epoch
	if l.Epoch != 0 && -clockStep <= step && step <= clockStep {
		return
	}
	for i := range l.Events {
		if e := &l.Events[i]; e.Boot == l.Boot && l.Epoch != 0 {
			e.First, e.Last = e.First+step, e.Last+step
		}
	}
	l.Epoch = epoch
}

// forget drops the events that no rule needs any more.
func (l *xidLedger) forget(now int64) {
	l.Events = slices.DeleteFunc(l.Events, func(e xidEvent) bool { return e.Last < now-xidMemory && !e.standing })
	for gpu := range l.UUIDs {
		if !slices.ContainsFunc(l.Events, func(e xidEvent) bool { return e.GPU == gpu }) {
			delete(l.UUIDs, gpu)
		}
	}
}

// recallXids reads the ledger, or returns a new one. kept: it can be written.
func recallXids(env *checks.Env) (ledger *xidLedger, kept bool, notes []checks.Finding) {
	boot, bootErr := probe.BootID(env.Host)
	ledger = &xidLedger{}
	env.At("read the record of Xids")
	err := env.Recall(xidLedgerName, ledger)
	switch {
	case errors.Is(err, probe.ErrNoMemory) || bootErr != nil || boot == "":
		return &xidLedger{Boot: boot}, false, nil
	case errors.Is(err, fs.ErrNotExist):
		ledger = &xidLedger{}
	case err != nil || !ledger.sound():
		if err == nil {
			err = errors.New("it is damaged")
		}
		ledger = &xidLedger{}
		notes = append(notes, checks.Finding{Code: "gpu.xid.ledger", Severity: checks.Warn}.Describe("check_gpu_xid", "the record of earlier Xids is lost: %v", err))
	}
	ledger.begin(boot)
	return ledger, true, notes
}

// sound reports whether the ledger is one that a run has written.
func (l *xidLedger) sound() bool {
	if len(l.Events) > xidMaxEvents || len(l.UUIDs) > xidMemos || len(l.Resets) > xidMemos || len(l.ResetAt) > xidMemos {
		return false
	}
	return !slices.ContainsFunc(l.Events, func(e xidEvent) bool {
		_, ok := checks.PCIAddress(e.GPU)
		text := e.Text + e.PID + e.Name + e.Place + e.Link + e.UUID + e.Job
		return e.GPU != "" && !ok || e.Key.Code < 0 || e.Last < e.First || e.Raised != "" && e.Raised.Rank() < 0 ||
			len(text) > 3*checks.MaxXidText || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	})
}
