package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/remedy"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
)

// remedyFile is the record of the remedies of this node, remedyLock the lock of the process that
// carries one out.
const (
	remedyFile = "remedies"
	remedyLock = "remedy.lock"
)

// Remedies returns the record of the remedies of this node.
func Remedies(n *Node) (r remedy.Record, err error) {
	const what = "read the record of remedies"
	q := &wire.Request{Op: wire.OpRecall, Name: remedyFile, Line: what}
	resp, err := n.Pool.Call(context.WithoutCancel(n.Ctx), AsideLane, q, n.Budget.Within(session.Record, time.Now())).AnswerTo(what)
	if err != nil {
		return r, err
	}
	for _, rec := range resp.Records {
		switch {
		case rec.Name != remedyFile:
		case rec.Err != "":
			return r, fmt.Errorf("%s: %s", what, rec.Err)
		default:
			return remedy.Parse(rec.Data)
		}
	}
	return remedy.NewRecord(), nil
}

// KeepRemedies replaces the record, on the disk, since a remedy can cut the power. If the disk cannot be
// written, and the record need not be there, a spare directory has it.
func KeepRemedies(n *Node, r remedy.Record, onDisk bool) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the record of remedies: %w", err)
	}
	for _, op := range []wire.Op{wire.OpFix, wire.OpKeep} {
		q := &wire.Request{Op: op, Name: remedyFile, Data: data, Whole: true, Line: "write the record of remedies"}
		if op == wire.OpFix {
			q.Line += " to the disk" // a write that hangs there is not one to the spare directory
		}
		_, err = n.Pool.Call(context.WithoutCancel(n.Ctx), AsideLane, q, session.Record).AnswerTo(q.Line)
		if err == nil || onDisk {
			break
		}
	}
	if errors.Is(err, run.ErrElsewhere) {
		n.Warn(err)
		return nil
	}
	return err
}

// ErrUnderRepair means that another process carries out a remedy on this node.
var ErrUnderRepair = errors.New("another process carries out a remedy on this node")

// BeginRepair takes the lock of remedies, and waits for it as long as wait; the end of the process
// releases it.
func BeginRepair(n *Node, wait time.Duration) error {
	holder, err := n.Pool.Lock(remedyLock, wait)
	switch {
	case err != nil:
		return fmt.Errorf("lock the remedies: %w", err)
	case holder != nil:
		return fmt.Errorf("%w: PID %d", ErrUnderRepair, holder.PID)
	}
	return nil
}

// HoldRuns keeps health checks from starting, once the present one has ended: they would open the GPUs.
func HoldRuns(n *Node) (release func(), err error) {
	holder, err := n.Pool.Lock(RunLock, session.Record+time.Minute)
	switch {
	case err != nil:
		return nil, fmt.Errorf("lock the health checks: %w", err)
	case holder != nil:
		return nil, fmt.Errorf("a health check runs for %s: PID %d", holder.Age.Round(time.Second), holder.PID)
	}
	return sync.OnceFunc(func() { n.Pool.Unlock(RunLock) }), nil
}

// NoteGPUReset records a reset of GPUs, by UUID or PCI address, for check_gpu_xid.
func NoteGPUReset(n *Node, gpus []string) error {
	_, err := n.AskAbout(&wire.Request{Op: wire.OpAsk, Name: wire.AskReset, Args: gpus, Line: "record the reset of the GPUs"})
	return err
}

// GPUHolders returns the processes that have a device of NVIDIA open: "4711 (python)".
func GPUHolders(n *Node) ([]string, error) {
	resp, err := n.AskAbout(&wire.Request{Op: wire.OpAsk, Name: wire.AskHolders, Line: "list the processes on the GPUs"})
	if err != nil {
		return nil, err
	}
	return resp.Names, nil
}
