package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
)

// silenceFile is the record of the faults that persons have accepted on this node.
const silenceFile = "silence"

// AsideLane is the worker that reads records while checks are running. The checks of the local lane
// need the local worker.
const AsideLane checks.Lane = "jobs"

// accepted is what a run knows about accepted faults. It is read at the first failure.
type accepted struct {
	read    bool
	list    []checks.Silence
	present []checks.Device // nil: unknown
}

// Silence returns findings of a line with each failure that a person has accepted made a warning. A
// run without failures reads nothing. Without the record a failure stays a failure.
func (n *Node) Silence(list []checks.Finding, line string) []checks.Finding {
	if checks.Worst(list) < checks.Fail || n.Set.Past == "" {
		return list
	}
	if a := &n.accepted; !a.read {
		a.read = true
		var err error
		if a.list, err = n.Silences(); err == nil && len(a.list) > 0 {
			a.present, err = n.Parts()
		}
		if err != nil {
			n.Warn(err)
		}
	}
	if len(n.accepted.list) == 0 {
		return list
	}
	return session.Silence(list, line, n.accepted.list, n.accepted.present, time.Now())
}

// Silences returns the faults that persons have accepted on this node.
func (n *Node) Silences() (list []checks.Silence, err error) {
	list, _, err = n.readSilences()
	return list, err
}

// readSilences reads the record. silent: it does not answer, and this is a copy.
func (n *Node) readSilences() (list []checks.Silence, silent bool, err error) {
	const what = "read the record of silenced faults"
	q := &wire.Request{Op: wire.OpRecall, Name: silenceFile, Line: what}
	resp, err := n.Pool.Call(n.Ctx, AsideLane, q, n.Budget.Within(session.Record, time.Now())).AnswerTo(what)
	if err != nil {
		return nil, false, err
	}
	for _, r := range resp.Records {
		switch {
		case r.Name != silenceFile:
			continue
		case r.Err != "":
			return nil, false, fmt.Errorf("%s: %s", what, r.Err)
		case json.Unmarshal(r.Data, &list) != nil:
			return nil, false, errors.New("the record of silenced faults is damaged: every failure counts; remove silence.json and silence the faults again")
		}
	}
	return list, resp.Kind == wire.Silent, nil
}

// silenceLock is the lock of the record while a process changes it.
const silenceLock = "silence.lock"

// ChangeSilences replaces the record by what change makes of it. No other process changes it meanwhile.
// Without a state directory, which has the lock, only one can.
func (n *Node) ChangeSilences(change func([]checks.Silence) ([]checks.Silence, error)) error {
	if holder, err := n.Pool.Lock(silenceLock, session.Record); err == nil {
		if holder != nil {
			return fmt.Errorf("write the record of silenced faults: process %d changes it", holder.PID)
		}
		defer n.Pool.Unlock(silenceLock)
	}
	list, silent, err := n.readSilences()
	if err == nil && silent {
		err = fmt.Errorf("write the record of silenced faults: %w", run.ErrSilent)
	}
	if err != nil {
		return err
	}
	if list, err = change(list); err != nil {
		return err
	}
	return n.keepSilences(list)
}

func (n *Node) keepSilences(list []checks.Silence) error {
	if list == nil {
		list = []checks.Silence{}
	}
	data, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("write the record of silenced faults: %w", err)
	}
	q := &wire.Request{Op: wire.OpKeep, Name: silenceFile, Data: data, Line: "write the record of silenced faults"}
	if _, err = n.Pool.Call(n.Ctx, AsideLane, q, session.Record).AnswerTo(q.Line); errors.Is(err, run.ErrElsewhere) {
		n.Warn(err)
		return nil
	}
	return err
}

// EndGone ends the silences of a finding of a line that is gone.
func (n *Node) EndGone(code, line string, device checks.Device) error {
	return n.ChangeSilences(func(list []checks.Silence) ([]checks.Silence, error) {
		stay, _ := session.GoneSilences(list, code, line, device)
		return stay, nil
	})
}

// Parts lists GPUs, adapters and disks with their identities.
func (n *Node) Parts() ([]checks.Device, error) {
	list, _, err := n.listParts("")
	return list, err
}

// PastParts lists the GPUs that earlier runs have read: in this boot, and those that they have read only before it.
func (n *Node) PastParts() (list, before []checks.Device, err error) {
	return n.listParts(wire.PastParts)
}

func (n *Node) listParts(of string) (list, before []checks.Device, err error) {
	const what = "list the devices of the node"
	resp, err := n.Pool.Call(n.Ctx, AsideLane, &wire.Request{Op: wire.OpParts, Name: of, Line: what}, n.Budget.Within(session.Record, time.Now())).AnswerTo(what)
	if err != nil {
		return nil, nil, err
	}
	return append([]checks.Device{}, resp.Devices...), resp.Before, nil
}
