package xid

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// xidLedger is what runs remember of events. It outlives the kernel's ring
// buffer, which forgets, and a boot, which begins it anew.
type xidLedger struct {
	Boot   string            `json:"boot"`             // the boot that Cursor and Resets are of
	Cursor uint64            `json:"cursor"`           // the first record that has not been read
	Epoch  int64             `json:"epoch,omitempty"`  // Unix time that the times of that boot's events count from
	Driver string            `json:"driver,omitempty"` // version
	Resets map[string]int    `json:"resets,omitempty"` // of a GPU; of all of them under ""
	UUIDs  map[string]string `json:"uuids,omitempty"`
	Events []xidEvent        `json:"events,omitempty"` // the oldest first
}

// xidLedgerName and xidClearsName are the files of a node's memory.
const (
	xidLedgerName = "xid"
	xidClearsName = "xid-clear"
)

// epoch is how often a GPU was reset in this boot.
func (l *xidLedger) epoch(gpu string) int { return l.Resets[gpu] + l.Resets[""] }

// begin makes the ledger one of this boot.
func (l *xidLedger) begin(boot string) {
	if l.Boot != boot {
		*l = xidLedger{Boot: boot, Driver: l.Driver, Events: l.Events}
	}
}

// clockStep is how far the clock of a node may drift without any time being
// told anew, seconds.
const clockStep = 60

// setEpoch takes a step of the node's clock out of the times of this boot.
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

// forget drops what no rule asks for any more.
func (l *xidLedger) forget(now int64) {
	l.Events = slices.DeleteFunc(l.Events, func(e xidEvent) bool { return e.Last < now-xidMemory && !e.standing })
	for gpu := range l.UUIDs {
		if !slices.ContainsFunc(l.Events, func(e xidEvent) bool { return e.GPU == gpu }) {
			delete(l.UUIDs, gpu)
		}
	}
}

// recallXids reads the ledger. Without one there is a new one; kept says whether
// it can be written.
func recallXids(env *checks.Env) (ledger *xidLedger, kept bool, notes []checks.Finding) {
	boot, bootErr := probe.BootID(env.Host)
	ledger = &xidLedger{}
	env.At("read the ledger of Xids")
	err := env.Recall(xidLedgerName, ledger)
	switch {
	case errors.Is(err, probe.ErrNoMemory) || bootErr != nil || boot == "":
		return &xidLedger{Boot: boot}, false, nil
	case errors.Is(err, fs.ErrNotExist):
		ledger = &xidLedger{}
	case err != nil || !ledger.sound():
		if err == nil {
			err = errors.New("read the ledger of Xids: it does not make sense")
		}
		ledger = &xidLedger{}
		notes = append(notes, checks.Finding{Code: "gpu.xid.ledger", Severity: checks.Warn}.Describe("check_gpu_xid", "what earlier runs have seen is lost: %v", err))
	}
	ledger.begin(boot)
	return ledger, true, notes
}

// sound refuses a ledger that no run of ours has written.
func (l *xidLedger) sound() bool {
	if len(l.Events) > xidMaxEvents || len(l.UUIDs) > xidMemos || len(l.Resets) > xidMemos {
		return false
	}
	return !slices.ContainsFunc(l.Events, func(e xidEvent) bool {
		_, ok := checks.PCIAddress(e.GPU)
		text := e.Text + e.PID + e.Name + e.Place + e.Link + e.UUID + e.Job
		return e.GPU != "" && !ok || e.Key.Code < 0 || e.Last < e.First || e.Raised != "" && e.Raised.Rank() < 0 ||
			len(text) > 3*checks.MaxXidText || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	})
}
