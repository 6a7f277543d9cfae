package xid

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// ownResets are the GPU resets that remedies of nhc-gpu have carried out in one boot. The driver logs
// none of them.
type ownResets struct {
	Boot string     `json:"boot"`
	List []ownReset `json:"list"` // the oldest first
}

type ownReset struct {
	N   int    `json:"n"`   // counts from 1 in each boot
	GPU string `json:"gpu"` // PCI address
	Seq uint64 `json:"seq"` // number of the first record after it
}

// NoteReset records that GPUs have been reset, by UUID or PCI address. The next run of check_gpu_xid
// counts it; only that run writes the ledger. A [probe.SpareError] is not a failure.
func NoteReset(env *checks.Env, gpus []string) error {
	ledger, kept, _ := recallXids(env)
	if !kept {
		return fmt.Errorf("record a GPU reset: %w", probe.ErrNoMemory)
	}
	if _, _, err := recordXids(env, ledger); err != nil {
		return err
	}
	resets := recallResets(env, ledger.Boot)
	for _, gpu := range gpus {
		pci, err := findClearDevice(env, gpu)
		if err != nil {
			return fmt.Errorf("record a reset of %s: %w", gpu, err)
		}
		n := 1
		if len(resets.List) > 0 {
			n += resets.List[len(resets.List)-1].N
		}
		resets.List = append(resets.List, ownReset{n, pci, ledger.Cursor})
	}
	resets.List = resets.List[max(0, len(resets.List)-xidMemos):]
	return env.Host.Keep(xidResetsName, resets)
}

// recallResets returns the recorded resets of a boot; without the file there are none.
func recallResets(env *checks.Env, boot string) (r ownResets) {
	env.At("read the record of GPU resets")
	if err := env.Host.Recall(xidResetsName, &r); err != nil || r.Boot != boot || len(r.List) > xidMemos {
		return ownResets{Boot: boot}
	}
	return r
}

// countOwn counts the recorded resets before a record of the log.
func (s *xidScan) countOwn(seq uint64) {
	if s.own == nil {
		return
	}
	for _, r := range s.own() {
		if r.N > s.ledger.Own && r.Seq <= seq {
			s.countReset(r.GPU, r.Seq)
			s.ledger.Own = r.N
		}
	}
}

// countReset counts a reset of a GPU, "" for all of them. seq is the number of its record, or of the
// first one after it.
func (s *xidScan) countReset(gpu string, seq uint64) {
	l := s.ledger
	if l.Resets == nil {
		l.Resets = map[string]int{}
	}
	if l.ResetAt == nil {
		l.ResetAt = map[string]uint64{}
	}
	if _, ok := l.Resets[gpu]; ok || len(l.Resets) < xidMemos {
		l.Resets[gpu]++
		l.ResetAt[gpu] = seq
	}
}
